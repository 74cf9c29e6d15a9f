#include "core/system/parallel.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace attnbench {

TEST_CASE("every index is visited exactly once by a thread of the pool") {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::atomic<int>> visits(101);
    std::atomic<bool> thread_in_range{true};
    pool.parallel_for(101, [&](std::int64_t i, int thread) {
      visits[static_cast<std::size_t>(i)]++;
      if (thread < 0 || thread >= 3) thread_in_range = false;
    });
    for (const auto& count : visits) CHECK(count == 1);
    CHECK(thread_in_range);
  }
}

TEST_CASE("an exception of the body reaches the caller and the pool goes on working") {
  ThreadPool pool(2);
  const auto bad = [](std::int64_t i, int) {
    if (i == 5) throw std::runtime_error("five");
  };
  CHECK_THROWS_WITH(pool.parallel_for(10, bad), "five");
  std::atomic<int> sum{0};
  pool.parallel_for(4, [&](std::int64_t i, int) { sum += static_cast<int>(i); });
  CHECK(sum == 6);
}

TEST_CASE("loops with fewer indices than threads are done by as many threads as they have") {
  ThreadPool pool(8);
  for (int round = 0; round < 2'000; ++round) {
    const std::int64_t count = round % 9;
    std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
    // At least two of them at once, so that a thread that is not woken would be missed.
    std::atomic<int> arrived{0};
    pool.parallel_for(count, [&](std::int64_t i, int) {
      visits[static_cast<std::size_t>(i)]++;
      for (++arrived; arrived < count;) std::this_thread::yield();
    });
    const bool all_once =
        std::all_of(visits.begin(), visits.end(), [](const auto& visited) { return visited == 1; });
    if (!all_once) FAIL("round " << round);
  }
}

namespace {

std::int64_t sum_in_chunks(std::int64_t count) {
  std::atomic<std::int64_t> sum{0};
  for_each_chunk(count, 3, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

}  // namespace

TEST_CASE("chunks are worked on within chunks, by several threads at once, and in a child") {
  CHECK(sum_in_chunks(100) == 4950);
  std::atomic<int> wrong{0};
  for_each_chunk(20, 1, [&](std::int64_t, std::int64_t) { wrong += sum_in_chunks(50) != 1225; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) wrong += sum_in_chunks(100) != 4950;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  const pid_t child = fork();
  if (child == 0) _exit(sum_in_chunks(100) == 4950 && sum_in_chunks(7) == 21 ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a chunk loop within a loop has its share of the threads") {
  constexpr int kThreads = 4;
  set_chunk_threads(kThreads);
  const auto threads_of_chunks = [] {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    for_each_chunk(400, 1, [&](std::int64_t, std::int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    return threads.size();
  };
  CHECK(threads_of_chunks() > 1);
  for_each_index(2 * kThreads, kThreads, [&](std::int64_t, int) {
    const std::size_t threads = threads_of_chunks();
    if (threads != 1) throw std::runtime_error("a thread for nothing");
  });
  for_each_index(2, 2, [&](std::int64_t, int) {
    if (threads_of_chunks() > 2) throw std::runtime_error("more than half of the threads");
  });
  CHECK(threads_of_chunks() > 1);
  set_chunk_threads(0);
}

TEST_CASE("an empty loop calls nothing") {
  ThreadPool pool(2);
  pool.parallel_for(0, [](std::int64_t, int) { FAIL("called"); });
}

TEST_CASE("threads that share a core go to free ones, the others stay") {
  using Cores = std::vector<int>;
  CHECK(distinct_cores({4, 2}, {0, 2, 4}) == Cores{4, 2});
  CHECK(distinct_cores({2, 2, 0}, {0, 2, 4}) == Cores{2, 4, 0});
  CHECK(distinct_cores({0, 0, 0, 0}, {0, 1, 2, 3}) == Cores{0, 1, 2, 3});
  CHECK(distinct_cores({1, 1, 1}, {0, 1}) == Cores{1, 0, 1});
}

TEST_CASE("a settled pool runs loops like any other, also after it was idle") {
  for (const int threads : {1, 2, 3, 64}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 4; ++round) {
      if (round != 2) pool.settle();
      std::atomic<int> sum{0};
      for (int loop = 0; loop < 20; ++loop) {
        pool.parallel_for(5, [&](std::int64_t i, int) { sum += static_cast<int>(i); });
      }
      CHECK(sum == 200);
      // Longer than threads stay awake.
      if (round > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  }
}

TEST_CASE("threads that are moved to a core of their own may use all cores again") {
  const int cores = available_cores();
  if (cores < 2) return;
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
  cpu_set_t first;
  CPU_ZERO(&first);
  for (int core = 0; CPU_COUNT(&first) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &first);
  }
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    std::atomic<bool> free{true};
    pool.parallel_for(2, [&](std::int64_t, int) {
      if (available_cores() != cores) free = false;
      // Both on one core, from which they start to settle.
      sched_setaffinity(0, sizeof(first), &first);
      sched_setaffinity(0, sizeof(all), &all);
      for (++arrived; arrived < 2;) std::this_thread::yield();
    });
    CHECK(free);
    pool.settle();
  }
}

}  // namespace attnbench
