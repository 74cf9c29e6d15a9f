// The kernel of a list of tiles on emulated threads, against the CPU; and the CPU by a list of
// tiles against the CPU by requests.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "ops/cuda/testing/emulated_hopper_testing.h"

#include "kernels/attention/hopper/tiles.cuh"
#include "ops/cuda/attention/attend_tiles_cases_testing.h"
#include "ops/cuda/attention/hopper_tiles.h"

namespace attnbench::cuda {
namespace {

/// The constants of D128 over pages of 16 where a case says nothing else.
struct Tiles {
  static constexpr attn::Element kQuery = attn::Element::kBF16;
  static constexpr attn::Element kKeyValue = attn::Element::kBF16;
  static constexpr attn::Element kOutput = attn::Element::kBF16;
  static constexpr attn::Element kInt8Value = attn::Element::kF32;  // none
  static constexpr int kLine = 0;
  static constexpr bool kRoundDequantized = false;
  static constexpr int kPromote = 0;
  static constexpr int kHeadSize = 128;
  static constexpr int kVHeadSize = 128;
  static constexpr int kBlockSize = 16;
  static constexpr int kConsumers = 3;
  static constexpr int kTileN = 80;
  static constexpr int kStages = 4;
  static constexpr bool kPingPong = false;
  static constexpr bool kPersistent = true;
  static constexpr bool kAhead = false;
  static constexpr bool kFixedBase = false;
  static constexpr bool kLeft = false;
  static constexpr bool kRanges = false;
  static constexpr bool kWideStores = true;
  static constexpr attn::Alibi kAlibi = attn::Alibi::kNone;
  static constexpr bool kSoftCap = false;
  static constexpr bool kScaleFirst = false;
  static constexpr bool kTileList = true;
  static constexpr bool kParts = false;
};

/// The last constant of each name wins in a struct; here they are compared by name.
template <class Config>
std::map<std::string, std::string> constants_of() {
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return {{"int kHeadSize", std::to_string(Config::kHeadSize)},
          {"int kVHeadSize", std::to_string(Config::kVHeadSize)},
          {"int kOutputColumns", std::to_string(Config::kVHeadSize)},
          {"int kBlockSize", std::to_string(Config::kBlockSize)},
          {"int kConsumers", std::to_string(Config::kConsumers)},
          {"int kTileN", std::to_string(Config::kTileN)},
          {"int kLine", std::to_string(Config::kLine)},
          {"bool kRoundDequantized", flag(Config::kRoundDequantized)},
          {"int kPromote", std::to_string(Config::kPromote)},
          {"int kStages", std::to_string(Config::kStages)},
          {"bool kPingPong", flag(Config::kPingPong)},
          {"bool kPersistent", flag(Config::kPersistent)},
          {"bool kAhead", flag(Config::kAhead)},
          {"bool kFixedBase", flag(Config::kFixedBase)},
          {"bool kLeft", flag(Config::kLeft)},
          {"bool kRanges", flag(Config::kRanges)},
          {"bool kWideStores", flag(Config::kWideStores)},
          {"bool kSoftCap", flag(Config::kSoftCap)},
          {"bool kScaleFirst", flag(Config::kScaleFirst)},
          {"bool kTileList", flag(Config::kTileList)},
          {"bool kParts", flag(Config::kParts)}};
}

/// What the kernel is run with.
template <class Config>
struct AllColumns : Config {
  static constexpr int kOutputColumns = Config::kVHeadSize;
};

/// attend_tiles() by emulated CTAs, everything else by the CPU.
template <class Config>
class EmulatedTiles final : public ForwardingOps {
 public:
  EmulatedTiles(Ops& cpu, std::string options) : ForwardingOps(cpu), options_(std::move(options)) {}

  void attend_tiles(const attn::AttendParams& params, const attn::TileListParams& list) override {
    using Full = AllColumns<Config>;
    using Shape = attn::HopperShape<Full>;
    const Target target = target_of_sm(90);
    REQUIRE(hopper_tiles_misfit(target, params, list) == "");
    const HopperPlan plan = hopper_tiles_plan(target, params, list, options_);
    const AttendKernel kernel = hopper_tiles_kernel(params, list, plan);
    std::map<std::string, std::string> constants(kernel.spec.constants.begin(),
                                                 kernel.spec.constants.end());
    std::erase_if(constants, [](const auto& c) { return c.first.starts_with("attn::"); });
    REQUIRE(constants == constants_of<Config>());
    REQUIRE(kernel.threads == Shape::kThreads);
    const TensorMap key_map = hopper_key_map(params, plan);
    const TensorMap value_map = hopper_value_map(params, plan);
    const attn::TensorMap keys = emulated_map(key_map);
    const attn::TensorMap values = emulated_map(value_map);
    const TensorMap query_map = Config::kAhead ? hopper_query_map(params) : key_map;
    const attn::TensorMap queries = emulated_map(query_map);
    const attn::HopperGrid no_grid{};
    gridDim.x = static_cast<unsigned>(hopper_tiles_shape(kernel, list, plan).grid_x);
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      EmulatedCta cta(Shape::kThreads, static_cast<std::size_t>(kernel.shared_bytes));
      EmulatedHopper hopper;
      running_hopper = &hopper;
      std::memset(cta.shared(), 0xFF, static_cast<std::size_t>(kernel.shared_bytes));
      cta.run([&] {
        const Shape shape{params, no_grid, cta.shared(), 0, nullptr, &list};
        if (threadIdx.x == 0) shape.init_barriers();
        __syncthreads();
        attn::run_hopper_roles<Full>(shape, keys, values, queries);
      });
      CHECK_FALSE(hopper.has_open_work());
      ++num_ctas;
    }
  }
  int num_ctas = 0;

 private:
  std::string options_;
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

void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    std::int64_t wrong = 0;
    std::int64_t at = 0;
    for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
      const auto a = static_cast<double>(actual[i].at(j));
      const auto b = static_cast<double>(expected[i].at(j));
      const bool same = std::isnan(b)   ? std::isnan(a)
                        : std::isinf(b) ? a == b
                                        : std::fabs(a - b) <= tolerance * (0.5 + std::fabs(b));
      if (!same && wrong++ == 0) at = j;
    }
    CAPTURE(at);
    CAPTURE(actual[i].at(at));
    CAPTURE(expected[i].at(at));
    CHECK(wrong == 0);
  }
}

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
  static constexpr bool kPersistent = false;
  static constexpr int kStages = 2;
};
struct AheadTiles : Tiles {
  static constexpr bool kAhead = true;
  static constexpr int kStages = 3;
};

TEST_CASE("tiles of a list on emulated threads: decodes and prefills, both ways, windows") {
  const std::string dealt = "ahead=0:persistent=1";
  check<Tiles>(case_named("decodes and prefills"), dealt);
  check<EachTile>(case_named("decodes and prefills"), "persistent=0:stages=2");
  check<AheadTiles>(case_named("decodes and prefills"));
  check<Tiles128>(case_named("decodes and prefills, 128 rows"), dealt);
  check<FullTiles>(case_named("both ways, groups of seven"), dealt);
  check<WindowTiles>(case_named("window and sinks, more CTAs than tiles"), dealt);
}

struct PartTiles : Tiles128 {
  static constexpr bool kParts = true;
};
struct PartTiles192 : Tiles {
  static constexpr bool kParts = true;
};

struct AheadParts : PartTiles {
  static constexpr bool kAhead = true;
};

TEST_CASE("tiles of a list on emulated threads: prefixes of groups, in parts, under sinks") {
  check<PartTiles>(case_named("two prefixes, one request of its own"), "ahead=0");
  check<AheadParts>(case_named("two prefixes, one request of its own"));
  // Tiles of 64 rows exactly, whose queries come in one box.
  TileCase full = case_named("two prefixes, one request of its own");
  full.attend.group = 64;
  full.attend.query_lens = {1, 1, 1, 1, 1, 2, 1};
  check<AheadParts>(full);
  check<PartTiles192>(case_named("a prefix under sinks"), "ahead=0");
}

}  // namespace attnbench::cuda
