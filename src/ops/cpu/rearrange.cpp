// Moving rows without arithmetic: concatenation, gathering by index, strided copies (semantics
// §8.4.5, §8.6 and the transposes around the collectives of §7). Elements of one type are copied as
// bits, so that NaN payloads survive; only copy() between two types goes through float32.
#include <algorithm>
#include <cstring>

#include "core/numbers/dtype.h"
#include "kernels/params_mla.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {

void concat(const attn::ConcatParams& params, Workers& workers) {
  const attn::Element element = params.element;
  const auto first_bytes = static_cast<std::size_t>(params.first_size * element_size(element));
  const auto second_bytes = static_cast<std::size_t>(params.second_size * element_size(element));
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int) {
    for (int head = 0; head < params.num_heads; ++head) {
      char* output = element_at(
          element, params.output,
          token * params.output_token_stride + attn::i64{head} * params.output_head_stride);
      if (first_bytes > 0) {
        std::memcpy(output,
                    element_at(element, params.first,
                               token * params.first_token_stride +
                                   attn::i64{head} * params.first_head_stride),
                    first_bytes);
      }
      if (params.second == nullptr) {
        std::memset(output + first_bytes, 0, second_bytes);
      } else {
        std::memcpy(output + first_bytes,
                    element_at(element, params.second,
                               token * params.second_token_stride +
                                   attn::i64{head} * params.second_head_stride),
                    second_bytes);
      }
    }
  });
}

void gather_rows(const attn::GatherRowsParams& params, Workers& workers) {
  const attn::Element element = params.element;
  const auto bytes = static_cast<std::size_t>(params.width * element_size(element));
  workers.pool.parallel_for(params.num_rows, [&](std::int64_t row, int) {
    std::memcpy(element_at(element, params.output, row * params.output_row_stride),
                element_at(element, params.source, params.rows[row] * params.source_row_stride),
                bytes);
  });
}

namespace {

void copy_line(const attn::CopyParams& params, const char* source, char* output, float* values) {
  if (params.source_element == params.output_element) {
    std::memcpy(output, source,
                static_cast<std::size_t>(params.width * element_size(params.source_element)));
    return;
  }
  load_floats(static_cast<Dtype>(params.source_element), source, params.width, values);
  store_row(params.output_element, values, params.width, output);
}

}  // namespace

void copy(const attn::CopyParams& params, Workers& workers) {
  const attn::i64* in = params.source_strides;
  const attn::i64* out = params.output_strides;
  const attn::i64 middle = params.extents[1];
  workers.pool.parallel_for(params.extents[0] * middle, [&](std::int64_t index, int thread) {
    float* values = room_for(workers.scratch[static_cast<std::size_t>(thread)].line, params.width);
    const attn::i64 i = index / middle;
    const attn::i64 j = index % middle;
    for (attn::i64 k = 0; k < params.extents[2]; ++k) {
      copy_line(
          params,
          element_at(params.source_element, params.source, i * in[0] + j * in[1] + k * in[2]),
          element_at(params.output_element, params.output, i * out[0] + j * out[1] + k * out[2]),
          values);
    }
  });
}

}  // namespace attnbench::cpu
