// The study of one layer, and the loop over layers. One forward of one layer is in memory at a
// time, with one exception: the last one read is kept for the attention error that follows.
#include "calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "calibrate/latents.h"
#include "calibrate/role_statistics.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

// Forwards of a layer that the attention error is taken over: the first, the last and two between.
constexpr std::int64_t kErrorForwards = 4;

using Scales = std::array<std::vector<double>, kNumRoles>;

/// Everything about one layer, its tensors read one forward at a time.
class LayerStudy {
 public:
  LayerStudy(Observations& observations, std::size_t layer, const CalibrationOptions& options)
      : observations_(observations),
        index_(layer),
        layer_(observations.layers()[layer]),
        has_latents_(observations.has_latents(layer)),
        options_(options) {
    for (const Role role : scaled_roles(options.format)) {
      if (role != kValueRole || !has_joined_values()) statistics_.emplace_back(role, options);
    }
    check_only_the_others();
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
             shown(layer_), kRoleNames[statistics.role()], statistics.group_name(i), own[i],
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
  /// One scale is of keys and values: in the legacy form, and where a value is part of an entry.
  bool has_joined_values() const {
    return has_latents_ || options_.format == ScaleFormat::kKvCacheLegacy;
  }

  /// Roles that the format has no scale for: what they hold enters the attention error.
  void check_only_the_others() {
    CalibrationOptions plain = options_;
    plain.format = ScaleFormat::kVllmMm;
    const std::vector<Role> scaled = scaled_roles(options_.format);
    for (const Role role : scaled_roles(plain.format)) {
      const bool is_scaled = std::find(scaled.begin(), scaled.end(), role) != scaled.end();
      if (!is_scaled) checked_only_.emplace_back(role, plain);
    }
  }

  void observe(const Observation& observation) {
    for (RoleStatistics& checked : checked_only_) {
      const std::optional<Tensor>& tensor = observation.tensors[checked.role()];
      if (tensor) checked.observe(layer_, observation.where, {{checked.role(), &*tensor}});
    }
    for (RoleStatistics& statistics : statistics_) {
      std::vector<std::pair<Role, const Tensor*>> tensors{
          {statistics.role(), &*observation.tensors[statistics.role()]}};
      if (options_.format == ScaleFormat::kKvCacheLegacy && !has_latents_) {
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
    if (has_joined_values()) scales[kValueRole] = scales[kKeyRole];
    return scales;
  }

  void check_number(const RoleStatistics& statistics, const std::vector<double>& scales) const {
    const bool whole = scales.size() == 1 && options_.format != ScaleFormat::kInt8Value;
    if (whole || scales.size() == statistics.size()) return;
    fail(ErrorKind::kShape, "layer '{}': tensor {}: expected {} scales, got {}", shown(layer_),
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
      if (observation.latents) {
        add_errors_of(LatentSample(std::move(observation), options_.sample), scales, report);
      } else {
        add_errors_of(AttentionSample(std::move(observation), options_.sample), scales, report);
      }
    }
  }

  /// Those of one forward.
  template <typename Sample>
  void add_errors_of(Sample sample, const Scales& scales, LayerReport& report) const {
    add(sample.error(options_.format, scales), report.error);
    for (std::size_t m = 0; m < kScaleMethods.size(); ++m) {
      if (by_method_[m] == scales) {
        report.method_error[m] = report.error;
      } else if (are_usable(by_method_[m])) {
        add(sample.error(options_.format, by_method_[m]), report.method_error[m]);
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
  bool has_latents_;
  const CalibrationOptions& options_;
  std::vector<RoleStatistics> statistics_;
  std::vector<RoleStatistics> checked_only_;
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
       "layer '{}': tensor v: expected {} heads of {} as in the other layers, got {} of {}",
       shown(layer), file.num_kv_heads, file.head_size, study.num_kv_heads(), study.head_size());
}

void announce(const CalibrationOptions& options, std::size_t done,
              const Observations& observations) {
  if (options.progress) options.progress(done, observations.layers().size());
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
