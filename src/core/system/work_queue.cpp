#include "core/system/work_queue.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace attnbench {

struct WorkQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  int running = 0;
  bool stopping = false;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void work_loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !waiting.empty(); });
      if (stopping) return;
      const std::function<void()> work = std::move(waiting.front());
      waiting.pop_front();
      ++running;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      --running;
      if (thrown && !error) error = thrown;
      if (error) waiting.clear();
      changed.notify_all();
    }
  }
};

WorkQueue::WorkQueue(int num_threads) : state_(std::make_unique<State>()) {
  for (int thread = 0; thread < std::max(1, num_threads); ++thread) {
    state_->threads.emplace_back([this] { state_->work_loop(); });
  }
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int WorkQueue::num_threads() const { return static_cast<int>(state_->threads.size()); }

void WorkQueue::add(std::function<void()> work) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->error) return;
    state_->waiting.push_back(std::move(work));
  }
  state_->changed.notify_all();
}

void WorkQueue::finish() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.waiting.empty() && state.running == 0; });
  if (state.error) std::rethrow_exception(state.error);
}

}  // namespace attnbench
