// The static value scales of int8 attention, one a channel (semantics §11.1, §11.3): their file,
// and those of a case, from that file or made from its values. The file:
//
//   {"version": 1, "num_kv_heads": Hk, "head_size": D, "layers": {"<name>": [[D numbers] * Hk]}}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

struct ValueScaleFile {
  std::int64_t num_kv_heads = 0;
  std::int64_t head_size = 0;
  std::vector<std::pair<std::string, std::vector<float>>> layers;  // natural order; [Hk, D], >= 0
};

/// `where` begins the messages. Errors: E-FORMAT (no such JSON, a name twice, another version, no
/// layers), E-SHAPE (rows that are not [Hk, D]), E-VALUE (a scale that is negative or not finite in
/// float32; zeros are left to the caller).
ValueScaleFile parse_value_scale_file(std::string_view text, const std::string& where);

/// Errors: E-VALUE for a scale that is not finite and > 0.
std::string value_scale_file_text(const ValueScaleFile& file);

/// What a case uses.
struct ValueScales {
  std::vector<float> scale;          // [Hk, D], finite and > 0
  std::vector<std::string> notices;  // scales of 0 became 1, a file holds several layers
};

/// kv_cache.value_scale_file of a problem at int8 level 1. Every layer is
/// checked; the first one in natural order is used. Errors: E-IO, those of parse_value_scale_file,
/// E-SHAPE for other extents than the problem's.
ValueScales read_value_scales(const Problem& problem);

/// s[h, d] = max_t|x| / 127 over all values [S, Hk, D], the scale of a channel of zeros 1.0. A NaN
/// does not count. Errors: E-VALUE for an infinite value.
ValueScales make_value_scales(const Tensor& value);

}  // namespace attnbench
