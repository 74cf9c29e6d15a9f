// The decode kernel on emulated threads where scores are products of int8 codes (semantics §11.4,
// §11.6): both levels, few rows transposed and many, whole requests and splits, against the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/testing/emulated_attention_testing.h"
#include "ops/cuda/testing/emulated_runs_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

struct Level1 : CodesConfig {
  static constexpr attn::Element kQuery = attn::Element::kI8;
  static constexpr attn::Element kKeyValue = attn::Element::kI8;
  static constexpr attn::Element kInt8Value = attn::Element::kI8;
  static constexpr attn::Element kOutput = attn::Element::kBF16;
  static constexpr int kHeadSize = 128;
  static constexpr int kVHeadSize = 128;
  static constexpr int kBlockSize = 16;
  static constexpr int kWarps = 4;
  static constexpr int kStages = 3;
  static constexpr bool kTransposed = true;
};
struct Level1Rows : Level1 {
  static constexpr bool kTransposed = false;
};
struct Level1Shared : Level1Rows {
  static constexpr int kRowWarps = 2;
  static constexpr int kStages = 5;
};
struct Level2 : Level1 {
  static constexpr attn::Element kInt8Value = attn::Element::kBF16;
};
struct Level2Rows : Level2 {
  static constexpr bool kTransposed = false;
};
struct Level2F16 : Level2Rows {
  static constexpr attn::Element kInt8Value = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
};
struct Level2Transposed16 : Level2 {
  static constexpr attn::Element kInt8Value = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
};
struct Level1Capped : Level1 {
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};
template <class Config, int kSize_, int kBlock_>
struct Sized : Config {
  static constexpr int kHeadSize = kSize_;
  static constexpr int kVHeadSize = kSize_;
  static constexpr int kBlockSize = kBlock_;
};

/// attend() and attend_splits() by emulated CTAs, everything else by the CPU.
template <class Config>
class DecodingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void attend(const attn::AttendParams& params) override {
    run(
        params, [](int) { return attn::WholeRequest{}; }, 1);
  }
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    run(
        params,
        [&](int part) {
          return attn::OneSplit{split, part};
        },
        split.num_splits);
  }
  /// As decode_saving and decode_splits_saving do.
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& params) override {
    save_ = &save;
    attend(params);
    save_ = nullptr;
  }
  void save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                   const attn::AttendParams& params,
                                   const attn::SplitParams& split) override {
    save_ = &save;
    attend_splits(params, split);
    save_ = nullptr;
  }
  int num_ctas = 0;

 private:
  const attn::Int8CacheWriteParams* save_ = nullptr;

  template <class MakePart>
  void run(const attn::AttendParams& params, const MakePart& make_part, int parts) {
    using Part = decltype(make_part(0));
    using Work = attn::Decode<Config, Part>;
    const int rows = params.max_query_len * (params.num_heads / params.num_kv_heads);
    for (int request = 0; request < params.num_requests; ++request) {
      for (int head = 0; head < params.num_kv_heads; ++head) {
        for (int first = 0; first < rows; first += Work::kTileM) {
          for (int index = 0; index < parts; ++index) {
            const attn::RowTile tile = attn::row_tile(params, request, head, first, Work::kTileM);
            if (tile.num_rows <= 0) continue;
            ++num_ctas;
            const Part part = make_part(index);
            std::array<float2, Work::kStreams * Work::kTileM> states{};
            run_emulated_cta(Work::kThreads, Work::kLayout.total, [&] {
              attn::decode_work<Config>(params, part, running_cta->shared(), tile, tile, save_)
                  .run(states.data());
            });
          }
        }
      }
    }
  }
};

template <class Config>
void check_int8(const Int8AttendCase& c) {
  CAPTURE(c.splits);
  CAPTURE(c.saves);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  DecodingOps<Config> emulated(*cpu);
  const std::vector<Tensor> expected = run_int8_attend(*cpu, c);
  const std::vector<Tensor> actual = run_int8_attend(emulated, c);
  CHECK(emulated.num_ctas > 0);
  check_same(actual, expected, 3e-2);
}

Int8AttendCase decodes(Dtype values, int head_size = 128) {
  Int8AttendCase c{values, head_size};
  c.query_lens = {1, 1, 0, 3, 2};
  c.seq_lens = {190, 1, 0, 3, 66};
  return c;
}

template <class Config>
void check_both_forms(Int8AttendCase c) {
  check_int8<Config>(c);
  c.splits = true;
  check_int8<Config>(c);
}

/// A request's rows are one tile.
template <class Config>
void check_saving(Int8AttendCase c) {
  c.saves = true;
  check_both_forms<Config>(c);
}

}  // namespace

TEST_CASE("the decode kernel on emulated threads attends by int8 scores: levels 1 and 2") {
  check_both_forms<Level1>(decodes(Dtype::kI8));
  check_both_forms<Level2>(decodes(Dtype::kBF16));
  check_both_forms<Level2Transposed16>(decodes(Dtype::kF16));
}

TEST_CASE("the decode kernel on emulated threads attends by int8 scores: heads of a group") {
  // Rows of a KV head: of the requests by turns one and three tokens, of up to 16 heads.
  for (const int heads : {2, 8, 10}) {
    Int8AttendCase c = decodes(Dtype::kI8);
    c.heads = heads;
    CAPTURE(heads);
    check_both_forms<Level1Rows>(c);
    c.values = Dtype::kBF16;
    check_both_forms<Level2Rows>(c);
  }
  Int8AttendCase single = decodes(Dtype::kI8);
  single.query_lens = {1, 1, 0, 1};
  single.seq_lens = {77, 16, 0, 33};
  single.heads = 16;  // 8 of them, as many as transposed products have rows
  check_both_forms<Level1>(single);
  single.values = Dtype::kBF16;
  check_both_forms<Level2>(single);
  single.heads = 32;  // a whole tile
  check_both_forms<Level2Rows>(single);
  Int8AttendCase c = decodes(Dtype::kI8);
  c.heads = 10;
  c.query_lens = {7, 0, 5, 2};  // 35 rows: two tiles, of 16 and of 32
  c.seq_lens = {80, 0, 7, 66};
  check_both_forms<Level1Rows>(c);
  check_both_forms<Level1Shared>(c);
  c.values = Dtype::kF16;
  check_both_forms<Level2F16>(c);
}

TEST_CASE("the decode kernel on emulated threads stores new int8 keys and values itself") {
  check_saving<Level1>(decodes(Dtype::kI8));
  check_saving<Level2>(decodes(Dtype::kBF16));
  Int8AttendCase c = decodes(Dtype::kI8);
  c.query_lens = {7, 0, 5, 2, 6};
  c.seq_lens = {80, 0, 5, 66, 34};
  check_saving<Level1Rows>(c);
  c.values = Dtype::kF16;
  check_saving<Level2F16>(c);
  // What is new lies in two pages, and in two splits; and not all of it is seen.
  c = decodes(Dtype::kI8);
  c.query_lens = {20, 18};
  c.seq_lens = {40, 50};
  c.heads = 2;
  check_saving<Level1Shared>(c);
  c.window_left = 3;
  check_saving<Level1Shared>(c);
  c = decodes(Dtype::kI8, 64);
  c.block_size = 32;
  check_saving<Sized<Level1, 64, 32>>(c);
  check_saving<Sized<Level2, 96, 16>>(decodes(Dtype::kBF16, 96));
}

TEST_CASE("the decode kernel on emulated threads attends by int8 scores: masks and sizes") {
  Int8AttendCase c = decodes(Dtype::kI8);
  c.soft_cap = 2.0f;
  check_both_forms<Level1Capped>(c);
  for (const int window : {0, 15, 50}) {
    CAPTURE(window);
    c = decodes(Dtype::kI8);
    c.window_left = window;
    check_both_forms<Level1>(c);
    c.values = Dtype::kBF16;
    check_both_forms<Level2>(c);
  }
  c.window_left = c.window_right = -1;  // rows see what is behind them
  check_both_forms<Level2>(c);
  c.window_right = 1;
  check_both_forms<Level2>(c);
  c = decodes(Dtype::kI8, 64);
  c.block_size = 32;
  check_both_forms<Sized<Level1, 64, 32>>(c);
  check_both_forms<Sized<Level2, 96, 16>>(decodes(Dtype::kBF16, 96));
  c = decodes(Dtype::kI8, 256);
  c.block_size = 64;
  check_both_forms<Sized<Level1, 256, 64>>(c);
}

}  // namespace attnbench::cuda
