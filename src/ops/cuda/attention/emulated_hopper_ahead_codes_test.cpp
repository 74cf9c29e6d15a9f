// The Hopper prefill kernel on emulated threads where queries, keys and values are codes of one
// byte and a CTA stays for several row tiles: the warp that brings values hands them over.
#include <doctest/doctest.h>

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

namespace attnbench::cuda {

struct Ahead128 : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kE4M3;
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};
struct WideAhead128 : Ahead128 {
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
  static constexpr bool kKeepColumns = true;
  static constexpr bool kWideValues = true;
};
struct WideLate128 : WideAhead128 {
  static constexpr bool kLateOutput = true;
};
struct WideLateLeft128 : WideLate128 {
  static constexpr bool kLeft = true;
};
struct WideAhead64 : WideAhead128 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
};
struct WideAhead256 : WideAhead128 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kStages = 2;
  static constexpr bool kPingPong = true;
};
struct WideAheadToF32 : WideAhead128 {
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct PiecesAhead128 : Ahead128 {
  static constexpr int kTileN = 96;
  static constexpr int kPromote = 1;
  static constexpr int kSums = 32;
};
/// Outputs by way of the warps' staging, of columns that lie apart.
struct PiecesAhead256 : PiecesAhead128 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
};
struct PiecesAhead64 : PiecesAhead128 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kStages = 3;
};
const std::string kPieces = "consumers=3:tile_n=96:ping_pong=0";

/// Several row tiles of every request, of whose last some consumers have no rows.
AttendCase several_tiles(AttendCase c) {
  c.group = 4;
  c.query_lens = {230, 0, 5, 150, 1};
  c.context_lens = {30, 0, 40, 300, 0};
  return c;
}

TEST_CASE("the Hopper kernel on emulated threads works ahead over codes") {
  AttendCase c = several_tiles(hopper_wide_codes("e4m3 scores, ahead", 128, 128, 16));
  const std::string brief = "tile_n=64";
  check<WideAhead128>(c, brief);
  check<WideLate128>(c, brief);
  check<PiecesAhead128>(several_tiles(hopper_codes("e4m3, ahead", 128, 128, 16)), kPieces);
  check<PiecesAhead256>(several_tiles(hopper_codes("e4m3, ahead, d256", 256, 256, 16)),
                        "consumers=2:tile_n=64:ping_pong=0");
  check<PiecesAhead64>(several_tiles(hopper_codes("e4m3, ahead, d64", 64, 64, 16)), kPieces);
  AttendCase windows = c;
  windows.window_left = 50;
  check<WideLateLeft128>(windows, brief);
  AttendCase scaled = c;  // by the request's own head, not that of the one before
  scaled.has_sinks = true;
  scaled.output = Dtype::kF32;
  check<WideAheadToF32>(scaled, brief);
  check<WideAhead64>(several_tiles(hopper_wide_codes("e4m3 scores, ahead, d64", 64, 64, 16)),
                     brief + ":ping_pong=0");
  check<WideAhead256>(several_tiles(hopper_wide_codes("e4m3 scores, ahead, d256", 256, 256, 16)));
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<WideAhead128>(c, brief);
  check<WideLate128>(c, brief);
}

TEST_CASE("ahead over codes, NaN of e4m3 go to the rows that see them") {
  check<WideAhead128>(hopper_wide_codes("special values, ahead", 128, 128, 16), "tile_n=64", true);
  check<WideLate128>(hopper_wide_codes("special values, late", 128, 128, 16), "tile_n=64", true);
  check<PiecesAhead128>(hopper_codes("special values, e4m3, ahead", 128, 128, 16), kPieces, true);
}

struct Level2Ahead : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kI8;
  static constexpr attn::Element kKeyValue = attn::Element::kI8;
  static constexpr attn::Element kInt8Value = attn::Element::kBF16;
  static constexpr int kTileN = 64;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};
struct Level1Ahead : Level2Ahead {
  static constexpr attn::Element kInt8Value = attn::Element::kI8;
  static constexpr int kTileN = 80;
  static constexpr bool kKeepColumns = true;
  static constexpr bool kLateOutput = true;
};

TEST_CASE("the Hopper kernel on emulated threads works ahead by int8 scores") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const auto check_int8 = [&](const Int8AttendCase& c, Ops& emulated) {
    check_same(run_int8_attend(emulated, c), run_int8_attend(*cpu, c), 3e-2);
  };
  Int8AttendCase c{Dtype::kI8, 128};
  c.query_lens = {230, 0, 5, 140};
  c.seq_lens = {303, 0, 105, 231};
  EmulatedOps<Level1Ahead> level_1(*cpu, "");
  check_int8(c, level_1);
  c.values = Dtype::kBF16;
  EmulatedOps<Level2Ahead> level_2(*cpu, "");
  check_int8(c, level_2);
  CHECK(level_1.num_ctas > 0);
  CHECK(level_2.num_ctas > 0);
}

}  // namespace attnbench::cuda
