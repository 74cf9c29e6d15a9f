#include "gpu/device_buffer.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "gpu/host_runtime_testing.h"

namespace attnbench {
namespace {

unsigned char* bytes_of(const DeviceBuffer& buffer) {
  return static_cast<unsigned char*>(buffer.data());
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a new buffer is poison, aligned, and its guard zones are whole") {
  HostRuntime runtime;
  const Stream stream(runtime);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    DeviceBuffer buffer(runtime, stream, size, "output");
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256 == 0);
    for (std::size_t i = 0; i < size; ++i) CHECK(bytes_of(buffer)[i] == 0xFF);
    CHECK(buffer.check_guards() == "");
  }
  CHECK(runtime.allocations.empty());
}

TEST_CASE("a byte written just past the end names the buffer and the place") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer buffer(runtime, stream, 100, "kv_cache");
  bytes_of(buffer)[100] = 0;
  CHECK(buffer.check_guards() ==
        "kv_cache: 1 byte past its end was overwritten, the first at byte 100 of a buffer of 100 "
        "bytes");
}

TEST_CASE("a byte written before the start, or at the far end of a zone, is found too") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer buffer(runtime, stream, 100, "lse");
  *(bytes_of(buffer) - 1) = 0;
  *(bytes_of(buffer) + 100 + kGuardBytes - 1) = 0;
  const std::string found = buffer.check_guards();
  CHECK(contains(found, "lse: 1 byte before its start was overwritten, the nearest at byte -1"));
  CHECK(contains(found, "; lse: 1 byte past its end"));
}

TEST_CASE("a broken zone is reported once, and poison does not touch the zones") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer buffer(runtime, stream, 64, "output");
  bytes_of(buffer)[64] = 0;
  CHECK(buffer.check_guards() != "");
  CHECK(buffer.check_guards() == "");
  bytes_of(buffer)[63] = 0;
  buffer.poison();
  CHECK(bytes_of(buffer)[63] == 0xFF);
  CHECK(buffer.check_guards() == "");
}

TEST_CASE("wide zones show a write far behind the end, and what poison and NaN leave there") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer buffer(runtime, stream, 1001, "output", Placement::kUsual, DeviceBuffer::kWideZone);
  for (const unsigned written : {0xFFFFu, 0x7FFFu, 0u}) {
    const unsigned row = written << 16 | written;
    std::memcpy(bytes_of(buffer) + 1001 + 65536, &row, sizeof(row));
    CHECK(contains(buffer.check_guards(), "overwritten, the first at byte 665"));
    CHECK(buffer.check_guards() == "");
  }
}

TEST_CASE(
    "a buffer stands at the end of a mapping, or at its start, and the rest of it is guarded") {
  HostRuntime runtime;
  const Stream stream(runtime);
  for (const std::size_t size : {std::size_t{1}, std::size_t{1000}, std::size_t{200000}}) {
    DeviceBuffer last(runtime, stream, size, "key", Placement::kAtEnd);
    DeviceBuffer first(runtime, stream, size, "value", Placement::kAtStart);
    for (const DeviceBuffer* buffer : {&last, &first}) {
      CHECK(reinterpret_cast<std::uintptr_t>(buffer->data()) % DeviceBuffer::kAlignment == 0);
      for (std::size_t i = 0; i < size; ++i) REQUIRE(bytes_of(*buffer)[i] == 0xFF);
    }
    CHECK(runtime.mappings.contains(first.data()));
    REQUIRE(runtime.mappings.size() == 2);
    for (const auto& [memory, mapping] : runtime.mappings) {
      if (memory == first.data()) continue;
      const auto* end = static_cast<unsigned char*>(memory) + mapping.size_bytes;
      CHECK(end >= bytes_of(last) + size);
      CHECK(end < bytes_of(last) + size + DeviceBuffer::kAlignment);
    }
    bytes_of(last)[-1] = 0;
    CHECK(contains(last.check_guards(), "key: 1 byte before its start"));
    bytes_of(first)[size] = 0;
    CHECK(contains(first.check_guards(), "value: 1 byte past its end"));
    CHECK(last.check_guards() + first.check_guards() == "");
  }
  CHECK(runtime.mappings.empty());
}

TEST_CASE("what lies beyond an edge is there, or is not, as one says") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer key(runtime, stream, 1000, "key", Placement::kAtStart);
  CHECK(runtime.mappings.at(key.data()).closed);
  key.set_closed(false);
  CHECK_FALSE(runtime.mappings.at(key.data()).closed);
  key.set_closed(true);
  CHECK(runtime.mappings.at(key.data()).closed);
}

TEST_CASE("no buffer stands at an edge where the driver maps no memory") {
  HostRuntime runtime;
  runtime.granule = 0;
  const Stream stream(runtime);
  CHECK_THROWS(DeviceBuffer(runtime, stream, 1000, "key", Placement::kAtEnd));
}

TEST_CASE("a buffer that does not fit is an E-CAPACITY that names it") {
  HostRuntime runtime;
  runtime.memory_limit = 10000;
  const Stream stream(runtime);
  try {
    DeviceBuffer buffer(runtime, stream, 9000, "partial output");
    FAIL("was allocated");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kCapacity);
    CHECK(contains(error.what(), "partial output: 9000 bytes"));
  }
}

}  // namespace attnbench
