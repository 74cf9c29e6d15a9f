// The candidate of f32 queries: kernels/attention/f32.cuh, which multiplies in float32 without
// tensor cores. It is for results that are compared at float32's accuracy; the general kernel would
// do these calls too, so it comes before that one in the list.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// 64 columns of the output take 4 registers a row of every thread.
constexpr int kMaxValueColumns = 576;
constexpr int kF32Threads = 256;

/// Elements that one load may take, up to 4.
int vector_of(const Alignment& alignment, attn::Element element) {
  return std::clamp(alignment.common_bytes() / size_of_element(element), 1, 4);
}

int f32_query_vector(const attn::AttendParams& params) {
  Alignment alignment;
  alignment.pointer(params.query)
      .stride(params.query_token_stride, params.query_element)
      .stride(params.query_head_stride, params.query_element)
      .stride(params.head_size, params.query_element);
  return vector_of(alignment, params.query_element);
}

int side_vector(const attn::KvParams& kv, const void* data, attn::i64 token_stride,
                attn::i64 head_stride, int width) {
  Alignment alignment;
  alignment.pointer(data)
      .stride(token_stride, kv.element)
      .stride(head_stride, kv.element)
      .stride(width, kv.element);
  if (kv.block_table != nullptr) alignment.stride(kv.block_stride, kv.element);
  return vector_of(alignment, kv.element);
}

/// The entry of f32.cuh for the operation; null where there is none.
const char* entry_of(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "f32_whole";
    case AttendOperation::kSplits:
      return "f32_splits";
    case AttendOperation::kSegments:
      return "f32_segments";
    default:
      return nullptr;
  }
}

bool reads_keys(attn::Element keys) {
  return keys != attn::Element::kU8 &&
         (size_of_element(keys) == 1 || keys == attn::Element::kF32 ||
          keys == attn::Element::kF16 || keys == attn::Element::kBF16);
}

std::string f32_misfit(const Target&, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  if (entry_of(call.operation) == nullptr) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (params.query_element != attn::Element::kF32) {
    return fmt::format("{} queries: it is for f32", short_name(params.query_element));
  }
  if (params.int8.query_scale != nullptr) return "scores of int8 codes: it multiplies f32";
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in f32";
  if (params.v_head_size > kMaxValueColumns) {
    return fmt::format("head size {} of the values is more than {}", params.v_head_size,
                       kMaxValueColumns);
  }
  if (!reads_keys(params.kv.element)) {
    return fmt::format("it does not read {} keys", short_name(params.kv.element));
  }
  return "";
}

/// One row a thread for few rows; four for more, so that a key is read once for all of them.
AttendKernel f32_kernel(const attn::AttendParams& params, const std::string& entry) {
  const attn::KvParams& kv = params.kv;
  const int rows_per_thread = max_packed_rows(params) > 16 ? 4 : 1;
  const bool two_ctas = rows_per_thread == 1 || params.v_head_size <= 128;
  const bool paged = kv.block_table != nullptr;
  const int keys =
      side_vector(kv, kv.key, kv.token_stride_key, kv.head_stride_key, params.head_size);
  const int values =
      side_vector(kv, kv.value, kv.token_stride_value, kv.head_stride_value, params.v_head_size);
  AttendKernel kernel;
  kernel.spec.source = "attention/f32.cuh";
  kernel.spec.function = "attn::" + entry;
  kernel.spec.constants = {{"attn::Element kQuery", spec_name(params.query_element)},
                           {"attn::Element kKeyValue", spec_name(kv.element)},
                           {"attn::Element kOutput", spec_name(params.output_element)},
                           {"int kHeadSize", std::to_string(params.head_size)},
                           {"int kVHeadSize", std::to_string(params.v_head_size)},
                           {"bool kPaged", spec_flag(paged)},
                           {"attn::Alibi kAlibi", alibi_constant(params.score.alibi)},
                           {"bool kSoftCap", spec_flag(params.score.soft_cap > 0.0f)},
                           {"bool kTokenHeadScales", spec_flag(paged && kv.key_scales != nullptr)},
                           {"int kQueryVector", std::to_string(f32_query_vector(params))},
                           {"int kKeyVector", std::to_string(keys)},
                           {"int kValueVector", std::to_string(values)},
                           {"int kRowsPerThread", std::to_string(rows_per_thread)},
                           {"int kMinCtas", two_ctas ? "2" : "1"}};
  // A few registers too few are less of a loss than half the threads: 52 bytes of splits were seen.
  const int spill_bytes = entry == "f32_splits" ? 56 : 16;
  kernel.spec.allowed_spill_bytes = two_ctas && rows_per_thread == 4 ? spill_bytes : 0;
  kernel.spec.name = entry + problem_name(params);
  kernel.tile_rows = 16 * rows_per_thread;
  kernel.threads = kF32Threads;
  return kernel;
}

void launch_f32(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const AttendKernel kernel = f32_kernel(params, entry_of(call.operation));
  const LaunchShape shape = row_tiles(kernel, params, call.num_parts());
  if (call.split != nullptr) return launch(launcher, kernel.spec, shape, params, *call.split);
  if (call.segments != nullptr) {
    return launch(launcher, kernel.spec, shape, params, *call.segments);
  }
  launch(launcher, kernel.spec, shape, params);
}

}  // namespace

const AttendCandidate kF32Candidate{"f32", f32_misfit, nullptr, launch_f32};

}  // namespace attnbench::cuda
