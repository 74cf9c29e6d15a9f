// The kernel of a list of tiles on emulated threads, against the CPU; and the CPU by a list of
// tiles against the CPU by requests.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "ops/cuda/attention/emulated_hopper_runs_testing.h"

#include "kernels/attention/combine.cuh"
#include "kernels/attention/hopper/tiles.cuh"
#include "ops/cuda/attention/attend_tiles_cases_testing.h"
#include "ops/cuda/attention/hopper_tiles.h"

namespace attnbench::cuda {
namespace {

/// The constants of D128 over pages of 16 where a case says nothing else.
struct Tiles : Ragged128 {
  static constexpr int kBlockSize = 16;
  static constexpr int kStages = 4;
  static constexpr bool kLeft = false;
  static constexpr bool kTileList = true;
  static constexpr bool kParts = false;
  static constexpr bool kFew = true;
  static constexpr int kBeside = 0;
};

/// attend_tiles() by emulated CTAs, everything else by the CPU.
template <class Config>
class EmulatedTiles final : public ForwardingOps {
 public:
  EmulatedTiles(Ops& cpu, std::string options) : ForwardingOps(cpu), options_(std::move(options)) {}

  void attend_tiles(const attn::AttendParams& params, const attn::TileListParams& list) override {
    const Target target = target_of_sm(90);
    REQUIRE(hopper_tiles_misfit(target, params, list) == "");
    const HopperPlan plan = hopper_tiles_plan(target, params, list, options_);
    const AttendKernel kernel = hopper_tiles_kernel(params, list, plan);
    num_ctas += run_hopper_ctas<Config>(
        params, plan, kernel, hopper_tiles_shape(kernel, list, plan).grid_x, {}, nullptr, &list);
    CHECK(list.drawn[0] == 0);  // as the next launch has to find them
    CHECK(list.drawn[1] == 0);
  }
  int num_ctas = 0;

 private:
  std::string options_;
};

/// combine_splits() of few parts by emulated CTAs, everything else by the CPU.
template <int kParts>
class EmulatedCombination final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  struct Config {
    static constexpr attn::Element kOutput = attn::Element::kBF16;
    static constexpr int kVHeadSize = 128;
    static constexpr int kWarps = 4;
    static constexpr int kRowWarps = 1;
    static constexpr bool kFewParts = true;
    static constexpr int kTogether = kParts;
  };
  void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    REQUIRE(split.num_splits == kParts);
    const AttendKernel kernel = combine_kernel(params, "combine_splits", kParts, kParts);
    REQUIRE(kernel.spec.constants.back().second == std::to_string(kParts));
    gridDim.x = static_cast<unsigned>(split.num_tokens * params.num_heads / Config::kWarps + 1);
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      run_emulated_cta(kernel.threads, 0, [&] { attn::combine_together<Config>(params, split); });
    }
  }
};

/// Lets the requests of a group read the pages of its first request, as the list does.
class SharedPages final : public ForwardingOps {
 public:
  SharedPages(Ops& inner, const TileCase& c) : ForwardingOps(inner), case_(c) {}
  void attend(const attn::AttendParams& params) override {
    attn::AttendParams shared = params;
    const auto stride = static_cast<std::size_t>(params.kv.block_table_stride);
    std::vector<int> table(params.kv.block_table,
                           params.kv.block_table + stride * case_.attend.query_lens.size());
    std::size_t request = 0;
    for (const SharedCase& group : case_.shared) {
      const auto first = request;
      for (int i = 0; i < group.num_requests; ++i, ++request) {
        for (int page = 0; page < group.num_keys / params.kv.block_size; ++page) {
          const auto at = static_cast<std::size_t>(page);
          table[request * stride + at] = table[first * stride + at];
        }
      }
    }
    shared.kv.block_table = table.data();
    inner().attend(shared);
  }

 private:
  const TileCase& case_;
};

TileCase case_named(const std::string& name) {
  for (const TileCase& c : tile_cases()) {
    if (c.attend.name == "tiles: " + name) return c;
  }
  FAIL("there is no case '" << name << "'");
  return {};
}

template <class Config>
void check(TileCase c, const std::string& options = {}) {
  CAPTURE(c.attend.name);
  CAPTURE(options);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedTiles<Config> emulated(*cpu, options);
  TilesOps expected(*cpu, c);
  TilesOps actual(emulated, c);
  const std::vector<Tensor> reference = run_attend(expected, c.attend);
  check_same(run_attend(actual, c.attend), reference, c.attend.output == Dtype::kE4M3 ? 0.2 : 4e-2);
  CHECK(emulated.num_ctas > 0);
}

}  // namespace

TEST_CASE("the CPU attends by a list of tiles as it does by requests") {
  for (const TileCase& c : tile_cases()) {
    CAPTURE(c.attend.name);
    const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
    SharedPages by_requests(*cpu, c);
    TilesOps by_tiles(*cpu, c);
    const std::vector<Tensor> expected = run_attend(by_requests, c.attend);
    check_same(run_attend(by_tiles, c.attend), expected,
               c.attend.output == Dtype::kE4M3 ? 0.13 : 1e-2);
  }
}

struct Tiles128 : Tiles {
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 2;
};
struct FullTiles : Tiles {};
struct WindowTiles : Tiles {
  static constexpr bool kLeft = true;
};
struct EachTile : Tiles {
  static constexpr int kStages = 2;
};
struct AheadTiles : Tiles {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
  static constexpr int kStages = 3;
};

struct WideTiles : EachTile {
  static constexpr bool kFew = false;
};
struct CappedTiles64 : EachTile {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr int kTileN = 96;
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};

TEST_CASE("tiles of a list on emulated threads: decodes and prefills, both ways, windows") {
  check<Tiles>(case_named("decodes and prefills"));
  check<EachTile>(case_named("decodes and prefills"), "persistent=0:stages=2");
  check<WideTiles>(case_named("decodes and prefills"), "persistent=0:stages=2:few=0");
  check<AheadTiles>(case_named("decodes and prefills"), "persistent=1");
  check<Tiles128>(case_named("decodes and prefills, 128 rows"));
  check<FullTiles>(case_named("both ways, groups of seven"));
  check<WindowTiles>(case_named("window and sinks, more CTAs than tiles"));
}

/// Requests of one token to three and groups of two and four: 1 to 8 rows, and 12, which are not
/// few.
TileCase few_rows(const std::string& name, int group) {
  TileCase c = case_named(name);
  c.attend.group = group;
  c.attend.query_lens = {1, 2, 3, 1, 4, 1};
  c.attend.context_lens = {300, 178, 80, 0, 477, 95};
  return c;
}
struct FewWindowTiles : EachTile {
  static constexpr bool kLeft = true;
};
struct FewTiles128 : EachTile {
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 128;
};

TEST_CASE("tiles of few rows of a list on emulated threads: tokens, windows, sinks, soft caps") {
  const std::string alone = "persistent=0:stages=2";
  check<EachTile>(few_rows("decodes and prefills", 4), alone);
  check<FewTiles128>(few_rows("decodes and prefills, 128 rows", 2), alone);
  check<FewWindowTiles>(few_rows("window and sinks, more CTAs than tiles", 4), alone);
  check<CappedTiles64>(few_rows("d64 f16 soft cap", 2), alone + ":tile_n=96");
}

struct BesideTiles : AheadTiles {
  static constexpr bool kFew = false;
  static constexpr int kConsumers = 2;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 3;
  static constexpr int kBeside = 2;
  static constexpr int kSharing = 4;
  static constexpr bool kBounds = true;
};
struct BesideExact : BesideTiles {
  static constexpr bool kBounds = false;
};
/// Heads of a group as a constant, as kernels of drawn tiles have them.
struct BesideFour : BesideTiles {
  static constexpr int kGroup = 4;
};
/// The same with these tiles beside the others.
TileCase beside(const std::string& name, int group, int num_ctas = 3) {
  TileCase c = few_rows(name, group);
  c.attend.context_lens[4] = 677;
  c.tile_rows = 128;
  c.num_ctas = num_ctas;
  c.has_beside = true;
  return c;
}
struct BesideWindow : BesideExact {
  static constexpr bool kLeft = true;
};
struct BesideCapped64 : BesideExact {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
  static constexpr attn::Element kOutput = attn::Element::kF16;
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};
struct BesideThree : BesideTiles {
  static constexpr int kBeside = 3;
  static constexpr int kTileN = 80;
  static constexpr int kStages = 2;
};

TEST_CASE("tiles beside others on emulated threads: tokens, windows, sinks, soft caps") {
  check<BesideTiles>(beside("decodes and prefills", 4));
  check<BesideFour>(beside("decodes and prefills", 4));
  check<BesideTiles>(beside("decodes and prefills", 2, 1));   // none but tiles beside, by one CTA
  check<BesideTiles>(beside("decodes and prefills", 2, 40));  // more CTAs than tiles
  check<BesideExact>(beside("decodes and prefills", 4), "bounds=0");
  check<BesideThree>(beside("decodes and prefills", 4), "beside=3:tile_n=80:stages=2");
  check<BesideWindow>(beside("window and sinks, more CTAs than tiles", 4));
  check<BesideCapped64>(beside("d64 f16 soft cap", 2));
}

struct PartTiles : Tiles128 {
  static constexpr int kTileN = 64;
  static constexpr int kStages = 4;
  static constexpr bool kParts = true;
};
struct WideParts : PartTiles {
  static constexpr bool kFew = false;
};
struct PartTiles192 : Tiles {
  static constexpr bool kParts = true;
};

struct CodeParts64 : Tiles {
  static constexpr int kHeadSize = 64;
  static constexpr int kVHeadSize = 64;
  static constexpr attn::Element kOutput = attn::Element::kE4M3;
  static constexpr int kTileN = 128;
  static constexpr int kStages = 4;
  static constexpr bool kParts = true;
  static constexpr bool kWideStores = false;
};

struct AheadParts : PartTiles {
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = true;
};

TEST_CASE("tiles of a list on emulated threads: prefixes of groups, in parts, under sinks") {
  check<PartTiles>(case_named("two prefixes, one request of its own"), "persistent=0");
  check<WideParts>(case_named("two prefixes, one request of its own"), "persistent=0:few=0");
  check<AheadParts>(case_named("two prefixes, one request of its own"));
  // Tiles of 64 rows exactly, whose queries come in one box.
  TileCase full = case_named("two prefixes, one request of its own");
  full.attend.group = 64;
  full.attend.query_lens = {1, 1, 1, 1, 1, 2, 1};
  check<AheadParts>(full);
  check<PartTiles192>(case_named("a prefix under sinks"), "persistent=0");
  // Groups of 20 heads do not divide a box of queries.
  check<CodeParts64>(case_named("prefixes of d64, many heads of a group, to e4m3"));
}

struct BesideParts : BesideTiles {
  static constexpr bool kParts = true;
};
struct BesidePartsAlone : BesideParts {
  static constexpr int kSharing = 1;
};

TEST_CASE("requests' own keys beside prefixes on emulated threads, by four warps and by one") {
  TileCase prefixes = case_named("two prefixes, one request of its own");
  TileCase sinks = case_named("a prefix under sinks");
  for (TileCase* c : {&prefixes, &sinks}) {
    c->tile_rows = 128;
    c->has_beside = true;
    for (const int num_ctas : {1, 3, 40}) {
      c->num_ctas = num_ctas;
      check<BesideParts>(*c, "shares=1");
      check<BesidePartsAlone>(*c, "shares=0");
    }
  }
}

template <int kParts>
void check_combination(TileCase c) {
  CAPTURE(c.attend.name);
  CAPTURE(kParts);
  c.parts = kParts - 1;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedCombination<kParts> emulated(*cpu);
  TilesOps expected(*cpu, c);
  TilesOps actual(emulated, c);
  const std::vector<Tensor> reference = run_attend(expected, c.attend);
  check_same(run_attend(actual, c.attend), reference, 1e-2);
}

TEST_CASE("few parts of a list's rows are combined on emulated threads, all under way at once") {
  check_combination<2>(case_named("a prefix under sinks"));
  check_combination<4>(case_named("two prefixes, one request of its own"));
  check_combination<5>(case_named("two prefixes, one request of its own"));
  check_combination<8>(case_named("two prefixes, one request of its own"));
}

}  // namespace attnbench::cuda
