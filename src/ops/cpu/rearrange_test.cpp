#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "metadata/mla/prefill.h"
#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu {

TEST_CASE("concat broadcasts k_pe over the heads behind k_nope") {
  const Tensor k_nope = random_tensor(Dtype::kBF16, {3, 2, 4}, 1);
  const Tensor k_pe = random_tensor(Dtype::kBF16, {3, 2}, 2);
  Tensor key = poisoned_tensor(Dtype::kBF16, {3, 2, 6});
  make_cpu_ops(2)->concat({attn::Element::kBF16, k_nope.bytes(), 8, 4, k_pe.bytes(), 2, 0,
                           key.bytes(), 12, 6, 3, 2, 4, 2});
  for (int t = 0; t < 3; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 6; ++d) {
        const float expected = d < 4 ? k_nope.at((t * 2 + h) * 4 + d) : k_pe.at(t * 2 + d - 4);
        CHECK(key.at((t * 2 + h) * 6 + d) == expected);
      }
    }
  }
}

TEST_CASE("concat joins the parts of a query per head, read from wider rows") {
  const Tensor latent = random_tensor(Dtype::kF16, {2, 3, 5}, 1);
  const Tensor query = random_tensor(Dtype::kF16, {2, 3, 7}, 2);  // q_pe: the last 2 of 7
  Tensor joined = poisoned_tensor(Dtype::kF16, {2, 3, 7});
  make_cpu_ops(1)->concat({attn::Element::kF16, latent.bytes(), 15, 5, query.bytes() + 5 * 2, 21, 7,
                           joined.bytes(), 21, 7, 2, 3, 5, 2});
  for (int row = 0; row < 6; ++row) {
    for (int d = 0; d < 7; ++d) {
      CHECK(joined.at(row * 7 + d) == (d < 5 ? latent.at(row * 5 + d) : query.at(row * 7 + d)));
    }
  }
}

TEST_CASE("concat without a second part pads with zeros") {
  const Tensor value = random_tensor(Dtype::kBF16, {2, 2, 4}, 1);
  Tensor padded = poisoned_tensor(Dtype::kBF16, {2, 2, 6});
  make_cpu_ops(1)->concat({attn::Element::kBF16, value.bytes(), 8, 4, nullptr, 0, 0, padded.bytes(),
                           12, 6, 2, 2, 4, 2});
  for (int row = 0; row < 4; ++row) {
    for (int d = 0; d < 6; ++d) {
      CHECK(padded.at(row * 6 + d) == (d < 4 ? value.at(row * 4 + d) : 0.0f));
    }
  }
}

TEST_CASE("gather_rows undoes the striping of gathered ranks") {
  // Two ranks, interleave 1, contexts 10 and 7: the rows that the plan names, rank after rank.
  const DcpGroup group{2, 1};
  const std::vector<std::int32_t> query_start_loc{0, 2, 3}, seq_lens{12, 8};
  const auto plan = plan_mla_chunks(query_start_loc, seq_lens, 32, 4, group);
  REQUIRE(plan);
  std::vector<std::vector<std::int64_t>> positions(2);
  for (std::size_t c = 0; c < plan->chunks.size(); ++c) {
    const MlaChunk& chunk = plan->chunks[c];
    // The gathered buffer holds, for row (rank, request, local index), its position; padding -1.
    Tensor gathered(Dtype::kI64, {2 * chunk.num_local_tokens, 1});
    for (int rank = 0; rank < 2; ++rank) {
      for (std::size_t b = 0; b < 2; ++b) {
        for (int i = 0; i < chunk.padded_local_lens[b]; ++i) {
          const int local = chunk.local_starts[b] + i;
          const int context = seq_lens[b] - (query_start_loc[b + 1] - query_start_loc[b]);
          const std::int64_t position = 2 * local + rank < context ? 2 * local + rank : -1;
          gathered
              .data<std::int64_t>()[rank * chunk.num_local_tokens + chunk.padded_local_cu[b] + i] =
              position;
        }
      }
    }
    const std::vector<std::int64_t> source = reorg_source_rows(*plan, c);
    const std::vector<attn::i64> rows(source.begin(), source.end());
    Tensor ordered(Dtype::kI64, {chunk.num_tokens, 1});
    make_cpu_ops(2)->gather_rows({attn::Element::kI64, gathered.bytes(), 1, ordered.bytes(), 1,
                                  rows.data(), chunk.num_tokens, 1});
    for (std::size_t b = 0; b < 2; ++b) {
      for (int i = chunk.cu_seq_lens[b]; i < chunk.cu_seq_lens[b + 1]; ++i) {
        positions[b].push_back(ordered.data<std::int64_t>()[i]);
      }
    }
  }
  for (std::size_t b = 0; b < 2; ++b) {
    std::sort(positions[b].begin(), positions[b].end());
    std::vector<std::int64_t> all(b == 0 ? 10 : 7);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    CHECK(positions[b] == all);
  }
}

TEST_CASE("copy transposes ranks and tokens by its strides") {
  // [W, T, H, D] -> [T, W, H, D], as all-gathered query heads are put side by side.
  const Tensor ranks = random_tensor(Dtype::kBF16, {2, 3, 2, 4}, 1);
  Tensor heads = poisoned_tensor(Dtype::kBF16, {3, 4, 4});
  make_cpu_ops(2)->copy({attn::Element::kBF16,
                         attn::Element::kBF16,
                         ranks.bytes(),
                         {24, 8, 4},
                         heads.bytes(),
                         {8, 16, 4},
                         {2, 3, 2},
                         4});
  for (int rank = 0; rank < 2; ++rank) {
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 8; ++i) {
        CHECK(heads.at((t * 2 + rank) * 8 + i) == ranks.at((rank * 3 + t) * 8 + i));
      }
    }
  }
}

TEST_CASE("copy turns the LSEs of attention, heads first, into those of tokens") {
  const Tensor lse = random_tensor(Dtype::kF32, {3, 5}, 1);  // [H, T]
  Tensor turned = poisoned_tensor(Dtype::kF32, {5, 3});
  make_cpu_ops(2)->copy({attn::Element::kF32,
                         attn::Element::kF32,
                         lse.bytes(),
                         {0, 1, 5},
                         turned.bytes(),
                         {0, 3, 1},
                         {1, 5, 3},
                         1});
  for (int t = 0; t < 5; ++t) {
    for (int h = 0; h < 3; ++h) CHECK(turned.at(t * 3 + h) == lse.at(h * 5 + t));
  }
}

TEST_CASE("copy between elements rounds once and keeps what both can hold") {
  const Tensor sums = random_tensor(Dtype::kF32, {1, 5, 2, 33}, 1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    Tensor output = poisoned_tensor(dtype, {5, 2, 33});
    make_cpu_ops(1)->copy({attn::Element::kF32,
                           element_of(dtype),
                           sums.bytes(),
                           {330, 66, 33},
                           output.bytes(),
                           {330, 66, 33},
                           {1, 5, 2},
                           33});
    CHECK(same_bytes(output,
                     convert(Tensor::from_f32({sums.data<float>(), 330}, {5, 2, 33}), dtype)));
  }
}

TEST_CASE("moving nothing writes nothing") {
  const auto ops = make_cpu_ops(2);
  ops->concat({attn::Element::kBF16, nullptr, 0, 0, nullptr, 0, 0, nullptr, 0, 0, 0, 4, 2, 2});
  ops->gather_rows({attn::Element::kBF16, nullptr, 4, nullptr, 4, nullptr, 0, 4});
  ops->copy({attn::Element::kBF16, attn::Element::kF32, nullptr, {}, nullptr, {}, {0, 3, 2}, 4});
  ops->copy({attn::Element::kBF16, attn::Element::kF32, nullptr, {}, nullptr, {}, {3, 0, 2}, 4});
}

}  // namespace attnbench::cpu
