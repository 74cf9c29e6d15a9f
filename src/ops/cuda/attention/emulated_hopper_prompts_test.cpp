// The Hopper prefill kernel on emulated threads: forms that prompts take by their length.
#include <doctest/doctest.h>

#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

namespace attnbench::cuda {

struct Tail : Ragged128 {
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr bool kTail = true;
};
struct TailOfTwo : Ragged128 {
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 128;
  static constexpr bool kTail = true;
};

TEST_CASE("the Hopper kernel on emulated threads cuts the row tiles that are left over") {
  AttendCase c = hopper_batch("cut row tiles", 128, 128, 16);
  c.group = 4;
  c.query_lens = {230, 0, 5, 150};
  c.context_lens = {300, 0, 40, 700};
  check<Tail>(c, "consumers=3:tile_n=80");
  c.window_right = -1;
  check<Tail>(c, "consumers=3:tile_n=80");
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Tail>(c, "consumers=3:tile_n=80");
  c = hopper_batch("cut row tiles of contiguous keys");
  check<TailOfTwo>(c, "consumers=2:tile_n=128");
  c.window_right = -1;
  check<TailOfTwo>(c, "consumers=2:tile_n=128");
}

struct ThirdStage : Ragged128 {
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr int kStages = 3;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};
struct LateThirdStage : ThirdStage {
  static constexpr bool kLateOutput = true;
};
struct BriefD64 : ThirdStage {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 64;
};
/// 192 columns of keys: the second place of queries is there beside tiles of 64 keys.
struct LateLatent : Ragged128 {
  static constexpr int kHeadSize = 192;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
  static constexpr bool kLateOutput = true;
};

TEST_CASE("the Hopper kernel on emulated threads has a third stage where a CTA stays") {
  AttendCase c = hopper_batch("third stage", 128, 128, 16);
  c.group = 4;
  c.query_lens = {230, 0, 5, 150};
  check<LateThirdStage>(c, "consumers=3:tile_n=80:stages=3");
  c = hopper_batch("d64, third stage", 64, 64, 16);
  check<BriefD64>(c, "consumers=3:tile_n=64:stages=3:ping_pong=0");
  const std::string latent = "consumers=2:tile_n=64:stages=3:ping_pong=0";
  c = hopper_batch("192/128, third stage", 192, 128);
  check<LateLatent>(c, latent);
  c.window_right = -1;
  check<LateLatent>(c, latent);
}

struct RopeApart : Ragged128 {
  static constexpr int kHeadSize = 192;
  static constexpr int kRopeColumns = 64;
};
struct RopeApartAhead : RopeApart {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};
struct RopeApartTail : RopeApart {
  static constexpr bool kTail = true;
};
struct RopeApartOfTwo : LateLatent {
  static constexpr int kRopeColumns = 64;
};
/// One line of each head's own, two of all.
struct WideRope : RopeApart {
  static constexpr int kRopeColumns = 128;
};

TEST_CASE("the Hopper kernel on emulated threads reads what heads share of keys where it lies") {
  AttendCase c = hopper_batch("192/128, rope apart", 192, 128);
  c.rope = 64;
  for (const int right : {0, -1}) {
    c.window_right = right;
    check<RopeApart>(c, "consumers=3:tile_n=80");
    check<RopeApartAhead>(c, "consumers=3:tile_n=80");
    check<RopeApartOfTwo>(c, "consumers=2:tile_n=64:stages=3:ping_pong=0");
    check<RopeApartTail>(c, "consumers=3:tile_n=80");
  }
  c.rope = 128;
  check<WideRope>(c, "consumers=3:tile_n=80");
}

}  // namespace attnbench::cuda
