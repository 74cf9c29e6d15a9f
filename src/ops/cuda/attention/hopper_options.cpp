#include "ops/cuda/attention/hopper_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"

namespace attnbench::cuda {
namespace {

/// An option of a tuning: a word and what it sets, of one kernel or of both.
struct HopperOption {
  std::string_view name;
  int least;
  int most;
  int multiple;
  void (*set)(HopperPlan& plan, int value);
  std::optional<HopperKernel> only = std::nullopt;

  bool is_of(std::optional<HopperKernel> kernel) const {
    return !only || !kernel || *only == *kernel;
  }
};
constexpr HopperKernel kOfPrefill = HopperKernel::kPrefill;
constexpr HopperKernel kOfTiles = HopperKernel::kTiles;
constexpr std::array kHopperOptions = {
    HopperOption{"consumers", 1, 3, 1, [](HopperPlan& plan, int n) { plan.tile.consumers = n; },
                 kOfPrefill},
    HopperOption{"tile_n", 64, 256, 16, [](HopperPlan& plan, int n) { plan.tile.tile_n = n; }},
    HopperOption{"stages", 2, 4, 1, [](HopperPlan& plan, int n) { plan.tile.stages = n; }},
    HopperOption{"line", 0, 128, 64, [](HopperPlan& plan, int n) { plan.tile.line = n; },
                 kOfPrefill},
    HopperOption{"ping_pong", 0, 1, 1, [](HopperPlan& plan, int n) { plan.ping_pong = n != 0; },
                 kOfPrefill},
    HopperOption{"persistent", 0, 1, 1, [](HopperPlan& plan, int n) { plan.persistent = n != 0; }},
    HopperOption{"ahead", 0, 1, 1, [](HopperPlan& plan, int n) { plan.tile.ahead = n != 0; }},
    HopperOption{"late_output", 0, 1, 1, [](HopperPlan& plan, int n) { plan.late_output = n != 0; },
                 kOfPrefill},
    HopperOption{"fixed_base", 0, 1, 1, [](HopperPlan& plan, int n) { plan.fixed_base = n != 0; },
                 kOfPrefill},
    HopperOption{"reverse", 0, 1, 1, [](HopperPlan& plan, int n) { plan.reverse = n != 0; },
                 kOfPrefill},
    HopperOption{"tail", 0, 1, 1, [](HopperPlan& plan, int n) { plan.tail = n != 0; }, kOfPrefill},
    HopperOption{"add_floats", 0, 1, 1, [](HopperPlan& plan, int n) { plan.add_floats = n != 0; }},
    HopperOption{"keep_columns", 0, 1, 1,
                 [](HopperPlan& plan, int n) { plan.keep_columns = n != 0; }},
    HopperOption{"unroll", 0, 1, 1, [](HopperPlan& plan, int n) { plan.unrolled = n != 0; }},
    HopperOption{"few", 0, 1, 1, [](HopperPlan& plan, int n) { plan.few = n != 0; }, kOfTiles},
    HopperOption{"beside", 0, 4, 1, [](HopperPlan& plan, int n) { plan.beside = n; }, kOfTiles},
    HopperOption{"shares", 0, 1, 1, [](HopperPlan& plan, int n) { plan.shares = n != 0; },
                 kOfTiles},
    HopperOption{"promote", 1, 16, 1, [](HopperPlan& plan, int n) { plan.promote = n; }},
    HopperOption{"apart", 0, 1, 1, [](HopperPlan& plan, int n) { plan.apart = n != 0; },
                 kOfPrefill},
    HopperOption{"cap", 0, 4, 1, [](HopperPlan& plan, int n) { plan.cap = n; }, kOfPrefill},
    HopperOption{"slopes", 0, 2, 1,
                 [](HopperPlan& plan, int n) {
                   plan.slopes = n;
                   plan.tile.slope_products = n == 2;
                 }},
    HopperOption{"fit", 0, 1, 1, [](HopperPlan& plan, int n) { plan.fits_tiles = n != 0; },
                 kOfPrefill},
    HopperOption{"bounds", 0, 1, 1, [](HopperPlan& plan, int n) { plan.bounds = n != 0; }},
    HopperOption{"ordered", 0, 1, 1, [](HopperPlan& plan, int n) { plan.ordered = n != 0; }},
    HopperOption{"sums", 0, 128, 16, [](HopperPlan& plan, int n) { plan.sums = n; }},
    HopperOption{"group", 1, 1 << 20, 1, [](HopperPlan& plan, int n) { plan.group = n; },
                 kOfPrefill},
    HopperOption{"wide", 0, 1, 1, [](HopperPlan& plan, int n) { plan.wide = n != 0; }, kOfPrefill},
};

}  // namespace

std::string apply_hopper_options(std::string_view options, HopperPlan* plan,
                                 std::optional<HopperKernel> kernel) {
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(':'));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const auto option =
        std::find_if(kHopperOptions.begin(), kHopperOptions.end(),
                     [&](const HopperOption& o) { return o.name == name && o.is_of(kernel); });
    if (option == kHopperOptions.end() || equals == std::string_view::npos) {
      std::string known;
      for (const HopperOption& o : kHopperOptions) {
        if (o.is_of(kernel)) known += fmt::format("{}{}", known.empty() ? "" : ", ", o.name);
      }
      return fmt::format("'{}' is no option=number of it (known: {})", word, known);
    }
    int value = 0;
    const char* const end = word.data() + word.size();
    const auto read = std::from_chars(word.data() + equals + 1, end, value);
    if (read.ec != std::errc{} || read.ptr != end || value < option->least ||
        value > option->most || value % option->multiple != 0) {
      return fmt::format(
          "{}: {} to {}{} is possible", word, option->least, option->most,
          option->multiple == 1 ? "" : fmt::format(" in steps of {}", option->multiple));
    }
    if (plan != nullptr) option->set(*plan, value);
  }
  return "";
}

std::string hopper_prefill_options_misfit(std::string_view options) {
  return apply_hopper_options(options, nullptr, kOfPrefill);
}
bool hopper_prefill_wants_wide(std::string_view options) {
  HopperPlan plan;
  apply_hopper_options(options, &plan, kOfPrefill);
  return plan.wide;
}
std::string hopper_tiles_options_misfit(std::string_view options) {
  return apply_hopper_options(options, nullptr, kOfTiles);
}

}  // namespace attnbench::cuda
