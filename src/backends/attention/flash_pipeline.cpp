// Which of the forms a problem takes is decided once, by plan_flash(), for the pipeline and
// explain() alike.
#include "backends/attention/flash_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "backends/attention/capability.h"
#include "backends/attention/dcp_pipeline.h"
#include "backends/attention/int8_stage.h"
#include "backends/attention/pipeline.h"
#include "backends/attention/tile_list.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metadata/parts/cascade.h"
#include "metadata/parts/decode_choice.h"
#include "metadata/parts/decode_plan.h"
#include "metadata/parts/local_chunks.h"
#include "ops/tile_deal.h"

namespace attnbench {
namespace {

/// Whether the shared prefixes are attended apart: where the problem says so, else by vLLM's
/// heuristic.
bool choose_cascade(const Problem& problem, int num_sms) {
  if (problem.attention.type != AttentionType::kDecoder || prefix_groups(problem).empty() ||
      problem.kv_cache.int8_level > 0) {
    return false;
  }
  if (problem.cascade.mode != CascadeMode::kAuto) {
    return problem.cascade.mode == CascadeMode::kAlways;
  }
  return heuristic_cascades(problem, num_sms);
}

/// "yes, prefix of 4096 keys", or of several groups.
std::string prefix_text(const Problem& problem) {
  const std::vector<PrefixGroup> groups = prefix_groups(problem);
  if (problem.cascade.groups.empty()) {
    return fmt::format("yes, prefix of {} keys", groups.at(0).num_keys);
  }
  std::string text = "yes,";
  for (const PrefixGroup& group : groups) {
    text += fmt::format("{} {} requests over a prefix of {} keys",
                        &group == groups.data() ? "" : ",", group.num_requests, group.num_keys);
  }
  return text;
}

bool is_mixed(const BatchSplit& batch) { return batch.num_decodes > 0 && batch.num_prefills > 0; }

/// Which calls there are, and how the keys of the decodes are shared out.
Facts call_facts(const FlashPlan& plan, const FlashRule& rule) {
  const bool has_two = is_mixed(plan.batch) ? plan.is_apart : rule.separate_decodes;
  Facts facts{{"path", has_two ? "decode and prefill calls" : "one varlen call"}};
  add_batch_facts(plan.batch, facts);
  facts.emplace_back("num_splits", std::to_string(plan.num_splits));
  facts.emplace_back("split form", to_string(plan.split_form));
  if (!plan.splits_reason.empty()) facts.emplace_back("splits", plan.splits_reason);
  return facts;
}

class FlashPipeline : public AttentionPipeline {
 public:
  FlashPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                const FlashRule& rule)
      : AttentionPipeline(problem, inputs, ops, rule.kernels),
        rule_(rule),
        plan_(plan_flash(problem, rule, {ops.num_sms(), ops.sm()})) {
    if (plan_.cascade) table_ = inputs.cache->block_table;
    if (problem.kv_cache.int8_level > 0) {
      add_int8_steps(inputs);
    } else {
      add_write_step();
    }
    if (plan_.cascade) check_prefixes(inputs);
    const bool by_tiles = goes_by_tiles(problem, params(), plan_.cascade, ops);
    if (by_tiles && !plan_.cascade) {
      FlashPlan one_launch;
      one_launch.batch = plan_.batch;
      one_launch.splits_reason = "none: all in one launch, by a list of tiles";
      plan_ = one_launch;
      is_devices_plan_ = true;
    } else if (!by_tiles && goes_apart()) {
      plan_ = plan_flash(problem, rule, {ops.num_sms(), ops.sm()}, true);
      is_devices_plan_ = true;
    }
    if (by_tiles) {
      add_tile_steps();
    } else if (plan_.cascade) {
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

  Facts facts() const override {
    Facts facts = is_devices_plan_ ? call_facts(plan_, rule_) : Facts();
    for (auto& fact : AttentionPipeline::facts()) facts.push_back(std::move(fact));
    return facts;
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
  bool goes_apart() {
    if (plan_.is_apart || !can_go_apart(problem(), plan_)) return false;
    const ApartUse use = ops().apart_use(params());
    return use == ApartUse::kAlways || (use == ApartUse::kWhereItPays && pays_apart());
  }

  bool pays_apart() {
    return decodes_pay_apart(
        apart_question(problem(), params(), plan_.batch.num_decodes, ops().num_sms()));
  }

  void add_int8_steps(const BackendInputs& inputs) {
    int8_.emplace(problem(), inputs, memory(), plan_.fused_save, cache_write(), mutable_params());
    add_step(side_step(
        "quantise_int8", [this] { int8_->quantise(); }, int8_->quantise_bytes()));
    if (plan_.fused_save) return;
    add_step(side_step(
        "write_cache", [this] { ops().write_cache_int8(int8_->write()); }, int8_->write_bytes()));
  }

  /// The requests from this one on, over wide pages where these pay.
  attn::AttendParams prefills_from(int first) {
    const attn::AttendParams prefills = slice(first, static_cast<int>(num_requests()) - first);
    return widened(prefills).value_or(prefills);
  }

  void add_attend_steps() {
    if (plan_.split_form == SplitForm::kPlanned) {
      add_planned_steps();
      return;
    }
    const int first_prefill = plan_.num_split_requests;
    if (plan_.num_splits <= 1) {
      if (plan_.is_apart) {
        const attn::AttendParams decodes = slice(0, first_prefill);
        const attn::AttendParams prefills = prefills_from(first_prefill);
        add_attend_step("attend", [this, decodes, prefills] {
          ops().attend(decodes);
          ops().attend(prefills);
        });
      } else if (plan_.fused_save) {
        add_attend_step("save_and_attend",
                        [this] { ops().save_and_attend_int8(int8_->write(), params()); });
      } else {
        const attn::AttendParams whole = widened(params()).value_or(params());
        add_attend_step("attend", [this, whole] { ops().attend(whole); });
      }
      return;
    }
    const attn::AttendParams decodes = slice(0, first_prefill);
    const attn::AttendParams prefills = prefills_from(first_prefill);
    attn::SplitParams split{};
    split.num_splits = plan_.num_splits;
    split.num_tokens = plan_.batch.num_decode_tokens;
    const std::int64_t rows = std::int64_t{split.num_splits} * split.num_tokens * decodes.num_heads;
    split.partial_output =
        memory().workspace_of<float>(rows * decodes.v_head_size, "partial output");
    split.partial_lse = memory().workspace_of<float>(rows, "partial lse");
    const bool is_joined = plan_.split_form == SplitForm::kJoined;
    if (is_joined) split.arrivals = zeros_of_arrivals(decodes);
    const char* name = plan_.fused_save ? "save_and_attend" : "attend";
    add_attend_step(name, [this, decodes, prefills, split] {
      if (plan_.fused_save) {
        ops().save_and_attend_splits_int8(int8_->write(), decodes, split);
      } else {
        ops().attend_splits(decodes, split);
      }
      if (prefills.num_requests > 0) ops().attend(prefills);
    });
    if (is_joined) return;
    add_step(
        counted_step("combine", [this, decodes, split] { ops().combine_splits(decodes, split); }));
  }

  /// Counters of whoever joins splits, which every run finds and leaves at zero.
  int* zeros_of_arrivals(const attn::AttendParams& decodes) {
    const auto count = static_cast<std::size_t>(attn::num_arrivals(
        decodes.num_requests, decodes.num_heads, decodes.num_kv_heads, decodes.max_query_len));
    const std::vector<std::int32_t> zeros(count, 0);
    return memory().starting_at(memory().upload(zeros, "split arrivals")).as<int>();
  }

  /// The plan of the decodes is made in front, from the lengths that the device then has, so that a
  /// captured graph serves every batch; its cost is a step's own and not the attention's.
  void add_planned_steps() {
    const int first_prefill = plan_.num_split_requests;
    const attn::AttendParams decodes = slice(0, first_prefill);
    const attn::AttendParams prefills = prefills_from(first_prefill);
    attn::MakePlanParams make{};
    make.query_start_loc = decodes.query_start_loc;
    make.seq_lens = decodes.seq_lens;
    make.num_requests = decodes.num_requests;
    make.num_parts = plan_.num_parts;
    make.fixed_overhead = kDecodePlanHeadsOverhead;
    // Not poisoned between runs: whoever times the attention alone runs it by the plan that there
    // is.
    const auto ints = [&](std::int64_t count, const std::string& name) {
      return memory().allocate(static_cast<std::size_t>(count) * sizeof(int), name).as<int>();
    };
    const std::int64_t entries = make.num_requests + 1;
    make.parts = ints(std::int64_t{make.num_parts} * attn::kPlanRecord, "plan parts");
    make.num_splits = ints(entries, "plan splits");
    make.partial_start_loc =
        memory()
            .allocate(static_cast<std::size_t>(entries) * sizeof(attn::i64), "plan partial starts")
            .as<attn::i64>();
    attn::PlanParams plan{};
    plan.num_parts = make.num_parts;
    plan.parts = make.parts;
    plan.num_splits = make.num_splits;
    plan.partial_start_loc = make.partial_start_loc;
    // A part begins and ends in the midst of a request at most once each, whatever the lengths.
    const std::int64_t rows =
        std::int64_t{2} * make.num_parts * decodes.max_query_len * decodes.num_heads;
    plan.partial_output =
        memory().workspace_of<float>(rows * decodes.v_head_size, "partial output");
    plan.partial_lse = memory().workspace_of<float>(rows, "partial lse");
    add_step(side_step(
        "plan", [this, make] { ops().make_plan(make); },
        static_cast<double>(make.num_requests) * 4 + make.num_parts * attn::kPlanRecord * 4.0));
    add_attend_step("attend", [this, decodes, prefills, plan] {
      ops().attend_plan(decodes, plan);
      if (prefills.num_requests > 0) ops().attend(prefills);
    });
    add_step(counted_step("combine", [this, decodes, plan] { ops().combine_plan(decodes, plan); }));
  }

  /// Padding rows (§1.1) have no page, so they share none.
  static bool is_padding(const Request& request) { return request.seq_len == 0; }

  /// The block tables must agree over each prefix: attending it once for all is right only if all
  /// requests of the group have the same pages there. Errors: those of check_cascade_prefix().
  void check_prefixes(const BackendInputs& inputs) const {
    for (const PrefixGroup& group : prefix_groups(problem())) check_prefix(inputs, group);
  }
  void check_prefix(const BackendInputs& inputs, const PrefixGroup& group) const {
    const Tensor& table = inputs.cache->block_table;
    std::vector<std::int32_t> context_lens;
    std::vector<std::int32_t> rows;
    for (std::int64_t i = 0; i < group.num_requests; ++i) {
      const auto b = static_cast<std::size_t>(group.first_request + i);
      const Request& request = problem().batch[b];
      if (is_padding(request)) continue;
      context_lens.push_back(checked_int32(request.seq_len - request.query_len, "context_len"));
      const auto* row = table.data<std::int32_t>() + static_cast<std::int64_t>(b) * table.dim(1);
      rows.insert(rows.end(), row, row + table.dim(1));
    }
    if (context_lens.empty()) return;
    check_cascade_prefix(group.num_keys, problem().kv_cache.block_size, context_lens, rows,
                         table.dim(1));
  }

  /// A float32 partial result [T, H, Dv] with LSE [H, T].
  void set_partial_output(attn::AttendParams& part, const std::string& name) {
    part.output_element = attn::Element::kF32;
    part.output =
        memory().workspace_of<float>(num_tokens() * part.num_heads * part.v_head_size, name);
    part.lse = memory().workspace_of<float>(num_tokens() * part.num_heads, name + " lse");
    part.lse_stride = num_tokens();
  }

  /// The pages of `part` from another place on in each request's row: those of `rows`[i] for its
  /// i-th request, without the first skipped_keys[i] keys. Whole pages are skipped.
  void set_table(attn::AttendParams& part, std::span<const std::int64_t> rows,
                 std::span<const std::int64_t> skipped_keys, const char* name) {
    const Tensor& table = table_;
    const std::int64_t columns = table.dim(1);
    std::vector<int> pages;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      // A batch of nothing but padding has a table without columns.
      const std::int64_t skipped = std::min(skipped_keys[i] / part.kv.block_size, columns);
      if (rows[i] >= table.dim(0)) {  // a batch without requests
        pages.insert(pages.end(), static_cast<std::size_t>(columns), -1);
        continue;
      }
      const auto* const row = table.data<std::int32_t>() + rows[i] * columns;
      pages.insert(pages.end(), row + skipped, row + columns);
      pages.insert(pages.end(), static_cast<std::size_t>(skipped), -1);  // never read
    }
    part.kv.block_table = memory().upload(pages, name);
    part.kv.block_table_stride = columns;
  }

  /// The queries of each group as one sequence over the pages that it shares, without a causal mask
  /// (§6.2); what shares nothing has an empty prefix.
  attn::AttendParams prefix_params() {
    attn::AttendParams part = params();
    const std::vector<Request>& batch = problem().batch;
    const std::vector<std::int32_t> starts = query_start_loc_of(problem());
    std::vector<std::int32_t> first_tokens{0};
    std::vector<std::int32_t> num_keys;
    std::vector<std::int64_t> table_rows;
    int longest = 0;
    const auto add = [&](std::int64_t past_request, std::int64_t row, std::int64_t keys) {
      const std::int32_t past = starts[static_cast<std::size_t>(past_request)];
      longest = std::max(longest, past - first_tokens.back());
      first_tokens.push_back(past);
      num_keys.push_back(checked_int32(keys, "prefix"));
      table_rows.push_back(row);
    };
    std::int64_t next = 0;
    for (const PrefixGroup& group : prefix_groups(problem())) {
      const auto begin = batch.begin() + group.first_request;
      const auto end = begin + group.num_requests;
      const auto first = std::find_if_not(begin, end, is_padding);
      // Nobody has the pages of a group of padding.
      add(group.first_request + group.num_requests, first == end ? 0 : first - batch.begin(),
          first == end ? 0 : group.num_keys);
      next = group.first_request + group.num_requests;
    }
    if (next < problem().num_requests()) add(problem().num_requests(), 0, 0);
    set_table(part, table_rows, std::vector<std::int64_t>(table_rows.size(), 0), "prefix pages");
    part.query_start_loc = memory().upload(first_tokens, "prefix rows");
    part.seq_lens = memory().upload(num_keys, "prefix length");
    part.num_requests = checked_int32(std::ssize(num_keys), "prefixes");
    part.max_query_len = longest;
    part.score.window_right = -1;
    set_partial_output(part, "prefix");
    return part;
  }

  /// Each request over its own keys after its prefix. Sinks count in the prefix only.
  attn::AttendParams suffix_params() {
    attn::AttendParams part = params();
    const std::vector<SharedPrefix> prefixes = shared_prefixes(problem());
    std::vector<std::int32_t> seq_lens;
    std::vector<std::int64_t> table_rows;
    std::vector<std::int64_t> skipped;
    for (std::size_t b = 0; b < prefixes.size(); ++b) {
      const Request& request = problem().batch[b];
      const std::int64_t suffix = is_padding(request) ? 0 : request.seq_len - prefixes[b].num_keys;
      seq_lens.push_back(checked_int32(suffix, "suffix"));
      table_rows.push_back(static_cast<std::int64_t>(b));
      skipped.push_back(prefixes[b].num_keys);
    }
    part.seq_lens = memory().upload(seq_lens, "suffix lengths");
    // Prefixes are whole pages, so a suffix begins with a page.
    set_table(part, table_rows, skipped, "suffix pages");
    part.score.sinks = nullptr;
    set_partial_output(part, "suffix");
    return part;
  }

  /// One launch for everything, by a list of tiles; a cascade's parts are then combined.
  void add_tile_steps() {
    const TileSteps tiles = make_tile_steps(problem(), params(), plan_.cascade, ops(), memory());
    add_attend_step("attend", [this, tiles] { ops().attend_tiles(tiles.params, tiles.list); });
    if (tiles.list.parts.num_splits == 1) return;
    add_step(counted_step("combine",
                          [this, tiles] { ops().combine_splits(tiles.params, tiles.list.parts); }));
  }

  void add_cascade_steps() {
    const attn::AttendParams prefix_part = prefix_params();
    const attn::AttendParams suffix_part = suffix_params();
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

  FlashRule rule_;
  FlashPlan plan_;
  bool is_devices_plan_ = false;   // decided by what the device said, not by the problem alone
  Tensor table_;                   // [B, columns] on the host, where prefixes are attended apart
  std::optional<Int8Stage> int8_;  // levels 1 and 2
};

}  // namespace

bool can_go_apart(const Problem& problem, const FlashPlan& plan) {
  const AttentionSpec& attention = problem.attention;
  return attention.type == AttentionType::kDecoder && is_mixed(plan.batch) && !plan.cascade &&
         !attention.chunk_size && !attention.batch_invariant && !attention.num_splits &&
         attention.split_form == SplitForm::kAuto;
}

FlashPlan plan_flash(const Problem& whole, const FlashRule& rule, const SplitDevice& device,
                     bool apart) {
  FlashPlan plan;
  if (is_encoder_type(whole.attention.type)) return plan;
  plan.cascade = choose_cascade(whole, device.num_sms);
  const Problem problem = problem_of_chunks(whole);
  plan.batch = split_batch(problem, MetadataBuilder::kFlashAttnIx);
  // A fused save finds slots by the position in a request, which a chunk does not have.
  plan.fused_save = problem.kv_cache.int8_level > 0 && !whole.attention.chunk_size &&
                    problem.attention.type == AttentionType::kDecoder &&
                    plan.batch.num_prefills == 0;
  // Batch-invariant mode fixes the order of every sum.
  if (plan.cascade || problem.attention.batch_invariant) return plan;
  // Layout FA has one varlen call for all, whose keys are split only if every request is a decode.
  if (!rule.separate_decodes && !apart && plan.batch.num_prefills > 0) return plan;
  DecodeQuestion question;
  std::vector<std::int64_t> seq_lens;
  for (int b = 0; b < plan.batch.num_decodes; ++b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    seq_lens.push_back(request.seq_len);
    question.max_query_len = std::max(question.max_query_len, request.query_len);
  }
  question.seq_lens = seq_lens;
  question.num_heads = problem.attention.num_heads;
  question.num_kv_heads = problem.attention.num_kv_heads;
  question.head_size = std::max(problem.attention.head_size, problem.attention.v_head_size);
  question.key_bytes = is_e4m3_cache(problem.kv_cache.dtype) ? 1 : 2;
  question.num_sms = device.num_sms;
  question.sm = device.sm;
  question.num_splits = problem.attention.num_splits;
  question.form = problem.attention.split_form;
  question.may_plan = problem.kv_cache.int8_level == 0;  // as form_refusals() says
  // Splits that are joined have no form that stores the new tokens too.
  question.may_join = problem.kv_cache.int8_level == 0;
  plan.num_split_requests = plan.batch.num_decodes;
  const DecodeChoice choice = choose_decode(question);
  plan.num_splits = choice.num_splits;
  plan.split_form = choice.form;
  plan.num_parts = choice.num_parts;
  plan.splits_reason = choice.reason;
  plan.is_apart = is_mixed(plan.batch) &&
                  (apart || plan.num_splits > 1 || plan.split_form == SplitForm::kPlanned);
  return plan;
}

namespace {

/// Why attention.split_form cannot be followed; empty = it can, or nothing is asked for.
std::vector<std::string> form_refusals(const Problem& problem, const FlashRule& rule,
                                       const SplitDevice& device) {
  const SplitForm wanted = problem.attention.split_form;
  if (wanted == SplitForm::kAuto) return {};
  const auto refuse = [&](std::string_view why) {
    return std::vector{fmt::format("split_form {} {}", to_string(wanted), why)};
  };
  if (problem.dcp.world_size > 1) return refuse("over ranks");
  const FlashPlan plan = plan_flash(problem, rule, device);
  if (plan.cascade) return refuse("with cascade attention");
  if (plan.num_split_requests == 0) {
    return refuse(plan.batch.num_decodes == 0 ? "without decodes"
                                              : "with prefills in the same varlen call");
  }
  if (wanted == SplitForm::kPlanned && problem.kv_cache.int8_level > 0) {
    return refuse("with int8 scores");
  }
  return {};
}

}  // namespace

std::vector<std::string> split_refusals(const Problem& problem, const FlashRule& rule,
                                        const SplitDevice& device) {
  const std::optional<int>& wanted = problem.attention.num_splits;
  if (is_encoder_type(problem.attention.type)) return {};
  if (std::vector<std::string> reasons = form_refusals(problem, rule, device); !reasons.empty()) {
    return reasons;
  }
  if (!wanted) return {};
  const auto refuse = [&](std::string_view why) {
    return std::vector{fmt::format("num_splits {} {}", *wanted, why)};
  };
  if (problem.dcp.world_size > 1) {
    // Engines have one varlen call there, whose splits are of all requests or of none.
    const int possible =
        problem.max_query_len() > 1 ? 1 : dcp_context_splits(problem, device.num_sms);
    return possible == *wanted ? std::vector<std::string>{}
                               : refuse("with queries of several tokens over ranks");
  }
  const FlashPlan plan = plan_flash(problem, rule, device);
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

Facts explain_flash(const Problem& problem, const FlashRule& rule, const SplitDevice& device) {
  if (is_encoder_type(problem.attention.type)) return {{"path", "varlen, no cache"}};
  const CacheLayoutKind layout =
      rule.separate_decodes ? CacheLayoutKind::kIx : CacheLayoutKind::kFa;
  if (problem.dcp.world_size > 1) {
    Facts facts = explain_dcp(problem, device.num_sms);
    add_cache_facts(problem, layout, rule.kernels, facts);
    return facts;
  }
  const FlashPlan plan = plan_flash(problem, rule, device);
  Facts facts = call_facts(plan, rule);
  if (problem.cascade.common_prefix_len > 0 || !problem.cascade.groups.empty()) {
    facts.emplace_back("cascade", plan.cascade ? prefix_text(problem) : "no");
  }
  if (problem.kv_cache.int8_level > 0) {
    facts.emplace_back("int8_level", std::to_string(problem.kv_cache.int8_level));
    facts.emplace_back("cache write", plan.fused_save ? "fused into decode, through the block table"
                                                      : "before attention, by slot_mapping");
  }
  add_cache_facts(problem, layout, rule.kernels, facts);
  return facts;
}

}  // namespace attnbench
