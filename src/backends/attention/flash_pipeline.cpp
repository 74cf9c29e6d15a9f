// Which of the forms a problem takes is decided once, by plan_flash(), for the pipeline and
// explain() alike.
#include "backends/attention/flash_pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/attention/capability.h"
#include "backends/attention/dcp_pipeline.h"
#include "backends/attention/int8_stage.h"
#include "backends/attention/pipeline.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metadata/parts/cascade.h"
#include "metadata/parts/decode_plan.h"
#include "metadata/parts/local_chunks.h"

namespace attnbench {
namespace {

/// Whether the shared prefix is attended apart: where the problem says so, else by vLLM's
/// heuristic, which weighs one pass over the prefix for all queries against one for each (§6.2).
bool choose_cascade(const Problem& problem, int num_sms) {
  const std::int64_t prefix = problem.cascade.common_prefix_len;
  if (problem.attention.type != AttentionType::kDecoder || prefix == 0) return false;
  if (problem.kv_cache.int8_level > 0) return false;
  if (problem.cascade.mode != CascadeMode::kAuto) {
    return problem.cascade.mode == CascadeMode::kAlways;
  }
  if (has_infinite_sink(problem.attention)) return false;
  const auto is_one = [](double scale) { return scale == 1.0; };
  const KvCacheSpec& cache = problem.kv_cache;
  // §6.2: descales must be 1; the source asserts it, so the heuristic's caller must see to it.
  if (is_quantised(cache.dtype) &&
      !(std::ranges::all_of(cache.k_scale, is_one) && std::ranges::all_of(cache.v_scale, is_one) &&
        is_one(cache.q_scale))) {
    return false;
  }
  const std::vector<std::int32_t> query_lens = query_lens_of(problem);
  CascadeQuestion question;
  question.common_prefix_len = prefix;
  question.query_lens = query_lens;
  question.num_heads = problem.attention.num_heads;
  question.num_kv_heads = problem.attention.num_kv_heads;
  question.use_alibi = problem.attention.alibi != AlibiKind::kNone;
  question.use_sliding_window = problem.attention.sliding_window.has_value();
  question.use_local_attention = problem.attention.chunk_size.has_value();
  question.num_sms = num_sms;
  question.dcp_world_size = problem.dcp.world_size;
  return use_cascade_attention(question);
}

class FlashPipeline : public AttentionPipeline {
 public:
  FlashPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                const FlashRule& rule)
      : AttentionPipeline(problem, inputs, ops, rule.kernels),
        plan_(plan_flash(problem, rule, ops.num_sms())) {
    if (problem.kv_cache.int8_level > 0) {
      add_int8_steps(inputs);
    } else {
      add_write_step();
    }
    if (plan_.cascade) {
      check_prefix(inputs);
      add_cascade_steps();
    } else {
      add_attend_steps();
    }
  }

  PipelineOutput read_output(bool with_cache) override {
    PipelineOutput output = AttentionPipeline::read_output(with_cache);
    if (int8_) int8_->read(output);
    return output;
  }

  std::optional<SampleSide> sample_side() override {
    std::optional<SampleSide> side = AttentionPipeline::sample_side();
    if (!int8_ || !side) return side;
    int8_->change(*side);
    // Codes of another query are not those that read() of the stage expects.
    side->read = [this] { return AttentionPipeline::read_output(false); };
    return side;
  }

 private:
  void add_int8_steps(const BackendInputs& inputs) {
    int8_.emplace(problem(), inputs, memory(), plan_.fused_save, cache_write(), mutable_params());
    add_step(side_step(
        "quantise_int8", [this] { int8_->quantise(); }, int8_->quantise_bytes()));
    if (plan_.fused_save) return;
    add_step(side_step(
        "write_cache", [this] { ops().write_cache_int8(int8_->write()); }, int8_->write_bytes()));
  }

  /// Requests [first, first + count) of the batch.
  attn::AttendParams slice(int first, int count) const {
    attn::AttendParams part = params();
    part.first_request = first;
    part.num_requests = count;
    part.max_query_len = 0;
    for (int b = first; b < first + count; ++b) {
      const Request& request = attended().batch[static_cast<std::size_t>(b)];
      part.max_query_len =
          std::max(part.max_query_len, checked_int32(request.query_len, "query_len"));
    }
    return part;
  }

  void add_attend_steps() {
    const int total = static_cast<int>(num_requests());
    if (plan_.num_splits <= 1) {
      if (plan_.fused_save) {
        add_attend_step("save_and_attend",
                        [this] { ops().save_and_attend_int8(int8_->write(), params()); });
      } else {
        add_attend_step("attend", [this] { ops().attend(params()); });
      }
      return;
    }
    const int first_prefill = plan_.num_split_requests;
    const attn::AttendParams decodes = slice(0, first_prefill);
    const attn::AttendParams prefills = slice(first_prefill, total - first_prefill);
    attn::SplitParams split{};
    split.num_splits = plan_.num_splits;
    split.num_tokens = plan_.batch.num_decode_tokens;
    const std::int64_t rows = std::int64_t{split.num_splits} * split.num_tokens * decodes.num_heads;
    split.partial_output =
        memory().workspace_of<float>(rows * decodes.v_head_size, "partial output");
    split.partial_lse = memory().workspace_of<float>(rows, "partial lse");
    const char* name = plan_.fused_save ? "save_and_attend" : "attend";
    add_attend_step(name, [this, decodes, prefills, split] {
      // The decode kernel stores its own keys; with split keys no single part could do it, so the
      // store is a launch in front, inside of the same step.
      if (plan_.fused_save) ops().write_cache_int8(int8_->write());
      ops().attend_splits(decodes, split);
      if (prefills.num_requests > 0) ops().attend(prefills);
    });
    add_step(
        counted_step("combine", [this, decodes, split] { ops().combine_splits(decodes, split); }));
  }

  /// Padding rows (§1.1) have no page, so they share none.
  static bool is_padding(const Request& request) { return request.seq_len == 0; }

  /// The block tables must agree over the prefix: attending it once for all is right only if all
  /// requests have the same pages there. Errors: those of check_cascade_prefix().
  void check_prefix(const BackendInputs& inputs) const {
    const Tensor& table = inputs.cache->block_table;
    std::vector<std::int32_t> context_lens;
    std::vector<std::int32_t> rows;
    for (std::size_t b = 0; b < problem().batch.size(); ++b) {
      const Request& request = problem().batch[b];
      if (is_padding(request)) continue;
      context_lens.push_back(checked_int32(request.seq_len - request.query_len, "context_len"));
      const auto* row = table.data<std::int32_t>() + static_cast<std::int64_t>(b) * table.dim(1);
      rows.insert(rows.end(), row, row + table.dim(1));
    }
    if (context_lens.empty()) return;
    check_cascade_prefix(problem().cascade.common_prefix_len, problem().kv_cache.block_size,
                         context_lens, rows, table.dim(1));
  }

  /// A float32 partial result [T, H, Dv] with LSE [H, T].
  void set_partial_output(attn::AttendParams& part, const std::string& name) {
    part.output_element = attn::Element::kF32;
    part.output =
        memory().workspace_of<float>(num_tokens() * part.num_heads * part.v_head_size, name);
    part.lse = memory().workspace_of<float>(num_tokens() * part.num_heads, name + " lse");
    part.lse_stride = num_tokens();
  }

  /// All queries as one sequence over the shared pages, without a causal mask (§6.2).
  attn::AttendParams prefix_params(std::int64_t prefix) {
    attn::AttendParams part = params();
    const std::vector<Request>& batch = problem().batch;
    const auto first = std::ranges::find_if_not(batch, is_padding);
    if (first == batch.end()) {
      prefix = 0;  // nobody has its pages
    } else {
      part.kv.block_table += (first - batch.begin()) * part.kv.block_table_stride;
    }
    part.query_start_loc = memory().upload(
        std::vector<std::int32_t>{0, checked_int32(num_tokens(), "tokens")}, "prefix rows");
    part.seq_lens = memory().upload(std::vector<std::int32_t>{checked_int32(prefix, "prefix")},
                                    "prefix length");
    part.num_requests = 1;
    part.max_query_len = checked_int32(num_tokens(), "tokens");
    part.score.window_right = -1;
    set_partial_output(part, "prefix");
    return part;
  }

  /// Each request over its own keys after the prefix. Sinks count in the prefix only.
  attn::AttendParams suffix_params(std::int64_t prefix) {
    attn::AttendParams part = params();
    std::vector<std::int32_t> seq_lens;
    for (const Request& request : problem().batch) {
      const std::int64_t suffix = is_padding(request) ? 0 : request.seq_len - prefix;
      seq_lens.push_back(checked_int32(suffix, "suffix"));
    }
    part.seq_lens = memory().upload(seq_lens, "suffix lengths");
    // The prefix is whole pages, so the suffix begins with a page.
    part.kv.block_table += prefix / part.kv.block_size;
    part.score.sinks = nullptr;
    set_partial_output(part, "suffix");
    return part;
  }

  void add_cascade_steps() {
    const std::int64_t prefix = problem().cascade.common_prefix_len;
    const attn::AttendParams prefix_part = prefix_params(prefix);
    const attn::AttendParams suffix_part = suffix_params(prefix);
    attn::MergeParams merged{};
    merged.element = attn::Element::kF32;
    merged.output_element = params().output_element;
    merged.output = params().output;
    merged.output_lse = params().lse;
    merged.output_lse_stride = params().lse_stride;
    merged.prefix_output = prefix_part.output;
    merged.prefix_lse = prefix_part.lse;
    merged.suffix_output = suffix_part.output;
    merged.suffix_lse = suffix_part.lse;
    merged.num_tokens = merged.num_merged = num_tokens();
    merged.num_heads = params().num_heads;
    merged.head_size = params().v_head_size;
    merged.prefix_head_stride = params().v_head_size;
    add_attend_step("attend_prefix", [this, prefix_part] { ops().attend(prefix_part); });
    add_step(counted_step("attend_suffix", [this, suffix_part] { ops().attend(suffix_part); }));
    add_step(counted_step("merge", [this, merged] { ops().merge(merged); }));
  }

  FlashPlan plan_;
  std::optional<Int8Stage> int8_;  // levels 1 and 2
};

}  // namespace

FlashPlan plan_flash(const Problem& whole, const FlashRule& rule, int num_sms) {
  FlashPlan plan;
  if (is_encoder_type(whole.attention.type)) return plan;
  plan.cascade = choose_cascade(whole, num_sms);
  const Problem problem = problem_of_chunks(whole);
  plan.batch = split_batch(problem, MetadataBuilder::kFlashAttnIx);
  // A fused save finds slots by the position in a request, which a chunk does not have.
  plan.fused_save = problem.kv_cache.int8_level > 0 && !whole.attention.chunk_size &&
                    problem.attention.type == AttentionType::kDecoder &&
                    plan.batch.num_prefills == 0;
  // Batch-invariant mode fixes the order of every sum.
  if (plan.cascade || problem.attention.batch_invariant) return plan;
  // Layout FA has one varlen call for all, whose keys are split only if every request is a decode.
  if (!rule.separate_decodes && plan.batch.num_prefills > 0) return plan;
  std::int64_t max_seq_len = 0;
  for (int b = 0; b < plan.batch.num_decodes; ++b) {
    max_seq_len = std::max(max_seq_len, problem.batch[static_cast<std::size_t>(b)].seq_len);
  }
  plan.num_split_requests = plan.batch.num_decodes;
  plan.num_splits = num_splits_of(problem, plan.batch.num_decodes, problem.attention.num_kv_heads,
                                  max_seq_len, num_sms);
  return plan;
}

std::vector<std::string> split_refusals(const Problem& problem, const FlashRule& rule,
                                        int num_sms) {
  const std::optional<int>& wanted = problem.attention.num_splits;
  if (!wanted || is_encoder_type(problem.attention.type)) return {};
  const auto refuse = [&](std::string_view why) {
    return std::vector{fmt::format("num_splits {} {}", *wanted, why)};
  };
  if (problem.dcp.world_size > 1) {
    return dcp_context_splits(problem, num_sms) == *wanted
               ? std::vector<std::string>{}
               : refuse("with queries of several tokens over ranks");
  }
  const FlashPlan plan = plan_flash(problem, rule, num_sms);
  if (plan.num_splits == *wanted) return {};
  if (plan.cascade) return refuse("with cascade attention");
  return refuse(plan.batch.num_decodes == 0 ? "without decodes"
                                            : "with prefills in the same varlen call");
}

std::unique_ptr<Pipeline> make_flash_pipeline(const Problem& problem, const BackendInputs& inputs,
                                              Ops& ops, const FlashRule& rule) {
  // §7.6: this branch replaces the split into decodes and prefills.
  if (problem.dcp.world_size > 1) return make_dcp_pipeline(problem, inputs, ops, rule.kernels);
  return std::make_unique<FlashPipeline>(problem, inputs, ops, rule);
}

Facts explain_flash(const Problem& problem, const FlashRule& rule, int num_sms) {
  if (is_encoder_type(problem.attention.type)) return {{"path", "varlen, no cache"}};
  const CacheLayoutKind layout =
      rule.separate_decodes ? CacheLayoutKind::kIx : CacheLayoutKind::kFa;
  if (problem.dcp.world_size > 1) {
    Facts facts = explain_dcp(problem, num_sms);
    add_cache_facts(problem, layout, rule.kernels, facts);
    return facts;
  }
  const FlashPlan plan = plan_flash(problem, rule, num_sms);
  Facts facts{{"path", rule.separate_decodes ? "decode and prefill calls" : "one varlen call"},
              {"num_decodes", std::to_string(plan.batch.num_decodes)},
              {"num_prefills", std::to_string(plan.batch.num_prefills)},
              {"num_decode_tokens", std::to_string(plan.batch.num_decode_tokens)},
              {"num_prefill_tokens", std::to_string(plan.batch.num_prefill_tokens)},
              {"num_splits", std::to_string(plan.num_splits)},
              {"cascade", plan.cascade ? fmt::format("yes, prefix of {} keys",
                                                     problem.cascade.common_prefix_len)
                                       : std::string("no")}};
  if (problem.kv_cache.int8_level > 0) {
    facts.emplace_back("int8_level", std::to_string(problem.kv_cache.int8_level));
    facts.emplace_back("cache write", plan.fused_save ? "fused into decode, through the block table"
                                                      : "before attention, by slot_mapping");
  }
  add_cache_facts(problem, layout, rule.kernels, facts);
  return facts;
}

}  // namespace attnbench
