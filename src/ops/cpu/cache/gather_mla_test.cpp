#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"

namespace attnbench::cpu {
namespace {

/// Three requests, the second with nothing to gather, over shuffled blocks of four slots. The
/// table holds -1 where nothing may be read.
struct Context {
  std::vector<int> block_table{5, 2, 7, -1, -1, -1, 0, 3, -1};
  std::vector<int> cu_seq_lens{0, 6, 6, 11};
  std::vector<int> token_to_seq{0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 0, 0};  // zero padded
  std::vector<int> seq_starts{3, 0, 2};
  Tensor cache;

  explicit Context(Dtype dtype, std::int64_t entry_size)
      : cache(random_tensor(dtype, {8, 4, entry_size}, 3)) {}

  attn::MlaEntries entries() const {
    const std::int64_t size = cache.dim(2);
    return {element_of(cache.dtype()), cache.bytes(), 4 * size, size, block_table.data(), 3, 4,
            static_cast<int>(size)};
  }
  /// Slot of a row of the gathered context, walked position by position.
  std::int64_t slot(int row, bool with_starts) const {
    int request = 0;
    while (row >= cu_seq_lens[static_cast<std::size_t>(request) + 1]) ++request;
    const auto b = static_cast<std::size_t>(request);
    const int position = row - cu_seq_lens[b] + (with_starts ? seq_starts[b] : 0);
    return std::int64_t{block_table[b * 3 + static_cast<std::size_t>(position / 4)]} * 4 +
           position % 4;
  }
};

}  // namespace

TEST_CASE("gather_mla fetches each row's entry and leaves padded rows alone") {
  const Context context(Dtype::kBF16, 10);
  Tensor output = poisoned_tensor(Dtype::kBF16, {13, 12});
  make_cpu_ops(2)->gather_mla({context.entries(), attn::Element::kBF16, output.bytes(), 12,
                               context.cu_seq_lens.data(), context.token_to_seq.data(),
                               context.seq_starts.data(), 13, nullptr});
  for (int row = 0; row < 13; ++row) {
    for (int d = 0; d < 12; ++d) {
      const float actual = output.at(row * 12 + d);
      if (row >= 11 || d >= 10) {
        CHECK(std::isnan(actual));
      } else {
        CHECK(actual == context.cache.at(context.slot(row, true) * 10 + d));
      }
    }
  }
}

TEST_CASE("gather_mla multiplies fp8 entries by the scale and rounds once to the workspace") {
  const Context context(Dtype::kE4M3, 9);
  const float scale = 0.3f;
  for (const Dtype output_dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    Tensor output = poisoned_tensor(output_dtype, {11, 9});
    make_cpu_ops(1)->gather_mla({context.entries(), element_of(output_dtype), output.bytes(), 9,
                                 context.cu_seq_lens.data(), context.token_to_seq.data(), nullptr,
                                 11, &scale});
    for (int row = 0; row < 11; ++row) {
      for (int d = 0; d < 9; ++d) {
        const float code = context.cache.at(context.slot(row, false) * 9 + d);
        CHECK(output.at(row * 9 + d) == round_to(output_dtype, code * scale));
      }
    }
  }
}

TEST_CASE("cp_gather copies the bits of any element from unaligned starts") {
  for (const auto& [dtype, size] : {std::pair{Dtype::kU8, 656}, std::pair{Dtype::kBF16, 5}}) {
    const Context context(dtype, size);
    Tensor output = poisoned_tensor(dtype, {11, size});
    make_cpu_ops(2)->cp_gather({context.entries(), output.bytes(), size, context.cu_seq_lens.data(),
                                context.seq_starts.data(), 3, 11});
    const auto bytes = static_cast<std::size_t>(size) * dtype_size(dtype);
    for (int row = 0; row < 11; ++row) {
      const auto slot = static_cast<std::size_t>(context.slot(row, true));
      CHECK(std::memcmp(output.bytes() + static_cast<std::size_t>(row) * bytes,
                        context.cache.bytes() + slot * bytes, bytes) == 0);
    }
  }
}

TEST_CASE("upconvert makes bf16 rows of the requests and leaves the gaps of the workspace alone") {
  Context context(Dtype::kU8, 656);
  const Tensor kv_c = random_tensor(Dtype::kBF16, {32, 512}, 8);
  const Tensor k_pe = random_tensor(Dtype::kBF16, {32, 64}, 9);
  std::vector<attn::i64> slots(32);
  for (std::size_t i = 0; i < 32; ++i) slots[i] = static_cast<attn::i64>(i);
  const auto ops = make_cpu_ops(2);
  ops->write_mla_cache({attn::MlaEntry::kDsMla, attn::Element::kBF16, kv_c.bytes(), 512,
                        k_pe.bytes(), 64, context.cache.bytes(), 4 * 656, 656, slots.data(), 32, 4,
                        512, 64, nullptr});
  // Request 1 is empty and shares its start with request 2; rows 7 to 8 and 14 are nobody's.
  const std::vector<int> starts{0, 9, 9};
  const std::vector<int> lens{7, 0, 5};
  Tensor output = poisoned_tensor(Dtype::kBF16, {15, 576});
  ops->upconvert_ds_mla(
      {context.entries(), output.bytes(), 576, lens.data(), starts.data(), 3, 15, 0});
  for (int row = 0; row < 15; ++row) {
    const int request = row < 7 ? 0 : (row >= 9 && row < 14 ? 2 : -1);
    if (request < 0) {
      CHECK(std::isnan(output.at(row * 576)));
      CHECK(std::isnan(output.at(row * 576 + 575)));
      continue;
    }
    const auto b = static_cast<std::size_t>(request);
    const int position = row - starts[b];
    const std::int64_t slot =
        std::int64_t{context.block_table[b * 3 + static_cast<std::size_t>(position / 4)]} * 4 +
        position % 4;
    for (int d = 0; d < 512; ++d) {
      float amax = 0;
      for (int i = d / 128 * 128; i < d / 128 * 128 + 128; ++i) {
        amax = std::fmax(amax, std::fabs(kv_c.at(slot * 512 + i)));
      }
      const float scale = amax / 448.0f;
      const float code = round_to(Dtype::kE4M3, kv_c.at(slot * 512 + d) / scale);
      CHECK(output.at(row * 576 + d) == round_to(Dtype::kBF16, code * scale));
    }
    for (int d = 0; d < 64; ++d) CHECK(output.at(row * 576 + 512 + d) == k_pe.at(slot * 64 + d));
  }
}

TEST_CASE("gathering no tokens of no requests writes nothing") {
  const Context context(Dtype::kBF16, 4);
  const int zero = 0;
  const auto ops = make_cpu_ops(2);
  ops->gather_mla(
      {context.entries(), attn::Element::kBF16, nullptr, 4, &zero, nullptr, nullptr, 0, nullptr});
  ops->cp_gather({context.entries(), nullptr, 4, &zero, nullptr, 0, 0});
  ops->upconvert_ds_mla({context.entries(), nullptr, 576, nullptr, nullptr, 0, 0, 0});
}

}  // namespace attnbench::cpu
