#include <doctest/doctest.h>

#include <string>

#include "core/error.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHasZones = false;  // the sanitizer itself finds such a write, and ends the program
#else
constexpr bool kHasZones = true;
#endif

std::string complaint(Ops& ops) {
  try {
    ops.synchronize();
  } catch (const Error& error) {
    return error.full_message();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "a write outside of a buffer of the CPU is found once, and names it and whose work it was") {
  if (!kHasZones) return;
  const auto ops = make_cpu_ops(1);
  const auto output = ops->allocate(100, "output");
  const auto lse = ops->allocate(64, "lse");
  CHECK(complaint(*ops) == "");
  CHECK(ops->stream_for("run() of MINE") == nullptr);
  output->as<char>()[100] = 0;
  CHECK(complaint(*ops) ==
        "E-INTERNAL: out-of-bounds write: output: 1 byte past its end was overwritten, the first "
        "at byte 100 of a buffer of 100 bytes; since the last check ran: run() of MINE");
  CHECK(complaint(*ops) == "");
  lse->as<char>()[-8] = 0;
  CHECK(complaint(*ops) ==
        "E-INTERNAL: out-of-bounds write: lse: 1 byte before its start was overwritten, the "
        "nearest at byte -8");
}

TEST_CASE("a read of one row behind a buffer of the CPU is an error that names it and how far") {
  if (!kHasZones) return;
  const auto ops = make_cpu_ops(1);
  const auto key = ops->allocate(1024, "key");
  const auto read = [&](std::ptrdiff_t at) {
    static_cast<void>(static_cast<const volatile char*>(key->data())[at]);
  };
  read(1023);
  CHECK(complaint(*ops) == "");
  ops->stream_for("run() of MINE");
  read(1024 + 12);
  CHECK(complaint(*ops) ==
        "E-INTERNAL: out-of-bounds access: reads past the end of 'key' (12 bytes behind it); since "
        "the last check ran: run() of MINE");
  CHECK(complaint(*ops) == "");
}

TEST_CASE("buffers of the CPU stand at the start of a mapping from when that is wanted") {
  if (!kHasZones) return;
  const auto ops = make_cpu_ops(1);
  CHECK_FALSE(ops->place_buffers(Placement::kAtEnd));
  CHECK(ops->place_buffers(Placement::kAtStart));
  const auto key = ops->allocate(1000, "key");
  CHECK_FALSE(ops->place_buffers(Placement::kUsual));
  const auto value = ops->allocate(1000, "value");
  static_cast<void>(static_cast<const volatile char*>(key->data())[-8]);
  static_cast<void>(static_cast<const volatile char*>(value->data())[-8]);
  CHECK(complaint(*ops) ==
        "E-INTERNAL: out-of-bounds access: reads before the start of 'key' (8 bytes before it)");
}

TEST_CASE("writing all of a buffer and poisoning it leaves its guard zones whole") {
  const auto ops = make_cpu_ops(1);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    const auto buffer = ops->allocate(size, "output");
    CHECK(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64 == 0);
    for (std::size_t i = 0; i < size; ++i) {
      CHECK(buffer->as<unsigned char>()[i] == 0xFF);
      buffer->as<unsigned char>()[i] = 0;
    }
    ops->poison(*buffer);
    CHECK(complaint(*ops) == "");
  }
}

TEST_CASE("others' work is announced before it is waited for") {
  const auto ops = make_cpu_ops(1);
  std::string heard;
  ops->on_wait([&](const std::string& work) { heard += work + ";"; });
  ops->stream_for("prepare() of MINE");
  ops->stream_for("run() of MINE");
  ops->stream_for("run() of MINE");
  CHECK(heard == "prepare() of MINE;run() of MINE;");
}

}  // namespace attnbench
