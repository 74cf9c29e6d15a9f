// Both kinds of memory do the same: that of a CUDA device here on a runtime of host memory, whose
// launches are counted through like threads of a kernel.
#include "bench/loop/sample_memory.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/redraw.cuh"
#include "ops/cuda/sample/sample_kernels.h"
#include "ops/cuda/testing/host_device_testing.h"

namespace attnbench {
namespace {

/// Plays the kernels of kernels/measure/sample.cuh.
void play(const HostRuntime::Launch& launch, const void* const* arguments) {
  const attn::i64 threads = launch.shape.grid_x * launch.shape.threads;
  const bool is_redraw = launch.kernel.find("redraw_query") != std::string::npos;
  const bool is_move = launch.kernel.find("move_blocks") != std::string::npos;
  for (attn::i64 thread = 0; thread < threads; ++thread) {
    if (is_redraw) {
      const auto& params = *static_cast<const attn::RedrawParams*>(arguments[0]);
      if (params.row_elements % 8 == 0) {
        attn::redraw_piece<2, true>(params, thread);
      } else {
        attn::redraw_piece<2, false>(params, thread);
      }
    } else if (is_move) {
      const auto& params = *static_cast<const attn::MoveParams*>(arguments[0]);
      for (attn::i64 y = 0; y < launch.shape.grid_y; ++y) {
        attn::move_piece(params.moves[y], thread);
      }
    } else {
      const auto& params = *static_cast<const attn::DigestParams*>(arguments[0]);
      for (attn::i64 piece = thread; piece * 16 < params.bytes; piece += threads) {
        attn::digest_piece(params, piece, *params.sums);
      }
    }
  }
}

struct Done {
  std::vector<unsigned char> query, blocks;
  attn::SampleDigest sums;
};

/// A redraw, moves that depend on each other, and the sums over what came out.
Done work_on(SampleMemory& memory, attn::i64 row_elements) {
  const auto count = static_cast<std::size_t>(3 * row_elements);
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint16_t>(i);
  values[1] = 0xFFFF;  // poison, and a NaN
  values[2] = 0x7FC1;  // another one
  auto* source = static_cast<std::uint16_t*>(memory.allocate(count * 2));
  std::memcpy(source, values.data(), count * 2);
  auto* target = static_cast<unsigned char*>(memory.allocate(count * 2));
  attn::RedrawParams redraw{source, target, 77, 3, row_elements, 5, row_elements + 2};
  memory.redraw(2, redraw);

  auto* blocks = static_cast<unsigned char*>(memory.allocate(100));
  memory.fill(blocks, 1, 50);
  memory.fill(blocks + 50, 2, 50);
  auto* room = static_cast<unsigned char*>(memory.allocate(40));
  memory.table({{blocks + 3, room, 33}, {blocks + 60, blocks + 3, 33}, {room, blocks + 60, 20}});
  memory.move(0, 1);
  memory.move(1, 1);
  memory.move(2, 1);

  memory.clear_sums();
  attn::DigestParams digest{};
  digest.data = source;
  digest.bytes = static_cast<attn::i64>(count) * 2;
  digest.element = attn::Element::kBF16;
  memory.digest(digest);
  Done done{{target, target + count * 2}, {blocks, blocks + 100}, memory.sums()};
  return done;
}

Done on_device(attn::i64 row_elements) {
  HostDevice device;
  device.runtime->on_launch = [&](const void* const* arguments) {
    play(device.runtime->launches.back(), arguments);
  };
  return work_on(*make_cuda_sample_memory(*device.ops), row_elements);
}

}  // namespace

TEST_CASE("a device and the CPU redraw, move and sum alike") {
  for (const attn::i64 row_elements : {40, 7}) {
    CAPTURE(row_elements);
    const Done expected = work_on(*make_cpu_sample_memory(), row_elements);
    const Done actual = on_device(row_elements);
    CHECK(actual.query == expected.query);
    CHECK(actual.blocks == expected.blocks);
    CHECK(actual.sums.hash == expected.sums.hash);
    CHECK(actual.sums.poison == expected.sums.poison);
    CHECK(actual.sums.nans == expected.sums.nans);
    CHECK(expected.sums.poison == 1);
    CHECK(expected.sums.nans == 2);
    CHECK(expected.blocks[3] == 2);
    CHECK(expected.blocks[36] == 1);
    CHECK(expected.blocks[60] == 1);
    CHECK(expected.blocks[80] == 2);
  }
}

TEST_CASE("sums see places as well as bytes") {
  const auto hash_of = [](const std::vector<unsigned char>& bytes, attn::u64 salt) {
    const auto memory = make_cpu_sample_memory();
    void* data = memory->allocate(bytes.size());
    std::memcpy(data, bytes.data(), bytes.size());
    memory->clear_sums();
    attn::DigestParams params{};
    params.data = data;
    params.bytes = static_cast<attn::i64>(bytes.size());
    params.element = attn::Element::kU8;
    params.salt = salt;
    memory->digest(params);
    return memory->sums().hash;
  };
  std::vector<unsigned char> bytes(50, 3);
  const attn::u64 before = hash_of(bytes, 0);
  CHECK(hash_of(bytes, 0) == before);
  CHECK(hash_of(bytes, 1) != before);
  bytes[49] = 4;
  const attn::u64 at_end = hash_of(bytes, 0);
  CHECK(at_end != before);
  std::swap(bytes[49], bytes[17]);
  CHECK(hash_of(bytes, 0) != at_end);
}

}  // namespace attnbench
