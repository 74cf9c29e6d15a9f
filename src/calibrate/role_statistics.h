// What is known of the tensors that share scales in one layer, and the scales that follow from it.
//
// Statistics are of all forwards. The exception is amax with a history, which forgets old forwards
// as a running model does (§10.6). Every method's scale is multiplied by the margin.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/calibrate.h"
#include "calibrate/magnitudes.h"
#include "reference/quantise/amax_history.h"

namespace attnbench {

/// E-VALUE for elements of which one is not finite or none is other than zero; `name` begins it.
void check_elements(const std::string& name, const std::vector<Magnitudes>& parts);

/// One role, or keys and values together (kv-cache-legacy). A scale belongs to the whole tensor, to
/// a head or to a channel, as the format and the options say.
class RoleStatistics {
 public:
  RoleStatistics(Role role, const CalibrationOptions& options);

  Role role() const { return role_; }

  /// One forward; `tensors` are observed as one. Errors: E-VALUE for a tensor that is empty, all
  /// zero or not finite, E-SHAPE for one unlike those before, E-CUDA when the device disagrees.
  void observe(const std::string& layer, const std::string& where,
               const std::vector<std::pair<Role, const Tensor*>>& tensors);

  /// By `method`, with the margin; 0 where a head or channel is all zeros.
  std::vector<double> scales(ScaleMethod method) const;
  /// Over all forwards.
  float amax() const;
  ScaleLosses losses(const std::vector<double>& scales) const;

  /// Number of scales.
  std::size_t size() const { return groups_.size(); }
  /// ", KV head 3, channel 17", or nothing for the whole tensor.
  std::string group_name(std::size_t group) const;
  /// Of tensors of rank 3.
  std::int64_t num_heads() const { return shape_.at(shape_.size() - 2); }
  std::int64_t head_size() const { return shape_.back(); }

 private:
  /// Elements that share a scale.
  struct Group {
    explicit Group(int history) : ring(history) {}
    Magnitudes magnitudes;
    float largest = -std::numeric_limits<float>::infinity();  // |x| or x, of all forwards
    AmaxRing ring;                                            // of the last ones
  };

  bool count_on_device(const Tensor& tensor, std::vector<Magnitudes>& parts) const;
  float maximum(const std::string& name, const Tensor& tensor, const Magnitudes& magnitudes,
                bool is_counted) const;
  float plain_scale(const Group& group, ScaleMethod method) const;
  void check_shape(const std::string& name, Role role, const Tensor& tensor);

  Role role_;
  CalibrationOptions options_;
  ScaleGroups kind_;
  CodeGrid grid_;
  std::vector<std::int64_t> shape_;
  std::vector<Group> groups_;
};

}  // namespace attnbench
