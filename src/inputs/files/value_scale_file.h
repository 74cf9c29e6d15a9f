// The file of int8 attention's static value scales (semantics §11.3):
//   {"version": 1, "num_kv_heads": Hk, "head_size": D, "layers": {"<name>": [[D numbers] * Hk]}}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace attnbench
