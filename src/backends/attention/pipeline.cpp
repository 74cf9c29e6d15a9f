// The constructor resolves the whole problem into one AttendParams: rows, scores, keys. Derived
// pipelines copy it and change what they cut differently (fewer requests, other keys, partial
// outputs), so that every field has one place where its meaning is decided.
#include "backends/attention/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/attention/wide_pages.h"
#include "backends/kernel_params.h"
#include "backends/traffic.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metadata/parts/local_chunks.h"

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
      attended_(problem_of_chunks(problem)),
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
  set_rotation();
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
  params_.query_start_loc = memory_.upload(query_start_loc_of(attended_), "query_start_loc");
  params_.seq_lens = memory_.upload(seq_lens_of(attended_), "seq_lens");
  params_.num_requests = checked_int32(num_requests(), "requests");
  params_.batch_invariant = problem_.attention.batch_invariant ? 1 : 0;
  params_.max_query_len = checked_int32(attended_.max_query_len(), "query_len");
  params_.max_seq_len = checked_int32(attended_.max_seq_len(), "seq_len");
  params_.num_heads = a.num_heads;
  params_.num_kv_heads = a.num_kv_heads;
  params_.head_size = a.head_size;
  params_.v_head_size = a.v_head_size;
  params_.e4m3_probability = a.probability_dtype == ProbabilityDtype::kFp8E4M3 ? 1 : 0;
  params_.fast_fp8_sums = a.fp8_accumulation == Fp8Accumulation::kFast ? 1 : 0;
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
      if (cells.plane_bytes(is_key) == 0) continue;
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
  const void* query = rotate_query_ ? rotate_query_->source : params_.query;
  side.add_query(query, params_.query_element, num_tokens_, params_.query_token_stride);
  side.blocks = redrawn_;
  side.planes = planes_;
  side.add_output(memory_, final_output(), params_.output_element);
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
  if (problem_.attention.chunk_size) set_chunk_tables(cache.block_table);
  kv.block_size = problem_.kv_cache.block_size;
  set_scales(layout);
  set_cache_write(cache);
  // Why: a case of shapes has a table and no keys, and nothing runs; a rank by itself has the keys
  // in its cache only.
  if (!inputs.inputs->shapes_only && inputs.seat == nullptr)
    set_redrawn_blocks(cache, *inputs.stored);
  if (calculates_kv_scales(problem_)) calculate_scales(*inputs.inputs);
}

void AttentionPipeline::set_chunk_tables(const Tensor& table) {
  const std::int64_t block_size = problem_.kv_cache.block_size;
  const auto* const rows = table.data<std::int32_t>();
  const std::int64_t columns =
      std::max<std::int64_t>(1, ceil_div(attended_.max_seq_len(), block_size));
  std::vector<int> tables;
  for (const LocalChunk& chunk : local_chunks(problem_.batch, *problem_.attention.chunk_size)) {
    const std::int64_t pages = ceil_div(chunk.rows.seq_len, block_size);
    const auto* const first = rows + chunk.request * table.dim(1) + chunk.first_key / block_size;
    tables.insert(tables.end(), first, first + pages);
    tables.insert(tables.end(), static_cast<std::size_t>(columns - pages), -1);
  }
  params_.kv.block_table = memory_.upload(tables, "block_table of chunks");
  params_.kv.block_table_stride = columns;
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
  kv.coding = kv_coding_of(dtype);
  place_inner_scales(layout, cache_->data(), write_);
  kv.key_scales = write_.key_scales;
  kv.value_scales = write_.value_scales;
  kv.scale_block_stride = write_.scale_block_stride;
  kv.scale_slot_stride = write_.scale_slot_stride;
  kv.scale_head_stride = write_.scale_head_stride;
  kv.block_scales = write_.block_scales;
  const std::vector<float> centroids = cache_centroids(dtype, problem_.attention.head_size);
  if (!centroids.empty()) kv.centroids = memory_.upload(centroids, "centroids");
  if (reads_tensor_scales(dtype)) set_tensor_scales();
}

/// Keys and values lie rotated in the cache, so queries are rotated for it and outputs back: both
/// have a second place in memory, at which the attention itself works. Why D divides the scale: a
/// rotation of both makes every product D times as large.
void AttentionPipeline::set_rotation() {
  if (cache_ == nullptr || !is_rotated(problem_.kv_cache.dtype)) return;
  attn::AttendParams& p = params_;
  rotate_query_ = attn::RotateHeadsParams{};
  attn::RotateHeadsParams& query = *rotate_query_;
  query.element = p.query_element;
  query.source = p.query;
  query.source_token_stride = query.output_token_stride = p.query_token_stride;
  query.source_head_stride = query.output_head_stride = p.query_head_stride;
  query.output =
      memory_.workspace_of(p.query_element, num_rows_ * p.num_heads * p.head_size, "rotated query");
  query.num_tokens = num_tokens_;
  query.num_heads = p.num_heads;
  query.head_size = p.head_size;
  p.query = query.output;
  rotate_output_ = attn::RotateHeadsParams{};
  attn::RotateHeadsParams& output = *rotate_output_;
  output.element = p.output_element;
  output.source = memory_.workspace_of(p.output_element, num_rows_ * p.num_heads * p.v_head_size,
                                       "rotated output");
  output.source_token_stride = output.output_token_stride = p.output_token_stride;
  output.source_head_stride = output.output_head_stride = p.output_head_stride;
  output.output = p.output;
  output.num_tokens = num_tokens_;
  output.num_heads = p.num_heads;
  output.head_size = p.v_head_size;
  output.inverse = 1;
  p.output = const_cast<void*>(output.source);
  p.score.softmax_scale /= static_cast<float>(p.head_size);
}

void AttentionPipeline::add_rotate_query_step() { add_rotate_step("rotate_query", rotate_query_); }

void AttentionPipeline::add_rotate_output_step() {
  add_rotate_step("rotate_output", rotate_output_);
}

void AttentionPipeline::add_rotate_step(const char* name,
                                        const std::optional<attn::RotateHeadsParams>& rotation) {
  if (!rotation) return;
  const attn::RotateHeadsParams params = *rotation;
  add_step(counted_step(name, [this, params] { ops().rotate_heads(params); }));
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
  write_.coding = kv.coding;
  write_.centroids = kv.centroids;
  write_.int8_truncate = problem_.kv_cache.pth_int8_round == PthInt8Round::kTrunc ? 1 : 0;
}

/// The query before it is quantised, and the rows of keys and values that are written.
void AttentionPipeline::calculate_scales(const AttentionInputs& inputs) {
  const AttentionSpec& a = problem_.attention;
  const Tensor& query = inputs.query;
  const std::int64_t num_new = write_.num_slots - static_cast<std::int64_t>(kPaddingSlots.size());
  kv_scales_ = std::make_unique<KvScaleStep>(
      memory_, kv_scale_constants(problem_),
      ScaledRows{element_of(query.dtype()), memory_.upload(query, "query_unquantized"), num_tokens_,
                 a.num_heads, a.head_size},
      ScaledRows{write_.source_element, write_.key, num_new, a.num_kv_heads, a.head_size},
      ScaledRows{write_.source_element, write_.value, num_new, a.num_kv_heads, a.v_head_size},
      a.num_kv_heads);
  params_.kv.k_scale = write_.k_scale = kv_scales_->k_scale();
  params_.kv.v_scale = write_.v_scale = kv_scales_->v_scale();
}

void AttentionPipeline::add_write_step() {
  if (cache_ == nullptr || problem_.attention.kv_sharing) return;
  if (kv_scales_) {
    add_step(side_step(
        "calc_kv_scales", [this] { kv_scales_->run(); }, kv_scales_->bytes()));
  }
  const auto vector_bytes = [this](int width) {
    const auto stored = static_cast<std::size_t>(stored_width(problem_.kv_cache.dtype, width));
    return static_cast<double>(static_cast<std::size_t>(width) *
                                   element_size(write_.source_element) +
                               stored * dtype_size(cache_dtype_));
  };
  const double vectors = static_cast<double>(write_.num_slots) * write_.num_kv_heads;
  add_step(side_step(
      "write_cache", [this] { ops().write_cache(write_); },
      vectors * (vector_bytes(write_.head_size) + vector_bytes(write_.v_head_size))));
}

attn::AttendParams AttentionPipeline::slice(int first, int count) const {
  attn::AttendParams part = params_;
  part.first_request = first;
  part.num_requests = count;
  part.max_query_len = part.max_seq_len = 0;
  for (int b = first; b < first + count; ++b) {
    const Request& request = attended_.batch[static_cast<std::size_t>(b)];
    part.max_query_len =
        std::max(part.max_query_len, checked_int32(request.query_len, "query_len"));
    part.max_seq_len = std::max(part.max_seq_len, checked_int32(request.seq_len, "seq_len"));
  }
  return part;
}

/// Which scales wide pages can have: gather_mla() knows one for all heads, and rounds what it has
/// multiplied, as attention does that rounds dequantised keys. Any other can only be without one.
bool AttentionPipeline::can_scale_once() const {
  const StoreRule rule = resolve_store_rule(problem_, rules_);
  const auto are_all = [](const std::vector<float>& scale, float value) {
    return std::all_of(scale.begin(), scale.end(), [&](float s) { return s == value; });
  };
  if (rule.dequantized_rounding) {
    return are_all(rule.k_scale, rule.k_scale.front()) &&
           are_all(rule.v_scale, rule.v_scale.front());
  }
  return !kv_scales_ && are_all(rule.k_scale, 1.0f) && are_all(rule.v_scale, 1.0f);
}

std::optional<attn::AttendParams> AttentionPipeline::widened(const attn::AttendParams& part) {
  if (cache_ == nullptr) return std::nullopt;
  std::optional<WidePages> wide;
  if (reads_tensor_scales(problem_.kv_cache.dtype) && can_scale_once()) {
    wide = make_wide_pages(attended_.batch, part, memory_);
  }
  if (!wide) wide = make_wide_values(attended_.batch, part, memory_);
  if (!wide) return std::nullopt;
  widened_ = wide->keys ? "codes" : "values";
  add_step(counted_step("widen_cache", [this, pages = *wide] {
    if (pages.keys) ops().gather_mla(*pages.keys);
    ops().gather_mla(pages.values);
  }));
  return wide->attend;
}

Facts AttentionPipeline::facts() const {
  if (widened_.empty()) return {};
  const Dtype dtype = widened_ == "values" ? Dtype::kF16 : problem_.attention.dtype;
  return {{widened_ + " of prompts",
           fmt::format("converted to {} in front of the attention", dtype_name(dtype))}};
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
  DeviceBuffers::Rows output = memory_.read_rows(final_output(), output_dtype(problem_),
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
