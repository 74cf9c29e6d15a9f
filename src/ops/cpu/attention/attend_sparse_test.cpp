#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "metadata/parts/decode_plan.h"
#include "ops/cpu/attention/int8_attention_testing.h"
#include "ops/cpu/attention/mla_decode_testing.h"
#include "ops/ops.h"
#include "ops/plan_rows.h"

namespace attnbench::cpu {
namespace {

/// Lists of top-k slots with holes, duplicates and slots beyond the cache.
struct Lists {
  std::vector<int> slots;  // [T, topk + 3]
  std::vector<int> lengths;
  std::vector<std::vector<std::int64_t>> valid;  // per token, with duplicates
  attn::SparseParams params{};

  Lists(const MlaDecode& decode, int topk, bool with_lengths, attn::MlaEntry format) {
    std::mt19937_64 random(17);
    const auto stride = static_cast<std::size_t>(topk) + 3;
    for (int t = 0; t < decode.num_tokens; ++t) {
      const int request = static_cast<int>(std::upper_bound(decode.query_start_loc.begin(),
                                                            decode.query_start_loc.end(), t) -
                                           decode.query_start_loc.begin()) -
                          1;
      const int seq_len = decode.seq_lens[static_cast<std::size_t>(request)];
      lengths.push_back(with_lengths ? static_cast<int>(random() % (topk + 9u)) : topk);
      valid.emplace_back();
      for (int i = 0; i < static_cast<int>(stride); ++i) {
        const auto kind = random() % 8;
        std::int64_t slot = -1;
        if (kind == 0) slot = decode.num_slots + static_cast<std::int64_t>(random() % 5);
        if (kind > 1 && seq_len > 0) {
          slot = decode.slot(request, static_cast<int>(random() % static_cast<unsigned>(seq_len)));
        }
        slots.push_back(static_cast<int>(slot));
        const bool listed = i < topk && i < lengths.back();
        if (listed && slot >= 0 && slot < decode.num_slots) valid.back().push_back(slot);
      }
    }
    params = {format,
              slots.data(),
              static_cast<attn::i64>(stride),
              topk,
              with_lengths ? lengths.data() : nullptr,
              decode.num_slots};
  }
};

/// Stores the cache of `decode` as fp8_ds_mla entries and puts what they read back as into it.
std::vector<std::uint8_t> store_ds_mla(MlaDecode& decode) {
  std::vector<std::uint8_t> entries(static_cast<std::size_t>(decode.num_slots) * 656, 0xFF);
  for (std::int64_t slot = 0; slot < decode.num_slots; ++slot) {
    if (std::isnan(decode.cache.at(slot * 576))) continue;  // nobody's
    std::uint8_t* entry = entries.data() + slot * 656;
    for (int tile = 0; tile < 4; ++tile) {
      const float scale = 0.01f * static_cast<float>(tile + 1);
      std::memcpy(entry + 512 + tile * 4, &scale, 4);
      for (int i = tile * 128; i < tile * 128 + 128; ++i) {
        store_float(Dtype::kE4M3, entry, i, decode.cache.at(slot * 576 + i) / scale);
        decode.cache.set(slot * 576 + i,
                         round_to(Dtype::kBF16, load_float(Dtype::kE4M3, entry, i) * scale));
      }
    }
    std::memcpy(entry + 528, decode.cache.bytes() + (slot * 576 + 512) * 2, 128);
  }
  decode.params.kv.element = attn::Element::kU8;
  decode.params.kv.key = entries.data();
  decode.params.kv.token_stride_key = 656;
  decode.params.kv.block_stride = 656 * MlaDecode::kBlockSize;
  return entries;
}

}  // namespace

TEST_CASE("sparse attention counts every listed valid slot as often as it is listed") {
  for (const int heads : {1, 8, 16, 130}) {
    for (const bool with_lengths : {false, true}) {
      MlaDecode decode({2, 0, 1, 3}, {200, 0, 0, 40}, heads, 64, 16, Dtype::kBF16);
      const Lists lists(decode, 256, with_lengths, attn::MlaEntry::kCopy);
      make_cpu_ops(2)->attend_sparse(decode.params, lists.params);
      INFO("heads ", heads, " lengths ", with_lengths);
      CHECK(decode.difference(lists.valid, 0.05f, 1.0, 3e-5) == "");
    }
  }
}

TEST_CASE("value scales of an int8 attention before it do not reach a sparse one") {
  const auto ops = make_cpu_ops(1);
  {
    Int8Case c;
    c.level = 1;
    Int8Setup before(c);
    ops->attend(before.params);
    CHECK(before.difference(1e-4) == "");
  }
  MlaDecode decode({1}, {60}, 4, 64, 16, Dtype::kBF16);
  const Lists lists(decode, 128, false, attn::MlaEntry::kCopy);
  ops->attend_sparse(decode.params, lists.params);
  CHECK(decode.difference(lists.valid, 0.05f, 1.0, 3e-5) == "");
}

TEST_CASE("sparse attention at the sizes of DeepSeek reads fp8_ds_mla entries rounded to bf16") {
  MlaDecode decode({1, 1}, {150, 30}, 64, 512, 64, Dtype::kBF16);
  const auto entries = store_ds_mla(decode);
  const Lists lists(decode, 128, false, attn::MlaEntry::kDsMla);
  make_cpu_ops(2)->attend_sparse(decode.params, lists.params);
  CHECK(decode.difference(lists.valid, 0.05f, 1.0, 3e-5) == "");
}

TEST_CASE("sparse attention over plain fp8 entries multiplies by the scale") {
  MlaDecode decode({1, 2}, {50, 90}, 4, 64, 16, Dtype::kF16);
  decode.fill_cache(Dtype::kE4M3);
  const float k_scale = 0.7f;
  decode.params.kv.k_scale = &k_scale;
  const Lists lists(decode, 128, false, attn::MlaEntry::kE4M3);
  make_cpu_ops(1)->attend_sparse(decode.params, lists.params);
  CHECK(decode.difference(lists.valid, 0.05f * k_scale, k_scale, 3e-5) == "");
}

TEST_CASE("a token without a valid slot has output zero and an empty LSE") {
  MlaDecode decode({1, 1}, {20, 20}, 3, 32, 8);
  std::vector<int> slots(2 * 128, -1);
  slots[0] = static_cast<int>(decode.slot(0, 3));
  for (std::size_t i = 128; i < 256; i += 2) slots[i] = static_cast<int>(decode.num_slots);
  const attn::SparseParams sparse{attn::MlaEntry::kCopy, slots.data(), 128, 128, nullptr,
                                  decode.num_slots};
  make_cpu_ops(1)->attend_sparse(decode.params, sparse);
  CHECK(decode.difference({{decode.slot(0, 3)}, {}}, 0.05f, 1.0, 3e-5) == "");
  CHECK(decode.lse.at(1) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("masks, sinks and sequence lengths of the dense arguments are not looked at") {
  MlaDecode decode({1}, {60}, 2, 32, 8);
  const Lists lists(decode, 128, false, attn::MlaEntry::kCopy);
  const float sinks[] = {5.0f, 5.0f};
  decode.params.score.sinks = sinks;
  decode.params.score.window_left = 3;
  decode.params.score.soft_cap = 1.0f;
  decode.params.seq_lens = nullptr;
  decode.params.kv.block_table = nullptr;
  decode.params.kv.value = nullptr;
  make_cpu_ops(1)->attend_sparse(decode.params, lists.params);
  CHECK(decode.difference(lists.valid, 0.05f, 1.0, 3e-5) == "");
}

TEST_CASE("a plan over the listed positions changes nothing but low bits") {
  MlaDecode decode({2, 2, 2}, {300, 90, 7}, 6, 64, 16);
  const int topk = 512;
  const Lists lists(decode, topk, true, attn::MlaEntry::kCopy);
  const std::vector<int> lens(3, topk);
  for (const int num_parts : {1, 2, 5, 20}) {
    const DecodePlan plan = plan_decode(lens, num_parts, 2, true);
    const std::vector<attn::i64> start =
        plan_partial_start_loc(plan.num_splits, decode.query_start_loc);
    std::vector<float> output(static_cast<std::size_t>(start.back() * 6 * 64), NAN);
    std::vector<float> lse(static_cast<std::size_t>(start.back() * 6), NAN);
    static_assert(sizeof(DecodePart) == attn::kPlanRecord * sizeof(int));
    const attn::PlanParams params{
        num_parts, &plan.parts[0].begin_req, plan.num_splits.data(), start.data(), output.data(),
        lse.data()};
    const auto ops = make_cpu_ops(2);
    ops->attend_sparse_plan(decode.params, lists.params, params);
    ops->combine_plan(decode.params, params);
    INFO("parts ", num_parts);
    CHECK(decode.difference(lists.valid, 0.05f, 1.0, 3e-5) == "");
  }
}

TEST_CASE("fp8_ds_mla attention refuses other head sizes by name") {
  MlaDecode decode({1}, {20}, 2, 64, 16);
  const Lists lists(decode, 128, false, attn::MlaEntry::kDsMla);
  CHECK_THROWS_WITH_AS(make_cpu_ops(1)->attend_sparse(decode.params, lists.params),
                       "fp8_ds_mla attention: expected head sizes 576 and 512, got 80 and 64",
                       Error);
}

TEST_CASE("sparse attention of no requests writes nothing") {
  MlaDecode decode({1}, {20}, 2, 64, 16);
  decode.params.num_requests = 0;
  const Lists lists(decode, 128, false, attn::MlaEntry::kCopy);
  make_cpu_ops(2)->attend_sparse(decode.params, lists.params);
  CHECK(std::isnan(decode.output.at(0)));
}

}  // namespace attnbench::cpu
