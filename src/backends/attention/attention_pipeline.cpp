#include "backends/attention/attention_pipeline.h"

#include <algorithm>

#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/kv_scales.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }

attn::Alibi alibi_of(AlibiForm form) {
  switch (form) {
    case AlibiForm::kNone:
      return attn::Alibi::kNone;
    case AlibiForm::kKeyIndex:
      return attn::Alibi::kKeyIndex;
    case AlibiForm::kContextRelative:
      return attn::Alibi::kContextRelative;
    case AlibiForm::kDistance:
      return attn::Alibi::kDistance;
    case AlibiForm::kSqrt:
      return attn::Alibi::kSqrt;
  }
  return attn::Alibi::kNone;
}

/// A window of any length means the same once it reaches past every key.
int window_of(std::int64_t window) {
  constexpr std::int64_t kMost = 1 << 30;
  return static_cast<int>(std::min(window, kMost));
}

Dtype output_dtype(const Problem& problem) {
  return problem.output_quant.type == OutputQuantType::kFp8Static ? Dtype::kE4M3
                                                                  : problem.attention.dtype;
}

/// [B, R, 2], unused pairs (0, 0).
std::vector<int> packed_ranges(const AttentionMath& math, std::size_t num_ranges) {
  std::vector<int> packed(math.mm_prefix_ranges.size() * num_ranges * 2, 0);
  for (std::size_t b = 0; b < math.mm_prefix_ranges.size(); ++b) {
    for (std::size_t k = 0; k < math.mm_prefix_ranges[b].size(); ++k) {
      for (std::size_t end = 0; end < 2; ++end) {
        packed[(b * num_ranges + k) * 2 + end] =
            checked_int32(math.mm_prefix_ranges[b][k][end], "mm_prefix_ranges");
      }
    }
  }
  return packed;
}

}  // namespace

AttentionPipeline::AttentionPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                                     std::string backend, bool ragged_keys)
    : problem_(problem),
      backend_(std::move(backend)),
      math_(resolve_attention_math(problem_, backend_)),
      ops_(ops) {
  set_rows(inputs);
  set_score(inputs);
  if (ragged_keys || has_direct_kv(problem_.attention.type)) {
    set_ragged_kv(inputs);
  } else {
    set_paged_kv(inputs);
  }
}

Buffer* AttentionPipeline::new_buffer(std::size_t size_bytes, const std::string& name,
                                      bool poisoned) {
  buffers_.push_back(ops_.allocate(size_bytes, name));
  if (poisoned) poisoned_.push_back(buffers_.back().get());
  return buffers_.back().get();
}

const void* AttentionPipeline::upload_bytes(const void* data, std::size_t size_bytes,
                                            const std::string& name) {
  Buffer* buffer = new_buffer(size_bytes, name, false);
  ops_.upload(*buffer, data, size_bytes);
  return buffer->data();
}

void AttentionPipeline::set_rows(const BackendInputs& inputs) {
  const AttentionSpec& a = problem_.attention;
  const Tensor& query = inputs.query.query;
  num_tokens_ = inputs.inputs->num_tokens();
  num_rows_ = query.dim(0);
  params_.query_element = element_of(query.dtype());
  params_.query = upload_bytes(query.bytes(), query.size_bytes(), "query");
  params_.query_token_stride = std::int64_t{a.num_heads} * a.head_size;
  params_.query_head_stride = a.head_size;
  const Dtype output = output_dtype(problem_);
  const std::int64_t elements = num_rows_ * a.num_heads * a.v_head_size;
  output_ = new_buffer(static_cast<std::size_t>(elements) * dtype_size(output), "output", true);
  params_.output_element = element_of(output);
  params_.output = output_->data();
  params_.output_token_stride = std::int64_t{a.num_heads} * a.v_head_size;
  params_.output_head_stride = a.v_head_size;
  if (output == Dtype::kE4M3) {
    params_.output_scale = static_cast<float>(problem_.output_quant.scale);
  }
  lse_ = new_buffer(static_cast<std::size_t>(num_rows_ * a.num_heads) * sizeof(float), "lse", true);
  params_.lse = lse_->as<float>();
  params_.lse_stride = num_rows_;
  params_.query_start_loc = upload(inputs.inputs->query_start_loc, "query_start_loc");
  params_.seq_lens = upload(inputs.inputs->seq_lens, "seq_lens");
  params_.num_requests = static_cast<int>(problem_.num_requests());
  params_.batch_invariant = problem_.attention.batch_invariant ? 1 : 0;
  params_.max_query_len = checked_int32(problem_.max_query_len(), "query_len");
  params_.num_heads = a.num_heads;
  params_.num_kv_heads = a.num_kv_heads;
  params_.head_size = a.head_size;
  params_.v_head_size = a.v_head_size;
  params_.e4m3_probability = a.probability_dtype == ProbabilityDtype::kFp8E4M3 ? 1 : 0;
}

void AttentionPipeline::set_score(const BackendInputs& inputs) {
  attn::ScoreParams& score = params_.score;
  // The scale of a quantised query is folded here; k_scale is applied to K.
  score.softmax_scale =
      static_cast<float>(math_.softmax_scale * static_cast<double>(inputs.query.scale));
  score.soft_cap = static_cast<float>(math_.logits_soft_cap);
  score.window_left = window_of(math_.window_left);
  score.window_right = window_of(math_.window_right);
  score.alibi = alibi_of(math_.alibi);
  if (math_.alibi != AlibiForm::kNone) {
    score.alibi_slopes = upload(inputs.inputs->alibi_slopes, "alibi_slopes");
  }
  if (!inputs.inputs->sinks.empty()) score.sinks = upload(inputs.inputs->sinks, "sinks");
  std::size_t num_ranges = 0;
  for (const auto& ranges : math_.mm_prefix_ranges)
    num_ranges = std::max(num_ranges, ranges.size());
  if (num_ranges > 0) {
    score.mm_ranges = upload(packed_ranges(math_, num_ranges), "mm_prefix_ranges");
    score.num_mm_ranges = static_cast<int>(num_ranges);
  }
}

RaggedKv ragged_kv(const BackendInputs& inputs) {
  const StoredKv* stored = inputs.stored;
  const bool has_codes = stored != nullptr && dtype_size(stored->key_codes.dtype()) == 1;
  if (has_codes) return {stored->key_codes, stored->value_codes};
  return {inputs.inputs->key, inputs.inputs->value};
}

void AttentionPipeline::set_ragged_kv(const BackendInputs& inputs) {
  const AttentionSpec& a = problem_.attention;
  const auto [key, value] = ragged_kv(inputs);
  attn::KvParams& kv = params_.kv;
  kv.element = element_of(key.dtype());
  kv.key = upload(key, "key");
  kv.value = upload(value, "value");
  kv.token_stride_key = std::int64_t{a.num_kv_heads} * a.head_size;
  kv.token_stride_value = std::int64_t{a.num_kv_heads} * a.v_head_size;
  kv.head_stride_key = a.head_size;
  kv.head_stride_value = a.v_head_size;
  const std::vector<std::int64_t>& rows = inputs.inputs->key_start_loc;
  kv.kv_start_loc = upload(std::vector<attn::i64>(rows.begin(), rows.end()), "key_start_loc");
  if (dtype_size(key.dtype()) == 1) set_tensor_scales();
}

void AttentionPipeline::set_paged_kv(const BackendInputs& inputs) {
  if (!inputs.cache) fail(ErrorKind::kInternal, "{}: no paged cache was given", backend_);
  const PagedCache& cache = *inputs.cache;
  const KvLayout& layout = cache.layout;
  attn::KvParams& kv = params_.kv;
  cache_dtype_ = cache.data.dtype();
  cache_shape_ = cache.data.shape();
  cache_ = new_buffer(cache.data.size_bytes(), "kv_cache", false);
  ops_.upload(*cache_, cache.data.bytes(), cache.data.size_bytes());
  const auto size = static_cast<std::int64_t>(dtype_size(cache_dtype_));
  kv.element = element_of(cache_dtype_);
  kv.key = cache_->as<char>() + layout.key_offset * size;
  kv.value = cache_->as<char>() + layout.value_offset * size;
  kv.block_stride = layout.block_stride;
  kv.token_stride_key = kv.token_stride_value = layout.slot_stride;
  kv.head_stride_key = kv.head_stride_value = layout.head_stride;
  kv.block_table = static_cast<const int*>(
      upload_bytes(cache.block_table.bytes(), cache.block_table.size_bytes(), "block_table"));
  kv.block_table_stride = cache.block_table.dim(1);
  kv.block_size = problem_.kv_cache.block_size;
  set_scales(layout);
  set_cache_write(cache);
  if (calculates_kv_scales(problem_)) calculate_scales(*inputs.inputs);
}

std::vector<float> AttentionPipeline::expand_scale(const std::vector<float>& scale) const {
  const auto heads = static_cast<std::size_t>(problem_.attention.num_kv_heads);
  return scale.size() == 1 ? std::vector<float>(heads, scale[0]) : scale;
}

void AttentionPipeline::set_scales(const KvLayout& layout) {
  attn::KvParams& kv = params_.kv;
  const KvCacheDtype dtype = problem_.kv_cache.dtype;
  if (!is_quantised(dtype)) return;
  if (is_per_token_head(dtype)) {
    const ScaleView view = per_token_head_scale_view(layout);
    kv.key_scales = cache_->as<float>() + view.key_offset;
    kv.value_scales = cache_->as<float>() + view.value_offset;
    kv.scale_block_stride = view.block_stride;
    kv.scale_slot_stride = view.slot_stride;
    kv.scale_head_stride = view.head_stride;
    return;
  }
  set_tensor_scales();
}

void AttentionPipeline::set_tensor_scales() {
  attn::KvParams& kv = params_.kv;
  const StoreRule rule = resolve_store_rule(problem_, backend_);
  kv.k_scale = upload(expand_scale(rule.k_scale), "k_scale");
  kv.v_scale = upload(expand_scale(rule.v_scale), "v_scale");
  kv.round_dequantized = rule.dequantized_rounding ? 1 : 0;
}

void AttentionPipeline::set_cache_write(const PagedCache& cache) {
  const AttentionSpec& a = problem_.attention;
  const attn::KvParams& kv = params_.kv;
  write_.source_element = element_of(cache.new_key.dtype());
  write_.cache_element = kv.element;
  write_.key = upload_bytes(cache.new_key.bytes(), cache.new_key.size_bytes(), "new_key");
  write_.value = upload_bytes(cache.new_value.bytes(), cache.new_value.size_bytes(), "new_value");
  write_.key_token_stride = std::int64_t{a.num_kv_heads} * a.head_size;
  write_.value_token_stride = std::int64_t{a.num_kv_heads} * a.v_head_size;
  write_.key_cache = const_cast<void*>(kv.key);
  write_.value_cache = const_cast<void*>(kv.value);
  write_.block_stride = kv.block_stride;
  write_.slot_stride = kv.token_stride_key;
  write_.head_stride = kv.head_stride_key;
  write_.slot_mapping = static_cast<const attn::i64*>(
      upload_bytes(cache.slot_mapping.bytes(), cache.slot_mapping.size_bytes(), "slot_mapping"));
  write_.num_slots = cache.new_key.dim(0);
  write_.block_size = kv.block_size;
  write_.num_kv_heads = a.num_kv_heads;
  write_.head_size = a.head_size;
  write_.v_head_size = a.v_head_size;
  const KvCacheDtype dtype = problem_.kv_cache.dtype;
  write_.quantise = is_per_token_head(dtype) ? 2 : (is_quantised(dtype) ? 1 : 0);
  write_.k_scale = kv.k_scale;
  write_.v_scale = kv.v_scale;
  write_.key_scales = const_cast<float*>(kv.key_scales);
  write_.value_scales = const_cast<float*>(kv.value_scales);
  write_.scale_block_stride = kv.scale_block_stride;
  write_.scale_slot_stride = kv.scale_slot_stride;
  write_.scale_head_stride = kv.scale_head_stride;
  write_.int8_truncate = problem_.kv_cache.pth_int8_round == PthInt8Round::kTrunc ? 1 : 0;
}

/// The query before it is quantised, and the rows of keys and values that are written.
void AttentionPipeline::calculate_scales(const AttentionInputs& inputs) {
  const AttentionSpec& a = problem_.attention;
  const Tensor& query = inputs.query;
  const std::int64_t num_new = write_.num_slots - static_cast<std::int64_t>(kPaddingSlots.size());
  kv_scales_ = std::make_unique<KvScaleStep>(
      ops_,
      ScaledRows{element_of(query.dtype()),
                 upload_bytes(query.bytes(), query.size_bytes(), "query_unquantized"), num_tokens_,
                 a.num_heads, a.head_size},
      ScaledRows{write_.source_element, write_.key, num_new, a.num_kv_heads, a.head_size},
      ScaledRows{write_.source_element, write_.value, num_new, a.num_kv_heads, a.v_head_size},
      a.num_kv_heads);
  params_.kv.k_scale = write_.k_scale = kv_scales_->k_scale();
  params_.kv.v_scale = write_.v_scale = kv_scales_->v_scale();
}

void AttentionPipeline::add_write_step() {
  if (cache_ == nullptr) return;
  if (kv_scales_) {
    add_step({"calc_kv_scales", false, kv_scales_->bytes(), 0, [this] { kv_scales_->run(); }});
  }
  const auto rows = static_cast<double>(write_.num_slots) * write_.num_kv_heads *
                    (write_.head_size + write_.v_head_size);
  const auto sizes = static_cast<double>(dtype_size(static_cast<Dtype>(write_.source_element)) +
                                         dtype_size(cache_dtype_));
  add_step({"write_cache", false, rows * sizes, 0, [this] { ops_.write_cache(write_); }});
}

Step AttentionPipeline::attention_step(std::string name, std::function<void()> run) const {
  return {std::move(name), true, attention_traffic(problem_, backend_).unique_bytes,
          attention_flops(problem_, backend_), std::move(run)};
}

Buffer& AttentionPipeline::buffer_at(const void* data) {
  const auto begins_there = [&](const auto& buffer) { return buffer->data() == data; };
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), begins_there);
  if (found == buffers_.end()) fail(ErrorKind::kInternal, "{}: no such workspace", backend_);
  return **found;
}

void AttentionPipeline::download_workspace(const void* workspace, Tensor& destination,
                                           std::size_t offset_bytes, std::size_t size_bytes) {
  ops_.download(destination.bytes() + offset_bytes, buffer_at(workspace), size_bytes);
}

void AttentionPipeline::poison_outputs() {
  for (Buffer* buffer : poisoned_) ops_.poison(*buffer);
  if (kv_scales_) kv_scales_->poison();
}

Tensor AttentionPipeline::read_lse() {
  const std::int64_t heads = problem_.attention.num_heads;
  std::vector<float> padded(static_cast<std::size_t>(heads * num_rows_));
  ops_.download(padded.data(), *lse_, padded.size() * sizeof(float));
  Tensor lse(Dtype::kF32, {heads, num_tokens_});
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(padded.data() + head * num_rows_, num_tokens_,
                lse.data<float>() + head * num_tokens_);
  }
  return lse;
}

PipelineOutput AttentionPipeline::read_output(bool with_cache) {
  ops_.synchronize();
  PipelineOutput result;
  const AttentionSpec& a = problem_.attention;
  const Dtype dtype = output_dtype(problem_);
  Tensor padded(dtype, {num_rows_, a.num_heads, a.v_head_size});
  ops_.download(padded.bytes(), *output_, padded.size_bytes());
  result.output = Tensor(dtype, {num_tokens_, a.num_heads, a.v_head_size});
  std::copy_n(padded.bytes(), result.output.size_bytes(), result.output.bytes());
  const std::size_t row_bytes =
      dtype_size(dtype) * static_cast<std::size_t>(a.num_heads * a.v_head_size);
  for (std::int64_t row = num_tokens_; row < num_rows_ && result.defect.empty(); ++row) {
    const std::byte* bytes = padded.bytes() + static_cast<std::size_t>(row) * row_bytes;
    if (std::any_of(bytes, bytes + row_bytes, [](std::byte b) { return b != std::byte{0xFF}; })) {
      result.defect = fmt::format("output row {} past the last token was written", row);
    }
  }
  if (kv_scales_ && result.defect.empty()) result.defect = kv_scales_->defect(problem_);
  result.lse = read_lse();
  if (cache_ != nullptr && with_cache) {
    result.cache = Tensor(cache_dtype_, cache_shape_);
    ops_.download(result.cache->bytes(), *cache_, result.cache->size_bytes());
  }
  return result;
}

int choose_num_splits(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                      int num_sms) {
  constexpr std::int64_t kLeastSplitLen = 256;
  constexpr std::int64_t kMostSplits = 64;
  const std::int64_t parts_at_once = std::int64_t{2} * num_sms;
  constexpr double kNearlyBest = 0.95;
  const std::int64_t unsplit = num_requests * num_kv_heads;
  if (unsplit == 0) return 1;
  // Share of the places of whole waves that the parts fill.
  const auto filled = [&](std::int64_t splits) {
    const std::int64_t waves = ceil_div(unsplit * splits, parts_at_once);
    return static_cast<double>(unsplit * splits) / static_cast<double>(waves * parts_at_once);
  };
  const std::int64_t most = std::clamp(max_seq_len / kLeastSplitLen, std::int64_t{1}, kMostSplits);
  double best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, filled(splits));
  std::int64_t splits = 1;
  while (filled(splits) < kNearlyBest * best) ++splits;
  return static_cast<int>(splits);
}

}  // namespace attnbench
