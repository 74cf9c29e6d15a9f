// Threads for the CPU operations and the reference: one loop shape, dynamic scheduling. Whatever
// runs in such a loop must give the same result on any number of threads: each index writes its own
// elements, and no sum goes across indices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace attnbench {

/// Cores this process may use (affinity mask honoured), at least 1.
int available_cores();

/// Where threads that are on `cores` should go to be on one each: those that share one with a
/// thread before them to one of `allowed` that has none, while there are any.
std::vector<int> distinct_cores(std::vector<int> cores, const std::vector<int>& allowed);

/// Threads of every for_each_chunk() and convert() of the process from here on; 0 = all cores.
void set_chunk_threads(int num_threads);

/// Calls body(begin, end) for disjoint ranges of at most `chunk` items that cover [0, count), on
/// several threads. The first exception of a body is thrown again here. May be called from within a
/// body of its own or of a ThreadPool.
void for_each_chunk(std::int64_t count, std::int64_t chunk,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Calls body(index, thread) for every index in [0, count) on `num_threads` threads (0 = all
/// cores), each thread taking the next index when it is free, as ThreadPool does, but on threads
/// that are kept for the next such loop. May be called from within a body.
void for_each_index(std::int64_t count, int num_threads,
                    const std::function<void(std::int64_t index, int thread)>& body);

/// Worker threads that stay alive between loops, so that a loop of some microseconds can be timed.
class ThreadPool {
 public:
  /// num_threads counts the calling thread; 0 = available_cores().
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// For a loop that is timed and follows at once: wakes all threads and puts each on a core of its
  /// own, where there are as many cores. From here on threads that are done wait without sleeping,
  /// for up to a millisecond, until one of them waited in vain for so long. Why: to wake a sleeping
  /// thread costs as much as a short loop, more on a virtual machine, and it may wake on the core
  /// of another thread of the loop, while a core is free. Not for more threads than free cores,
  /// which would take them from each other.
  void settle();

  /// Calls body(index, thread) once for every index in [0, count), thread in [0, num_threads), each
  /// thread taking the next index when it is free. Returns when all are done; the first exception
  /// of a body is rethrown here. Not reentrant.
  void parallel_for(std::int64_t count,
                    const std::function<void(std::int64_t index, int thread)>& body) {
    parallel_for(count, num_threads(), body);
  }
  /// The same on at most `most_threads` of its threads.
  void parallel_for(std::int64_t count, int most_threads,
                    const std::function<void(std::int64_t index, int thread)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attnbench
