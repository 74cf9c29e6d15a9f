// Loops on threads. Indices are handed out by one atomic counter, a chunk at a time, because rows
// of attention differ in length by orders of magnitude and equal shares would leave most cores
// idle. Nothing that is computed depends on which thread takes which index: results are the same
// bytes on any number of cores.
#include "core/system/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace attnbench {
namespace {

/// Why a variable of the process: drawing, storing and comparing are functions of their tensors
/// only, called from many places, and the number of threads never changes what they return.
std::atomic<int> chunk_threads{0};

/// Ascending; empty where they are not known.
std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

/// Moves the calling thread, and leaves it free to be moved on among `allowed`: other programs may
/// need that core more.
void move_to(int core, const std::vector<int>& allowed) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return;
  for (const int other : allowed) CPU_SET(other, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::vector<int> distinct_cores(std::vector<int> cores, const std::vector<int>& allowed) {
  const auto is_taken = [&](auto end, int core) {
    return std::find(cores.begin(), end, core) != end;
  };
  for (auto core = cores.begin(); core != cores.end(); ++core) {
    if (!is_taken(core, *core)) continue;
    const auto free = std::find_if(allowed.begin(), allowed.end(),
                                   [&](int other) { return !is_taken(cores.end(), other); });
    if (free != allowed.end()) *core = *free;
  }
  return cores;
}

namespace {

/// The threads of for_each_index(): to start them anew for each of the hundreds of tensors of a
/// case took as long as to copy those. Who finds them in use by another thread, or is one of them,
/// starts some of its own.
struct SharedPool {
  std::mutex mutex;
  ThreadPool* pool = nullptr;
  pid_t owner = 0;

  /// At least so many.
  ThreadPool& of(int num_threads) {
    // Why: a child has none of its parent's threads, and must not wait for their end.
    if (owner != getpid()) pool = nullptr;
    if (pool == nullptr || pool->num_threads() < num_threads) {
      delete pool;
      pool = nullptr;
      pool = new ThreadPool(std::max(num_threads, available_cores()));
      owner = getpid();
    }
    return *pool;
  }
};

/// Whether this thread holds the mutex: a body may come back.
thread_local bool in_shared_pool = false;

struct InSharedPool {
  InSharedPool() { in_shared_pool = true; }
  ~InSharedPool() { in_shared_pool = false; }
};

/// How many threads share the loop of for_each_index() that this one works on. A chunk loop in it
/// takes its share of the cores: sixteen loops of sixteen threads would start most of them in vain.
thread_local int threads_of_loop = 1;

/// While a body runs, which may throw.
struct InLoop {
  explicit InLoop(int threads) : before(std::exchange(threads_of_loop, threads)) {}
  ~InLoop() { threads_of_loop = before; }
  const int before;
};

/// Never destroyed: its threads sleep until the process ends.
SharedPool& shared_pool() {
  static auto* const shared = new SharedPool;
  return *shared;
}

}  // namespace

void set_chunk_threads(int num_threads) { chunk_threads = num_threads; }

void for_each_chunk(std::int64_t count, std::int64_t chunk,
                    const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t chunks = (count - 1) / chunk + 1;
  const int threads = chunk_threads > 0 ? chunk_threads.load() : available_cores();
  for_each_index(chunks, std::max(1, threads / threads_of_loop), [&](std::int64_t index, int) {
    body(index * chunk, std::min(count, (index + 1) * chunk));
  });
}

void for_each_index(std::int64_t count, int num_threads,
                    const std::function<void(std::int64_t, int)>& body) {
  const int wanted = num_threads > 0 ? num_threads : available_cores();
  const auto threads = static_cast<int>(std::min<std::int64_t>(wanted, count));
  if (threads <= 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  const int sharing = threads_of_loop * threads;
  const auto in_loop = [&](std::int64_t index, int thread) {
    const InLoop here(sharing);
    body(index, thread);
  };
  if (!in_shared_pool) {
    if (const std::unique_lock lock(shared_pool().mutex, std::try_to_lock); lock) {
      const InSharedPool here;
      return shared_pool().of(threads).parallel_for(count, threads, in_loop);
    }
  }
  ThreadPool(threads).parallel_for(count, in_loop);
}

struct ThreadPool::State {
  /// Called one by one, so that a short loop wakes no more than it needs. Why no condition
  /// variable: it calls any of those that wait, and glibc's has lost calls where several do (its
  /// bug 25847).
  struct Worker {
    std::atomic<std::uint32_t> calls{0};
    std::thread thread;

    void call() {
      ++calls;
      calls.notify_one();
    }
  };

  std::mutex mutex;
  std::condition_variable done;
  std::atomic<int> running{0};  // workers that have not finished the loop
  std::atomic<bool> stopping{false};
  std::atomic<bool> awake{false};  // who waits does so without sleeping
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::int64_t count = 0;
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::deque<Worker> workers;

  /// While the pool is awake, returns when `condition` holds; else, and after a while, at once.
  template <typename Condition>
  void wait_awake(const Condition& condition) {
    constexpr std::chrono::milliseconds kLongest{1};
    if (!awake) return;
    const auto end = std::chrono::steady_clock::now() + kLongest;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) {
        awake = false;
        return;
      }
#if defined(__x86_64__)
      __builtin_ia32_pause();  // leaves the core to a thread that shares it
#endif
    }
  }

  void work(int thread) {
    try {
      for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i, thread);
    } catch (...) {
      next.store(count);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void worker_loop(Worker& own, int thread) {
    for (std::uint32_t seen = 0;; ++seen) {
      wait_awake([&] { return own.calls != seen; });
      own.calls.wait(seen);
      if (stopping) return;
      work(thread);
      const std::lock_guard lock(mutex);
      if (--running == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  const int total = num_threads > 0 ? num_threads : available_cores();
  for (int thread = 1; thread < total; ++thread) {
    State::Worker& worker = state_->workers.emplace_back();
    worker.thread = std::thread([this, &worker, thread] { state_->worker_loop(worker, thread); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  for (State::Worker& worker : state_->workers) worker.call();
  for (State::Worker& worker : state_->workers) worker.thread.join();
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::settle() {
  const auto threads = static_cast<std::size_t>(num_threads());
  const std::vector<int> allowed = allowed_cores();
  if (threads == 1 || threads > allowed.size()) return;
  state_->awake = true;
  std::vector<int> cores(threads);
  std::atomic<std::size_t> arrived{0};
  parallel_for(num_threads(), [&](std::int64_t, int thread) {
    const auto own = static_cast<std::size_t>(thread);
    cores[own] = sched_getcpu();
    ++arrived;
    // Why: so no thread takes the index of another, and all know where the others are.
    while (arrived < threads) std::this_thread::yield();
    const int core = distinct_cores(cores, allowed)[own];
    if (core != cores[own]) move_to(core, allowed);
  });
}

void ThreadPool::parallel_for(std::int64_t count, int most_threads,
                              const std::function<void(std::int64_t, int)>& body) {
  State& state = *state_;
  // The calling thread takes indices too. To wake more than there are left costs time; those that
  // wait without sleeping would go to sleep if they had no part in it.
  const std::int64_t most = std::min<std::int64_t>(std::ssize(state.workers), most_threads - 1);
  const std::int64_t useful = state.awake ? most : count - 1;
  const auto others = static_cast<int>(std::clamp<std::int64_t>(useful, 0, most));
  // Nobody else looks at these before being called.
  state.body = &body;
  state.count = count;
  state.next.store(0);
  state.error = nullptr;
  state.running = others;
  for (int i = 0; i < others; ++i) state.workers[static_cast<std::size_t>(i)].call();
  state.work(0);
  const auto all_done = [&] { return state.running == 0; };
  state.wait_awake(all_done);
  std::unique_lock lock(state.mutex);
  state.done.wait(lock, all_done);
  if (state.error) std::rethrow_exception(state.error);
}

}  // namespace attnbench
