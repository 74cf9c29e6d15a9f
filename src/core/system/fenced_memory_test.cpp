#include "core/system/fenced_memory.h"

#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

namespace attnbench {
namespace {

#if !defined(__SANITIZE_ADDRESS__)

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 64;

/// A read that the compiler keeps.
unsigned read(const std::byte* address) {
  return std::to_integer<unsigned>(*static_cast<const volatile std::byte*>(address));
}

TEST_CASE("a read one byte behind the end is named with its distance and gets NaN bytes") {
  FencedMemory memory(1024, kAlignment, Placement::kAtEnd);
  CHECK(memory.take_accesses("key") == "");
  CHECK(read(memory.data() + 1023) < 256);
  CHECK(memory.take_accesses("key") == "");
  const std::byte* behind = memory.data() + 1024;
  CHECK(read(behind) == guard_byte(reinterpret_cast<std::uintptr_t>(behind)));
  CHECK(memory.take_accesses("key") == "reads past the end of 'key' (0 bytes behind it)");
}

TEST_CASE("what was told once is told again only when it is done again") {
  FencedMemory memory(64, kAlignment, Placement::kAtEnd);
  for (int i = 0; i < 2; ++i) {
    read(memory.data() + 76);
    CHECK(memory.take_accesses("key") == "reads past the end of 'key' (12 bytes behind it)");
    CHECK(memory.take_accesses("key") == "");
  }
}

TEST_CASE("writes are found behind the end, before the start, next to it and far away") {
  for (const Placement placement : {Placement::kAtEnd, Placement::kAtStart}) {
    for (const std::ptrdiff_t distance : {0, 1, 8192, 65536, 1 << 20}) {
      FencedMemory memory(256, kAlignment, placement);
      memory.data()[256 + distance] = std::byte{0};
      CHECK(memory.take_accesses("output") ==
            fmt::format("output: 1 byte past its end was overwritten, the first at byte {} of a "
                        "buffer of 256 bytes",
                        256 + distance));
      memory.data()[-1 - distance] = std::byte{0};
      CHECK(memory.take_accesses("output") ==
            fmt::format("output: 1 byte before its start was overwritten, the nearest at byte -{}",
                        1 + distance));
      CHECK(memory.take_accesses("output") == "");
    }
  }
}

TEST_CASE("a write of the very bytes that a fence gets is a write all the same") {
  FencedMemory memory(64, kAlignment, Placement::kAtEnd);
  std::byte* behind = memory.data() + 64;
  *behind = std::byte{guard_byte(reinterpret_cast<std::uintptr_t>(behind))};
  const std::string found = memory.take_accesses("lse");
#if defined(__x86_64__)
  CHECK(found == "writes past the end of 'lse' (0 bytes behind it)");
#else
  CHECK(found == "reads or writes past the end of 'lse' (0 bytes behind it)");
#endif
}

TEST_CASE("a read before the start is seen at the start of a mapping, in any thread") {
  FencedMemory memory(3 * kPage, kAlignment, Placement::kAtStart);
  CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kPage == 0);
  std::thread([&] { read(memory.data() - 4); }).join();
  CHECK(memory.take_accesses("query") == "reads before the start of 'query' (4 bytes before it)");
  CHECK(memory.take_accesses("query") == "");
}

TEST_CASE("the payload is aligned, and no more than that is left between its end and the fence") {
  for (const std::size_t size : {0, 1, 63, 64, 65, 100, 4095, 4096, 4097, 100000}) {
    FencedMemory memory(size, kAlignment, Placement::kAtEnd);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment == 0);
    std::memset(memory.data(), 1, size);
    const std::size_t edge = (size + kAlignment - 1) / kAlignment * kAlignment;
    // A whole vector that begins in the payload may be read.
    for (std::size_t i = size; i < edge; ++i) {
      CHECK(read(memory.data() + i) ==
            guard_byte(reinterpret_cast<std::uintptr_t>(memory.data()) + i));
    }
    CHECK(memory.take_accesses("value") == "");
    read(memory.data() + edge);
    CHECK(memory.take_accesses("value") != "");
  }
}

TEST_CASE("one of many buffers is named, and memory of those that are gone is nobody's") {
  FencedMemory first(64, kAlignment, Placement::kAtEnd);
  { const FencedMemory gone(64, kAlignment, Placement::kAtEnd); }
  FencedMemory last(64, kAlignment, Placement::kAtEnd);
  read(last.data() + 64);
  CHECK(first.take_accesses("first") == "");
  CHECK(last.take_accesses("last") != "");
}

/// Whether the system, asked to read a byte there for us, finds memory.
bool is_readable(const std::byte* address) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool found = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return found;
}

TEST_CASE(
    "memory that is gone cannot be touched, and is watched as any other when it comes again") {
  constexpr std::size_t kFar = 1 << 16;
  // Of a size with large pages too.
  for (const std::size_t size : {std::size_t{40000}, std::size_t{9} << 20}) {
    const std::byte* gone = nullptr;
    for (const Placement placement : {Placement::kAtEnd, Placement::kAtStart, Placement::kAtEnd}) {
      if (gone != nullptr) CHECK_FALSE(is_readable(gone));
      FencedMemory memory(size, kAlignment, placement);
      std::memset(memory.data(), 1, size);
      CHECK(is_readable(memory.data()));
      CHECK(memory.take_accesses("key") == "");
      read(memory.data() + size + kFar);
      read(memory.data() - kFar);
      CHECK(memory.take_accesses("key") ==
            fmt::format("reads past the end of 'key' ({} bytes behind it)", kFar));
      memory.data()[size + kFar] = std::byte{0};
      CHECK(memory.take_accesses("key").starts_with("key: 1 byte past its end was overwritten"));
      gone = memory.data();
    }
    CHECK_FALSE(is_readable(gone));
  }
}

TEST_CASE("what a child makes of memory that is gone does not reach its parent") {
  constexpr std::size_t kSize = 30000;
  { FencedMemory memory(kSize, kAlignment, Placement::kAtEnd); }
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    FencedMemory memory(kSize, kAlignment, Placement::kAtEnd);
    std::memset(memory.data(), 7, kSize);
    _exit(memory.take_accesses("key").empty() ? 0 : 1);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  FencedMemory memory(kSize, kAlignment, Placement::kAtEnd);
  std::memset(memory.data(), 1, kSize);
  CHECK(read(memory.data() + kSize - 1) == 1);
  CHECK(memory.take_accesses("key") == "");
}

#endif

template <typename Word>
bool all_nan(int exponent_bits, int mantissa_bits) {
  unsigned char zone[64];
  fill_zone(zone, 0);
  const std::uint64_t exponents = (std::uint64_t{1} << exponent_bits) - 1;
  const std::uint64_t mantissas = (std::uint64_t{1} << mantissa_bits) - 1;
  for (std::size_t i = 0; i < sizeof(zone); i += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, &zone[i], sizeof(word));
    const std::uint64_t bits = word;
    if (((bits >> mantissa_bits) & exponents) != exponents || (bits & mantissas) == 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a guard zone is NaN in every float type, at every place of it") {
  CHECK(all_nan<std::uint64_t>(11, 52));
  CHECK(all_nan<std::uint32_t>(8, 23));
  CHECK(all_nan<std::uint16_t>(8, 7));                                        // bfloat16
  CHECK(all_nan<std::uint16_t>(5, 10));                                       // float16
  CHECK(all_nan<std::uint8_t>(5, 2));                                         // e5m2
  for (std::size_t i = 0; i < 8; ++i) CHECK((guard_byte(i) & 0x7F) == 0x7F);  // e4m3
}

TEST_CASE("rows of NaN and of poison change a guard zone, wherever it begins") {
  for (std::size_t address = 0; address < 4; ++address) {
    for (const std::uint32_t written : {0xFFFFFFFFu, 0x7FFF7FFFu, 0x7FFFFFFFu, 0xFFC0FFC0u, 0u}) {
      unsigned char zone[32];
      fill_zone(zone, address);
      CHECK(describe_zone(zone, address, false, "output", 100) == "");
      std::memcpy(&zone[8 - address], &written, sizeof(written));  // aligned by its address
      CHECK(describe_zone(zone, address, false, "output", 100) != "");
    }
  }
}

}  // namespace attnbench
