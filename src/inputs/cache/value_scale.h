// The static value scales of int8 attention, one a channel (semantics §11.1, §11.3): from
// kv_cache.value_scale_file, or made from the values of the case.
#pragma once

#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

struct ValueScales {
  std::vector<float> scale;          // [Hk, D], finite and > 0
  std::vector<std::string> notices;  // scales of 0 became 1, a file holds several layers
};

/// kv_cache.value_scale_file of a problem at int8 level 1 (value_scale_file.h). Every layer is
/// checked; the first one in natural order is used. Errors: E-IO, those of parse_value_scale_file,
/// E-SHAPE for other extents than the problem's.
ValueScales read_value_scales(const Problem& problem);

/// s[h, d] = max_t|x| / 127 over all values [S, Hk, D], the scale of a channel of zeros 1.0. A NaN
/// does not count. Errors: E-VALUE for an infinite value.
ValueScales make_value_scales(const Tensor& value);

}  // namespace attnbench
