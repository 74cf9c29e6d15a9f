#include "gpu/tensor_map.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/host_runtime_testing.h"

namespace attnbench {
namespace {

alignas(128) std::array<std::byte, 4096> memory;

/// [3, 10, 40] of bf16 with rows of 48, in boxes of [1, 8, 32].
TensorMap planes() {
  TensorMap map;
  map.data = memory.data();
  map.rank = 3;
  map.extents = {40, 10, 3};
  map.strides = {2, 96, 960};
  map.box = {32, 8, 1};
  map.swizzle = TensorSwizzle::k64Bytes;
  return map;
}

/// What the driver's function was called with.
struct Call {
  int data_type = -1;
  std::uint32_t rank = 0;
  const void* address = nullptr;
  std::vector<std::uint64_t> extents;
  std::vector<std::uint64_t> strides;
  std::vector<std::uint32_t> box;
  std::vector<std::uint32_t> element_strides;
  int swizzle = -1;
  int promotion = -1;
};
Call last_call;
int status_of_driver = 0;

int encode(void* map, int data_type, std::uint32_t rank, void* address,
           const std::uint64_t* extents, const std::uint64_t* strides, const std::uint32_t* box,
           const std::uint32_t* element_strides, int interleave, int swizzle, int promotion,
           int out_of_bounds_fill) {
  last_call = {data_type,
               rank,
               address,
               {extents, extents + rank},
               {strides, strides + rank - 1},
               {box, box + rank},
               {element_strides, element_strides + rank},
               swizzle,
               promotion};
  CHECK(interleave == 0);
  CHECK(out_of_bounds_fill == 0);
  std::memset(map, 0x5A, 128);
  return status_of_driver;
}

void add_driver(HostRuntime& runtime) {
  runtime.driver_functions["cuTensorMapEncodeTiled"] = reinterpret_cast<void*>(&encode);
}

std::string message_of(Runtime& runtime, const TensorMap& map, ErrorKind kind) {
  try {
    encode_tensor_map(runtime, map);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("a tensor map reaches the driver with the strides of all dimensions but the first") {
  HostRuntime runtime;
  add_driver(runtime);
  const EncodedTensorMap encoded = encode_tensor_map(runtime, planes());
  CHECK(encoded.bytes[0] == std::byte{0x5A});
  CHECK(encoded.bytes[127] == std::byte{0x5A});
  CHECK(last_call.data_type == 9);
  CHECK(last_call.rank == 3);
  CHECK(last_call.address == memory.data());
  CHECK(last_call.extents == std::vector<std::uint64_t>{40, 10, 3});
  CHECK(last_call.strides == std::vector<std::uint64_t>{96, 960});
  CHECK(last_call.box == std::vector<std::uint32_t>{32, 8, 1});
  CHECK(last_call.element_strides == std::vector<std::uint32_t>{1, 1, 1});
  CHECK(last_call.swizzle == 2);
  CHECK(last_call.promotion == 2);
}

TEST_CASE("8-bit numbers of every kind are moved as bytes") {
  for (const Dtype dtype : {Dtype::kE4M3, Dtype::kE5M2, Dtype::kI8, Dtype::kU8}) {
    CHECK(tensor_data_type(dtype) == 0);
  }
}

TEST_CASE("a driver without tensor maps, and one that refuses the map, are errors of CUDA") {
  HostRuntime runtime;
  add_driver(runtime);
  status_of_driver = 1;
  CHECK(message_of(runtime, planes(), ErrorKind::kCuda) == "cuTensorMapEncodeTiled: status 1");
  status_of_driver = 0;
  runtime.driver_functions.clear();
  CHECK(message_of(runtime, planes(), ErrorKind::kCuda)
            .find("cuTensorMapEncodeTiled is not in the driver") == 0);
}

TEST_CASE("a box counts the bytes of all its elements") { CHECK(planes().box_bytes() == 512); }

TEST_CASE("what the copy engine cannot take is refused with the reason, before the driver") {
  CHECK(tensor_map_misfit(planes()).empty());
  const auto reason = [](auto change) {
    TensorMap map = planes();
    change(map);
    return tensor_map_misfit(map);
  };
  CHECK(reason([](TensorMap& m) { m.rank = 0; }) == "0 dimensions, 1 to 5 are possible");
  CHECK(reason([](TensorMap& m) { m.rank = 6; }) == "6 dimensions, 1 to 5 are possible");
  CHECK(reason([](TensorMap& m) { m.data = memory.data() + 8; }) ==
        "memory that is not on a multiple of 16 bytes");
  CHECK(reason([](TensorMap& m) { m.extents[1] = 0; }) ==
        "0 elements in dimension 1, 1 to 2^32 are possible");
  CHECK(reason([](TensorMap& m) { m.strides[1] = 90; }) ==
        "dimension 1 has a stride of 90 bytes, a multiple of 16 below 2^40 is needed");
  CHECK(reason([](TensorMap& m) {
          m.strides[2] = std::int64_t{1} << 40;
        }).find("dimension 2 has a stride") == 0);
  CHECK(reason([](TensorMap& m) { m.box[1] = 257; }) ==
        "the box has 257 elements in dimension 1, 1 to 256 are possible");
  CHECK(reason([](TensorMap& m) { m.box[0] = 28; }) ==
        "the box has rows of 56 bytes, a multiple of 16 is needed");
  CHECK(reason([](TensorMap& m) { m.box[0] = 40; }) ==
        "the box has rows of 80 bytes, a swizzle takes at most its span of 64");
  HostRuntime runtime;
  add_driver(runtime);
  last_call = {};
  TensorMap map = planes();
  map.box[1] = 257;
  CHECK(message_of(runtime, map, ErrorKind::kInternal).find("tensor map: the box has 257") == 0);
  CHECK(last_call.rank == 0);
}

TEST_CASE("clusters divide the grid, and are of 8 CTAs at most on SM 9.0 or newer") {
  LaunchShape shape;
  shape.grid_x = 6;
  shape.grid_y = 3;
  CHECK(cluster_misfit(shape, 80).empty());  // has none
  shape.cluster_x = 2;
  CHECK(cluster_misfit(shape, 90).empty());
  CHECK(cluster_misfit(shape, 89) ==
        "clusters of 2 x 1 x 1 CTAs need compute capability 9.0 or newer, the device has 8.9");
  shape.cluster_y = 2;
  CHECK(cluster_misfit(shape, 90) ==
        "clusters of 2 x 2 x 1 CTAs do not divide a grid of 6 x 3 x 1");
  shape.cluster_y = 3;
  CHECK(cluster_misfit(shape, 90).empty());
  shape.cluster_x = 6;
  CHECK(cluster_misfit(shape, 90) == "clusters of 6 x 3 x 1 CTAs, at most 8 CTAs are possible");
  shape.cluster_x = 0;
  CHECK(cluster_misfit(shape, 90) == "clusters of 0 x 3 x 1 CTAs, every extent is at least 1");
}

}  // namespace attnbench
