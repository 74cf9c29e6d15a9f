#include "core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace attnbench {
namespace {

/// Why a variable of the process: drawing, storing and comparing are functions of their tensors
/// alone, called from many places, and the number of threads never changes what they return.
std::atomic<int> chunk_threads{0};

}  // namespace

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_chunk_threads(int num_threads) { chunk_threads = num_threads; }

void for_each_chunk(std::int64_t count, std::int64_t chunk,
                    const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t chunks = (count - 1) / chunk + 1;
  const int wanted = chunk_threads > 0 ? chunk_threads.load() : available_cores();
  const auto threads = static_cast<int>(std::min<std::int64_t>(wanted, chunks));
  ThreadPool(threads).parallel_for(chunks, [&](std::int64_t index, int) {
    body(index * chunk, std::min(count, (index + 1) * chunk));
  });
}

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  std::uint64_t generation = 0;  // of the loop that workers are to run
  int running = 0;               // workers that have not finished it
  bool stopping = false;
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::int64_t count = 0;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void work(int thread) {
    try {
      for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i, thread);
    } catch (...) {
      next.store(count);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void worker_loop(int thread) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        start.wait(lock, [&] { return stopping || generation != seen; });
        if (stopping) return;
        seen = generation;
      }
      work(thread);
      const std::lock_guard lock(mutex);
      if (--running == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  const int total = num_threads > 0 ? num_threads : available_cores();
  for (int thread = 1; thread < total; ++thread) {
    state_->workers.emplace_back([this, thread] { state_->worker_loop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->start.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t count,
                              const std::function<void(std::int64_t, int)>& body) {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    state.body = &body;
    state.count = count;
    state.next.store(0);
    state.error = nullptr;
    state.running = static_cast<int>(state.workers.size());
    ++state.generation;
  }
  state.start.notify_all();
  state.work(0);
  std::unique_lock lock(state.mutex);
  state.done.wait(lock, [&] { return state.running == 0; });
  if (state.error) std::rethrow_exception(state.error);
}

}  // namespace attnbench
