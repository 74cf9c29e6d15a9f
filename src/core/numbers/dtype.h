// Element types of tensors and the conversion of single values and rows to and from float. The
// numbers behind the enumerators are those of attn::Element, by which kernels are told the type of
// a buffer, and must stay so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace attnbench {

enum class Dtype : std::uint8_t { kF32, kF16, kBF16, kF64, kE4M3, kE5M2, kI8, kI32, kI64, kU8 };

std::size_t dtype_size(Dtype dtype);

/// Name in safetensors files: "F32", "BF16", "F8_E4M3", ...
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> dtype_from_safetensors_name(std::string_view name);

/// Name in scenarios and messages: "float32", "bfloat16", "fp8_e4m3", "int8", ...
std::string_view dtype_name(Dtype dtype);

bool is_floating(Dtype dtype);

/// Element `index` of an array of `dtype` as float; integers and f64 are rounded to nearest.
float load_float(Dtype dtype, const void* data, std::int64_t index);

/// Stores `value` with the rounding of semantics §0.4: nearest even; f16 overflows to infinity,
/// e4m3 and e5m2 saturate, int8 rounds to nearest even and saturates.
void store_float(Dtype dtype, void* data, std::int64_t index, float value);

/// Whole rows; source and destination hold `count` elements.
void load_floats(Dtype dtype, const void* source, std::int64_t count, float* destination);
void store_floats(Dtype dtype, const float* source, std::int64_t count, void* destination);

/// `value` as it reads back after being stored as `dtype`.
float round_to(Dtype dtype, float value);

}  // namespace attnbench
