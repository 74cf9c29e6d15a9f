#include "bench/judge/device_attention.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backends/device_buffers.h"
#include "backends/kernel_params.h"
#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

Tensor in_float32(const Tensor& tensor) {
  Tensor result(Dtype::kF32, tensor.shape());
  load_floats(tensor.dtype(), tensor.bytes(), tensor.num_elements(), result.data<float>());
  return result;
}

int window_of(std::int64_t reach) {
  return reach < 0 ? -1 : checked_int32(std::min<std::int64_t>(reach, 0x7FFFFFFF), "window");
}

template <typename T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace

Tensor attend_in_float32(Ops& ops, const AttentionMath& math, const ReferenceInputs& inputs) {
  if (math.chunk_size > 0 || !math.mm_prefix_ranges.empty()) {
    fail(ErrorKind::kUnsupported, "attention in float32: it has no chunks and no ranges");
  }
  DeviceBuffers memory(ops);
  attn::AttendParams params{};
  const std::int64_t tokens = inputs.query_start_loc.back();
  const std::int64_t heads = inputs.query->dim(1);
  const std::int64_t kv_heads = inputs.key->dim(1);
  const std::int64_t width = inputs.value->dim(2);
  params.query_element = params.output_element = attn::Element::kF32;
  params.num_heads = static_cast<int>(heads);
  params.num_kv_heads = static_cast<int>(kv_heads);
  params.head_size = static_cast<int>(inputs.query->dim(2));
  params.v_head_size = static_cast<int>(width);
  params.query = memory.upload(in_float32(*inputs.query), "query");
  params.query_head_stride = params.head_size;
  params.query_token_stride = heads * params.head_size;
  float* const output = memory.workspace_of<float>(tokens * heads * width, "output");
  params.output = output;
  params.output_head_stride = width;
  params.output_token_stride = heads * width;
  params.lse = memory.workspace_of<float>(tokens * heads, "lse");
  params.lse_stride = tokens;
  params.query_start_loc = memory.upload(copied(inputs.query_start_loc), "query_start_loc");
  params.seq_lens = memory.upload(copied(inputs.seq_lens), "seq_lens");
  params.num_requests = checked_int32(std::ssize(inputs.seq_lens), "requests");
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    params.max_query_len =
        std::max(params.max_query_len, inputs.query_start_loc[b + 1] - inputs.query_start_loc[b]);
  }
  attn::KvParams& kv = params.kv;
  kv.element = attn::Element::kF32;
  kv.key = memory.upload(in_float32(*inputs.key), "key");
  kv.value = memory.upload(in_float32(*inputs.value), "value");
  kv.head_stride_key = params.head_size;
  kv.head_stride_value = width;
  kv.token_stride_key = kv_heads * params.head_size;
  kv.token_stride_value = kv_heads * width;
  kv.kv_start_loc = memory.upload(
      std::vector<attn::i64>(inputs.key_start_loc.begin(), inputs.key_start_loc.end()),
      "key_start_loc");
  attn::ScoreParams& score = params.score;
  score.softmax_scale = static_cast<float>(math.softmax_scale);
  score.soft_cap = static_cast<float>(math.logits_soft_cap);
  score.window_left = window_of(math.window_left);
  score.window_right = window_of(math.causal ? 0 : math.window_right);
  score.alibi = alibi_of(math.alibi);
  if (!inputs.alibi_slopes.empty()) {
    score.alibi_slopes = memory.upload(copied(inputs.alibi_slopes), "alibi_slopes");
  }
  if (!inputs.sinks.empty()) score.sinks = memory.upload(copied(inputs.sinks), "sinks");
  ops.attend(params);
  ops.synchronize();
  return memory.read(output, Dtype::kF32, {tokens, heads, width});
}

}  // namespace attnbench
