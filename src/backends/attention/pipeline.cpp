// The constructor resolves the whole problem into one AttendParams: rows, scores, keys. Derived
// pipelines copy it and change what they cut differently (fewer requests, other keys, partial
// outputs), so that every field has one place where its meaning is decided.
#include "backends/attention/pipeline.h"

#include <algorithm>

#include "backends/kernel_params.h"
#include "backends/traffic.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

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
                                     const KernelRules& rules, bool ragged_keys)
    : problem_(problem),
      rules_(rules),
      math_(resolve_attention_math(problem_, rules_)),
      memory_(ops) {
  set_rows(inputs);
  set_score(inputs);
  if (ragged_keys || has_direct_kv(problem_.attention.type)) {
    set_ragged_kv(inputs);
  } else {
    set_paged_kv(inputs);
  }
}

void AttentionPipeline::set_rows(const BackendInputs& inputs) {
  const AttentionSpec& a = problem_.attention;
  const Tensor& query = inputs.query.query;
  num_tokens_ = inputs.inputs->num_tokens();
  num_rows_ = query.dim(0);
  params_.query_element = element_of(query.dtype());
  params_.query = memory_.upload(query, "query");
  params_.query_token_stride = std::int64_t{a.num_heads} * a.head_size;
  params_.query_head_stride = a.head_size;
  const Dtype output = output_dtype(problem_);
  params_.output_element = element_of(output);
  params_.output = memory_.workspace_of(params_.output_element,
                                        num_rows_ * a.num_heads * a.v_head_size, "output");
  params_.output_token_stride = std::int64_t{a.num_heads} * a.v_head_size;
  params_.output_head_stride = a.v_head_size;
  if (output == Dtype::kE4M3) {
    params_.output_scale = static_cast<float>(problem_.output_quant.scale);
  }
  params_.lse = memory_.workspace_of<float>(num_rows_ * a.num_heads, "lse");
  params_.lse_stride = num_rows_;
  params_.query_start_loc = memory_.upload(inputs.inputs->query_start_loc, "query_start_loc");
  params_.seq_lens = memory_.upload(inputs.inputs->seq_lens, "seq_lens");
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
    score.alibi_slopes = memory_.upload(inputs.inputs->alibi_slopes, "alibi_slopes");
  }
  if (!inputs.inputs->sinks.empty()) score.sinks = memory_.upload(inputs.inputs->sinks, "sinks");
  std::size_t num_ranges = 0;
  for (const auto& ranges : math_.mm_prefix_ranges)
    num_ranges = std::max(num_ranges, ranges.size());
  if (num_ranges > 0) {
    score.mm_ranges = memory_.upload(packed_ranges(math_, num_ranges), "mm_prefix_ranges");
    score.num_mm_ranges = static_cast<int>(num_ranges);
  }
}

/// Sections of a block, for every rank of a group: each has a cache of its own and all use one
/// table.
void AttentionPipeline::set_redrawn_blocks(const PagedCache& cache, const StoredKv& stored) {
  redrawn_ = RedrawBlocks::of_cache(problem_, cache.block_table, page_tokens(problem_));
  const CellWriter cells(cache.layout, stored, problem_.kv_cache.block_size);
  const std::int64_t ranks = problem_.dcp.world_size;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::byte* const first = cache_->as<std::byte>() + rank * (cache_bytes() / ranks);
    for (const bool is_key : {true, false}) {
      const std::int64_t plane = is_key ? cells.key_plane(0) : cells.value_plane(0);
      planes_.push_back({first + plane, cache.layout.block_stride * cells.element_size(is_key),
                         cells.plane_bytes(is_key)});
    }
  }
}

void AttentionPipeline::set_redrawn_rows(const Tensor& key, const Tensor& value) {
  redrawn_ = RedrawBlocks::of_rows(problem_);
  const auto add = [&](const void* memory, const Tensor& tensor) {
    const std::int64_t row =
        tensor.dim(1) * tensor.dim(2) * static_cast<std::int64_t>(dtype_size(tensor.dtype()));
    auto* first = static_cast<std::byte*>(const_cast<void*>(memory));
    planes_.push_back({first, row, kRedrawRows * row});
  };
  add(params_.kv.key, key);
  add(params_.kv.value, value);
}

std::optional<SampleSide> AttentionPipeline::sample_side() {
  SampleSide side;
  side.add_query(params_.query, params_.query_element, num_tokens_, params_.query_token_stride);
  side.blocks = redrawn_;
  side.planes = planes_;
  side.add_output(memory_, params_.output, params_.output_element);
  side.add_output(memory_, params_.lse, attn::Element::kF32);
  side.workspace_bytes = memory_.poisoned_bytes();
  side.read = [this] { return read_output(false); };
  return side;
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
  kv.key = memory_.upload(key, "key");
  kv.value = memory_.upload(value, "value");
  if (!inputs.inputs->shapes_only) set_redrawn_rows(key, value);
  kv.token_stride_key = std::int64_t{a.num_kv_heads} * a.head_size;
  kv.token_stride_value = std::int64_t{a.num_kv_heads} * a.v_head_size;
  kv.head_stride_key = a.head_size;
  kv.head_stride_value = a.v_head_size;
  const std::vector<std::int64_t>& rows = inputs.inputs->key_start_loc;
  kv.kv_start_loc =
      memory_.upload(std::vector<attn::i64>(rows.begin(), rows.end()), "key_start_loc");
  if (dtype_size(key.dtype()) == 1) set_tensor_scales();
}

void AttentionPipeline::set_paged_kv(const BackendInputs& inputs) {
  if (!inputs.cache) fail(ErrorKind::kInternal, "no paged cache was given");
  const PagedCache& cache = *inputs.cache;
  const KvLayout& layout = cache.layout;
  attn::KvParams& kv = params_.kv;
  cache_dtype_ = cache.data.dtype();
  cache_shape_ = cache.data.shape();
  cache_ = &memory_.starting_at(memory_.upload(cache.data, "kv_cache"));
  const auto size = static_cast<std::int64_t>(dtype_size(cache_dtype_));
  kv.element = element_of(cache_dtype_);
  kv.key = cache_->as<char>() + layout.key_offset * size;
  kv.value = cache_->as<char>() + layout.value_offset * size;
  kv.block_stride = layout.block_stride;
  kv.token_stride_key = kv.token_stride_value = layout.slot_stride;
  kv.head_stride_key = kv.head_stride_value = layout.head_stride;
  kv.block_table = memory_.upload_of<int>(cache.block_table, "block_table");
  kv.block_table_stride = cache.block_table.dim(1);
  kv.block_size = problem_.kv_cache.block_size;
  set_scales(layout);
  set_cache_write(cache);
  // Why: a case of shapes has a table and no keys, and nothing runs; a rank by itself has the keys
  // in its cache only.
  if (!inputs.inputs->shapes_only && inputs.seat == nullptr)
    set_redrawn_blocks(cache, *inputs.stored);
  if (calculates_kv_scales(problem_)) calculate_scales(*inputs.inputs);
}

std::vector<float> AttentionPipeline::expand_scale(const std::vector<float>& scale) const {
  const auto heads = static_cast<std::size_t>(problem_.attention.num_kv_heads);
  return scale.size() == 1 ? std::vector<float>(heads, scale[0]) : scale;
}

/// Scales a token and head lie inside the cache, beside the codes; scales of a tensor or head are
/// arrays of one float a KV head, also where the problem gives a single one.
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
  const StoreRule rule = resolve_store_rule(problem_, rules_);
  kv.k_scale = memory_.upload(expand_scale(rule.k_scale), "k_scale");
  kv.v_scale = memory_.upload(expand_scale(rule.v_scale), "v_scale");
  kv.round_dequantized = rule.dequantized_rounding ? 1 : 0;
}

/// The step writes the rows that are new in this step, with those of padding (slot -1) behind them,
/// as an engine with CUDA graphs has them; they must leave no trace.
void AttentionPipeline::set_cache_write(const PagedCache& cache) {
  const AttentionSpec& a = problem_.attention;
  const attn::KvParams& kv = params_.kv;
  write_.source_element = element_of(cache.new_key.dtype());
  write_.cache_element = kv.element;
  write_.key = memory_.upload(cache.new_key, "new_key");
  write_.value = memory_.upload(cache.new_value, "new_value");
  write_.key_token_stride = std::int64_t{a.num_kv_heads} * a.head_size;
  write_.value_token_stride = std::int64_t{a.num_kv_heads} * a.v_head_size;
  write_.key_cache = const_cast<void*>(kv.key);
  write_.value_cache = const_cast<void*>(kv.value);
  write_.block_stride = kv.block_stride;
  write_.slot_stride = kv.token_stride_key;
  write_.head_stride = kv.head_stride_key;
  write_.slot_mapping = memory_.upload_of<attn::i64>(cache.slot_mapping, "slot_mapping");
  write_.num_slots = cache.new_key.dim(0);
  write_.block_size = kv.block_size;
  write_.num_kv_heads = a.num_kv_heads;
  write_.head_size = a.head_size;
  write_.v_head_size = a.v_head_size;
  write_.quantise = cache_write_mode(problem_.kv_cache.dtype);
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
      memory_,
      ScaledRows{element_of(query.dtype()), memory_.upload(query, "query_unquantized"), num_tokens_,
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
    add_step(side_step(
        "calc_kv_scales", [this] { kv_scales_->run(); }, kv_scales_->bytes()));
  }
  const auto rows = static_cast<double>(write_.num_slots) * write_.num_kv_heads *
                    (write_.head_size + write_.v_head_size);
  const auto sizes =
      static_cast<double>(element_size(write_.source_element) + dtype_size(cache_dtype_));
  add_step(side_step(
      "write_cache", [this] { ops().write_cache(write_); }, rows * sizes));
}

void AttentionPipeline::add_attend_step(std::string name, std::function<void()> run) {
  attend_step_ = steps_.size();
  add_step(counted_step(std::move(name), std::move(run),
                        attention_traffic(problem_, rules_).unique_bytes,
                        attention_flops(problem_, rules_)));
}

void AttentionPipeline::poison_outputs() { memory_.poison(); }

PipelineOutput AttentionPipeline::read_output(bool with_cache) {
  ops().synchronize();
  PipelineOutput result;
  const AttentionSpec& a = problem_.attention;
  DeviceBuffers::Rows output = memory_.read_rows(params_.output, output_dtype(problem_),
                                                 {num_tokens_, a.num_heads, a.v_head_size});
  result.output = std::move(output.rows);
  if (output.written_past) {
    result.defect =
        fmt::format("output row {} past the last token was written", *output.written_past);
  }
  if (kv_scales_ && result.defect.empty()) result.defect = kv_scales_->defect(problem_);
  result.lse = memory_.read_lse(params_.lse, a.num_heads, num_tokens_, num_rows_);
  if (cache_ != nullptr && with_cache) {
    result.cache = memory_.read(cache_->data(), cache_dtype_, cache_shape_);
  }
  return result;
}

}  // namespace attnbench
