// The stage rewrites the parameters that the pipeline has resolved already: where they named 16-bit
// tensors they name codes and scales afterwards, so the attention step itself is the one of every
// level.
#include "backends/attention/int8_stage.h"

#include <fmt/format.h>

#include <cstring>

namespace attnbench {

Int8Stage::Int8Stage(const Problem& problem, const BackendInputs& inputs, DeviceBuffers& memory,
                     bool save_by_position, const attn::CacheWriteParams& write,
                     attn::AttendParams& params)
    : problem_(problem), inputs_(inputs), memory_(memory), save_by_position_(save_by_position) {
  set_query(params);
  set_key_scales(params);
  set_write(write, params);
  set_values(write, params);
}

/// Codes of `rows` rows [rows, heads, D]; scales [scale_rows, heads], or transposed.
attn::Int8QuantiseParams Int8Stage::by_token(const void* source, std::int64_t rows,
                                             std::int64_t scale_rows, int heads, bool transposed,
                                             const std::string& name) {
  const std::int64_t width = problem_.attention.head_size;
  attn::Int8QuantiseParams params{};
  params.source_element = element_of(problem_.attention.dtype);
  params.source = source;
  params.source_token_stride = params.code_token_stride = heads * width;
  params.source_head_stride = params.code_head_stride = width;
  params.codes = memory_.workspace_of<signed char>(scale_rows * heads * width, name + " int8");
  params.granularity = attn::Int8Granularity::kTokenHead;
  params.scale = memory_.workspace_of<float>(scale_rows * heads, name + " scales");
  params.scale_token_stride = transposed ? 1 : heads;
  params.scale_head_stride = transposed ? scale_rows : 1;
  params.num_tokens = rows;
  params.num_heads = heads;
  params.head_size = problem_.attention.head_size;
  return params;
}

void Int8Stage::set_query(attn::AttendParams& params) {
  const Tensor& source = inputs_.inputs->query;
  query_ = by_token(memory_.upload(source, "query"), problem_.num_tokens(), source.dim(0),
                    problem_.attention.num_heads, !save_by_position_, "query");
  params.query_element = attn::Element::kI8;
  params.query = query_.codes;
  params.int8.query_scale = query_.scale;
  params.int8.query_scale_token_stride = query_.scale_token_stride;
  params.int8.query_scale_head_stride = query_.scale_head_stride;
}

void Int8Stage::set_key_scales(attn::AttendParams& params) {
  const Tensor& scales = inputs_.cache->key_scale_cache;  // [NB, Hk, bs]
  params.kv.key_scales = memory_.upload_of<float>(scales, "key_scale_cache");
  params.kv.scale_block_stride = scales.dim(1) * scales.dim(2);
  params.kv.scale_head_stride = scales.dim(2);
  params.kv.scale_slot_stride = 1;
}

/// By position or by slot. By position the kernel finds a token's slot through the block table, as
/// the decode kernel of ixformer does, which knows no slot mapping; padding rows have no position.
void Int8Stage::set_write(const attn::CacheWriteParams& write, const attn::AttendParams& params) {
  key_ =
      by_token(write.key, write.num_slots, write.num_slots, write.num_kv_heads, false, "new_key");
  write_.key = key_.codes;
  write_.key_token_stride = key_.code_token_stride;
  write_.key_head_stride = key_.code_head_stride;
  write_.key_scale = key_.scale;
  write_.key_scale_token_stride = key_.scale_token_stride;
  write_.key_scale_head_stride = key_.scale_head_stride;
  write_.key_cache = static_cast<signed char*>(write.key_cache);
  write_.value_cache = write.value_cache;
  write_.block_stride = write.block_stride;
  write_.slot_stride = write.slot_stride;
  write_.head_stride = write.head_stride;
  write_.key_scale_cache = const_cast<float*>(params.kv.key_scales);
  write_.scale_block_stride = params.kv.scale_block_stride;
  write_.scale_slot_stride = params.kv.scale_slot_stride;
  write_.scale_head_stride = params.kv.scale_head_stride;
  write_.num_tokens = write.num_slots;
  write_.block_size = write.block_size;
  write_.num_kv_heads = write.num_kv_heads;
  write_.head_size = write.head_size;
  if (!save_by_position_) {
    write_.slot_mapping = write.slot_mapping;
    return;
  }
  write_.num_tokens = problem_.num_tokens();
  write_.block_table = params.kv.block_table;
  write_.block_table_stride = params.kv.block_table_stride;
  write_.query_start_loc = params.query_start_loc;
  write_.seq_lens = params.seq_lens;
  write_.num_requests = params.num_requests;
}

/// Level 1 has int8 values with a scale a channel, given by the case; level 2 keeps them in 16
/// bits.
void Int8Stage::set_values(const attn::CacheWriteParams& write, attn::AttendParams& params) {
  write_.value = write.value;
  write_.value_token_stride = write.value_token_stride;
  write_.value_head_stride = write.v_head_size;
  write_.value_element = params.int8.value_element = element_of(problem_.attention.dtype);
  if (problem_.kv_cache.int8_level == 2) return;
  const std::vector<float>& scale = inputs_.inputs->value_channel_scale;
  value_ = key_;
  value_.source = write.value;
  value_.codes = memory_.workspace_of<signed char>(write.num_slots * write.value_token_stride,
                                                   "new_value int8");
  value_.granularity = attn::Int8Granularity::kChannelStatic;
  value_.scale = const_cast<float*>(memory_.upload(scale, "value_scale"));
  write_.value = value_.codes;
  write_.value_element = params.int8.value_element = attn::Element::kI8;
  params.int8.value_channel_scale = value_.scale;
}

void Int8Stage::quantise() {
  memory_.ops().quantise_int8(query_);
  memory_.ops().quantise_int8(key_);
  if (value_.codes != nullptr) memory_.ops().quantise_int8(value_);
}

double Int8Stage::quantise_bytes() const {
  const auto of = [](const attn::Int8QuantiseParams& p) {
    const double vectors = static_cast<double>(p.num_tokens) * p.num_heads;
    const bool scales = p.granularity == attn::Int8Granularity::kTokenHead;
    const auto source = static_cast<double>(element_size(p.source_element));
    return vectors * (p.head_size * (source + 1.0) + (scales ? sizeof(float) : 0.0));
  };
  return of(query_) + of(key_) + (value_.codes == nullptr ? 0.0 : of(value_));
}

double Int8Stage::write_bytes() const {
  const double vectors = static_cast<double>(write_.num_tokens) * write_.num_kv_heads;
  const auto value = static_cast<double>(element_size(write_.value_element));
  return 2.0 * vectors * (write_.head_size * (1.0 + value) + sizeof(float));
}

/// The query is quantised anew in each run; attention within its tolerance could hide a wrong
/// scale, so codes and scales are compared byte for byte with those that the inputs were made with.
std::string Int8Stage::query_defect() {
  const attn::Int8QuantiseParams& p = query_;
  const Tensor& expected_codes = inputs_.query.query;    // [T_pad, H, D]
  const Tensor& expected_scales = inputs_.query.scales;  // [T_pad, H]
  const Tensor codes = memory_.read(p.codes, Dtype::kI8, expected_codes.shape());
  const Tensor scales = memory_.read(p.scale, Dtype::kF32, expected_scales.shape());
  const auto width = static_cast<std::size_t>(p.head_size);
  for (std::int64_t token = 0; token < p.num_tokens; ++token) {
    for (std::int64_t head = 0; head < p.num_heads; ++head) {
      const std::int64_t row = token * p.num_heads + head;
      const float expected = expected_scales.data<float>()[row];
      const float actual =
          scales.data<float>()[token * p.scale_token_stride + head * p.scale_head_stride];
      if (std::memcmp(&expected, &actual, sizeof(float)) != 0) {
        return fmt::format("query scale of token {}, head {}: expected {:.9g}, got {:.9g}", token,
                           head, expected, actual);
      }
      const std::int64_t first = row * p.head_size;
      if (std::memcmp(expected_codes.bytes() + first, codes.bytes() + first, width) != 0) {
        return fmt::format("query codes of token {}, head {} are not those of semantics 11.2",
                           token, head);
      }
    }
  }
  return "";
}

/// The query in front of its codes, and the scales of keys beside the cache.
void Int8Stage::change(SampleSide& side) const {
  const AttentionSpec& a = problem_.attention;
  side.query.clear();
  side.add_query(query_.source, query_.source_element, query_.num_tokens,
                 std::int64_t{a.num_heads} * a.head_size);
  const Tensor& scales = inputs_.cache->key_scale_cache;  // [NB, Hk, bs]
  const std::int64_t block = scales.dim(1) * scales.dim(2) * std::int64_t{sizeof(float)};
  side.planes.push_back({reinterpret_cast<std::byte*>(write_.key_scale_cache), block, block});
}

void Int8Stage::read(PipelineOutput& output, bool is_own) {
  output.key_scale_cache =
      memory_.read(write_.key_scale_cache, Dtype::kF32, inputs_.cache->key_scale_cache.shape());
  if (is_own && output.defect.empty()) output.defect = query_defect();
}

}  // namespace attnbench
