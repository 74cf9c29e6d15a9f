#include "core/system/page_swap.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "core/system/fenced_memory.h"

namespace attnbench {

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a reader sees none of the new contents, or all of them") {
  constexpr std::size_t kBytes = 3'000'001;
  FencedMemory memory(kBytes, 64, Placement::kAtEnd);
  std::memset(memory.data(), 0, kBytes);
  auto* const first = reinterpret_cast<volatile unsigned char*>(memory.data());
  auto* const last = first + kBytes - 1;
  std::atomic<int> rounds{0}, torn{0};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    unsigned char seen = 0;
    while (!stop) {
      const unsigned char now = *first;
      if (now == seen) continue;
      // The last byte is of this round, or of one that has begun since.
      if (static_cast<unsigned char>(*last - now) > 8) ++torn;
      seen = now;
      ++rounds;
    }
  });
  for (unsigned char round = 1; round <= 50; ++round) {
    PageSwap swap(memory.data(), kBytes);
    // From the front, slowly enough for a reader to come in between.
    for (std::size_t begin = 0; begin < kBytes; begin += 100'000) {
      std::memset(static_cast<std::byte*>(swap.room()) + begin, round,
                  std::min<std::size_t>(100'000, kBytes - begin));
    }
    CHECK(*first == round - 1);
    swap.show();
    CHECK(*first == round);
    CHECK(*last == round);
  }
  stop = true;
  reader.join();
  CHECK(torn == 0);
  CHECK(memory.take_accesses("memory") == "");
}
#endif

TEST_CASE("what lies beside the target on its pages stays, and guard zones are still seen") {
  FencedMemory memory(10'000, 64, Placement::kAtEnd);
  std::memset(memory.data(), 1, 10'000);
  std::byte* const target = memory.data() + 4'500;
  REQUIRE(PageSwap::is_possible(target, 1'000));
  PageSwap swap(target, 1'000);
  std::memset(swap.room(), 2, 1'000);
  swap.show();
  for (int i = 0; i < 10'000; ++i) {
    const bool is_new = i >= 4'500 && i < 5'500;
    REQUIRE(static_cast<int>(memory.data()[i]) == (is_new ? 2 : 1));
  }
  CHECK(memory.take_accesses("memory") == "");
  const std::byte kept = memory.data()[-1];
  memory.data()[-1] = std::byte{0};
  CHECK(kept != std::byte{0});
  CHECK(memory.take_accesses("memory").find("memory: 1 byte") != std::string::npos);
}

TEST_CASE("contents that are never shown change nothing") {
  FencedMemory memory(100, 64, Placement::kAtEnd);
  std::memset(memory.data(), 1, 100);
  {
    PageSwap swap(memory.data(), 100);
    std::memset(swap.room(), 2, 100);
  }
  CHECK(memory.data()[0] == std::byte{1});
}

TEST_CASE("only memory with fences of its own is possible, and no byte beyond it") {
  FencedMemory memory(8'192, 64, Placement::kAtStart);
  CHECK(PageSwap::is_possible(memory.data(), 8'192));
  CHECK_FALSE(PageSwap::is_possible(memory.data(), 0));
  CHECK_FALSE(PageSwap::is_possible(memory.data(), 8'193 + kGuardBytes));
  CHECK_FALSE(PageSwap::is_possible(memory.data() - 1, 8));
  std::vector<char> others(100);
  CHECK_FALSE(PageSwap::is_possible(others.data(), others.size()));
}

}  // namespace attnbench
