// The Hopper prefill kernel on emulated threads over values that have become f16 in pages of their
// own: keys of one byte from the cache, by int8 scores and by those of e4m3.
#include <doctest/doctest.h>

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

namespace attnbench::cuda {
namespace {

struct Level1 : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kI8;
  static constexpr attn::Element kKeyValue = attn::Element::kI8;
  static constexpr attn::Element kInt8Value = attn::Element::kF16;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr bool kValuesApart = true;
};
/// What is chosen for prompts.
struct Level1Prompt : Level1 {
  static constexpr bool kBounds = true;
  static constexpr bool kFixedBase = true;
  static constexpr bool kUnrolled = true;
};
struct Level1D64 : Level1 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
  static constexpr int kBlockSize = 32;
};
struct Level1D96 : Level1 {
  static constexpr int kHeadSize = 96;
  static constexpr int kVHeadSize = 96;
  static constexpr int kTileN = 96;
};
struct Level1D256 : Level1Prompt {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
};
struct Level1Window : Level1 {
  static constexpr bool kLeft = true;
};
struct Level1Ahead : Level1 {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};

template <class Config>
std::string tile_of() {
  return fmt::format("tile_n={}:ping_pong=0", Config::kTileN);
}

Int8AttendCase int8_batch(int head_size = 128) {
  Int8AttendCase c{Dtype::kI8, head_size};
  c.query_lens = {130, 0, 5, 40};
  c.seq_lens = {303, 0, 105, 31};
  return c;
}

template <class Config>
void check_int8(const Int8AttendCase& c) {
  CAPTURE(Config::kHeadSize);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<Config> emulated(*cpu, tile_of<Config>());
  Int8AttendCase apart = c;
  apart.values_apart = true;
  const std::vector<Tensor> expected = run_int8_attend(*cpu, c);
  check_same(run_int8_attend(emulated, apart), expected, 3e-2);
  CHECK(emulated.num_ctas > 0);
  check_same(run_int8_attend(*cpu, apart), expected, 0.0);
}

struct E4M3 : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kE4M3;
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
  static constexpr bool kWideValues = true;
  static constexpr bool kValuesApart = true;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr bool kFixedBase = true;
};
struct E4M3Prompt : E4M3 {
  static constexpr int kStages = 3;
  static constexpr bool kBounds = true;
  static constexpr bool kUnrolled = true;
};
struct E4M3D64 : E4M3 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
  static constexpr bool kFixedBase = false;
};
struct E4M3D256 : E4M3 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
};
struct E4M3Window : E4M3 {
  static constexpr bool kLeft = true;
};
struct E4M3Ahead : E4M3 {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};

template <class Config>
void check_e4m3(const AttendCase& c) {
  CAPTURE(c.name);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<Config> emulated(*cpu, tile_of<Config>());
  AttendCase apart = c;
  apart.values_apart = true;
  const std::vector<Tensor> expected = run_attend(*cpu, c);
  check_same(run_attend(emulated, apart), expected, 1e-2);
  CHECK(emulated.num_ctas > 0);
  check_same(run_attend(*cpu, apart), expected, 0.0);
}

}  // namespace

TEST_CASE("the Hopper kernel on emulated threads attends over values apart: int8 scores") {
  check_int8<Level1>(int8_batch());
  Int8AttendCase c = int8_batch();
  c.query_lens = {130, 70};
  c.seq_lens = {603, 705};
  check_int8<Level1Prompt>(c);
  c = int8_batch();
  c.window_right = -1;
  check_int8<Level1>(c);
  c = int8_batch();
  c.query_lens = {5, 70, 3};  // rows without keys
  c.seq_lens = {0, 20, 23};
  check_int8<Level1>(c);
  c = int8_batch();
  c.window_left = 50;
  check_int8<Level1Window>(c);
}

TEST_CASE("the Hopper kernel on emulated threads attends over values apart: int8, sizes, rounds") {
  Int8AttendCase c = int8_batch(64);
  c.block_size = 32;
  check_int8<Level1D64>(c);
  check_int8<Level1D96>(int8_batch(96));
  c = int8_batch(256);
  c.heads = 8;
  check_int8<Level1D256>(c);
  check_int8<Level1Ahead>(int8_batch());
}

TEST_CASE("the Hopper kernel on emulated threads attends over values apart: e4m3") {
  check_e4m3<E4M3>(hopper_wide_codes("values apart", 128, 128, 16));
  AttendCase c = hopper_wide_codes("values apart, long", 128, 128, 16);
  c.query_lens = {130, 70};
  c.context_lens = {473, 635};
  check_e4m3<E4M3Prompt>(c);
  c = hopper_wide_codes("values apart, full", 128, 128, 16);
  c.window_right = -1;
  check_e4m3<E4M3>(c);
  c.window_left = 50;
  check_e4m3<E4M3Window>(c);
  c = hopper_wide_codes("values apart, rows without keys", 128, 128, 16);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check_e4m3<E4M3>(c);
  check_e4m3<E4M3D64>(hopper_wide_codes("values apart d64", 64, 64, 16));
  check_e4m3<E4M3D256>(hopper_wide_codes("values apart d256", 256, 256, 16));
  check_e4m3<E4M3Ahead>(hopper_wide_codes("values apart, ahead", 128, 128, 16));
}

TEST_CASE("NaN among values apart reaches the rows that see it and no other") {
  AttendCase c = hopper_wide_codes("special values apart", 128, 128, 16);
  c.values_apart = true;
  check<E4M3>(c, tile_of<E4M3>(), true);
  check<E4M3Ahead>(c, tile_of<E4M3Ahead>(), true);
}

}  // namespace attnbench::cuda
