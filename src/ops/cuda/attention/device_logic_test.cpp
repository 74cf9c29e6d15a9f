// The parts of the attention kernels that are plain functions: masks, runs of keys, layouts.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/attention/decode/layout.cuh"
#include "kernels/common/key_runs.cuh"
#include "kernels/common/mask.cuh"
#include "ops/cuda/attention/attend_cases_testing.h"
#include "ops/cuda/attention/spec.h"

namespace attnbench::cuda {
namespace {

/// semantics §3.2, §3.3 and §3.6 word by word, for a causal or windowed row.
bool is_allowed(int p, int key, int seq_len, int left, int right, const std::vector<int>& ranges) {
  if (key >= seq_len) return false;
  for (std::size_t r = 0; r + 1 < ranges.size(); r += 2) {
    const int start = ranges[r];
    const int last = ranges[r + 1];
    if (start < last && start <= p && p <= last && start <= key && key <= last) return true;
  }
  return (left < 0 || key >= p - left) && (right < 0 || key <= p + right);
}

}  // namespace

TEST_CASE("a row's interval holds exactly the keys that the mask allows") {
  const std::vector<std::vector<int>> range_lists{{}, {2, 5}, {0, 0, 3, 3, 4, 30}, {1, 4, 3, 7}};
  for (const int seq_len : {0, 1, 7, 12}) {
    for (int p = -4; p < seq_len; ++p) {
      for (const int left : {-1, 0, 1, 3, 1 << 30}) {
        for (const int right : {-1, 0, 2, 1 << 30}) {
          for (const std::vector<int>& ranges : range_lists) {
            const attn::KeyInterval keys =
                attn::join_ranges(attn::window_interval(p, seq_len, left, right), p, seq_len,
                                  ranges.data(), static_cast<int>(ranges.size() / 2));
            for (int key = 0; key < seq_len + 2; ++key) {
              CAPTURE(p);
              CAPTURE(key);
              const bool inside = key >= keys.begin && key < keys.end;
              CHECK(inside == is_allowed(p, key, seq_len, left, right, ranges));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("no tile outside the hull has a key to see, and no tile inside the core one to mask") {
  for (const int left : {-1, 2}) {
    attn::TileBounds bounds = attn::no_rows();
    std::vector<attn::KeyInterval> rows;
    for (int p = -2; p < 9; ++p) {
      rows.push_back(attn::window_interval(p, 9, left, 0));
      bounds = attn::add_row(bounds, rows.back());
    }
    for (int key = 0; key < 12; ++key) {
      const auto sees = [&](const attn::KeyInterval& r) { return r.begin <= key && key < r.end; };
      const bool some = std::any_of(rows.begin(), rows.end(), sees);
      const bool all = std::all_of(rows.begin(), rows.end(), sees);
      if (some) CHECK((bounds.hull.begin <= key && key < bounds.hull.end));
      if (!attn::needs_mask(bounds, key, key + 1)) CHECK(all);
    }
  }
}

TEST_CASE("splits and segments share out every key once, in order") {
  for (const int seq_len : {0, 1, 64, 65, 1000, 5000}) {
    for (const int parts : {1, 3, 16}) {
      int split_end = 0;
      int segment_end = 0;
      for (int part = 0; part < parts; ++part) {
        const attn::KeyInterval split = attn::keys_of_split(seq_len, parts, part);
        CHECK(split.begin == split_end);
        CHECK((split.begin % attn::kSplitTile == 0 || split.begin == seq_len));
        split_end = split.end;
        const attn::KeyInterval segment = attn::keys_of_segment(seq_len, parts, 16, part);
        CHECK(segment.begin == segment_end);
        segment_end = segment.end;
      }
      CHECK(split_end == seq_len);
      CHECK(segment_end == seq_len);
    }
  }
  // semantics §16
  CHECK(attn::num_active_segments(100, 16, 16) == 7);
  CHECK(attn::num_active_segments(1000, 16, 16) == 16);
  CHECK(attn::num_active_segments(1, 16, 16) == 1);
  // The sink of a row without keys (§3.5).
  CHECK(attn::num_active_segments(0, 16, 16) == 1);
  CHECK(attn::segment_len(5000, 16, 16) == 20 * 16);
}

TEST_CASE("the covering cases of attention write every row of the batch and no other") {
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  for (const AttendCase& c : attend_cases()) {
    CAPTURE(c.name);
    const Tensor output = run_attend(*ops, c)[0];
    std::int64_t num_nan = 0;
    for (std::int64_t i = 0; i < output.num_elements(); ++i) {
      if (std::isnan(static_cast<double>(output.at(i)))) ++num_nan;
    }
    CHECK(num_nan == 2 * output.dim(1) * output.dim(2));
  }
}

TEST_CASE("every head size has a prefill and a decode kernel that fit the target") {
  for (const int sm : {80, 89, 90, 100}) {
    const Target target = target_of_sm(sm);
    const int room = target.max_shared_bytes - kTiledStaticSharedBytes;
    for (int size = 32; size <= 256; size += 8) {
      attn::AttendParams params{};
      params.query_element = params.output_element = attn::Element::kBF16;
      params.kv.element = attn::Element::kBF16;
      params.num_heads = params.num_kv_heads = 1;
      params.head_size = params.v_head_size = size;
      params.score.softmax_scale = 1.0f;
      CHECK(prefill_kernel(target, params).shared_bytes <= room);
      CHECK(decode_kernel(target, params, {.entry = "decode"}).shared_bytes <= room);
      params.kv.element = attn::Element::kE4M3;
      CHECK(prefill_kernel(target, params).shared_bytes <= room);
      CHECK(decode_kernel(target, params, {.entry = "decode"}).shared_bytes <= room);
    }
  }
}

namespace {

std::string constant_of(const AttendKernel& kernel, const std::string& name) {
  for (const auto& [declaration, value] : kernel.spec.constants) {
    if (declaration.ends_with(" " + name)) return value;
  }
  return "";
}

/// One decode row of a bf16 query of 8 KV heads over pages of int8 with a scale each.
struct CellForm {
  alignas(32) std::array<char, 128> memory{};
  attn::AttendParams params{};
  CellForm() {
    params.query_element = params.output_element = attn::Element::kBF16;
    params.num_requests = 1;
    params.num_heads = params.num_kv_heads = 8;
    params.max_query_len = 1;
    params.head_size = params.v_head_size = 32;
    params.score.softmax_scale = 1.0f;
    attn::KvParams& kv = params.kv;
    static constexpr int kTable = 0;
    kv.block_table = &kTable;
    kv.block_size = 16;
    kv.element = attn::Element::kI8;
    kv.key = memory.data();
    kv.value = memory.data() + 64;
    kv.head_stride_key = kv.head_stride_value = 36;
    kv.token_stride_key = kv.token_stride_value = 288;
    kv.block_stride = 4608;
    kv.key_scales = reinterpret_cast<const float*>(memory.data() + 32);
    kv.value_scales = reinterpret_cast<const float*>(memory.data() + 96);
    kv.scale_head_stride = 9;
    kv.scale_slot_stride = 72;
    kv.scale_block_stride = 1152;
  }
  std::string cells() const {
    return constant_of(decode_kernel(target_of_sm(90), params, {.entry = "decode"}), "kCells");
  }
};

}  // namespace

TEST_CASE("codes and scales are copied together only where every scale lies behind its codes") {
  CHECK(CellForm().cells() == "true");
  CellForm apart;
  apart.params.kv.value_scales += 1;
  CHECK(apart.cells() == "false");
  CellForm other_heads;
  other_heads.params.kv.scale_head_stride = 1;
  CHECK(other_heads.cells() == "false");
  CellForm other_blocks;
  other_blocks.params.kv.block_stride = 4612;
  other_blocks.params.kv.scale_block_stride = 1153;
  CHECK(other_blocks.cells() == "false");
  CellForm far_tokens;
  far_tokens.params.kv.token_stride_key = attn::i64{1} << 30;
  far_tokens.params.kv.token_stride_value = attn::i64{1} << 30;
  far_tokens.params.kv.scale_slot_stride = attn::i64{1} << 28;
  CHECK(far_tokens.cells() == "false");
  CellForm plain;
  plain.params.kv.key_scales = plain.params.kv.value_scales = nullptr;
  plain.params.kv.element = attn::Element::kE4M3;
  CHECK(plain.cells() == "false");
}

TEST_CASE("pairs of heads share a ring where their cells follow each other and fill the device") {
  const Target target = target_of_sm(90);
  const auto heads = [&](const CellForm& form, int parts, const char* entry, int wanted = 0) {
    return constant_of(
        decode_kernel(target, form.params, {.entry = entry, .parts = parts, .heads = wanted}),
        "kHeads");
  };
  CellForm form;
  CHECK(heads(form, 34, "decode_splits") == "2");
  // 132 and 120 pairs for 132 multiprocessors pay for long parts.
  CHECK(heads(form, 33, "decode_splits") == "1");
  form.params.kv.block_table_stride = 30 * 2048 / 16;
  CHECK(heads(form, 33, "decode_splits") == "1");
  CHECK(heads(form, 30, "decode_segments") == "2");
  CHECK(heads(form, 29, "decode_segments") == "1");
  CHECK(heads(form, 29, "decode_segments", 2) == "2");
  CHECK(heads(form, 64, "decode_splits", 1) == "1");
  CHECK(heads(form, 64, "decode_joined", 2) == "1");
  const AttendKernel pairs = decode_kernel(target, form.params, {.entry = "decode", .heads = 2});
  CHECK(row_tiles(pairs, form.params, 1).grid_x * 2 ==
        num_row_tiles(form.params, pairs.tile_rows, 1));
  CellForm apart;  // HND: the cells of a head follow each other
  apart.params.kv.head_stride_key = apart.params.kv.head_stride_value = 576;
  apart.params.kv.scale_head_stride = 144;
  CHECK(heads(apart, 64, "decode_splits", 2) == "1");
  CellForm odd;
  odd.params.kv.key = static_cast<const unsigned char*>(odd.params.kv.key) + 4;
  odd.params.kv.key_scales += 1;
  CHECK(heads(odd, 64, "decode_splits", 2) == "1");
  CellForm three;
  three.params.num_heads = three.params.num_kv_heads = 3;
  CHECK(heads(three, 64, "decode_splits", 2) == "1");
  CellForm small_rows;
  small_rows.params.max_query_len = 9;
  CHECK(heads(small_rows, 64, "decode_splits") == "1");
  CHECK(heads(small_rows, 64, "decode_splits", 2) == "2");
  CellForm many_rows;
  many_rows.params.max_query_len = 17;
  CHECK(heads(many_rows, 64, "decode_splits", 2) == "1");
}

TEST_CASE("a multiprocessor that has one CTA has twice the warps in it") {
  const Target target = target_of_sm(90);
  CellForm form;
  const auto warps = [&](int parts) {
    return constant_of(
        decode_kernel(target, form.params, {.entry = "decode_splits", .parts = parts}), "kWarps");
  };
  CHECK(warps(16) == "8");  // 128 CTAs for 132 multiprocessors
  CHECK(warps(17) == "4");
  form.params.head_size = form.params.v_head_size = 256;
  CHECK(warps(1) == "4");
}

TEST_CASE("rows of cells hold the sectors of a cell, whatever the place of their first byte") {
  for (int size = 32; size <= 256; size += 32) {
    const attn::DecodeLayout plain = attn::decode_layout(4, 1, 4, size, size, 1, 1, false);
    const attn::DecodeLayout cells = attn::decode_layout(4, 1, 4, size, size, 1, 1, true);
    // 28 bytes before the codes at most, and 4 of the scale behind them.
    CHECK(cells.value / 16 >= size + 32);
    CHECK(cells.value / 16 % 32 == 0);
    CHECK(cells.value / 16 / 32 % 2 == 1);
    CHECK(cells.stage_bytes >= 2 * cells.value);
    CHECK(cells.stage_bytes % 32 == 0);
    CHECK(cells.rings % attn::kRingAlignment == 0);
    CHECK(plain.scales + 128 == plain.stage_bytes);
    CHECK(plain.query >= plain.factors + 16 * 4);
  }
}

TEST_CASE("e4m3 queries over plain codes have the tiled kernels") {
  CellForm form;
  form.params.query_element = attn::Element::kE4M3;
  CHECK_FALSE(tiled_misfit(form.params).empty());
  form.params.kv.key_scales = form.params.kv.value_scales = nullptr;
  form.params.kv.element = attn::Element::kE5M2;
  CHECK(tiled_misfit(form.params).empty());
  form.params.kv.round_dequantized = 1;
  CHECK_FALSE(tiled_misfit(form.params).empty());
}

}  // namespace attnbench::cuda
