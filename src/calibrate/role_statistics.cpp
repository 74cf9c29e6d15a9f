// Observes forwards and computes scales; tensors that no scale could serve are refused here, with
// the layer and the tensor in the message.
#include "calibrate/role_statistics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/system/parallel.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

ScaleGroups groups_of(const CalibrationOptions& options, Role role) {
  if (options.format == ScaleFormat::kInt8Value) return ScaleGroups::kChannel;
  const bool can = options.format == ScaleFormat::kKvCache && role != kQueryRole;
  return can && options.per_head ? ScaleGroups::kHead : ScaleGroups::kTensor;
}

}  // namespace

void check_elements(const std::string& name, const std::vector<Magnitudes>& parts) {
  std::int64_t not_finite = 0;
  bool all_zero = true;
  for (const Magnitudes& part : parts) {
    not_finite += part.num_not_finite();
    all_zero = all_zero && part.amax() == 0.0f;
  }
  if (not_finite > 0) {
    fail(ErrorKind::kValue, "{}: {} {} NaN or infinite", name, not_finite,
         not_finite == 1 ? "element is" : "elements are");
  }
  if (all_zero) fail(ErrorKind::kValue, "{}: it is all zeros", name);
}

RoleStatistics::RoleStatistics(Role role, const CalibrationOptions& options)
    : role_(role),
      options_(options),
      kind_(groups_of(options, role)),
      grid_(options.format == ScaleFormat::kInt8Value ? CodeGrid::kInt8 : CodeGrid::kE4M3) {}

void RoleStatistics::observe(const std::string& layer, const std::string& where,
                             const std::vector<std::pair<Role, const Tensor*>>& tensors) {
  std::vector<Magnitudes> forward;
  std::vector<float> largest;
  for (const auto& [role, tensor] : tensors) {
    const std::string name =
        fmt::format("{}: layer '{}': tensor {}", where, shown(layer), kRoleNames[role]);
    check_shape(name, role, *tensor);
    std::vector<Magnitudes> part(static_cast<std::size_t>(num_groups(*tensor, kind_)));
    const bool is_counted = count_on_device(*tensor, part);
    if (!is_counted) add_magnitudes(*tensor, kind_, options_.sample.num_threads, part);
    check_elements(name, part);
    forward.resize(part.size());
    largest.resize(part.size(), -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < part.size(); ++i) {
      forward[i].add(part[i]);
      largest[i] = std::max(largest[i], maximum(name, *tensor, part[i], is_counted));
    }
  }
  groups_.resize(forward.size(), Group(options_.history.value_or(1)));
  for (std::size_t i = 0; i < forward.size(); ++i) {
    groups_[i].magnitudes.add(forward[i]);
    groups_[i].largest = std::max(groups_[i].largest, largest[i]);
    if (options_.history) groups_[i].ring.record(largest[i]);
  }
}

std::vector<double> RoleStatistics::scales(ScaleMethod method) const {
  std::vector<double> result(groups_.size());
  ThreadPool(options_.sample.num_threads)
      .parallel_for(static_cast<std::int64_t>(result.size()), [&](std::int64_t i, int) {
        const auto group = static_cast<std::size_t>(i);
        result[group] = double{plain_scale(groups_[group], method)} * options_.margin;
      });
  return result;
}

float RoleStatistics::amax() const {
  float largest = 0;
  for (const Group& group : groups_) largest = std::max(largest, group.magnitudes.amax());
  return largest;
}

ScaleLosses RoleStatistics::losses(const std::vector<double>& scales) const {
  ScaleLosses sum;
  double total = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Magnitudes& magnitudes = groups_[i].magnitudes;
    const auto count = static_cast<double>(magnitudes.num_elements());
    const double scale = scales.size() == 1 ? scales[0] : scales[i];
    const ScaleLosses part = scale_losses(magnitudes, static_cast<float>(scale), grid_);
    sum.saturated += part.saturated * count;
    sum.flushed += part.flushed * count;
    total += count;
  }
  return {sum.saturated / total, sum.flushed / total};
}

std::string RoleStatistics::group_name(std::size_t group) const {
  if (kind_ == ScaleGroups::kTensor) return "";
  if (kind_ == ScaleGroups::kHead) return fmt::format(", KV head {}", group);
  const auto width = static_cast<std::size_t>(shape_.back());
  return fmt::format(", KV head {}, channel {}", group / width, group % width);
}

/// False where there is no device for it: channels have too few elements each.
bool RoleStatistics::count_on_device(const Tensor& tensor, std::vector<Magnitudes>& parts) const {
  if (!options_.device_counts || kind_ == ScaleGroups::kChannel) return false;
  const auto counts = options_.device_counts(tensor, kind_ == ScaleGroups::kHead);
  if (!counts) return false;
  const std::size_t each = counts->size() / parts.size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].add_counts(tensor.dtype(), std::span(*counts).subspan(i * each, each));
  }
  return true;
}

/// By --amax; of a whole tensor by the device, where there is one and it has not counted anyway.
float RoleStatistics::maximum(const std::string& name, const Tensor& tensor,
                              const Magnitudes& magnitudes, bool is_counted) const {
  const float own = options_.amax == AmaxKind::kAbs ? magnitudes.amax() : magnitudes.signed_max();
  if (is_counted || !options_.device_amax || kind_ != ScaleGroups::kTensor) return own;
  const float found = options_.device_amax(tensor).value_or(own);
  if (found == own || std::nextafter(found, own) == own) return found;
  fail(ErrorKind::kCuda, "{}: the largest value is {} on the device, {} on the host", name, found,
       own);
}

float RoleStatistics::plain_scale(const Group& group, ScaleMethod method) const {
  // Why before the history, which would make the least scale of it: nothing was ever observed.
  if (group.magnitudes.amax() == 0) return 0;
  switch (method) {
    case ScaleMethod::kAmax: {
      if (options_.history) return group.ring.largest() / largest_code(grid_);
      AmaxRing all(1);
      all.record(group.largest);
      return all.largest() / largest_code(grid_);
    }
    case ScaleMethod::kPercentile:
      return group.magnitudes.percentile(options_.percentile) / largest_code(grid_);
    case ScaleMethod::kMse:
      return best_scale(group.magnitudes, grid_);
  }
  return 0;
}

void RoleStatistics::check_shape(const std::string& name, Role role, const Tensor& tensor) {
  if (tensor.empty()) fail(ErrorKind::kValue, "{}: it is empty", name);
  const std::vector<std::int64_t>& shape = tensor.shape();
  if (kind_ != ScaleGroups::kTensor && shape.size() != 3) {
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

}  // namespace attnbench
