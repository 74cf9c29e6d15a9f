// Redrawn inputs: which signs and blocks change, and that the host makes what the device makes.
#include "inputs/redraw.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "inputs/random.h"
#include "kernels/common/redraw.cuh"

namespace attnbench {
namespace {

Problem problem_of(std::vector<Request> batch) {
  Problem problem;
  problem.kv_cache.block_size = 16;
  problem.batch = std::move(batch);
  return problem;
}

Tensor ascending(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, static_cast<float>(i + 1));
  return tensor;
}

}  // namespace

TEST_CASE("the bits of a redraw are those of the generator of inputs") {
  const auto expected = philox4x32({7, 3, 2, 0}, {0x89ABCDEF, 0x01234567});
  const attn::RedrawBits bits = attn::redraw_bits(0x0123456789ABCDEF, (3ull << 32) | 7, 2);
  for (std::size_t lane = 0; lane < 4; ++lane) CHECK(bits.lanes[lane] == expected[lane]);
}

TEST_CASE("signs depend on the element and on the nonce, and twice is once") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kE4M3, Dtype::kI8}) {
    CAPTURE(dtype_name(dtype));
    const Tensor before = ascending(dtype, {4, 16});
    Tensor tensor = before;
    redraw_signs(tensor, 5, 64);
    int flipped = 0;
    for (std::int64_t i = 0; i < 64; ++i) {
      CHECK(std::abs(tensor.at(i)) == std::abs(before.at(i)));
      flipped += tensor.at(i) != before.at(i);
    }
    CHECK(flipped > 16);
    CHECK(flipped < 48);
    Tensor other = before;
    redraw_signs(other, 6, 64);
    CHECK(std::memcmp(other.bytes(), tensor.bytes(), tensor.size_bytes()) != 0);
    // A part by itself has the signs that it has in the whole.
    Tensor part = ascending(dtype, {4, 16});
    redraw_signs(part, 5, 24, 0);
    for (std::int64_t i = 0; i < 64; ++i) {
      CHECK(part.at(i) == (i < 24 ? tensor.at(i) : before.at(i)));
    }
    redraw_signs(tensor, 5, 64);
    CHECK(std::memcmp(tensor.bytes(), before.bytes(), before.size_bytes()) == 0);
    redraw_signs(tensor, 0, 64);
    CHECK(std::memcmp(tensor.bytes(), before.bytes(), before.size_bytes()) == 0);
  }
}

TEST_CASE("pieces of 16 bytes give what single elements give, wherever signs begin") {
  const Tensor source = ascending(Dtype::kBF16, {3, 40});
  const auto redraw = [&](auto piece, attn::i64 pieces) {
    Tensor target(Dtype::kBF16, {3, 40});
    attn::RedrawParams params{};
    params.source = source.bytes();
    params.target = target.bytes();
    params.nonce = 99;
    params.num_rows = 3;
    params.row_elements = 40;
    params.first_index = 80;
    params.index_stride = 120;
    for (attn::i64 i = 0; i < pieces; ++i) piece(params, i);
    return target;
  };
  const Tensor vectors = redraw(
      [](const attn::RedrawParams& p, attn::i64 i) { attn::redraw_piece<2, true>(p, i); }, 16);
  const Tensor elements = redraw(
      [](const attn::RedrawParams& p, attn::i64 i) { attn::redraw_piece<2, false>(p, i); }, 130);
  CHECK(std::memcmp(vectors.bytes(), elements.bytes(), vectors.size_bytes()) == 0);
  // Row 1 is elements 200 to 239 of the tensor that signs are drawn for.
  Tensor whole = ascending(Dtype::kBF16, {240});
  redraw_signs(whole, 99, 240);
  for (std::int64_t i = 0; i < 40; ++i) {
    CHECK((vectors.at(40 + i) < 0) == (whole.at(200 + i) < 0));
  }
}

TEST_CASE("blocks that the step writes do not change, and a changed one is no source") {
  const Problem problem = problem_of({{1, 65}, {0, 0}, {5, 40}, {3, 16}});
  Tensor table(Dtype::kI32, {4, 5});
  for (std::int64_t i = 0; i < 20; ++i) table.data<std::int32_t>()[i] = static_cast<int>(100 + i);
  const RedrawBlocks blocks = RedrawBlocks::of_cache(problem, table, 16);
  std::set<std::int64_t> changed;
  for (std::uint64_t nonce = 1; nonce < 200; ++nonce) {
    std::set<std::int64_t> sources, targets;
    for (const RedrawBlocks::Copy& copy : blocks.copies(nonce)) {
      sources.insert(copy.source.unit);
      CHECK(targets.insert(copy.target.unit).second);
    }
    for (const std::int64_t target : targets) CHECK_FALSE(sources.contains(target));
    changed.insert(targets.begin(), targets.end());
  }
  // Four whole blocks of the first request, two of the third; the last one's only block is written.
  CHECK(changed == std::set<std::int64_t>{100, 101, 102, 103, 110, 111});
  CHECK(blocks.copies(0).empty());
}

TEST_CASE("a block that requests share changes for each of them") {
  const Problem problem = problem_of({{1, 33}, {1, 33}});
  Tensor table(Dtype::kI32, {2, 3});
  const std::int32_t entries[] = {7, 8, 1, 7, 9, 2};
  std::copy(entries, entries + 6, table.data<std::int32_t>());
  const RedrawBlocks blocks = RedrawBlocks::of_cache(problem, table, 16);
  bool is_seen = false;
  for (std::uint64_t nonce = 1; nonce < 50; ++nonce) {
    for (const RedrawBlocks::Copy& copy : blocks.copies(nonce)) {
      if (copy.target.unit != 7) continue;
      is_seen = true;
      for (const std::int64_t request : {0, 1}) {
        bool moves = false;
        for (const MovedRows& rows : blocks.moved_rows(request, nonce)) {
          if (rows.first != 0) continue;
          moves = true;
          CHECK(rows.count == 16);
          CHECK(rows.source_request == copy.source.request);
          CHECK(rows.source_first == copy.source.first);
        }
        CHECK(moves);
      }
    }
  }
  CHECK(is_seen);
}

TEST_CASE("of a prefix that requests are said to share only blocks that all have change") {
  Problem problem = problem_of({{1, 33}, {1, 33}});
  problem.cascade.common_prefix_len = 32;
  Tensor table(Dtype::kI32, {2, 3});
  const std::int32_t entries[] = {7, 8, 1, 7, 9, 2};
  std::copy(entries, entries + 6, table.data<std::int32_t>());
  const RedrawBlocks paged = RedrawBlocks::of_cache(problem, table, 16);
  for (std::uint64_t nonce = 1; nonce < 50; ++nonce) {
    CHECK(paged.copies(nonce).empty());  // there is no other block than the one that is shared
  }
  problem.cascade.common_prefix_len = 16;
  const RedrawBlocks rows = RedrawBlocks::of_rows(problem);
  for (std::uint64_t nonce = 1; nonce < 50; ++nonce) {
    for (const RedrawBlocks::Copy& copy : rows.copies(nonce)) CHECK(copy.target.first == 16);
  }
}

TEST_CASE("rows move to where their block is read") {
  const Tensor all = ascending(Dtype::kF32, {6, 1, 2});
  Tensor own = ascending(Dtype::kF32, {4, 1, 2});
  move_rows(own, all, {0, 2, 6}, {{1, 2, 1, 2}});
  CHECK(own.at(0) == 1);
  CHECK(own.at(2) == 9);  // row 4 of all, position 2 of request 1
  CHECK(own.at(5) == 12);
  CHECK(own.at(6) == 7);
}

}  // namespace attnbench
