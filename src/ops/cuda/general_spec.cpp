// The attention kernel of everything that does not suit tensor cores.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "ops/cuda/attend_names.h"
#include "ops/cuda/attend_spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// 64 columns of the output take 4 registers a row of every thread.
constexpr int kMaxValueColumns = 576;
constexpr int kThreads = 256;

bool is_int8(const attn::AttendParams& params) { return params.int8.query_scale != nullptr; }

attn::Element value_element(const attn::AttendParams& params) {
  return is_int8(params) ? params.int8.value_element : params.kv.element;
}

/// Elements that one load may take, up to 4.
int vector_of(const Alignment& alignment, attn::Element element) {
  return std::clamp(alignment.common_bytes() / size_of_element(element), 1, 4);
}

int query_vector(const attn::AttendParams& params) {
  Alignment alignment;
  alignment.pointer(params.query)
      .stride(params.query_token_stride, params.query_element)
      .stride(params.query_head_stride, params.query_element)
      .stride(params.head_size, params.query_element);
  return vector_of(alignment, params.query_element);
}

int side_vector(const attn::AttendParams& params, const void* data, attn::i64 token_stride,
                attn::i64 head_stride, int width, attn::Element element) {
  Alignment alignment;
  alignment.pointer(data)
      .stride(token_stride, element)
      .stride(head_stride, element)
      .stride(width, element);
  if (params.kv.block_table != nullptr) alignment.stride(params.kv.block_stride, element);
  return vector_of(alignment, element);
}

void check(const attn::AttendParams& params) {
  for (const attn::Element element :
       {params.query_element, params.kv.element, value_element(params)}) {
    switch (element) {
      case attn::Element::kF32:
      case attn::Element::kF16:
      case attn::Element::kBF16:
      case attn::Element::kE4M3:
      case attn::Element::kE5M2:
      case attn::Element::kI8:
        break;
      default:
        fail(ErrorKind::kUnsupported, "attend on CUDA has no {} queries, keys or values",
             short_name(element));
    }
  }
  if (params.v_head_size > kMaxValueColumns) {
    fail(ErrorKind::kUnsupported, "attend on CUDA expects value head sizes up to {}, found {}",
         kMaxValueColumns, params.v_head_size);
  }
}

}  // namespace

AttendKernel general_kernel(const attn::AttendParams& params, const std::string& entry) {
  check(params);
  const attn::KvParams& kv = params.kv;
  const int rows_per_thread = max_packed_rows(params) > 16 ? 4 : 1;
  const bool two_ctas = rows_per_thread == 1 || params.v_head_size <= 128;
  const bool paged = kv.block_table != nullptr;
  AttendKernel kernel;
  kernel.spec.source = "attention/general.cuh";
  kernel.spec.function = "attn::" + entry;
  kernel.spec.constants = {
      {"attn::Element kQuery", spec_name(params.query_element)},
      {"attn::Element kKey", spec_name(kv.element)},
      {"attn::Element kValue", spec_name(value_element(params))},
      {"attn::Element kOutput", spec_name(params.output_element)},
      {"int kHeadSize", std::to_string(params.head_size)},
      {"int kVHeadSize", std::to_string(params.v_head_size)},
      {"bool kPaged", flag(paged)},
      {"attn::Alibi kAlibi", spec_name(params.score.alibi)},
      {"bool kSoftCap", flag(params.score.soft_cap > 0.0f)},
      {"bool kTokenHeadScales", flag(paged && kv.key_scales != nullptr)},
      {"bool kRoundDequantized", flag(kv.round_dequantized != 0)},
      {"bool kInt8", flag(is_int8(params))},
      {"bool kE4M3Probability", flag(params.e4m3_probability != 0)},
      {"int kQueryVector", std::to_string(query_vector(params))},
      {"int kKeyVector",
       std::to_string(side_vector(params, kv.key, kv.token_stride_key, kv.head_stride_key,
                                  params.head_size, kv.element))},
      {"int kValueVector",
       std::to_string(side_vector(params, kv.value, kv.token_stride_value, kv.head_stride_value,
                                  params.v_head_size, value_element(params)))},
      {"int kRowsPerThread", std::to_string(rows_per_thread)},
      {"int kMinCtas", two_ctas ? "2" : "1"}};
  // Two registers too few are less of a loss than half the threads.
  kernel.spec.allow_spills = two_ctas && rows_per_thread == 4;
  kernel.spec.name = entry + problem_name(params);
  if (is_int8(params)) kernel.spec.name += " int8 scores";
  kernel.tile_rows = 16 * rows_per_thread;
  kernel.threads = kThreads;
  return kernel;
}

}  // namespace attnbench::cuda
