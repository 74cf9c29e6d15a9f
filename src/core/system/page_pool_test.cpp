#include "core/system/page_pool.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "core/tensor.h"

namespace attnbench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool is_zero(const std::byte* begin, std::size_t size) {
  return std::all_of(begin, begin + size, [](std::byte b) { return b == std::byte{0}; });
}

TEST_CASE("a piece that was written and given back is taken again, and holds zeros") {
  PagePool pool(8 * kMiB);
  std::byte* const first = pool.take(2 * kMiB + 5);
  CHECK(is_zero(first, 2 * kMiB + 5));
  std::memset(first, 0x5A, 2 * kMiB + 5);
  pool.give_back(first, 2 * kMiB + 5);
  CHECK(pool.kept_bytes() >= 2 * kMiB + 5);
  std::byte* const second = pool.take(2 * kMiB + 1);  // the same number of pages
  CHECK(second == first);
  CHECK(pool.kept_bytes() == 0);
  CHECK(is_zero(second, 2 * kMiB + 5));
  pool.give_back(second, 2 * kMiB + 1);
}

TEST_CASE("a piece for one who writes all of it is not cleared") {
  PagePool pool(8 * kMiB);
  std::byte* const first = pool.take(2 * kMiB, PieceContents::kAny);
  std::memset(first, 0x5A, 2 * kMiB);
  pool.give_back(first, 2 * kMiB);
  std::byte* const second = pool.take(2 * kMiB, PieceContents::kAny);
  CHECK(second == first);
  CHECK(second[kMiB] == std::byte{0x5A});
  pool.give_back(second, 2 * kMiB);
  std::byte* const third = pool.take(2 * kMiB);
  CHECK(is_zero(third, 2 * kMiB));
  pool.give_back(third, 2 * kMiB);
}

TEST_CASE("what was not touched is not kept, as to clear it would take memory") {
  PagePool pool(64 * kMiB);
  std::byte* const piece = pool.take(32 * kMiB);
  piece[0] = std::byte{1};
  pool.give_back(piece, 32 * kMiB);
  CHECK(pool.kept_bytes() == 0);
}

TEST_CASE("no more than the limit is kept, and the longest-kept piece goes first") {
  PagePool pool(5 * kMiB);
  std::vector<std::byte*> pieces;
  for (const std::size_t size : {kMiB, 2 * kMiB, 3 * kMiB, 6 * kMiB}) {
    pieces.push_back(pool.take(size));
    std::memset(pieces.back(), 1, size);
  }
  pool.give_back(pieces[0], kMiB);
  pool.give_back(pieces[1], 2 * kMiB);
  CHECK(pool.kept_bytes() == 3 * kMiB);
  pool.give_back(pieces[2], 3 * kMiB);
  CHECK(pool.kept_bytes() == 5 * kMiB);
  pool.give_back(pieces[3], 6 * kMiB);  // larger than all that may be kept
  CHECK(pool.kept_bytes() == 5 * kMiB);
  std::byte* const again = pool.take(3 * kMiB);
  CHECK(again == pieces[2]);
  pool.give_back(again, 3 * kMiB);
}

TEST_CASE("threads that take and give back at the same time find zeros") {
  PagePool pool(16 * kMiB);
  std::vector<int> faults(4);
  std::vector<std::thread> threads;
  for (int& count : faults) {
    threads.emplace_back([&pool, &count] {
      for (int i = 0; i < 20; ++i) {
        std::byte* const piece = pool.take(kMiB);
        if (!is_zero(piece, kMiB)) ++count;
        std::memset(piece, 0xFF, kMiB);
        pool.give_back(piece, kMiB);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(faults == std::vector<int>(4, 0));
}

TEST_CASE("a child takes no piece of its parent's, whose pages it would have to copy") {
  PagePool pool(8 * kMiB);
  std::byte* const piece = pool.take(2 * kMiB);
  std::memset(piece, 1, 2 * kMiB);
  pool.give_back(piece, 2 * kMiB);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::byte* const own = pool.take(kMiB);
    _exit(pool.kept_bytes() == 0 && is_zero(own, kMiB) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(pool.kept_bytes() == 2 * kMiB);
}

TEST_CASE("a tensor in the place of one that is gone is zero-filled") {
  for (int round = 0; round < 3; ++round) {
    Tensor tensor(Dtype::kF32, {3, 1000, 1000});
    CHECK(is_zero(tensor.bytes(), tensor.size_bytes()));
    std::memset(tensor.bytes(), 0x77, tensor.size_bytes());
  }
}

}  // namespace
}  // namespace attnbench
