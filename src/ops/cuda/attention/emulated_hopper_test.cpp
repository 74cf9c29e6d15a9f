// The Hopper prefill kernel on emulated threads: elements of 16 bits, all masks and head sizes.
#include <doctest/doctest.h>

#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

namespace attnbench::cuda {
namespace {

AttendCase paged_batch(const char* name, int head_size = 128, int v_head_size = 128,
                       int block_size = 16) {
  return hopper_batch(name, head_size, v_head_size, block_size);
}

}  // namespace

struct ShortTile : Ragged128 {
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 128;
};
struct Paged128 : Ragged128 {
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
};

TEST_CASE("the Hopper kernel on emulated threads attends like the CPU: causal, full, windows") {
  const std::string long_tile = "consumers=3:tile_n=80";
  AttendCase c = hopper_batch("ragged causal");
  check<ShortTile>(c, "consumers=2:tile_n=128");
  check<Ragged128>(c, long_tile);
  c.window_right = -1;
  check<Ragged128>(c, long_tile);
  c.window_left = 50;
  check<Ragged128>(c, long_tile);
  c.window_right = 7;
  check<Ragged128>(c, long_tile);
}

struct Block48 : Paged128 {
  static constexpr int kBlockSize = 48;
};

struct Block64 : Paged128 {
  static constexpr int kBlockSize = 64;
  static constexpr int kTileN = 64;
};

struct Window : Paged128 {
  static constexpr bool kLeft = true;
};

struct Ahead : Paged128 {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};
struct AheadD64 : Ahead {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr bool kPingPong = true;
};

struct AheadD256 : Ahead {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
};
struct AheadWide : Ahead {
  static constexpr int kHeadSize = 192;
};
struct AheadWindow256 : AheadD256 {
  static constexpr bool kLeft = true;
};

TEST_CASE("the Hopper kernel on emulated threads works ahead: queries by boxes, several items") {
  const std::string long_tile = "consumers=3:tile_n=80";
  AttendCase c = paged_batch("ahead, groups of two");
  check<Ahead>(c, long_tile);
  c.group = 4;
  c.query_lens = {230, 0, 5, 150};
  check<Ahead>(c, long_tile);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Ahead>(c, long_tile);
  // Its queries have one place, which is left when the last scores are there.
  c = paged_batch("d256 ahead, one query stage", 256, 256);
  check<AheadD256>(c, "");
  c.query_lens = {230, 0, 5, 150};
  c.window_left = 40;
  check<AheadWindow256>(c, "");
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<AheadWindow256>(c, "");
  check<AheadWide>(paged_batch("192/128 ahead, one query stage", 192, 128), long_tile);
  check<AheadD64>(paged_batch("d64 ahead", 64, 64), "consumers=3:tile_n=128:ping_pong=1");
}

struct Late : Ahead {
  static constexpr bool kLateOutput = true;
};
struct LateD64 : AheadD64 {
  static constexpr bool kLateOutput = true;
  static constexpr bool kPingPong = false;
};
struct LateWindow : Late {
  static constexpr bool kLeft = true;
};
struct LateFours : Late {
  static constexpr int kGroup = 4;
};

TEST_CASE("the Hopper kernel on emulated threads stores outputs while the next item has begun") {
  const std::string long_tile = "consumers=3:tile_n=80:late_output=1";
  AttendCase c = paged_batch("late output, groups of two");
  check<Late>(c, long_tile);
  c.group = 4;
  c.query_lens = {230, 0, 5, 150};
  check<Late>(c, long_tile);
  check<LateFours>(c, long_tile);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Late>(c, long_tile);
  check<LateD64>(paged_batch("d64 late output", 64, 64),
                 "consumers=3:tile_n=128:ping_pong=0:late_output=1");
  c = paged_batch("late output, skipped tiles on both sides");
  c.group = 1;
  c.query_lens = {600, 90, 333};
  c.context_lens = {0, 100, 7};
  check<Late>(c, long_tile);
  c.has_large_queries = false;  // no weight of 0 where a key is seen
  check<Late>(c, long_tile, true);
  c.window_left = 60;
  check<LateWindow>(c, long_tile);
}

/// Threads that are late, as long as it lives.
struct LateThreads {
  explicit LateThreads(bool (*is_late)(std::size_t)) { is_late_thread = is_late; }
  ~LateThreads() { is_late_thread = nullptr; }
};

TEST_CASE("lanes of a warp that leaves tiles out may be late, on emulated threads") {
  // The last of three consumers has no rows of the request's tile, and waits for its keys only to
  // leave their stages.
  AttendCase c = paged_batch("late lanes");
  c.group = 2;
  c.query_lens = {60};
  c.context_lens = {500};
  const LateThreads late([](std::size_t thread) { return thread >= 3 * 128 && thread % 32 != 0; });
  check<Ahead>(c, "consumers=3:tile_n=80");
  check<Late>(c, "consumers=3:tile_n=80");
}

TEST_CASE("the Hopper kernel on emulated threads finds every key of pages") {
  const std::string long_tile = "consumers=3:tile_n=80";
  check<Paged128>(paged_batch("pages of 16"), long_tile);
  check<Block48>(paged_batch("pages of 48", 128, 128, 48), long_tile);
  check<Block64>(paged_batch("pages of 64", 128, 128, 64), "consumers=3:tile_n=64");
  AttendCase c = paged_batch("requests without keys");
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Paged128>(c, long_tile);
  c = paged_batch("pages and window");
  c.window_left = 60;
  check<Window>(c, long_tile);
}

struct FitWindow : Window {
  static constexpr bool kFitTiles = true;
};
struct FitBlock48 : FitWindow {
  static constexpr int kBlockSize = 48;
};
struct FitAhead : Ahead {
  static constexpr bool kLeft = true;
  static constexpr bool kFitTiles = true;
};

TEST_CASE("the Hopper kernel on emulated threads has tiles of keys that end with a window") {
  const std::string options = "consumers=3:tile_n=80:fit=1";
  AttendCase c = paged_batch("window, tiles end with it");
  for (const int window : {0, 15, 60, 200}) {
    c.window_left = window;
    check<FitWindow>(c, options);
    check<FitAhead>(c, options);
  }
  c.has_large_queries = false;
  check<FitWindow>(c, options, true);
  c = paged_batch("window, pages of 48", 128, 128, 48);
  c.window_left = 60;
  check<FitBlock48>(c, options);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<FitBlock48>(c, options);
}

struct D64 : Ragged128 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr bool kPingPong = true;
};

struct D96 : Paged128 {
  static constexpr int kHeadSize = 96;
  static constexpr int kVHeadSize = 96;
  static constexpr int kTileN = 96;
};

struct D80 : Ragged128 {
  static constexpr int kHeadSize = 80;
  static constexpr int kVHeadSize = 80;
  static constexpr int kTileN = 96;
};

struct D72 : Ragged128 {
  static constexpr int kHeadSize = 72;
  static constexpr int kVHeadSize = 72;
  static constexpr int kTileN = 96;
};

/// Lines of 128 bytes: 64 columns, and 16 or 8 behind them.
struct D80Wide : D80 {
  static constexpr int kTileN = 112;
  static constexpr int kLine = 128;
  static constexpr bool kPingPong = true;
};

struct D72Wide : D72 {
  static constexpr int kTileN = 112;
  static constexpr int kLine = 128;
  static constexpr bool kPingPong = true;
};

/// Windows: one consumer, which stays for several of them.
struct D80Windows : D80 {
  static constexpr int kConsumers = 1;
  static constexpr int kTileN = 64;
  static constexpr int kLine = 64;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};

struct D72Windows : D80Windows {
  static constexpr bool kAhead = false;
  static constexpr int kHeadSize = 72;
  static constexpr int kVHeadSize = 72;
};

struct D120 : Ragged128 {
  static constexpr int kHeadSize = 120;
  static constexpr int kVHeadSize = 88;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};

struct D32 : Paged128 {
  static constexpr int kHeadSize = 32;
  static constexpr int kVHeadSize = 32;
  static constexpr int kTileN = 128;
};

struct D192 : Ragged128 {
  static constexpr int kHeadSize = 192;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};

struct D256 : Paged128 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
};

struct F16 : ShortTile {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
};

TEST_CASE("the Hopper kernel on emulated threads has all head sizes") {
  check<D64>(hopper_batch("d64 in turns", 64, 64), "consumers=3:tile_n=128:ping_pong=1");
  check<D96>(paged_batch("d96: lines of 64 bytes", 96, 96), "consumers=3:tile_n=96");
  check<D80>(hopper_batch("d80: lines of 32 bytes", 80, 80),
             "consumers=3:tile_n=96:line=0:ping_pong=0");
  check<D72>(hopper_batch("d72: lines that are not full", 72, 72),
             "consumers=3:tile_n=96:line=0:ping_pong=0");
  check<D32>(paged_batch("d32", 32, 32), "consumers=3:tile_n=128:ping_pong=0");
  AttendCase c = hopper_batch("d120/88: lines that are not full", 120, 88);
  c.output = Dtype::kF32;
  check<D120>(c, "consumers=3:tile_n=80");
  c = hopper_batch("d192/128 to f32", 192, 128);
  c.output = Dtype::kF32;
  check<D192>(c);
  check<D256>(paged_batch("d256", 256, 256));
  c = hopper_batch("f16");
  c.query = c.cache = c.output = Dtype::kF16;
  c.has_large_queries = false;
  check<F16>(c, "consumers=2:tile_n=128");
}

AttendCase windows(const char* name, int head_size) {
  AttendCase c = hopper_batch(name, head_size, head_size);
  c.query_lens = {64, 64, 16, 0, 64, 130};
  c.context_lens = {0, 0, 0, 0, 0, 0};
  c.window_right = -1;
  c.group = 1;
  return c;
}

TEST_CASE("the Hopper kernel on emulated threads has rows of an encoder: 72 and 80 columns") {
  AttendCase c = hopper_batch("d80: lines of 128 bytes", 80, 80);
  const std::string wide = "consumers=3:tile_n=112:line=128:ping_pong=1:persistent=0";
  check<D80Wide>(c, wide);
  c.window_right = -1;
  check<D80Wide>(c, wide);
  c.has_large_queries = false;
  check<D80Wide>(c, wide, true);
  check<D72Wide>(hopper_batch("d72: lines of 128 bytes", 72, 72), wide);
  check<D80Windows>(windows("d80 windows", 80));
  check<D72Windows>(windows("d72 windows", 72));
}

struct SoftCap : Paged128 {
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};

struct Alibi : Ragged128 {
  static constexpr attn::Alibi kAlibi = attn::Alibi::kContextRelative;
  static constexpr bool kScaleFirst = true;
};

struct Ranges : Paged128 {
  static constexpr bool kRanges = true;
  static constexpr bool kLeft = true;
};

struct AheadRanges : Ahead {
  static constexpr bool kRanges = true;
  static constexpr bool kLeft = true;
};

struct Negative : Paged128 {
  static constexpr bool kScaleFirst = true;
};

TEST_CASE("the Hopper kernel on emulated threads has soft cap, ALiBi, sinks and ranges") {
  const std::string long_tile = "consumers=3:tile_n=80";
  AttendCase c = paged_batch("soft cap");
  c.soft_cap = 3.0f;
  c.has_large_queries = false;
  check<SoftCap>(c, long_tile);
  c = hopper_batch("alibi and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  check<Alibi>(c, long_tile);
  c = paged_batch("ranges in a window");
  c.has_ranges = true;
  c.window_left = 25;
  check<Ranges>(c, long_tile);
  check<AheadRanges>(c, long_tile);  // shares by whole warps
  c = paged_batch("negative scale");
  c.softmax_scale = -0.1f;
  check<Negative>(c, long_tile);
}

struct Capped : Paged128 {
  static constexpr bool kSoftCap = true;
  static constexpr int kCap = 1;
};
template <int kForm>
struct CappedBy : Capped {
  static constexpr int kCap = kForm;
};
struct CappedWindow : CappedBy<2> {
  static constexpr bool kLeft = true;
};
struct CappedF16 : ShortTile {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
  static constexpr bool kSoftCap = true;
  static constexpr int kCap = 1;
};

/// LSEs are off by no more than verdicts allow, and by what f32 keeps of large ones.
template <class Config>
void check_lse(const AttendCase& c, const std::string& options) {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<Config> emulated(*cpu, options);
  check_same({run_attend(emulated, c).at(1)}, {run_attend(*cpu, c).at(1)}, 2e-7, 2e-5);
}

TEST_CASE("the Hopper kernel on emulated threads has every form of soft cap, of any scores") {
  const std::string long_tile = "consumers=3:tile_n=80";
  for (const float cap : {0.5f, 3.0f, 50.0f}) {
    for (const bool has_large_queries : {false, true}) {
      AttendCase c = paged_batch("soft cap");
      c.soft_cap = cap;
      c.has_large_queries = has_large_queries;
      CAPTURE(cap);
      CAPTURE(has_large_queries);
      check<CappedBy<1>>(c, long_tile + ":cap=1");
      check<CappedBy<2>>(c, long_tile + ":cap=2");
      check<CappedBy<3>>(c, long_tile + ":cap=3");
      check<CappedBy<4>>(c, long_tile + ":cap=4");
      check_lse<CappedBy<4>>(c, long_tile + ":cap=4");
      c.has_sinks = true;
      c.window_left = 30;
      check<CappedWindow>(c, long_tile + ":cap=2");
      c.query = c.cache = c.output = Dtype::kF16;
      c.block_size = 0;
      check<CappedF16>(c, "consumers=2:tile_n=128:cap=1");
    }
  }
  AttendCase c = paged_batch("a cap of 60");
  c.soft_cap = 60.0f;
  check<CappedBy<3>>(c, long_tile + ":cap=3");
  c = paged_batch("soft cap, rows without keys");
  c.soft_cap = 20.0f;
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  c.has_sinks = true;
  check<Capped>(c, long_tile + ":cap=1");
  c.has_sinks = false;
  check<Capped>(c, long_tile + ":cap=1");
  c = paged_batch("soft cap, special values");
  c.soft_cap = 20.0f;
  c.has_large_queries = false;
  check<CappedBy<2>>(c, long_tile + ":cap=2", true);
  check<CappedBy<3>>(c, long_tile + ":cap=3", true);
}

struct Bounds : Paged128 {
  static constexpr bool kBounds = true;
};
struct BoundsWindow : Ragged128 {
  static constexpr bool kBounds = true;
};
struct BoundsF16 : F16 {
  static constexpr bool kBounds = true;
};

TEST_CASE("the Hopper kernel on emulated threads finds maxima by integers") {
  const std::string options = "consumers=3:tile_n=80:bounds=1";
  AttendCase c = paged_batch("bounds");
  check<Bounds>(c, options);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Bounds>(c, options);
  c = paged_batch("bounds, special values");
  c.has_large_queries = false;
  check<Bounds>(c, options, true);
  c = hopper_batch("bounds in a window");
  c.window_left = 50;
  check<BoundsWindow>(c, options);
  c = hopper_batch("bounds, f16");
  c.query = c.cache = c.output = Dtype::kF16;
  check<BoundsF16>(c, "consumers=2:tile_n=128:bounds=1");
}

struct Unrolled : Bounds {
  static constexpr bool kUnrolled = true;
};
struct UnrolledThrice : Unrolled {
  static constexpr int kStages = 3;
  static constexpr bool kBounds = false;
  static constexpr bool kPingPong = true;
};

TEST_CASE("the Hopper kernel on emulated threads has a step for every stage") {
  // 2 to 9 tiles of 80 keys that no row masks, so that stages begin and end at any of them.
  for (const int context : {200, 290, 370, 450, 530, 700}) {
    AttendCase c = paged_batch("a step for every stage");
    c.query_lens = {70, 3};
    c.context_lens = {context, context + 85};
    check<Unrolled>(c, "consumers=3:tile_n=80");
    check<UnrolledThrice>(c, "consumers=3:tile_n=80:stages=3:ping_pong=1");
  }
}

struct OneSlope : Ragged128 {
  static constexpr attn::Alibi kAlibi = attn::Alibi::kContextRelative;
  static constexpr int kSlopes = 1;
};
struct TwoSlopes : OneSlope {
  static constexpr int kSlopes = 2;
};
struct KeySlopes : Paged128 {
  static constexpr attn::Alibi kAlibi = attn::Alibi::kKeyIndex;
  static constexpr int kSlopes = 1;
  static constexpr bool kLeft = true;
};
struct BoundSlopes : KeySlopes {
  static constexpr bool kBounds = true;
};

struct OneSlopeProduct : OneSlope {
  static constexpr bool kSlopeProducts = true;
};
struct TwoSlopeProducts : TwoSlopes {
  static constexpr bool kSlopeProducts = true;
};
struct SlopeProductsF16 : OneSlopeProduct {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
};
struct KeySlopeProducts : BoundSlopes {
  static constexpr bool kSlopeProducts = true;
};

TEST_CASE("the Hopper kernel on emulated threads has ALiBi by distances in a tile") {
  const std::string options = "consumers=3:tile_n=80:slopes=1";
  AttendCase c = hopper_batch("slopes and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  check<OneSlope>(c, options);
  c.group = 16;
  check<TwoSlopes>(c, options);
  c.group = 7;
  check<TwoSlopes>(c, options);
  c = paged_batch("slopes and a window");
  c.alibi = attn::Alibi::kKeyIndex;
  c.group = 8;
  c.window_left = 70;
  check<KeySlopes>(c, options);
  check<BoundSlopes>(c, options + ":bounds=1");
  c.softmax_scale = -0.1f;
  check<KeySlopes>(c, options);
}

TEST_CASE("the Hopper kernel on emulated threads has ALiBi by products of slopes and distances") {
  const std::string options = "consumers=3:tile_n=80:slopes=2";
  AttendCase c = hopper_batch("slope products and sinks");
  c.alibi = attn::Alibi::kContextRelative;
  c.has_sinks = true;
  check<OneSlopeProduct>(c, options);
  c.has_large_queries = false;
  check_lse<OneSlopeProduct>(c, options);
  c.group = 7;
  check<TwoSlopeProducts>(c, options);
  c = hopper_batch("slope products, f16");
  c.alibi = attn::Alibi::kContextRelative;
  c.query = c.cache = c.output = Dtype::kF16;
  check<SlopeProductsF16>(c, options);
  c = paged_batch("slope products and a window");
  c.alibi = attn::Alibi::kKeyIndex;
  c.group = 8;
  c.window_left = 70;
  check<KeySlopeProducts>(c, options + ":bounds=1");
  // Scores of a negative scale are largest where they are least.
  c.softmax_scale = -0.1f;
  check<BoundSlopes>(c, options + ":bounds=1");
}

struct Persistent : Paged128 {
  static constexpr bool kPersistent = true;
  static constexpr int kStages = 3;
};

struct Turns : Persistent {
  static constexpr bool kPingPong = true;
  static constexpr int kStages = 2;
};

TEST_CASE(
    "the Hopper kernel on emulated threads can stay for several row tiles, with more stages") {
  check<Persistent>(paged_batch("persistent"),
                    "consumers=3:tile_n=80:persistent=1:stages=3:group=3:reverse=1");
  check<Turns>(paged_batch("persistent in turns"),
               "consumers=3:tile_n=80:persistent=1:ping_pong=1:group=2");
}

TEST_CASE(
    "the Hopper kernel on emulated threads gives NaN and infinities to the rows that see them") {
  const std::string long_tile = "consumers=3:tile_n=80";
  AttendCase c = hopper_batch("special values, ragged");
  // Why: what a weight of 0 makes of an infinity differs between kernels.
  c.has_large_queries = false;
  check<Ragged128>(c, long_tile, true);
  c.window_left = 30;
  check<Ragged128>(c, long_tile, true);
  c = paged_batch("special values, pages");
  c.has_large_queries = false;
  check<Paged128>(c, long_tile, true);
}

}  // namespace attnbench::cuda
