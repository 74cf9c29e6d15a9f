#include "core/system/work_queue.h"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace attnbench {

TEST_CASE("one thread does the work in the order in which it was added") {
  WorkQueue queue(1);
  std::vector<int> done;
  for (int i = 0; i < 50; ++i) queue.add([&done, i] { done.push_back(i); });
  queue.finish();
  REQUIRE(done.size() == 50);
  for (int i = 0; i < 50; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
  queue.add([&] { done.push_back(50); });
  queue.finish();
  CHECK(done.back() == 50);
}

TEST_CASE("several threads work at the same time, and while more is added") {
  WorkQueue queue(2);
  CHECK(queue.num_threads() == 2);
  // Each ends only after the other has begun.
  std::promise<void> first, second;
  queue.add([&] {
    first.set_value();
    second.get_future().wait();
  });
  first.get_future().wait();
  queue.add([&] { second.set_value(); });
  queue.finish();
}

TEST_CASE("work that throws ends the queue, and finish() says so") {
  WorkQueue queue(1);
  std::atomic<int> done{0};
  std::promise<void> all_added;
  queue.add([&] {
    all_added.get_future().wait();
    throw std::runtime_error("broken");
  });
  queue.add([&] { ++done; });
  all_added.set_value();
  CHECK_THROWS_WITH(queue.finish(), "broken");
  queue.add([&] { ++done; });
  CHECK_THROWS_WITH(queue.finish(), "broken");
  CHECK(done == 0);
}

TEST_CASE("a queue that goes away waits for the work that was begun") {
  std::atomic<int> done{0};
  std::promise<void> begun;
  {
    WorkQueue queue(1);
    queue.add([&] {
      begun.set_value();
      // So that the queue is gone first if it does not wait.
      for (int i = 0; i < 100; ++i) std::this_thread::yield();
      ++done;
    });
    begun.get_future().wait();
  }
  CHECK(done == 1);
}
}  // namespace attnbench
