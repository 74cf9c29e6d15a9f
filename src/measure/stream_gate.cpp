#include "measure/stream_gate.h"

#include <atomic>

namespace attnbench {

StreamGate::StreamGate(Runtime& runtime, const Stream& stream)
    : runtime_(runtime),
      stream_(stream),
      word_(static_cast<std::uint32_t*>(runtime.allocate_pinned(sizeof(std::uint32_t)))),
      opener_([this] { open_when_forgotten(); }) {
  set_word(0);
}

StreamGate::~StreamGate() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    set_word(round_);
  }
  changed_.notify_all();
  opener_.join();
  runtime_.release_pinned(word_);
}

void StreamGate::close() {
  const std::lock_guard lock(mutex_);
  ++round_;
  if (!runtime_.hold(stream_.handle(), word_, round_)) return;
  closed_ = true;
  changed_.notify_all();
}

void StreamGate::open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  set_word(round_);
  changed_.notify_all();
}

void StreamGate::set_word(std::uint32_t value) {
  std::atomic_ref(*word_).store(value, std::memory_order_release);
}

void StreamGate::open_when_forgotten() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return closed_ || ending_; });
    const std::uint32_t round = round_;
    changed_.wait_for(lock, kLongest, [&] { return !closed_ || ending_ || round_ != round; });
    if (closed_ && round_ == round) {
      closed_ = false;
      set_word(round_);
    }
  }
}

}  // namespace attnbench
