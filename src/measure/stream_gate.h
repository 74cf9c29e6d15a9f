// Holds a stream until the host has queued what it wants to be timed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "gpu/runtime.h"
#include "gpu/stream.h"

namespace attnbench {

/// Work queued between close() and open() starts only at open(). A host that cannot go on because
/// the device's queue is full would wait for ever, so the gate opens by itself after a moment. On a
/// device that cannot wait for a word of memory the gate is always open.
class StreamGate {
 public:
  /// How long it stays closed at most: much longer than the launches of one sample take, short
  /// against the time limits of a case.
  static constexpr std::chrono::milliseconds kLongest{250};

  StreamGate(Runtime& runtime, const Stream& stream);
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  void close();
  void open();

 private:
  void open_when_forgotten();
  void set_word(std::uint32_t value);

  Runtime& runtime_;
  const Stream& stream_;
  std::uint32_t* word_;  // pinned; the device waits until it is the number of the round
  std::uint32_t round_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool ending_ = false;
  std::thread opener_;
};

}  // namespace attnbench
