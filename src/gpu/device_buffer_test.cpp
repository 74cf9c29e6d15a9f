#include "gpu/device_buffer.h"

#include <doctest/doctest.h>

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
        "kv_cache: 1 bytes past its end were overwritten, the first at byte 100 of 100");
}

TEST_CASE("a byte written before the start, or at the far end of a zone, is found too") {
  HostRuntime runtime;
  const Stream stream(runtime);
  DeviceBuffer buffer(runtime, stream, 100, "lse");
  *(bytes_of(buffer) - 1) = 0;
  *(bytes_of(buffer) + 100 + kGuardBytes - 1) = 0xFF;
  const std::string found = buffer.check_guards();
  CHECK(contains(found, "lse: 1 bytes before its start were overwritten, the nearest 1 before it"));
  CHECK(contains(found, "; lse: 1 bytes past its end"));
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
