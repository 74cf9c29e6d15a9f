// Scales of layers by one method, and what they and those of the other methods cost in attention
// (semantics §5.4, §10.5 to §10.7, §11.2, §11.3; contract section 6).
//
// A layer is read twice: once forward by forward for the statistics that scales follow from, and
// some of its forwards again for the attention error. All methods are computed, whichever is
// chosen, so that the report can say what the choice costs. calibrate() makes scales, assess()
// judges those of a file by the same figures.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/attention_error.h"
#include "calibrate/observations.h"
#include "calibrate/scale_search.h"
#include "inputs/files/scale_file.h"

namespace attnbench {

struct CalibrationOptions {
  ScaleFormat format = ScaleFormat::kVllmMm;
  ScaleMethod method = ScaleMethod::kAmax;
  double percentile = 99.99;   // of magnitudes, in (0, 100]
  double margin = 1.5;         // every scale is multiplied by it
  std::optional<int> history;  // ring of amax (§10.6); nothing = all forwards are one observation
  AmaxKind amax = AmaxKind::kAbs;
  bool per_head = false;  // keys and values of kv-cache
  SampleOptions sample;
  /// Largest value of a tensor by `amax` as another device finds it, for amax scales of whole
  /// tensors; nothing for a tensor that it does not serve. May be empty. It must agree with the
  /// host to 1 ulp of float32.
  std::function<std::optional<float>(const Tensor&)> device_amax;
  /// How often each of the 65536 patterns of a tensor of 16 bits occurs, [groups, 65536], counted by
  /// another device; groups as of ScaleGroups::kTensor, or kHead where `by_head`. Nothing for a
  /// tensor that it does not serve. May be empty. Where it counts, device_amax is not asked: the
  /// statistics are those of the host to the bit.
  std::function<std::optional<std::vector<std::int64_t>>(const Tensor&, bool by_head)>
      device_counts;
  /// Called before each layer with the number of those done; may be empty.
  std::function<void(std::size_t done, std::size_t total)> progress;
};

/// Of one tensor of one layer.
struct RoleReport {
  Role role = kQueryRole;
  std::vector<double> scale;  // as written
  float amax = 0;             // over all forwards
  ScaleLosses losses;
};

struct LayerReport {
  std::string layer;
  std::int64_t num_forwards = 0;
  std::vector<RoleReport> roles;
  /// Attention-output error of the scales of each method, with the margin; nothing where attention
  /// is not to be had, or the method has no scale that can be used.
  std::array<std::optional<OutputError>, kScaleMethods.size()> method_error;
  std::optional<OutputError> error;  // of the scales reported
  std::string no_error;              // why there is none

  /// Of the methods, the one of least error; nothing without errors.
  std::optional<ScaleMethod> best() const;
  /// Error of the reported scales / that of the best method; nothing without errors.
  std::optional<double> loss() const;
};

struct CalibrationReport {
  CalibrationOptions options;
  std::vector<LayerReport> layers;  // in the order of the file
  ScaleFile file;
};

/// Errors: those of the observations; E-VALUE for a tensor that is empty, all zero or not finite
/// and for a scale that is not finite and > 0, naming layer and tensor; E-SHAPE for tensors of one
/// layer that disagree, and where scales per head or channel need [tokens, heads, head size];
/// E-CUDA when device_amax disagrees with the host.
CalibrationReport calibrate(Observations& observations, const CalibrationOptions& options);

/// The same for scales that are given: those of `file`, whose layers must cover the observations'.
/// Errors: also E-VALUE for a layer that is not in the file.
CalibrationReport assess(Observations& observations, const CalibrationOptions& options,
                         const ScaleFile& file);

}  // namespace attnbench
