// The inputs of a case, in this order: lengths (which bound all sizes), whether it fits this
// machine, sinks and slopes, then the large tensors, drawn or read. So a case that cannot run is
// refused before gigabytes are touched.
#include "inputs/make_inputs.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/draw_rows.h"
#include "inputs/files/input_file.h"
#include "inputs/files/value_scale_file.h"
#include "inputs/place_needles.h"
#include "inputs/random.h"
#include "inputs/sparse_lists.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr TensorStreams kQueryStreams{StreamId::kQuery, StreamId::kQuery, StreamId::kQueryChannels,
                                      StreamId::kQueryTokens, StreamId::kQueryTokens};
constexpr TensorStreams kKeyStreams{StreamId::kKey, StreamId::kKeyPrefix, StreamId::kKeyChannels,
                                    StreamId::kKeyTokens, StreamId::kKeyPrefixTokens};
constexpr TensorStreams kValueStreams{StreamId::kValue, StreamId::kValuePrefix,
                                      StreamId::kValueChannels, StreamId::kValueTokens,
                                      StreamId::kValuePrefixTokens};

void draw_tensors(const Problem& problem, AttentionInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t num_tokens = problem.num_tokens();
  std::vector<SourceRow> query_sources(static_cast<std::size_t>(num_tokens));
  for (std::int64_t t = 0; t < num_tokens; ++t)
    query_sources[static_cast<std::size_t>(t)].index = t;
  const std::vector<SourceRow> sources = key_sources(problem);

  // Where only shapes are wanted nothing is drawn, and zeros that nobody touches take no memory.
  const auto make =
      problem.inputs.shapes_only
          ? [](Dtype dtype,
               std::vector<std::int64_t> shape) { return Tensor(dtype, std::move(shape)); }
          : Tensor::for_overwriting;
  inputs.query = make(a.dtype, {num_tokens + kQueryPaddingRows, a.num_heads, a.head_size});
  inputs.key = make(a.dtype, {problem.num_keys(), a.num_kv_heads, a.head_size});
  inputs.value = make(a.dtype, {problem.num_keys(), a.num_kv_heads, a.v_head_size});
  const std::int64_t query_width = std::int64_t{a.num_heads} * a.head_size;
  fill_rows(problem.inputs, kQueryStreams, query_sources, query_width, inputs.query);
  fill_rows(problem.inputs, kKeyStreams, sources, std::int64_t{a.num_kv_heads} * a.head_size,
            inputs.key);
  fill_rows(problem.inputs, kValueStreams, sources, std::int64_t{a.num_kv_heads} * a.v_head_size,
            inputs.value, value_mean(problem.inputs));
  if (has_needles(problem.inputs)) place_needles(problem, inputs);
  for (std::int64_t i = num_tokens * query_width; i < inputs.query.num_elements(); ++i) {
    inputs.query.set(i, std::numeric_limits<float>::quiet_NaN());
  }
}

void set_alibi_slopes(const Problem& problem, AttentionInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  if (a.alibi == AlibiKind::kNone) return;
  inputs.alibi_slopes = resolved_alibi_slopes(a);
  if (static_cast<int>(inputs.alibi_slopes.size()) != a.num_heads) {
    fail(ErrorKind::kShape, "attention.alibi_slopes: expected {} numbers (num_heads), got {}",
         a.num_heads, inputs.alibi_slopes.size());
  }
}

/// Static value scales of int8 level 1 (§11.1).
void set_value_channel_scale(const Problem& problem, AttentionInputs& inputs) {
  if (inputs.shapes_only) {
    const auto channels = static_cast<std::size_t>(inputs.value.dim(1) * inputs.value.dim(2));
    inputs.value_channel_scale.assign(channels, 1.0f);
    return;
  }
  ValueScales scales = problem.kv_cache.value_scale_file ? read_value_scales(problem)
                                                         : make_value_scales(inputs.value);
  inputs.value_channel_scale = std::move(scales.scale);
  for (std::string& notice : scales.notices) inputs.notices.push_back(std::move(notice));
}

void check_type(AttentionType type) {
  switch (type) {
    case AttentionType::kDecoder:
    case AttentionType::kEncoder:
    case AttentionType::kEncoderOnly:
    case AttentionType::kEncoderDecoder:
    case AttentionType::kMmEncoder:
      return;
    case AttentionType::kMla:
    case AttentionType::kOp:
      break;
  }
  fail(ErrorKind::kInternal, "make_inputs does not serve attention.type {}", to_string(type));
}

/// Bytes of inputs, of K and V as stored and dequantised, and of the paged cache.
std::int64_t attention_bytes(const Problem& problem) {
  constexpr std::string_view kWhat = "host memory of the case";
  const AttentionSpec& a = problem.attention;
  const auto element = static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto bytes = [&](std::int64_t rows, std::int64_t width, std::int64_t size) {
    return checked_mul(checked_mul(rows, width, kWhat), size, kWhat);
  };
  const std::int64_t kv_width = std::int64_t{a.num_kv_heads} * (a.head_size + a.v_head_size);
  std::int64_t sum = bytes(problem.num_tokens() + kQueryPaddingRows,
                           std::int64_t{a.num_heads} * a.head_size, element);
  const auto float_size = static_cast<std::int64_t>(sizeof(float));
  sum = checked_add(sum, bytes(problem.num_keys(), kv_width, element + float_size), kWhat);
  if (!has_direct_kv(a.type)) {
    const auto stored =
        static_cast<std::int64_t>(dtype_size(kv_element_dtype(problem.kv_cache.dtype, a.dtype)));
    const std::int64_t slots =
        checked_mul(problem.kv_cache.num_blocks, page_tokens(problem), kWhat);
    sum = checked_add(sum, bytes(problem.num_keys(), kv_width, stored), kWhat);
    sum = checked_add(sum, bytes(slots, kv_width, stored), kWhat);
  }
  return sum;
}

/// Latents as drawn, stored and dequantised, their cache, weights, query and top-k indices.
std::int64_t mla_bytes(const Problem& problem) {
  constexpr std::string_view kWhat = "host memory of the case";
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const auto element = static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto bytes = [&](std::int64_t rows, std::int64_t width) {
    return checked_mul(rows, width, kWhat);
  };
  const std::int64_t entry = std::int64_t{mla.kv_lora_rank} + mla.qk_rope_head_dim;
  const std::int64_t slots = checked_mul(problem.kv_cache.num_blocks, page_tokens(problem), kWhat);
  const std::int64_t per_token = std::int64_t{a.num_heads} * a.head_size * element +
                                 std::int64_t{mla.sparse_topk.value_or(0)} * 4;
  std::int64_t sum = bytes(problem.num_tokens() + kQueryPaddingRows, per_token);
  sum = checked_add(sum, bytes(problem.num_keys(), entry * (2 * element + 4)), kWhat);
  sum = checked_add(sum, bytes(slots, entry * element), kWhat);
  if (has_extra_keys(problem)) {
    const std::int64_t keys = checked_mul(problem.num_requests(), *mla.sparse_extra_keys, kWhat);
    sum = checked_add(sum, bytes(keys, entry * (3 * element + 4)), kWhat);
    sum = checked_add(sum, bytes(problem.num_tokens(), std::int64_t{*mla.sparse_extra_topk} * 4),
                      kWhat);
  }
  const std::int64_t weights = std::int64_t{mla.qk_nope_head_dim} + mla.v_head_dim;
  return checked_add(sum, bytes(std::int64_t{a.num_heads} * mla.kv_lora_rank, weights * element),
                     kWhat);
}

}  // namespace

BatchLengths batch_lengths(const Problem& problem) {
  BatchLengths lengths;
  std::int64_t tokens = 0;
  std::int64_t keys = 0;
  lengths.query_start_loc.push_back(0);
  lengths.key_start_loc.push_back(0);
  for (const Request& request : problem.batch) {
    if (request.query_len < 0 || request.seq_len < 0) {
      fail(ErrorKind::kValue, "batch: lengths must be >= 0, got query_len {} and seq_len {}",
           request.query_len, request.seq_len);
    }
    tokens = checked_add(tokens, request.query_len, "tokens of the batch");
    keys = checked_add(keys, request.seq_len, "keys of the batch");
    lengths.query_start_loc.push_back(checked_int32(tokens, "tokens of the batch"));
    lengths.seq_lens.push_back(checked_int32(request.seq_len, "seq_len"));
    lengths.key_start_loc.push_back(keys);
  }
  return lengths;
}

std::int64_t input_bytes(const Problem& problem) {
  return problem.attention.type == AttentionType::kMla ? mla_bytes(problem)
                                                       : attention_bytes(problem);
}

void check_inputs_fit(const Problem& problem) {
  if (problem.inputs.shapes_only) return;
  const std::int64_t needed = input_bytes(problem);
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const std::int64_t available =
      std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGESIZE)};
  if (needed <= available) return;
  fail(ErrorKind::kCapacity,
       "the case needs {:.1f} GiB of host memory, this machine has {:.1f} GiB",
       static_cast<double>(needed) / kGiB, static_cast<double>(available) / kGiB);
}

std::vector<float> make_sinks(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  std::vector<float> sinks;
  if (a.sinks == SinksKind::kValues) {
    if (static_cast<int>(a.sink_values.size()) != a.num_heads) {
      fail(ErrorKind::kShape, "attention.sinks: expected {} numbers (num_heads), got {}",
           a.num_heads, a.sink_values.size());
    }
    for (double sink : a.sink_values) sinks.push_back(static_cast<float>(sink));
  } else if (a.sinks == SinksKind::kNormal) {
    sinks.resize(static_cast<std::size_t>(a.num_heads));
    draw({problem.inputs.seed, StreamId::kSinks}, Distribution::kNormal, 1.0, 0, sinks);
    // Why: FA3 takes bf16 sinks, and all backends are to see the same numbers.
    for (float& sink : sinks) sink = round_to(Dtype::kBF16, sink);
  }
  return sinks;
}

AttentionInputs make_inputs(const Problem& problem) {
  check_type(problem.attention.type);
  AttentionInputs inputs;
  BatchLengths lengths = batch_lengths(problem);
  inputs.query_start_loc = std::move(lengths.query_start_loc);
  inputs.seq_lens = std::move(lengths.seq_lens);
  inputs.key_start_loc = std::move(lengths.key_start_loc);
  inputs.shapes_only = problem.inputs.shapes_only;
  check_inputs_fit(problem);
  inputs.sinks = make_sinks(problem);
  set_alibi_slopes(problem, inputs);
  if (problem.inputs.file) {
    load_input_file(problem, inputs);
  } else {
    draw_tensors(problem, inputs);
  }
  if (problem.kv_cache.int8_level == 1 && !has_direct_kv(problem.attention.type)) {
    set_value_channel_scale(problem, inputs);
  }
  return inputs;
}

std::vector<PositionRange> new_key_ranges(const Problem& problem) {
  const AttentionType type = problem.attention.type;
  std::vector<PositionRange> ranges;
  for (const Request& request : problem.batch) {
    PositionRange range;
    if (problem.attention.kv_sharing) {
      // Another layer wrote the positions of this step too.
    } else if (type == AttentionType::kDecoder || type == AttentionType::kMla) {
      if (request.query_len > request.seq_len) {
        fail(ErrorKind::kValue, "batch: query_len {} of request {} exceeds its seq_len {}",
             request.query_len, ranges.size(), request.seq_len);
      }
      range = {request.seq_len - request.query_len, request.seq_len};
    } else if (type == AttentionType::kEncoderDecoder && request.query_len > 1) {
      range = {0, request.seq_len};
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace attnbench
