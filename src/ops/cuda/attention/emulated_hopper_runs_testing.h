// Runs of the Hopper prefill kernel on emulated threads: its own code, with the tiles, boxes and
// grids that the host gives it, against the CPU operations.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/testing/emulated_runs_testing.h"

#include "kernels/attention/hopper/prefill.cuh"
#include "ops/cuda/attention/hopper_cases_testing.h"
#include "ops/cuda/attention/hopper_prefill.h"
#include "ops/cuda/attention/hopper_tiles.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {

/// A kernel's constants, with these of D128 over ragged keys where a case says nothing else.
struct Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kBF16;
  static constexpr attn::Element kKeyValue = attn::Element::kBF16;
  static constexpr attn::Element kInt8Value = attn::Element::kF32;  // none
  static constexpr attn::Element kOutput = attn::Element::kBF16;
  static constexpr bool kRoundDequantized = false;
  static constexpr int kPromote = 0;
  static constexpr int kHeadSize = 128;
  static constexpr int kVHeadSize = 128;
  static constexpr int kOutputColumns = 0;  // all
  static constexpr int kBlockSize = 0;
  static constexpr int kConsumers = 3;
  static constexpr int kTileN = 80;
  static constexpr int kStages = 2;
  static constexpr int kLine = 0;
  static constexpr bool kPingPong = false;
  static constexpr bool kPersistent = false;
  static constexpr bool kAhead = false;
  static constexpr bool kLateOutput = false;
  static constexpr bool kFixedBase = false;
  static constexpr bool kLeft = true;
  static constexpr bool kRanges = false;
  static constexpr bool kWideStores = true;
  static constexpr attn::Alibi kAlibi = attn::Alibi::kNone;
  static constexpr bool kSoftCap = false;
  static constexpr bool kScaleFirst = false;
  static constexpr int kCap = 0;
  static constexpr int kSlopes = 0;
  static constexpr bool kFitTiles = false;
  static constexpr bool kBounds = false;
  static constexpr bool kOrdered = false;
  static constexpr int kSums = 0;
};

/// What the kernel is run with: the columns of a case are all of its values' unless it says so.
template <class Config>
struct WithColumns : Config {
  static constexpr int kOutputColumns =
      Config::kOutputColumns == 0 ? Config::kVHeadSize : Config::kOutputColumns;
};

inline std::string text(bool value) { return value ? "true" : "false"; }
inline std::string text(int value) { return std::to_string(value); }

/// HopperPlan's option of slopes.
template <class Config>
constexpr int slopes_option() {
  if constexpr (requires { Config::kSlopeProducts; }) return 2;
  return Config::kSlopes > 0 ? 1 : 0;
}

/// As a spec writes them, in its order.
template <class Config>
std::vector<std::string> constants_of(const attn::AttendParams& params) {
  std::vector<std::string> constants = {std::to_string(static_cast<int>(Config::kQuery)),
                                        std::to_string(static_cast<int>(Config::kKeyValue)),
                                        std::to_string(static_cast<int>(Config::kOutput)),
                                        std::to_string(static_cast<int>(Config::kInt8Value)),
                                        text(Config::kHeadSize),
                                        text(Config::kVHeadSize),
                                        text(WithColumns<Config>::kOutputColumns),
                                        text(Config::kBlockSize),
                                        text(Config::kRoundDequantized),
                                        text(Config::kPromote),
                                        text(Config::kConsumers),
                                        text(Config::kTileN),
                                        text(Config::kStages),
                                        text(Config::kLine),
                                        text(Config::kPingPong),
                                        text(Config::kPersistent),
                                        text(Config::kAhead),
                                        text(Config::kLateOutput),
                                        text(Config::kFixedBase),
                                        text(Config::kLeft),
                                        text(Config::kRanges),
                                        text(Config::kWideStores),
                                        std::to_string(static_cast<int>(params.score.alibi)),
                                        text(Config::kSoftCap),
                                        text(Config::kScaleFirst),
                                        text(Config::kCap),
                                        text(Config::kSlopes),
                                        text(Config::kFitTiles),
                                        text(Config::kBounds),
                                        text(Config::kOrdered),
                                        text(Config::kSums)};
  if constexpr (requires { Config::kAddFloats; }) constants.push_back(text(true));
  if constexpr (requires { Config::kKeepColumns; }) constants.push_back(text(true));
  if constexpr (requires { Config::kUnrolled; }) constants.push_back(text(true));
  // Kernels with and without this constant are the same.
  if (Config::kAhead) constants.push_back(text(params.num_heads / params.num_kv_heads));
  if constexpr (requires { Config::kApart; }) constants.push_back(text(true));
  if constexpr (requires { Config::kWideValues; }) constants.push_back(text(true));
  if constexpr (requires { Config::kSlopeProducts; }) constants.push_back(text(true));
  if constexpr (attn::has_values_apart<Config>()) constants.push_back(text(true));
  if constexpr (requires { Config::kTail; }) constants.push_back(text(true));
  if constexpr (requires { Config::kRopeColumns; }) constants.push_back(text(Config::kRopeColumns));
  if constexpr (attn::has_tile_list<Config>()) {
    constants.push_back(text(true));
    constants.push_back(text(attn::has_parts<Config>()));
    constants.push_back(text(Config::kFew));
    constants.push_back(text(Config::kBeside));
    if constexpr (requires { Config::kSharing; }) constants.push_back(text(Config::kSharing));
  }
  return constants;
}
inline std::vector<std::string> constants_of(const KernelSpec& spec,
                                             const attn::AttendParams& params) {
  std::vector<std::string> values;
  for (const auto& [name, value] : spec.constants) {
    if (name == "attn::Element kQuery") {
      values.push_back(std::to_string(static_cast<int>(params.query_element)));
    } else if (name == "attn::Element kKeyValue") {
      values.push_back(std::to_string(static_cast<int>(params.kv.element)));
    } else if (name == "attn::Element kInt8Value") {
      const bool is_int8 = params.int8.query_scale != nullptr;
      const attn::Element element = is_int8 ? params.int8.value_element : attn::Element::kF32;
      values.push_back(std::to_string(static_cast<int>(element)));
    } else if (name == "attn::Element kOutput") {
      values.push_back(std::to_string(static_cast<int>(params.output_element)));
    } else if (name == "attn::Alibi kAlibi") {
      values.push_back(std::to_string(static_cast<int>(params.score.alibi)));
    } else {
      values.push_back(value);
    }
  }
  return values;
}

/// Writes NaN and infinities into the values of the first request before it attends, where some
/// rows see them and others do not. Memory is the host's.
class SpecialValues final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void attend(const attn::AttendParams& params) override {
    const bool is_code = params.kv.element == attn::Element::kE4M3;
    REQUIRE((is_code || params.kv.element == attn::Element::kBF16));
    const auto put = [&](int key, int head, int column, float value) {
      const attn::KvParams& kv = params.kv;
      const bool is_apart = kv.value_block_table != nullptr;
      attn::i64 at = head * kv.head_stride_value + column;
      if (kv.block_table == nullptr) {
        at += key * kv.token_stride_value;
      } else {
        const int* const table = is_apart ? kv.value_block_table : kv.block_table;
        at += table[key / kv.block_size] * (is_apart ? kv.value_block_stride : kv.block_stride) +
              key % kv.block_size * kv.token_stride_value;
      }
      auto* const values = static_cast<char*>(const_cast<void*>(kv.value));
      const attn::u16 code = is_apart ? attn::f16_from_float(value) : attn::bf16_from_float(value);
      if (is_code && !is_apart) {
        values[at] = value < 0 ? '\xFF' : '\x7F';  // NaN: there is no infinity
      } else {
        std::memcpy(values + at * 2, &code, sizeof code);
      }
    };
    constexpr float kInf = std::numeric_limits<float>::infinity();
    put(200, 0, 5, std::numeric_limits<float>::quiet_NaN());
    put(230, 0, 6, kInf);
    put(231, 0, 7, -kInf);
    put(232, 1, 63, kInf);
    put(250, 1, 63, -kInf);
    put(10, 1, 0, kInf);  // every row sees it
    inner().attend(params);
  }
};

/// Runs the roles of the kernel that `kernel` names, as often as `grid_x` says, with the maps of
/// `plan`; one of `grid` and `list` says which tiles there are. Returns how many CTAs ran.
template <class Config>
int run_hopper_ctas(const attn::AttendParams& params, const HopperPlan& plan,
                    const AttendKernel& kernel, std::int64_t grid_x, const attn::HopperGrid& grid,
                    const attn::Int8CacheWriteParams* save, const attn::TileListParams* list) {
  using Full = WithColumns<Config>;
  using Shape = attn::HopperShape<Full>;
  REQUIRE(constants_of(kernel.spec, params) == constants_of<Config>(params));
  REQUIRE(kernel.threads == Shape::kThreads);
  const TensorMap key_map = hopper_key_map(params, plan);
  const TensorMap value_map = hopper_value_map(params, plan);
  const TensorMap query_map = !plan.tile.ahead  ? key_map
                              : list == nullptr ? hopper_query_map(params)
                                                : hopper_listed_query_map(params, *list);
  const attn::TensorMap keys = emulated_map(key_map);
  const attn::TensorMap values = emulated_map(value_map);
  const TensorMap output_map = stores_boxes(params, plan) ? hopper_output_map(params) : key_map;
  const attn::TensorMap queries = emulated_map(query_map);
  const attn::TensorMap outputs = emulated_map(output_map);
  REQUIRE((params.kv.rope != nullptr) == (attn::rope_columns<Full>() > 0));
  const TensorMap rope_map = params.kv.rope != nullptr ? hopper_rope_map(params, plan) : key_map;
  const attn::TensorMap ropes = emulated_map(rope_map);
  gridDim.x = static_cast<unsigned>(grid_x);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    run_emulated_cta(Shape::kThreads, kernel.shared_bytes, [&] {
      const Shape shape{params, grid, running_cta->shared(), 0, save, list, &outputs, &ropes};
      if (threadIdx.x == 0) shape.init_barriers();
      shape.fill_constants();
      __syncthreads();
      attn::run_hopper_roles<Full>(shape, keys, values, queries);
    });
  }
  return static_cast<int>(gridDim.x);
}

/// attend() by emulated CTAs, everything else by the CPU.
template <class Config>
class EmulatedOps final : public ForwardingOps {
 public:
  EmulatedOps(Ops& cpu, const std::string& options)
      : ForwardingOps(cpu),
        options_(options + (options.empty() ? "" : ":") +
                 fmt::format(
                     "ahead={:d}:bounds={:d}:cap={}:slopes={}:ordered={:d}:sums={}:"
                     "fixed_base={:d}:unroll={:d}:apart={:d}:late_output={:d}:tail={:d}:stages={}",
                     Config::kAhead, Config::kBounds, Config::kCap, slopes_option<Config>(),
                     Config::kOrdered, Config::kSums, Config::kFixedBase,
                     requires { Config::kUnrolled; }, requires { Config::kApart; },
                     Config::kLateOutput, requires { Config::kTail; }, Config::kStages)) {}

  void attend(const attn::AttendParams& params) override {
    Target target = target_of_sm(90);
    REQUIRE(hopper_prefill_misfit(target, params) == "");
    const HopperPlan plan = hopper_plan(params, options_);
    if constexpr (requires { Config::kTail; }) {
      // So many that some row tiles are cut and others are not.
      const attn::HopperGrid all = hopper_grid(target, params, plan);
      const int tiles = attn::hopper_work_items(all);
      const auto is_cut = [&](int sms) {
        const attn::i64 whole = attn::whole_tiles(tiles, sms, Config::kConsumers);
        return whole > 0 && whole < tiles;
      };
      target.num_sms = 2;
      while (target.num_sms < tiles && !is_cut(target.num_sms)) ++target.num_sms;
      REQUIRE(is_cut(target.num_sms));
    }
    std::int64_t grid_x = hopper_shape(target, params, plan).grid_x;
    if (Config::kPersistent) grid_x = std::min<std::int64_t>(grid_x, 2);  // several items a CTA
    num_ctas += run_hopper_ctas<Config>(params, plan, hopper_prefill_kernel(params, plan), grid_x,
                                        hopper_grid(target, params, plan), save_, nullptr);
  }
  /// By producers, as hopper_prefill_saving does.
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& params) override {
    save_ = &save;
    attend(params);
    save_ = nullptr;
  }
  int num_ctas = 0;

 private:
  std::string options_;
  const attn::Int8CacheWriteParams* save_ = nullptr;
};

/// The case gives by Config's kernel what it gives on the CPU.
template <class Config>
void check(AttendCase c, const std::string& options = {}, bool has_special_values = false) {
  CAPTURE(c.name);
  CAPTURE(Config::kHeadSize);
  CAPTURE(options);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedOps<Config> emulated(*cpu, options);
  SpecialValues special_cpu(*cpu);
  SpecialValues special_emulated(emulated);
  Ops& reference = has_special_values ? static_cast<Ops&>(special_cpu) : *cpu;
  Ops& kernel = has_special_values ? static_cast<Ops&>(special_emulated) : emulated;
  const std::vector<Tensor> expected = run_attend(reference, c);
  const std::vector<Tensor> actual = run_attend(kernel, c);
  CHECK(emulated.num_ctas > 0);
  // As on a GPU: P is rounded to 16 bits, and so is the output; or P to e4m3, relative to bases
  // that differ.
  const double tolerance = Config::kQuery == attn::Element::kE4M3   ? 1e-1
                           : Config::kQuery == attn::Element::kBF16 ? 4e-2
                                                                    : 1e-2;
  check_same(actual, expected, tolerance);
}

}  // namespace attnbench::cuda
