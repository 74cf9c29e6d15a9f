// The Hopper prefill kernel on emulated threads where scores are products of int8 codes (semantics
// §11.4): exact products, scales of rows and of keys, int8 values as f16, values of 16 bits.
#include <doctest/doctest.h>

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

namespace attnbench::cuda {
namespace {

/// Level 1 of D128 over pages of 16, the tile of long requests; codes converted as bf16 is copied.
struct AnyColumns : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kI8;
  static constexpr attn::Element kKeyValue = attn::Element::kI8;
  static constexpr attn::Element kInt8Value = attn::Element::kI8;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
};
struct Level1 : AnyColumns {
  static constexpr bool kKeepColumns = true;
};
struct Level2 : AnyColumns {
  static constexpr attn::Element kInt8Value = attn::Element::kBF16;
};
struct Level2F16 : Level2 {
  static constexpr attn::Element kInt8Value = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
};

Int8AttendCase int8_batch(Dtype values, int head_size = 128) {
  Int8AttendCase c{values, head_size};
  c.query_lens = {130, 0, 5, 40};
  c.seq_lens = {303, 0, 105, 31};
  return c;
}

template <class Config>
void check_int8(const Int8AttendCase& c, const std::string& options = {}) {
  CAPTURE(Config::kHeadSize);
  CAPTURE(options);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<Config> emulated(*cpu, options);
  const std::vector<Tensor> expected = run_int8_attend(*cpu, c);
  const std::vector<Tensor> actual = run_int8_attend(emulated, c);
  CHECK(emulated.num_ctas > 0);
  check_same(actual, expected, 3e-2);
}

}  // namespace

TEST_CASE("the Hopper kernel on emulated threads attends by int8 scores: levels 1 and 2") {
  check_int8<Level1>(int8_batch(Dtype::kI8));
  check_int8<Level2>(int8_batch(Dtype::kBF16));
  check_int8<Level2F16>(int8_batch(Dtype::kF16));
  Int8AttendCase c = int8_batch(Dtype::kI8);
  c.window_right = -1;
  check_int8<Level1>(c);
  c = int8_batch(Dtype::kBF16);
  c.query_lens = {5, 70, 3};  // rows without keys
  c.seq_lens = {0, 20, 23};
  check_int8<Level2>(c);
}

struct Level1Window : Level1 {
  static constexpr bool kLeft = true;
};
struct Level2Capped : Level2 {
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};
struct Level1D64 : Level1 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
  static constexpr bool kBounds = true;
  static constexpr int kBlockSize = 32;
};
struct Level2D96 : Level2 {
  static constexpr int kHeadSize = 96;
  static constexpr int kVHeadSize = 96;
  static constexpr int kTileN = 96;
};
struct Level1D256 : Level1 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr int kBlockSize = 64;
};
struct Level1Stays : Level1 {
  static constexpr bool kPersistent = true;
  static constexpr bool kPingPong = true;
};

TEST_CASE("the Hopper kernel on emulated threads attends by int8 scores: masks, sizes, rounds") {
  Int8AttendCase c = int8_batch(Dtype::kI8);
  c.window_left = 50;
  check_int8<Level1Window>(c);
  c = int8_batch(Dtype::kBF16);
  c.soft_cap = 2.0f;
  check_int8<Level2Capped>(c);
  c = int8_batch(Dtype::kI8, 64);
  c.block_size = 32;
  check_int8<Level1D64>(c);
  check_int8<Level2D96>(int8_batch(Dtype::kBF16, 96));
  c = int8_batch(Dtype::kI8, 256);
  c.block_size = 64;
  c.heads = 8;
  check_int8<Level1D256>(c);
  check_int8<Level1Stays>(int8_batch(Dtype::kI8), "persistent=1:ping_pong=1");
}

/// What is chosen for prompts.
struct Level2Prompt : Level2 {
  static constexpr bool kBounds = true;
  static constexpr bool kFixedBase = true;
  static constexpr bool kUnrolled = true;
};
struct Level1Unrolled : Level1 {
  static constexpr int kStages = 3;
  static constexpr bool kUnrolled = true;
};

TEST_CASE("the Hopper kernel on emulated threads attends by int8 scores: a step for every stage") {
  Int8AttendCase c = int8_batch(Dtype::kBF16);
  c.query_lens = {130, 70};
  c.seq_lens = {603, 705};
  check_int8<Level2Prompt>(c);
  c = int8_batch(Dtype::kI8);
  c.query_lens = {130, 70};
  c.seq_lens = {603, 705};
  check_int8<Level1Unrolled>(c, "stages=3");
}

struct Level1Variant : AnyColumns {
  static constexpr bool kAddFloats = true;
};
struct Level2Variant : Level2 {
  static constexpr bool kAddFloats = true;
};

TEST_CASE(
    "the Hopper kernel on emulated threads attends by int8 scores: additions, columns not kept") {
  check_int8<Level1Variant>(int8_batch(Dtype::kI8), "add_floats=1:keep_columns=0");
  check_int8<Level2Variant>(int8_batch(Dtype::kBF16), "add_floats=1");
}

struct Level1Decode : Level1 {
  static constexpr int kConsumers = 1;
  static constexpr int kTileN = 64;
};
struct Level2Decode : Level2 {
  static constexpr int kConsumers = 1;
  static constexpr int kTileN = 64;
};

TEST_CASE("the Hopper kernel on emulated threads decodes by int8 scores and saves in one launch") {
  Int8AttendCase c{Dtype::kI8, 128};
  c.query_lens = {1, 1, 0, 3, 2};
  c.seq_lens = {190, 1, 0, 3, 66};
  c.heads = 8;
  check_int8<Level1Decode>(c);
  c.saves = true;
  check_int8<Level1Decode>(c);
  c.values = Dtype::kBF16;
  check_int8<Level2Decode>(c);
}

}  // namespace attnbench::cuda
