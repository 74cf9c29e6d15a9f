// Streams and events of a runtime, released with their objects.
#pragma once

#include "gpu/runtime.h"

namespace attnbench {

/// `runtime` must outlive it.
class Stream {
 public:
  explicit Stream(Runtime& runtime) : runtime_(runtime), handle_(runtime.create_stream()) {}
  ~Stream() { runtime_.release_stream(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  void synchronize() { runtime_.synchronize(handle_); }

 private:
  Runtime& runtime_;
  StreamHandle handle_;
};

/// A point in time of a stream. `runtime` must outlive it.
class Event {
 public:
  explicit Event(Runtime& runtime) : runtime_(runtime), handle_(runtime.create_event()) {}
  ~Event() { runtime_.release_event(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) { runtime_.record(handle_, stream.handle()); }
  /// What is queued on `stream` from now on waits for this point.
  void hold_back(const Stream& stream) { runtime_.wait_for(handle_, stream.handle()); }
  /// Waits for `last`.
  static double elapsed_us(const Event& first, const Event& last) {
    return first.runtime_.elapsed_us(first.handle_, last.handle_);
  }

 private:
  Runtime& runtime_;
  EventHandle handle_;
};

}  // namespace attnbench
