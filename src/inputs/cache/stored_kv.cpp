// What a correct cache write stores, from the definitions and in float32, one cell at a time. Kept
// apart from the kernels and from the CPU operations, which are judged by it; only the rounding of
// a single value to a code is shared (kernels/common/numeric.cuh).
#include "inputs/cache/stored_kv.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "inputs/cache/int8_rows.h"
#include "inputs/cache/stored_packed.h"
#include "kernels/common/numeric.cuh"

namespace attnbench {
namespace {

constexpr std::int64_t kStoredRowsPerTask = 64;

std::vector<float> as_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// One of K and V on its way into the cache, row-major [S, Hk, width].
struct Plane {
  Tensor codes;
  Tensor scales;  // per-token-head only
  Tensor dequantized;
};

Plane make_plane(const Tensor& source, const StoreRule& rule, Dtype dequantized = Dtype::kF32) {
  Plane plane{Tensor::for_overwriting(rule.element, source.shape()),
              {},
              Tensor::for_overwriting(dequantized, source.shape())};
  if (is_per_token_head(rule.dtype)) {
    plane.scales = Tensor::for_overwriting(Dtype::kF32, {source.dim(0), source.dim(1)});
  }
  return plane;
}

/// A cell in float32 on its way through the definition: what is read of the source, the codes'
/// arguments, and what they read as.
struct CellValues {
  std::vector<float> source;
  std::vector<float> scaled;
  std::vector<float> read;
};

/// Calls store(row, head, values) for every cell [0, S) x [0, Hk) on all cores, with the cell's
/// elements in values.source. By whole cells, because conversions of many elements vectorise.
template <typename Store>
void for_each_cell(const Tensor& source, Store store) {
  const auto width = static_cast<std::size_t>(source.dim(2));
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  for_each_chunk(source.dim(0), kStoredRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    CellValues values{std::vector<float>(width), std::vector<float>(width),
                      std::vector<float>(width)};
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < source.dim(1); ++head) {
        const std::int64_t first = (row * source.dim(1) + head) * source.dim(2);
        load_floats(source.dtype(), source.bytes() + first * element, source.dim(2),
                    values.source.data());
        store(row, head, values);
      }
    }
  });
}

/// Stores values.scaled as the codes of a cell and reads them back into values.read.
void store_codes(Tensor& codes, std::int64_t first, CellValues& values) {
  std::byte* cell = codes.bytes() + first * static_cast<std::int64_t>(dtype_size(codes.dtype()));
  const auto width = static_cast<std::int64_t>(values.scaled.size());
  store_floats(codes.dtype(), values.scaled.data(), width, cell);
  load_floats(codes.dtype(), cell, width, values.read.data());
}

/// §5.1, auto and 16-bit: the same bits. Nothing is dequantised.
Plane plain_plane(const Tensor& source, const StoreRule& rule, PlainKv plain) {
  if (source.dtype() != rule.element) {
    fail(ErrorKind::kDtype, "kv_cache.dtype: expected {} as attention.dtype, got {}",
         dtype_name(source.dtype()), dtype_name(rule.element));
  }
  return {plain == PlainKv::kViewed ? Tensor::view(source) : source, {}, {}};
}

Tensor as_f32(const Tensor& source) {
  Tensor result = Tensor::for_overwriting(Dtype::kF32, source.shape());
  const std::int64_t width = source.dim(1) * source.dim(2);
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  for_each_chunk(source.dim(0), kStoredRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    load_floats(source.dtype(), source.bytes() + begin * width * element, (end - begin) * width,
                result.data<float>() + begin * width);
  });
  return result;
}

float scale_of_head(const std::vector<float>& scales, std::int64_t head) {
  return scales.size() == 1 ? scales[0] : scales[static_cast<std::size_t>(head)];
}

void check_scales(const std::vector<float>& scales, std::int64_t num_kv_heads,
                  std::string_view name) {
  if (scales.size() != 1 && static_cast<std::int64_t>(scales.size()) != num_kv_heads) {
    fail(ErrorKind::kShape, "{}: expected 1 or {} numbers (num_kv_heads), got {}", name,
         num_kv_heads, scales.size());
  }
  for (float scale : scales) {
    if (!(scale > 0.0f) || !std::isfinite(scale)) {
      fail(ErrorKind::kValue, "{}: expected finite numbers > 0 in float32, got {}", name, scale);
    }
  }
}

/// What holds the values that codes of 8 bits read as. All e4m3 and e5m2 numbers are bf16 and f16
/// numbers. Why not always f32: these tensors are the largest of a case.
Dtype dequantized_dtype(const Tensor& source, const StoreRule& rule,
                        const std::vector<float>& scales) {
  if (rule.dequantized_rounding) return *rule.dequantized_rounding;
  const bool is_half = source.dtype() == Dtype::kBF16 || source.dtype() == Dtype::kF16;
  const bool are_codes =
      std::all_of(scales.begin(), scales.end(), [](float scale) { return scale == 1.0f; });
  return is_half && are_codes ? source.dtype() : Dtype::kF32;
}

/// §5.1, fp8: codes are rn(x / scale), with a division.
Plane quantise_per_tensor(const Tensor& source, const StoreRule& rule,
                          const std::vector<float>& scales, std::string_view name) {
  check_scales(scales, source.dim(1), name);
  const Dtype dequantized = dequantized_dtype(source, rule, scales);
  const auto dequantized_size = static_cast<std::int64_t>(dtype_size(dequantized));
  Plane plane = make_plane(source, rule, dequantized);
  const std::int64_t width = source.dim(2);
  for_each_cell(source, [&](std::int64_t row, std::int64_t head, CellValues& values) {
    const float scale = scale_of_head(scales, head);
    const std::int64_t first = (row * source.dim(1) + head) * width;
    for (std::size_t i = 0; i < values.source.size(); ++i) {
      values.scaled[i] = values.source[i] / scale;
    }
    store_codes(plane.codes, first, values);
    for (float& value : values.read) value *= scale;
    store_floats(dequantized, values.read.data(), width,
                 plane.dequantized.bytes() + first * dequantized_size);
  });
  return plane;
}

signed char int8_code(const StoreRule& rule, float y) {
  return rule.int8_round == PthInt8Round::kHalfAway ? attn::i8_half_away(y) : attn::i8_truncate(y);
}

/// §5.5: one scale per position and head, max |x| / QMAX and at least 1e-6. A NaN element does not
/// count towards the maximum (fmax) and becomes code 0 in int8 or NaN in fp8.
Plane quantise_per_token_head(const Tensor& source, const StoreRule& rule) {
  const bool int8 = rule.element == Dtype::kI8;
  // Why: upstream's compiler multiplies by the rounded reciprocal of QMAX.
  const float inverse_max_code = 1.0f / (int8 ? 127.0f : 448.0f);
  constexpr float kLeastScale = 1e-6f;
  Plane plane = make_plane(source, rule);
  const std::int64_t width = source.dim(2);
  for_each_cell(source, [&](std::int64_t row, std::int64_t head, CellValues& values) {
    const std::int64_t cell = row * source.dim(1) + head;
    const std::int64_t first = cell * width;
    float largest = 0.0f;
    for (const float x : values.source) {
      if (std::fabs(x) > largest) largest = std::fabs(x);  // as fmax, which does not vectorise
    }
    const float scale = std::fmax(largest * inverse_max_code, kLeastScale);
    const float inverse_scale = 1.0f / scale;
    plane.scales.data<float>()[cell] = scale;
    float* dequantized = plane.dequantized.data<float>() + first;
    for (std::size_t i = 0; i < values.source.size(); ++i) {
      values.scaled[i] = values.source[i] * inverse_scale;
    }
    if (int8) {
      signed char* codes = plane.codes.data<signed char>() + first;
      for (std::size_t i = 0; i < values.scaled.size(); ++i) {
        codes[i] = int8_code(rule, values.scaled[i]);
        dequantized[i] = static_cast<float>(codes[i]) * scale;
      }
      return;
    }
    store_codes(plane.codes, first, values);  // saturates at 448
    for (std::size_t i = 0; i < values.read.size(); ++i) dequantized[i] = values.read[i] * scale;
  });
  return plane;
}

Plane store_plane(const Tensor& source, const StoreRule& rule, bool is_key, PlainKv plain) {
  if (!is_quantised(rule.dtype)) return plain_plane(source, rule, plain);
  const std::vector<float>& scales = is_key ? rule.k_scale : rule.v_scale;
  const std::string_view scale_name = is_key ? "kv_cache.k_scale" : "kv_cache.v_scale";
  const auto plane_of = [](PackedVectors packed) {
    return Plane{std::move(packed.codes), std::move(packed.scales), std::move(packed.dequantized)};
  };
  switch (kv_format(rule.dtype).scales) {
    case KvScales::kTensor:
      return quantise_per_tensor(source, rule, scales, scale_name);
    case KvScales::kTokenHead:
      return quantise_per_token_head(source, rule);
    case KvScales::kTokenHeadZero:
      return plane_of(store_int4(source));
    case KvScales::kBlocks:
      check_scales(scales, source.dim(1), scale_name);
      return plane_of(store_nvfp4(source, scales));
    case KvScales::kSlot: {
      const SlotCodes& slot = *kv_format(rule.dtype).slot;
      return plane_of(is_key ? store_slot_keys(source, slot) : store_slot_values(source, slot));
    }
    case KvScales::kNone:
    case KvScales::kEntry:
      break;
  }
  fail(ErrorKind::kInternal, "store_kv does not serve kv_cache.dtype {}", to_string(rule.dtype));
}

/// Keys, and at level 1 values, as int8 (§11.1).
StoredKv store_int8(const AttentionInputs& inputs, const StoreRule& rule, PlainKv plain) {
  Int8Rows key = quantise_int8_by_token(inputs.key);
  StoredKv stored;
  stored.key_codes = std::move(key.codes);
  stored.key_scales = std::move(key.scales);
  stored.key_dequantized = std::move(key.dequantized);
  if (rule.int8_level == 1) {
    Int8Rows value = quantise_int8_by_channel(inputs.value, inputs.value_channel_scale);
    stored.value_codes = std::move(value.codes);
    stored.value_dequantized = std::move(value.dequantized);
  } else {
    StoreRule copy = rule;
    copy.element = inputs.value.dtype();
    stored.value_codes = plain_plane(inputs.value, copy, plain).codes;
    stored.value_dequantized = as_f32(inputs.value);
  }
  return stored;
}

/// One row of every tensor, to be transformed for its shapes.
AttentionInputs row_of_zeros(const AttentionInputs& inputs) {
  AttentionInputs row;
  row.query = zeros_of_rows(inputs.query, 1);
  row.key = zeros_of_rows(inputs.key, 1);
  row.value = zeros_of_rows(inputs.value, 1);
  row.value_channel_scale = inputs.value_channel_scale;
  return row;
}

}  // namespace

bool cache_is_quantised(const Problem& problem) {
  return problem.kv_cache.int8_level > 0 || is_quantised(problem.kv_cache.dtype);
}

StoreRule resolve_store_rule(const Problem& problem, const KernelRules& rules) {
  const KvCacheSpec& cache = problem.kv_cache;
  StoreRule rule;
  rule.dtype = cache.dtype;
  rule.element = kv_element_dtype(cache.dtype, problem.attention.dtype);
  rule.k_scale = as_floats(cache.k_scale);
  rule.v_scale = as_floats(cache.v_scale);
  rule.int8_round = cache.pth_int8_round;
  rule.int8_level = cache.int8_level;
  if (rule.int8_level > 0) rule.element = Dtype::kI8;
  const bool e5m2 = kv_format(cache.dtype).codes == Dtype::kE5M2;
  if (rules.honours_e5m2_as_e4m3 && e5m2 && cache.e5m2_as_e4m3) rule.element = Dtype::kE4M3;
  if (rules.rounds_dequantised && has_tensor_scales(cache.dtype)) {
    rule.dequantized_rounding = problem.attention.dtype;
  }
  return rule;
}

StoredKv store_kv(const AttentionInputs& inputs, const StoreRule& rule, PlainKv plain) {
  if (inputs.shapes_only) {
    StoredKv stored = store_kv(row_of_zeros(inputs), rule);
    for (Tensor* tensor :
         {&stored.key_codes, &stored.value_codes, &stored.key_scales, &stored.value_scales,
          &stored.key_dequantized, &stored.value_dequantized}) {
      *tensor = zeros_of_rows(*tensor, inputs.key.dim(0));
    }
    return stored;
  }
  if (rule.int8_level > 0) return store_int8(inputs, rule, plain);
  Plane key = store_plane(inputs.key, rule, true, plain);
  Plane value = store_plane(inputs.value, rule, false, plain);
  return {std::move(key.codes),    std::move(value.codes),     std::move(key.scales),
          std::move(value.scales), std::move(key.dequantized), std::move(value.dequantized)};
}

bool query_is_quantised(const Problem& problem, const KernelRules& rules) {
  if (problem.attention.query_dtype == QueryDtype::kFp8E4M3) return true;
  if (problem.kv_cache.int8_level > 0) return true;
  return rules.quantises_query && is_e4m3_cache(problem.kv_cache.dtype);
}

bool query_is_rounded(const Problem& problem, const KernelRules& rules) {
  const AttentionType type = problem.attention.type;
  const bool has_pages = type != AttentionType::kOp && !has_direct_kv(type);
  return query_is_quantised(problem, rules) || (has_pages && is_rotated(problem.kv_cache.dtype));
}

StoredQuery store_query(const Problem& problem, const AttentionInputs& inputs,
                        const KernelRules& rules) {
  if (inputs.shapes_only) {
    StoredQuery stored = store_query(problem, row_of_zeros(inputs), rules);
    const std::int64_t rows = inputs.query.dim(0);
    stored.query = zeros_of_rows(stored.query, rows);
    if (stored.dequantized) stored.dequantized = zeros_of_rows(*stored.dequantized, rows);
    stored.scales = zeros_of_rows(stored.scales, rows);
    return stored;
  }
  if (!query_is_rounded(problem, rules)) return {inputs.query, std::nullopt, 1.0f, {}};
  if (!query_is_quantised(problem, rules)) {
    return {inputs.query, read_rotated_query(inputs.query), 1.0f, {}};
  }
  if (problem.kv_cache.int8_level > 0) {
    Int8Rows rows = quantise_int8_by_token(inputs.query);
    return {std::move(rows.codes), std::move(rows.dequantized), 1.0f, std::move(rows.scales)};
  }
  const auto scale = static_cast<float>(problem.kv_cache.q_scale);
  check_scales({scale}, 1, "kv_cache.q_scale");
  const float inverse_scale = 1.0f / scale;
  const Tensor& source = inputs.query;
  StoredQuery stored{
      Tensor(Dtype::kE4M3, source.shape()), Tensor(Dtype::kF32, source.shape()), scale, {}};
  const std::int64_t width = source.dim(1) * source.dim(2);
  for_each_chunk(source.dim(0), kStoredRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * width; i < end * width; ++i) {
      stored.query.set(i, source.at(i) * inverse_scale);
      stored.dequantized->set(i, stored.query.at(i) * scale);
    }
  });
  return stored;
}

}  // namespace attnbench
