// The Hopper prefill kernel on emulated threads: its own code, with the tiles, boxes and grids that
// the host gives it, against the CPU operations.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/testing/emulated_hopper_testing.h"

#include "kernels/attention/hopper/prefill.cuh"
#include "ops/cuda/attention/hopper_cases_testing.h"
#include "ops/cuda/attention/hopper_prefill.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

/// A kernel's constants, with these of D128 over ragged keys where a case says nothing else.
struct Ragged128 {
  static constexpr attn::Element kQuery = attn::Element::kBF16;
  static constexpr attn::Element kOutput = attn::Element::kBF16;
  static constexpr int kHeadSize = 128;
  static constexpr int kVHeadSize = 128;
  static constexpr int kBlockSize = 0;
  static constexpr int kConsumers = 3;
  static constexpr int kTileN = 80;
  static constexpr int kStages = 2;
  static constexpr bool kPingPong = false;
  static constexpr bool kPersistent = false;
  static constexpr bool kFixedBase = false;
  static constexpr bool kLeft = true;
  static constexpr bool kRanges = false;
  static constexpr bool kWideStores = true;
  static constexpr attn::Alibi kAlibi = attn::Alibi::kNone;
  static constexpr bool kSoftCap = false;
  static constexpr bool kScaleFirst = false;
};

std::string text(bool value) { return value ? "true" : "false"; }
std::string text(int value) { return std::to_string(value); }

/// As a spec writes them, in its order.
template <class Config>
std::vector<std::string> constants_of(const attn::AttendParams& params) {
  return {std::to_string(static_cast<int>(Config::kQuery)),
          std::to_string(static_cast<int>(Config::kOutput)),
          text(Config::kHeadSize),
          text(Config::kVHeadSize),
          text(Config::kBlockSize),
          text(Config::kConsumers),
          text(Config::kTileN),
          text(Config::kStages),
          text(Config::kPingPong),
          text(Config::kPersistent),
          text(Config::kFixedBase),
          text(Config::kLeft),
          text(Config::kRanges),
          text(Config::kWideStores),
          std::to_string(static_cast<int>(params.score.alibi)),
          text(Config::kSoftCap),
          text(Config::kScaleFirst)};
}
std::vector<std::string> constants_of(const KernelSpec& spec, const attn::AttendParams& params) {
  std::vector<std::string> values;
  for (const auto& [name, value] : spec.constants) {
    if (name == "attn::Element kQuery") {
      values.push_back(std::to_string(static_cast<int>(params.query_element)));
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
    REQUIRE(params.kv.element == attn::Element::kBF16);
    const auto put = [&](int key, int head, int column, float value) {
      const attn::KvParams& kv = params.kv;
      attn::i64 at = head * kv.head_stride_value + column;
      if (kv.block_table == nullptr) {
        at += key * kv.token_stride_value;
      } else {
        at += kv.block_table[key / kv.block_size] * kv.block_stride +
              key % kv.block_size * kv.token_stride_value;
      }
      const attn::u16 code = attn::bf16_from_float(value);
      std::memcpy(static_cast<char*>(const_cast<void*>(kv.value)) + at * 2, &code, sizeof code);
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

/// attend() by emulated CTAs, everything else by the CPU.
template <class Config>
class EmulatedOps final : public ForwardingOps {
 public:
  EmulatedOps(Ops& cpu, std::string options) : ForwardingOps(cpu), options_(std::move(options)) {}

  void attend(const attn::AttendParams& params) override {
    using Shape = attn::HopperShape<Config>;
    const Target target = target_of_sm(90);
    REQUIRE(hopper_prefill_misfit(target, params) == "");
    const HopperPlan plan = hopper_plan(params, options_);
    const AttendKernel kernel = hopper_prefill_kernel(params, plan);
    REQUIRE(constants_of(kernel.spec, params) == constants_of<Config>(params));
    REQUIRE(kernel.threads == Shape::kThreads);
    const TensorMap key_map = hopper_key_map(params, plan);
    const TensorMap value_map = hopper_value_map(params, plan);
    const attn::TensorMap keys = emulated_map(key_map);
    const attn::TensorMap values = emulated_map(value_map);
    const attn::HopperGrid grid = hopper_grid(params, plan);
    gridDim.x = static_cast<unsigned>(hopper_shape(target, params, plan).grid_x);
    if (Config::kPersistent) gridDim.x = std::min(gridDim.x, 2u);  // several items a CTA
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      EmulatedCta cta(Shape::kThreads, static_cast<std::size_t>(kernel.shared_bytes));
      EmulatedHopper hopper;
      running_hopper = &hopper;
      std::memset(cta.shared(), 0xFF, static_cast<std::size_t>(kernel.shared_bytes));
      cta.run([&] {
        const Shape shape{params, grid, cta.shared(), 0};
        if (threadIdx.x == 0) shape.init_barriers();
        __syncthreads();
        attn::run_hopper_roles<Config>(shape, keys, values);
      });
      CHECK_FALSE(hopper.has_open_work());
      ++num_ctas;
    }
  }
  int num_ctas = 0;

 private:
  std::string options_;
};

bool close_enough(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= tolerance / 2 + tolerance * (1e-2 + std::fabs(b));
}

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
  REQUIRE(actual.size() == expected.size());
  // As on a GPU: P is rounded to 16 bits, and so is the output.
  const double tolerance = Config::kQuery == attn::Element::kBF16 ? 4e-2 : 1e-2;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    std::int64_t wrong = 0;
    std::int64_t at = -1;
    for (std::int64_t j = 0; j < expected[i].num_elements(); ++j) {
      if (close_enough(static_cast<double>(actual[i].at(j)), static_cast<double>(expected[i].at(j)),
                       tolerance)) {
        continue;
      }
      if (wrong++ == 0) at = j;
    }
    CAPTURE(at);
    if (at >= 0) {
      CAPTURE(actual[i].at(at));
      CAPTURE(expected[i].at(at));
      CHECK(wrong == 0);
    }
  }
}

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
  check<ShortTile>(c);
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
  static constexpr attn::Element kOutput = attn::Element::kF16;
};

TEST_CASE("the Hopper kernel on emulated threads has all head sizes") {
  check<D64>(hopper_batch("d64 in turns", 64, 64), "consumers=3:tile_n=128:ping_pong=1");
  check<D96>(paged_batch("d96: lines of 64 bytes", 96, 96), "consumers=3:tile_n=96");
  check<D80>(hopper_batch("d80: lines of 32 bytes", 80, 80), "consumers=3:tile_n=96");
  check<D72>(hopper_batch("d72: lines that are not full", 72, 72), "consumers=3:tile_n=96");
  check<D32>(paged_batch("d32", 32, 32), "consumers=3:tile_n=128");
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
  check<F16>(c);
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
  c = paged_batch("negative scale");
  c.softmax_scale = -0.1f;
  check<Negative>(c, long_tile);
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
