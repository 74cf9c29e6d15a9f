// The Hopper prefill kernel on emulated threads where keys and values are e4m3: transposed values
// and permuted weights, promoted sums, codes beside queries of 16 bits.
#include <doctest/doctest.h>

#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

#include <cmath>
#include <set>

namespace attnbench::cuda {
namespace {

/// 16-bit queries over e4m3.
AttendCase converted_batch(const char* name, int head_size = 128, int v_head_size = 128,
                           int block_size = 0) {
  AttendCase c = hopper_batch(name, head_size, v_head_size, block_size);
  c.cache = Dtype::kE4M3;
  return c;
}

/// The kernel's constants of e4m3, ragged; the tile of two sums.
struct TwoSums128 : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kE4M3;
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 96;
  static constexpr int kStages = 3;
  static constexpr int kPromote = 2;
  static constexpr bool kPingPong = true;
};
const std::string kTwoConsumers = "consumers=2:ping_pong=1:stages=3";
struct TwoSumsPaged : TwoSums128 {
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
};

/// Sums by pieces of 32 columns: what is chosen in windows, and of 256 columns.
struct CodesPaged : TwoSumsPaged {
  static constexpr int kConsumers = 3;
  static constexpr int kStages = 2;
  static constexpr int kPromote = 1;
  static constexpr bool kPingPong = false;
  static constexpr bool kFixedBase = true;
  static constexpr int kSums = 32;
};

struct CodesPaged64 : CodesPaged {
  static constexpr int kBlockSize = 64;
};

/// The first two requests by the CPU, the others by the kernel.
class LastRequests final : public ForwardingOps {
 public:
  LastRequests(Ops& kernel, Ops& cpu) : ForwardingOps(kernel), cpu_(cpu) {}
  void attend(const attn::AttendParams& params) override {
    attn::AttendParams part = params;
    part.num_requests = 2;
    cpu_.attend(part);
    part.first_request = 2;
    part.num_requests = params.num_requests - 2;
    inner().attend(part);
  }

 private:
  Ops& cpu_;
};

}  // namespace

TEST_CASE("the order of keys in transposed values is that of weights in registers") {
  // Thread t has weights of keys 2t, 2t + 1, 2t + 8, 2t + 9 of 16 in one register: columns 4t on.
  for (int t = 0; t < 4; ++t) {
    const int keys[] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
    for (int i = 0; i < 4; ++i) CHECK(attn::code_place(32 + keys[i]) == 32 + 4 * t + i);
  }
  std::set<int> rows;
  for (int column = 0; column < 64; ++column) {
    const int row = attn::code_row(column);
    CHECK(row / 16 == column / 16);
    CHECK(rows.insert(row).second);
    CHECK(row / 8 % 2 == column % 2);
  }
}

TEST_CASE("weights of e4m3 take the places of their keys") {
  // Score of key n is a number of its own that e4m3 has: its key's index by code.
  float s[4][4];
  for (int lane = 0; lane < 4; ++lane) {
    for (int block = 0; block < 4; ++block) {
      for (int i = 0; i < 4; ++i) {
        const int key = block * 8 + lane * 2 + i % 2;
        s[block][i] = attn::e4m3_to_float(static_cast<attn::u8>(0x20 + key + i / 2 * 0x20));
      }
    }
    attn::u32 p[4];
    attn::pack_codes(s, 0, p);
    for (int i = 0; i < 4; ++i) {
      for (int byte = 0; byte < 4; ++byte) {
        const int place = i / 2 * 16 + lane * 4 + byte;
        const int code = static_cast<int>(p[i] >> byte * 8 & 0xFFu) - 0x20 - i % 2 * 0x20;
        CHECK(attn::code_place(code) == place);
      }
    }
  }
}

TEST_CASE("the Hopper kernel on emulated threads attends over e4m3: causal, full, windows, pages") {
  AttendCase c = hopper_codes("e4m3 ragged causal");
  check<TwoSums128>(c);
  c.window_right = -1;
  check<TwoSums128>(c);
  c.window_left = 50;
  check<TwoSums128>(c);
  check<CodesPaged>(hopper_codes("e4m3 pages of 16", 128, 128, 16));
  check<CodesPaged64>(hopper_codes("e4m3 pages of 64", 128, 128, 64));
  c = hopper_codes("e4m3 rows without keys", 128, 128, 16);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<CodesPaged>(c);
  // As prefills behind decodes that have had a call of their own.
  c = hopper_codes("e4m3 last requests", 128, 128, 16);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<CodesPaged> emulated(*cpu, "");
  LastRequests last(emulated, *cpu);
  check_same(run_attend(last, c), run_attend(*cpu, c), 1e-1);
  CHECK(emulated.num_ctas > 0);
}

struct TwoSums64 : TwoSums128 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kConsumers = 3;
};
struct Codes64 : CodesPaged {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 3;
};
struct Codes32 : TwoSumsPaged {
  static constexpr int kHeadSize = 32;
  static constexpr int kVHeadSize = 32;
  static constexpr int kConsumers = 3;
};
struct Codes96 : CodesPaged {
  static constexpr int kHeadSize = 96;
  static constexpr int kVHeadSize = 96;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct Codes80 : CodesPaged {
  static constexpr int kBlockSize = 0;
  static constexpr bool kLeft = true;
  static constexpr int kHeadSize = 80;
  static constexpr int kVHeadSize = 80;
  static constexpr bool kUnrolled = true;
};
struct Codes80To72 : Codes80 {
  static constexpr int kOutputColumns = 72;
};
struct Codes80To72OfF32 : Codes80To72 {
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct Codes192 : TwoSums128 {
  static constexpr int kHeadSize = 192;
};
struct Codes256 : CodesPaged {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
};
struct Codes160 : Codes256 {
  static constexpr int kHeadSize = 160;
  static constexpr int kVHeadSize = 160;
};

TEST_CASE("the Hopper kernel on emulated threads has e4m3 heads of all sizes") {
  check<TwoSums64>(hopper_codes("e4m3 d64, ragged", 64, 64));
  check<Codes64>(hopper_codes("e4m3 d64", 64, 64, 16));
  check<Codes32>(hopper_codes("e4m3 d32, no several pieces", 32, 32, 16));
  AttendCase c = hopper_codes("e4m3 d96 to f32", 96, 96, 16);
  c.output = Dtype::kF32;
  check<Codes96>(c);
  check<Codes80>(hopper_codes("e4m3 d80: lines that are not full", 80, 80));
  check<Codes80To72>(hopper_codes("e4m3 d80/72: padding is not written", 80, 72));
  c = hopper_codes("e4m3 d80/72 to f32", 80, 72);
  c.output = Dtype::kF32;
  check<Codes80To72OfF32>(c);
  check<Codes192>(hopper_codes("e4m3 d192/128", 192, 128));
  check<Codes256>(hopper_codes("e4m3 d256, by pieces", 256, 256, 16));
  check<Codes160>(hopper_codes("e4m3 d160, by pieces of 32", 160, 160, 16));
}

struct CodesCap : TwoSumsPaged {
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};
struct CodesStages : TwoSumsPaged {
  static constexpr bool kPersistent = true;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 2;
  static constexpr int kPromote = 1;
};

TEST_CASE("the Hopper kernel on emulated threads has soft cap, sinks and more stages over e4m3") {
  AttendCase c = hopper_codes("e4m3 soft cap", 128, 128, 16);
  c.soft_cap = 3.0f;
  check<CodesCap>(c);
  c = hopper_codes("e4m3 sinks");
  c.has_sinks = true;
  check<TwoSums128>(c);
  check<CodesStages>(hopper_codes("e4m3 persistent", 128, 128, 16),
                     "consumers=2:ping_pong=1:persistent=1:stages=2:tile_n=64:promote=1:group=3");
}

TEST_CASE("the Hopper kernel on emulated threads gives NaN of e4m3 to the rows that see them") {
  check<TwoSums128>(hopper_codes("e4m3 special values, ragged"), {}, true);
  AttendCase c = hopper_codes("e4m3 special values, window", 128, 128, 16);
  check<CodesPaged>(c, {}, true);
  check<Codes256>(hopper_codes("e4m3 special values, d256", 256, 256, 16), {}, true);
}

/// Sums of a tile by pieces of its columns, beside weights of the next tile.
struct Pieces128 : TwoSumsPaged {
  static constexpr int kTileN = 160;
  static constexpr int kPromote = 1;
  static constexpr int kSums = 64;
};
struct PiecesRagged : TwoSums128 {
  static constexpr int kTileN = 192;
  static constexpr int kStages = 2;
  static constexpr int kPromote = 1;
  static constexpr int kSums = 32;
  static constexpr bool kBounds = true;
};
struct PiecesInTurns : CodesPaged {
  static constexpr bool kPingPong = true;
  static constexpr bool kFixedBase = false;
};
struct PiecesUnrolled : CodesPaged {
  static constexpr bool kUnrolled = true;
};
struct Pieces64 : Codes64 {
  static constexpr int kBlockSize = 64;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 224;
};
struct TwoSums96 : TwoSumsPaged {
  static constexpr int kHeadSize = 96;
  static constexpr int kVHeadSize = 96;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct Pieces256 : Codes256 {
  static constexpr int kTileN = 64;
  static constexpr int kSums = 64;
};
/// Piece by piece, none of them beside weights.
struct Parts256 : Codes256 {
  static constexpr int kTileN = 64;
  static constexpr int kSums = 0;
};
struct PiecesCap : CodesCap {
  static constexpr int kPromote = 1;
  static constexpr int kSums = 64;
};

TEST_CASE("the Hopper kernel on emulated threads sums e4m3 by pieces beside weights") {
  AttendCase c = hopper_codes("e4m3 by two pieces, pages of 16", 128, 128, 16);
  check<Pieces128>(c, kTwoConsumers + ":tile_n=160");
  c.window_right = -1;
  check<Pieces128>(c, kTwoConsumers + ":tile_n=160");
  c = hopper_codes("e4m3 by four pieces, ragged");
  check<PiecesRagged>(c, "consumers=2:ping_pong=1:tile_n=192:stages=2");
  c.window_left = 50;
  check<PiecesRagged>(c, "consumers=2:ping_pong=1:tile_n=192:stages=2");
  check<PiecesInTurns>(hopper_codes("e4m3 by pieces in turns", 128, 128, 16), "ping_pong=1");
  c = hopper_codes("e4m3 by pieces, a step for every stage", 128, 128, 16);
  c.query_lens = {70, 3};
  c.context_lens = {400, 700};
  check<PiecesUnrolled>(c);
  check<Pieces64>(hopper_codes("e4m3 d64 by pieces, pages of 64", 64, 64, 64),
                  "consumers=2:tile_n=224");
  c = hopper_codes("e4m3 d96 by two sums to f32", 96, 96, 16);
  c.output = Dtype::kF32;
  check<TwoSums96>(c, kTwoConsumers);
  check<Pieces256>(hopper_codes("e4m3 d256 by wide pieces", 256, 256, 16), "tile_n=64");
  check<Parts256>(hopper_codes("e4m3 d256 piece by piece", 256, 256, 16), "tile_n=64");
  c = hopper_codes("e4m3 soft cap by pieces", 128, 128, 16);
  c.soft_cap = 3.0f;
  check<PiecesCap>(c);
  c = hopper_codes("e4m3 sinks by pieces", 128, 128, 16);
  c.has_sinks = true;
  check<Pieces128>(c, kTwoConsumers + ":tile_n=160");
}

TEST_CASE("sums by pieces give NaN of e4m3 to the rows that see them") {
  check<Pieces128>(hopper_codes("e4m3 special values by pieces", 128, 128, 16),
                   kTwoConsumers + ":tile_n=160", true);
  check<PiecesRagged>(hopper_codes("e4m3 special values by four pieces"),
                      "consumers=2:ping_pong=1:tile_n=192:stages=2", true);
}

/// What is chosen: sums after scores, in turns.
struct Apart128 : CodesPaged {
  static constexpr int kTileN = 128;
  static constexpr int kSums = 0;
  static constexpr bool kPingPong = true;
  static constexpr bool kApart = true;
  static constexpr bool kUnrolled = true;
};
struct Apart64 : CodesPaged64 {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 192;
  static constexpr int kSums = 0;
  static constexpr bool kPingPong = true;
  static constexpr bool kApart = true;
};
struct Apart80To72 : Apart64 {
  static constexpr int kBlockSize = 0;
  static constexpr bool kLeft = true;
  static constexpr int kHeadSize = 80;
  static constexpr int kVHeadSize = 80;
  static constexpr int kOutputColumns = 72;
  static constexpr int kTileN = 160;
};
struct ApartOfImages : Apart80To72 {
  static constexpr bool kBounds = true;
};
/// Each warpgroup at its own pace, several items a CTA, three stages.
struct ApartPersistent : CodesPaged {
  static constexpr bool kPersistent = true;
  static constexpr bool kFixedBase = false;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
  static constexpr int kSums = 0;
  static constexpr bool kApart = true;
};
const std::string kApartPersistent =
    "consumers=2:ping_pong=0:persistent=1:stages=3:tile_n=64:group=3";
struct Apart256 : Codes256 {
  static constexpr int kTileN = 64;
  static constexpr int kSums = 0;
  static constexpr bool kApart = true;
};
struct ApartToF32 : TwoSums128 {
  static constexpr int kPromote = 1;
  static constexpr bool kApart = true;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};

TEST_CASE("the Hopper kernel on emulated threads sums e4m3 in the registers of scores") {
  AttendCase c = hopper_codes("e4m3 apart, pages of 16", 128, 128, 16);
  check<Apart128>(c);
  check<ApartPersistent>(c, kApartPersistent);
  c.window_right = -1;
  check<Apart128>(c);
  check<ApartPersistent>(c, kApartPersistent);
  c.query_lens = {70, 3, 200};
  c.context_lens = {400, 700, 300};
  c.window_right = 0;
  c.has_sinks = true;
  check<Apart128>(c);
  c = hopper_codes("e4m3 apart, rows without keys", 128, 128, 16);
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Apart128>(c);
  check<ApartPersistent>(c, kApartPersistent);
  check<Apart64>(hopper_codes("e4m3 d64 apart, pages of 64", 64, 64, 64));
  c = hopper_codes("e4m3 d80/72 apart, ragged", 80, 72);
  check<Apart80To72>(c);
  c.window_right = -1;
  c.query_lens = {520, 5};  // more than 1,024 rows of a KV head: no short ones
  c.context_lens = {0, 0};
  check<ApartOfImages>(c);
  check<Apart256>(hopper_codes("e4m3 d256 apart", 256, 256, 16), "tile_n=64");
}

TEST_CASE("sums in the registers of scores give NaN of e4m3 to the rows that see them") {
  AttendCase c = hopper_codes("e4m3 special values, apart", 128, 128, 16);
  check<Apart128>(c, {}, true);
  check<ApartPersistent>(c, kApartPersistent, true);
  check<Apart80To72>(hopper_codes("e4m3 d80/72 special values, apart", 80, 72), {}, true);
}

/// e4m3 scores, weights of 16 bits, values that become f16: what is chosen, over pages and ragged.
struct Wide128 : Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kE4M3;
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
  static constexpr bool kKeepColumns = true;
  static constexpr bool kWideValues = true;
};
struct WideRagged128 : Wide128 {
  static constexpr int kBlockSize = 0;
  static constexpr bool kLeft = true;
  static constexpr int kTileN = 80;
  static constexpr int kStages = 2;
};
struct Wide64 : Wide128 {
  static constexpr int kBlockSize = 64;
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr bool kPingPong = true;
};
struct Wide80To72 : WideRagged128 {
  static constexpr int kHeadSize = 80;
  static constexpr int kVHeadSize = 80;
  static constexpr int kOutputColumns = 72;
  static constexpr int kTileN = 96;
  static constexpr bool kPingPong = true;
};
struct Wide256 : Wide128 {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kStages = 2;
  static constexpr bool kPingPong = true;
};
struct Wide192 : WideRagged128 {
  static constexpr int kHeadSize = 192;
};
struct WideUnrolled : Wide128 {
  static constexpr int kTileN = 80;
  static constexpr bool kUnrolled = true;
  static constexpr bool kBounds = true;
};
struct WideWindow80 : Wide80To72 {
  static constexpr int kOutputColumns = 0;
  static constexpr int kConsumers = 1;
  static constexpr int kTileN = 64;
  static constexpr bool kPingPong = false;
};
/// Without addresses that only advance.
struct WideDivided : WideRagged128 {
  static constexpr int kHeadSize = 160;
  static constexpr int kVHeadSize = 160;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr bool kPingPong = true;
};

TEST_CASE("the Hopper kernel on emulated threads keeps 16 bits of weights beside e4m3 scores") {
  AttendCase c = hopper_wide_codes("e4m3 scores, pages of 16", 128, 128, 16);
  check<Wide128>(c);
  check<WideUnrolled>(c, "unroll=1:bounds=1:tile_n=80");
  c.query_lens = {5, 70, 3};
  c.context_lens = {-5, -70, 20};
  check<Wide128>(c);
  c = hopper_wide_codes("e4m3 scores, ragged");
  check<WideRagged128>(c);
  c.window_right = -1;
  c.has_sinks = true;
  check<WideRagged128>(c);
  check<Wide64>(hopper_wide_codes("e4m3 scores, d64, pages of 64", 64, 64, 64));
  check<Wide80To72>(hopper_wide_codes("e4m3 scores, d80/72", 80, 72));
  c = hopper_wide_codes("e4m3 scores, d80, windows", 80, 80);
  c.window_right = -1;
  c.query_lens = {64, 64, 20, 0};
  c.context_lens = {0, 0, 0, 0};
  check<WideWindow80>(c);
  check<Wide192>(hopper_wide_codes("e4m3 scores, d192/128", 192, 128));
  check<Wide256>(hopper_wide_codes("e4m3 scores, d256", 256, 256, 16));
  check<WideDivided>(hopper_wide_codes("e4m3 scores, d160", 160, 160));
}

TEST_CASE("weights of 16 bits beside e4m3 scores give NaN of e4m3 to the rows that see them") {
  check<Wide128>(hopper_wide_codes("e4m3 scores, special values", 128, 128, 16), {}, true);
  check<WideRagged128>(hopper_wide_codes("e4m3 scores, special values, ragged"), {}, true);
}

struct Ordered128 : TwoSums128 {
  static constexpr bool kOrdered = true;
};
struct OrderedBf16 : Ragged128 {
  static constexpr bool kOrdered = true;
};

TEST_CASE("the Hopper kernel on emulated threads computes weights before it waits") {
  check<Ordered128>(hopper_codes("e4m3 in order"));
  check<OrderedBf16>(hopper_batch("bf16 in order"), "consumers=3:tile_n=80");
}

struct Fast128 : TwoSums128 {
  static constexpr int kConsumers = 3;
  static constexpr int kPromote = 0;
  static constexpr bool kPingPong = false;
  static constexpr bool kFixedBase = true;
  static constexpr bool kUnrolled = true;
};
struct FastSumsToF32 : Fast128 {
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct SumsToF32 : TwoSums128 {
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr bool kWideStores = false;
};
struct PiecesToF32 : SumsToF32 {
  static constexpr int kTileN = 160;
  static constexpr int kPromote = 1;
  static constexpr int kSums = 64;
};

/// Equal weights, and values of one sign that need all digits of a sum.
class OneSign final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void attend(const attn::AttendParams& params) override {
    const attn::KvParams& kv = params.kv;
    auto* const query = static_cast<attn::u8*>(const_cast<void*>(params.query));
    std::fill_n(query, params.query_start_loc[1] * params.query_token_stride, attn::u8{0});
    auto* const values = static_cast<attn::u8*>(const_cast<void*>(kv.value));
    for (attn::i64 key = 0; key < params.seq_lens[0]; ++key) {
      // 1.125 and 1.
      std::fill_n(values + key * kv.token_stride_value, kv.token_stride_value,
                  static_cast<attn::u8>(key % 32 == 0 ? 0x39 : 0x38));
    }
    inner().attend(params);
  }
};

/// By how much of itself the sum over 6,144 keys is off.
template <class Config>
double error_of_sums(bool is_fast, const std::string& options = {}) {
  AttendCase c = hopper_codes("values of one sign");
  c.query_lens = {1};
  c.context_lens = {6143};
  c.output = Dtype::kF32;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  c.fast_fp8_sums = is_fast ? 1 : 0;
  EmulatedOps<Config> emulated(*cpu, options);
  OneSign by_kernel(emulated);
  OneSign by_cpu(*cpu);
  const double expected = run_attend(by_cpu, c)[0].at(0);
  return std::fabs(run_attend(by_kernel, c)[0].at(0) / expected - 1);
}

TEST_CASE("sums of e4m3 products reach f32 tile by tile, and with fast sums keep 13 bits") {
  CHECK(error_of_sums<SumsToF32>(false, kTwoConsumers) < 3e-4);
  CHECK(error_of_sums<PiecesToF32>(false, kTwoConsumers + ":tile_n=160") < 3e-4);
  CHECK(error_of_sums<ApartToF32>(false, kTwoConsumers) < 3e-4);
  CHECK(error_of_sums<FastSumsToF32>(true) > 2e-3);
}

struct Converted128 : Ragged128 {
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
};
struct ConvertedPaged : Converted128 {
  static constexpr bool kKeepColumns = true;
  static constexpr int kBlockSize = 16;
  static constexpr bool kLeft = false;
};
struct ConvertedRounded : ConvertedPaged {
  static constexpr bool kRoundDequantized = true;
};
struct ConvertedF16 : Converted128 {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 96;
  static constexpr bool kPingPong = true;
};
struct Converted256 : ConvertedPaged {
  static constexpr int kHeadSize = 256;
  static constexpr int kVHeadSize = 256;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 48;
};

TEST_CASE("the Hopper kernel on emulated threads decodes e4m3 for queries of 16 bits") {
  check<Converted128>(converted_batch("bf16 over e4m3"));
  check<ConvertedPaged>(converted_batch("bf16 over e4m3, pages", 128, 128, 16));
  AttendCase c = converted_batch("bf16 over e4m3, scaled and rounded", 128, 128, 16);
  c.round_dequantized = 1;
  check<ConvertedRounded>(c);
  c = converted_batch("f16 over e4m3 d64", 64, 64);
  c.query = c.output = Dtype::kF16;
  c.has_large_queries = false;
  check<ConvertedF16>(c);
  check<Converted256>(converted_batch("bf16 over e4m3 d256", 256, 256, 16));
  c = converted_batch("special values, bf16 over e4m3");
  c.has_large_queries = false;
  check<Converted128>(c, {}, true);
}

}  // namespace attnbench::cuda
