#include "calibrate/calibrate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/parallel.h"
#include "inputs/scale_text.h"
#include "reference/ops/amax_history.h"

namespace attnbench {
namespace {

// Forwards of a layer that the attention error is taken over: the first, the last and two between.
constexpr std::int64_t kErrorForwards = 4;

using Scales = std::array<std::vector<double>, kNumRoles>;

CodeGrid grid_of(ScaleFormat format) {
  return format == ScaleFormat::kInt8Value ? CodeGrid::kInt8 : CodeGrid::kE4M3;
}

ScaleGroups groups_of(const CalibrationOptions& options, Role role) {
  if (options.format == ScaleFormat::kInt8Value) return ScaleGroups::kChannel;
  const bool can = options.format == ScaleFormat::kKvCache && role != kQueryRole;
  return can && options.per_head ? ScaleGroups::kHead : ScaleGroups::kTensor;
}

/// What is known of the elements that share a scale.
struct Group {
  explicit Group(int history) : ring(history) {}
  Magnitudes magnitudes;
  float largest = -std::numeric_limits<float>::infinity();  // |x| or x, of all forwards
  AmaxRing ring;                                            // of the last ones
};

/// The tensors of one layer that share scales: q, k and v on their own, or k and v together.
class RoleStatistics {
 public:
  RoleStatistics(Role role, const CalibrationOptions& options)
      : role_(role), options_(options), groups_(groups_of(options, role)) {}

  Role role() const { return role_; }

  /// One forward. `tensors` are observed as one.
  void observe(const std::string& layer, const std::string& where,
               const std::vector<std::pair<Role, const Tensor*>>& tensors) {
    std::vector<Magnitudes> forward;
    std::vector<float> largest;
    for (const auto& [role, tensor] : tensors) {
      const std::string name =
          fmt::format("{}: layer '{}': tensor {}", where, layer, kRoleNames[role]);
      check_shape(name, role, *tensor);
      std::vector<Magnitudes> part(static_cast<std::size_t>(num_groups(*tensor, groups_)));
      add_magnitudes(*tensor, groups_, options_.sample.num_threads, part);
      check_elements(name, part);
      forward.resize(part.size());
      largest.resize(part.size(), -std::numeric_limits<float>::infinity());
      for (std::size_t i = 0; i < part.size(); ++i) {
        forward[i].add(part[i]);
        largest[i] = std::max(largest[i], maximum(name, *tensor, part[i]));
      }
    }
    groups_of_elements_.resize(forward.size(), Group(options_.history.value_or(1)));
    for (std::size_t i = 0; i < forward.size(); ++i) {
      Group& group = groups_of_elements_[i];
      group.magnitudes.add(forward[i]);
      group.largest = std::max(group.largest, largest[i]);
      if (options_.history) group.ring.record(largest[i]);
    }
  }

  /// Of every group, by `method`, with the margin; 0 where a group is all zeros.
  std::vector<double> scales(ScaleMethod method) const {
    std::vector<double> result(groups_of_elements_.size());
    ThreadPool(options_.sample.num_threads)
        .parallel_for(static_cast<std::int64_t>(result.size()), [&](std::int64_t i, int) {
          const auto group = static_cast<std::size_t>(i);
          result[group] = double{plain_scale(groups_of_elements_[group], method)} * options_.margin;
        });
    return result;
  }

  float amax() const {
    float largest = 0;
    for (const Group& group : groups_of_elements_) {
      largest = std::max(largest, group.magnitudes.amax());
    }
    return largest;
  }

  ScaleLosses losses(const std::vector<double>& scales) const {
    ScaleLosses sum;
    double total = 0;
    for (std::size_t i = 0; i < groups_of_elements_.size(); ++i) {
      const Magnitudes& magnitudes = groups_of_elements_[i].magnitudes;
      const auto count = static_cast<double>(magnitudes.num_elements());
      const double scale = scales.size() == 1 ? scales[0] : scales[i];
      const ScaleLosses part =
          scale_losses(magnitudes, static_cast<float>(scale), grid_of(options_.format));
      sum.saturated += part.saturated * count;
      sum.flushed += part.flushed * count;
      total += count;
    }
    return {sum.saturated / total, sum.flushed / total};
  }

  /// "KV head 3", "KV head 3, channel 17", or nothing for the whole tensor.
  std::string group_name(std::size_t group) const {
    if (groups_ == ScaleGroups::kTensor) return "";
    if (groups_ == ScaleGroups::kHead) return fmt::format(", KV head {}", group);
    const auto width = static_cast<std::size_t>(shape_.back());
    return fmt::format(", KV head {}, channel {}", group / width, group % width);
  }

  /// Heads and head size, of tensors of rank 3.
  std::int64_t num_heads() const { return shape_.at(shape_.size() - 2); }
  std::int64_t head_size() const { return shape_.back(); }
  std::size_t size() const { return groups_of_elements_.size(); }

 private:
  /// By --amax; of a whole tensor by the device, where there is one.
  float maximum(const std::string& name, const Tensor& tensor, const Magnitudes& magnitudes) const {
    const float own = options_.amax == AmaxKind::kAbs ? magnitudes.amax() : magnitudes.signed_max();
    if (!options_.device_amax || groups_ != ScaleGroups::kTensor) return own;
    const float found = options_.device_amax(tensor).value_or(own);
    const bool agrees = found == own || std::nextafter(found, own) == own;
    if (agrees) return found;
    fail(ErrorKind::kCuda, "{}: the largest value is {} on the device, {} on the host", name, found,
         own);
  }

  float plain_scale(const Group& group, ScaleMethod method) const {
    const CodeGrid grid = grid_of(options_.format);
    switch (method) {
      case ScaleMethod::kAmax: {
        if (options_.history) return group.ring.largest() / largest_code(grid);
        if (group.magnitudes.amax() == 0) return 0.0f;
        AmaxRing all(1);
        all.record(group.largest);
        return all.largest() / largest_code(grid);
      }
      case ScaleMethod::kPercentile:
        return group.magnitudes.percentile(options_.percentile) / largest_code(grid);
      case ScaleMethod::kMse:
        return best_scale(group.magnitudes, grid);
    }
    return 0;
  }

  void check_shape(const std::string& name, Role role, const Tensor& tensor) {
    if (tensor.empty()) fail(ErrorKind::kValue, "{}: it is empty", name);
    const std::vector<std::int64_t>& shape = tensor.shape();
    if (groups_ != ScaleGroups::kTensor && shape.size() != 3) {
      fail(ErrorKind::kShape, "{}: expected [tokens, heads, head size], got [{}]", name,
           fmt::join(shape, ", "));
    }
    if (role != role_) return;  // v beside k: their head sizes may differ
    if (shape_.empty()) shape_ = shape;
    const bool agrees =
        shape.size() == shape_.size() &&
        (shape.size() < 2 || std::equal(shape.begin() + 1, shape.end(), shape_.begin() + 1));
    if (agrees) return;
    fail(ErrorKind::kShape, "{}: expected [*, {}] as before, got [{}]", name,
         fmt::join(shape_.begin() + 1, shape_.end(), ", "), fmt::join(shape, ", "));
  }

  static void check_elements(const std::string& name, const std::vector<Magnitudes>& parts) {
    std::int64_t not_finite = 0;
    bool all_zero = true;
    for (const Magnitudes& part : parts) {
      not_finite += part.num_not_finite();
      all_zero = all_zero && part.amax() == 0.0f;
    }
    if (not_finite > 0) {
      fail(ErrorKind::kValue, "{}: {} elements are NaN or infinite", name, not_finite);
    }
    if (all_zero) fail(ErrorKind::kValue, "{}: it is all zeros", name);
  }

  Role role_;
  const CalibrationOptions& options_;
  ScaleGroups groups_;
  std::vector<std::int64_t> shape_;
  std::vector<Group> groups_of_elements_;
};

/// Everything about one layer, its tensors read one forward at a time.
class LayerStudy {
 public:
  LayerStudy(Observations& observations, std::size_t layer, const CalibrationOptions& options)
      : observations_(observations),
        index_(layer),
        layer_(observations.layers()[layer]),
        options_(options) {
    for (const Role role : scaled_roles(options.format)) {
      const bool joined = options.format == ScaleFormat::kKvCacheLegacy && role == kValueRole;
      if (!joined) statistics_.emplace_back(role, options);
    }
    for (std::int64_t i = 0; i < num_forwards(); ++i) {
      last_ = observations.read(index_, i);
      observe(*last_);
    }
    for (const ScaleMethod method : kScaleMethods) {
      by_method_[static_cast<std::size_t>(method)] = scales_of(method);
    }
  }

  /// The scales of a method. Errors: E-VALUE when one is not finite and > 0.
  const Scales& checked_scales(ScaleMethod method) const {
    const Scales& scales = by_method_[static_cast<std::size_t>(method)];
    for (const RoleStatistics& statistics : statistics_) {
      const std::vector<double>& own = scales[statistics.role()];
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (is_scale(own[i])) continue;
        fail(ErrorKind::kValue,
             "layer '{}': tensor {}{}: expected a finite scale > 0 in float32, got {} by {}",
             layer_, kRoleNames[statistics.role()], statistics.group_name(i), own[i],
             to_string(method));
      }
    }
    return scales;
  }

  LayerReport report(const Scales& scales) {
    LayerReport report;
    report.layer = layer_;
    report.num_forwards = num_forwards();
    for (const RoleStatistics& statistics : statistics_) {
      const std::vector<double>& own = scales[statistics.role()];
      check_number(statistics, own);
      report.roles.push_back({statistics.role(), own, statistics.amax(), statistics.losses(own)});
    }
    add_errors(scales, report);
    return report;
  }

  std::int64_t num_kv_heads() const { return statistics_.back().num_heads(); }
  std::int64_t head_size() const { return statistics_.back().head_size(); }

 private:
  std::int64_t num_forwards() const { return observations_.count(index_); }

  void observe(const Observation& observation) {
    for (RoleStatistics& statistics : statistics_) {
      std::vector<std::pair<Role, const Tensor*>> tensors{
          {statistics.role(), &*observation.tensors[statistics.role()]}};
      if (options_.format == ScaleFormat::kKvCacheLegacy) {
        tensors.emplace_back(kValueRole, &*observation.tensors[kValueRole]);
      }
      statistics.observe(layer_, observation.where, tensors);
    }
  }

  Scales scales_of(ScaleMethod method) const {
    Scales scales;
    for (const RoleStatistics& statistics : statistics_) {
      scales[statistics.role()] = statistics.scales(method);
      // As the file is read back: the scales of int8-value are float32.
      if (options_.format != ScaleFormat::kInt8Value) continue;
      for (double& scale : scales[statistics.role()]) scale = double{static_cast<float>(scale)};
    }
    if (options_.format == ScaleFormat::kKvCacheLegacy) scales[kValueRole] = scales[kKeyRole];
    return scales;
  }

  void check_number(const RoleStatistics& statistics, const std::vector<double>& scales) const {
    const bool whole = scales.size() == 1 && options_.format != ScaleFormat::kInt8Value;
    if (whole || scales.size() == statistics.size()) return;
    fail(ErrorKind::kShape, "layer '{}': tensor {}: expected {} scales, got {}", layer_,
         kRoleNames[statistics.role()], statistics.size(), scales.size());
  }

  static bool are_usable(const Scales& scales) {
    return std::all_of(scales.begin(), scales.end(), [](const std::vector<double>& role) {
      return std::all_of(role.begin(), role.end(), is_scale);
    });
  }

  void add_errors(const Scales& scales, LayerReport& report) {
    const std::int64_t count = std::min(kErrorForwards, num_forwards());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t forward = count == 1 ? 0 : i * (num_forwards() - 1) / (count - 1);
      Observation observation = forward + 1 == num_forwards() && last_
                                    ? *std::exchange(last_, std::nullopt)
                                    : read_again(forward);
      if (!observation.no_attention.empty()) {
        report.no_error = observation.no_attention;
        return;
      }
      const AttentionSample sample(std::move(observation), options_.sample);
      add(sample.error(options_.format, scales), report.error);
      for (std::size_t m = 0; m < kScaleMethods.size(); ++m) {
        if (by_method_[m] == scales) {
          report.method_error[m] = report.error;
        } else if (are_usable(by_method_[m])) {
          add(sample.error(options_.format, by_method_[m]), report.method_error[m]);
        }
      }
    }
  }

  Observation read_again(std::int64_t forward) {
    last_.reset();  // one forward in memory, not two
    return observations_.read(index_, forward);
  }

  static void add(const OutputError& part, std::optional<OutputError>& sum) {
    if (!sum) sum.emplace();
    sum->add(part);
  }

  Observations& observations_;
  std::size_t index_;
  std::string layer_;
  const CalibrationOptions& options_;
  std::vector<RoleStatistics> statistics_;
  std::optional<Observation> last_;  // read, and not yet used for the attention error
  std::array<Scales, kScaleMethods.size()> by_method_;
};

/// Extents of int8-value, which all layers share.
void adopt_extents(const LayerStudy& study, const std::string& layer, ScaleFile& file) {
  if (file.format != ScaleFormat::kInt8Value) return;
  if (file.layers.empty()) {
    file.num_kv_heads = study.num_kv_heads();
    file.head_size = study.head_size();
  }
  if (file.num_kv_heads == study.num_kv_heads() && file.head_size == study.head_size()) return;
  fail(ErrorKind::kShape,
       "layer '{}': tensor v: expected {} heads of {} as in the other layers, got {} of {}", layer,
       file.num_kv_heads, file.head_size, study.num_kv_heads(), study.head_size());
}

void announce(const CalibrationOptions& options, std::size_t done,
              const Observations& observations) {
  if (options.progress) options.progress(done, observations.layers().size());
}

const LayerScales& require_layer(const ScaleFile& file, const std::string& layer) {
  for (const LayerScales& scales : file.layers) {
    if (same_layer(file.format, scales.layer, layer)) return scales;
  }
  std::vector<std::string> available;
  for (const LayerScales& scales : file.layers) available.push_back(scales.layer);
  fail(ErrorKind::kValue,
       "FP8 attention enabled but scales not found for layer '{}'. Available layers: ['{}']", layer,
       fmt::join(available, "', '"));
}

}  // namespace

std::optional<ScaleMethod> LayerReport::best() const {
  std::optional<ScaleMethod> result;
  double least = std::numeric_limits<double>::infinity();
  for (const ScaleMethod method : kScaleMethods) {
    const auto& found = method_error[static_cast<std::size_t>(method)];
    if (!found || !(found->rms_rel() < least)) continue;
    least = found->rms_rel();
    result = method;
  }
  return result;
}

std::optional<double> LayerReport::loss() const {
  const std::optional<ScaleMethod> method = best();
  if (!method || !error) return std::nullopt;
  const double least = method_error[static_cast<std::size_t>(*method)]->rms_rel();
  if (least == 0) return error->rms_rel() == 0 ? 1 : std::numeric_limits<double>::infinity();
  return error->rms_rel() / least;
}

CalibrationReport calibrate(Observations& observations, const CalibrationOptions& options) {
  CalibrationReport report{options, {}, {}};
  report.file.format = options.format;
  for (std::size_t i = 0; i < observations.layers().size(); ++i) {
    announce(options, i, observations);
    LayerStudy study(observations, i, report.options);
    const Scales& scales = study.checked_scales(options.method);
    report.layers.push_back(study.report(scales));
    adopt_extents(study, report.layers.back().layer, report.file);
    report.file.layers.push_back({report.layers.back().layer, scales});
  }
  return report;
}

CalibrationReport assess(Observations& observations, const CalibrationOptions& options,
                         const ScaleFile& file) {
  CalibrationReport report{options, {}, file};
  for (const std::string& layer : observations.layers()) require_layer(file, layer);
  for (std::size_t i = 0; i < observations.layers().size(); ++i) {
    announce(options, i, observations);
    const LayerScales& scales = require_layer(file, observations.layers()[i]);
    LayerStudy study(observations, i, report.options);
    report.layers.push_back(study.report(scales.scale));
  }
  return report;
}

}  // namespace attnbench
