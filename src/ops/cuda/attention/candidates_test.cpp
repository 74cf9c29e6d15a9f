// Which kernel an attention operation takes, and what is said about the others.
#include "ops/cuda/attention/candidates.h"

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <set>

#include "core/error.h"
#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/hopper_problem_testing.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/testing/all_cases_testing.h"

namespace attnbench::cuda {
namespace {

/// One request of 8 heads that share 2 KV heads, bf16 over pages of 16.
struct Form {
  alignas(32) std::array<char, 128> memory{};
  attn::AttendParams params{};
  attn::SplitParams split{};
  attn::SegmentParams segments{};
  attn::PlanParams plan{};
  attn::SparseParams sparse{};
  attn::TileListParams list{};

  explicit Form(int query_len = 1, int head_size = 128) {
    static constexpr int kTable = 0;
    params.query_element = params.output_element = params.kv.element = attn::Element::kBF16;
    params.query = memory.data();
    params.num_requests = 1;
    params.num_heads = 8;
    params.num_kv_heads = 2;
    params.max_query_len = query_len;
    params.head_size = params.v_head_size = head_size;
    params.query_head_stride = head_size;
    params.query_token_stride = 8 * head_size;
    params.score.softmax_scale = 1.0f;
    params.kv.block_table = &kTable;
    params.kv.block_size = 16;
    params.kv.key = memory.data();
    params.kv.value = memory.data() + 64;
    params.kv.head_stride_key = params.kv.head_stride_value = head_size;
    params.kv.token_stride_key = params.kv.token_stride_value = 2 * head_size;
    params.kv.block_stride = 32 * head_size;
    split.num_splits = 4;
    segments.num_segments = 16;
    segments.tile = 16;
    plan.num_parts = 8;
    list.tile_rows = 128;
  }
  AttendCall call(AttendOperation operation = AttendOperation::kWhole) const {
    AttendCall call{operation, &params};
    if (operation == AttendOperation::kSplits) call.split = &split;
    if (operation == AttendOperation::kSegments) call.segments = &segments;
    if (operation == AttendOperation::kPlan) call.plan = &plan;
    if (operation == AttendOperation::kSparse) call.sparse = &sparse;
    if (operation == AttendOperation::kSparsePlan) call.sparse = &sparse, call.plan = &plan;
    if (operation == AttendOperation::kTiles) call.list = &list;
    return call;
  }
  std::string chosen(AttendOperation operation = AttendOperation::kWhole,
                     std::string_view forced = {}) const {
    return choose_attend(target_of_sm(90), call(operation), forced).name;
  }
  /// Why candidate `name` does not fit, or yields.
  std::string reason(const std::string& name,
                     AttendOperation operation = AttendOperation::kWhole) const {
    for (const CandidateVerdict& verdict :
         decide_attend(target_of_sm(90), call(operation), {}).candidates) {
      if (verdict.name == name) return verdict.reason;
    }
    return "no such candidate";
  }
};

/// Scores of int8 codes at level 1.
Form int8_form(int query_len = 1) {
  static constexpr float kScale = 1.0f;
  Form form(query_len);
  attn::AttendParams& params = form.params;
  params.query_element = params.kv.element = attn::Element::kI8;
  params.kv.key_scales = &kScale;
  params.int8.query_scale = params.int8.value_channel_scale = &kScale;
  params.int8.value_element = attn::Element::kI8;
  return form;
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUnsupported);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE(
    "the first kernel that fits attends: f32, decode for few rows, hopper_prefill, prefill, "
    "general") {
  CHECK(attend_candidate_names() ==
        std::vector<std::string>{"f32", "decode", "hopper_prefill", "prefill", "hopper_latent",
                                 "hopper_latent_codes", "hopper_gathered", "hopper_tiles",
                                 "general"});
  CHECK(Form(16).chosen() == "decode");  // 64 rows of 4 heads that share one
  CHECK(Form(17).chosen() == "hopper_prefill");
  CHECK(Form(17).chosen(AttendOperation::kWhole, "prefill") == "prefill");
  CHECK(Form(1, 92).chosen() == "general");
  for (const AttendOperation parts : {AttendOperation::kSplits, AttendOperation::kSegments}) {
    CHECK(Form(1).chosen(parts) == "decode");
    CHECK(Form(100).chosen(parts) == "decode");
    CHECK(Form(1, 320).chosen(parts) == "general");
  }
  CHECK(Form().chosen(AttendOperation::kPlan) == "decode");
  CHECK(Form(1, 320).chosen(AttendOperation::kPlan) == "general");
  Form f32;
  f32.params.query_element = f32.params.kv.element = attn::Element::kF32;
  CHECK(f32.chosen() == "f32");
  CHECK(f32.chosen(AttendOperation::kSplits) == "f32");
  CHECK(f32.chosen(AttendOperation::kPlan) == "general");
  Form invariant;
  invariant.params.batch_invariant = 1;
  CHECK(invariant.chosen() == "hopper_prefill");
}

TEST_CASE("decodes by int8 scores are the decode kernel's, up to 32 rows") {
  const AttendOperation splits = AttendOperation::kSplits;
  const Form decode = int8_form();
  for (const AttendOperation operation : {AttendOperation::kWhole, splits}) {
    CHECK(decode.chosen(operation) == "decode");
    CHECK(decode.chosen(operation, "decode") == "decode");
    CHECK(decode.chosen(operation, "decode:few=1") == "decode");
  }
  CHECK(int8_form(8).chosen(AttendOperation::kWhole, "decode:few=1") == "decode");
  // 36 rows of 4 heads that share one.
  const Form many = int8_form(9);
  CHECK(many.chosen() == "hopper_prefill");
  CHECK(many.reason("decode") == "36 query rows of a KV head, from 33 on the next is faster");
  CHECK(many.chosen(splits) == "decode");
  CHECK(many.chosen(AttendOperation::kWhole, "decode") == "decode");
  CHECK(many.chosen(AttendOperation::kWhole, "decode:few=1") == "hopper_prefill");
  CHECK(many.chosen(splits, "decode:few=1") == "decode");
  const AttendDecision left =
      decide_attend(target_of_sm(90), many.call(AttendOperation::kWhole), "decode:few=1");
  for (const CandidateVerdict& verdict : left.candidates) {
    CHECK(verdict.is_chosen == (verdict.name == "hopper_prefill"));
  }
  CHECK(Form(17).chosen(AttendOperation::kWhole, "decode:few=1") == "hopper_prefill");
  CHECK(forced_options_misfit("decode:few=2").find("few=0 or 1") != std::string::npos);
  CHECK(forced_options("decode:few=1", "decode") == "few=1");
  CHECK(forced_options("decode:few=1", "hopper_prefill").empty());
  Form ragged = decode;
  ragged.params.kv.block_table = nullptr;
  CHECK(ragged.reason("decode") == "scores of int8 codes over contiguous keys");
  Form narrow = decode;
  narrow.params.v_head_size = 72;
  CHECK(narrow.reason("decode") == "scores of int8 codes: head size 72 is not a multiple of 32");
}

TEST_CASE("a kernel that does not fit says why") {
  CHECK(Form(1, 92).reason("prefill") == "head size 92 is not a multiple of 8");
  CHECK(Form(1, 264).reason("decode") == "head size 264 is more than 256");
  CHECK(Form().reason("f32") == "bf16 queries: it is for f32");
  CHECK(Form().reason("prefill", AttendOperation::kSplits) == "it has no form of attend_splits");
  CHECK(Form().reason("decode", AttendOperation::kSparse) == "it has no form of attend_sparse");
  CHECK(Form().reason("f32", AttendOperation::kPlan) == "it has no form of attend_plan");
  CHECK(Form().reason("general", AttendOperation::kTiles) == "it has no form of attend_tiles");
  Form blocks;
  blocks.params.kv.block_size = 8;
  CHECK(blocks.reason("prefill") == "blocks of 8 keys: it takes multiples of 16");
  Form mixed;
  mixed.params.kv.element = attn::Element::kF16;
  CHECK(mixed.reason("decode") == "bf16 queries over f16 keys: it multiplies elements of one type");
  Form rows;
  rows.params.kv.token_stride_key += 1;
  CHECK(rows.reason("prefill") ==
        "rows of keys and values lie on multiples of 2 bytes, 4 are needed");
  Form queries;
  queries.params.query_token_stride += 1;
  CHECK(queries.reason("decode") == "rows of queries lie on multiples of 2 bytes, 4 are needed");
  Form rounded;
  rounded.params.e4m3_probability = 1;
  CHECK(rounded.reason("decode") == "probabilities in e4m3: it keeps them in 16 bits");
  Form invariant;
  invariant.params.batch_invariant = 1;
  CHECK(invariant.reason("decode") ==
        "its tiles depend on the size of the batch, which has to be batch invariant");
  Form wide(1, 576);
  wide.params.query_element = wide.params.kv.element = attn::Element::kF32;
  wide.params.v_head_size = 584;
  CHECK(wide.reason("f32") == "head size 584 of the values is more than 576");
}

TEST_CASE("a decision has every kernel once, and what became of it") {
  const AttendDecision decision = decide_attend(target_of_sm(90), Form(100).call(), {});
  CHECK(decision.operation == "attend");
  const std::vector<CandidateVerdict> expected{
      {"f32", false, false, "bf16 queries: it is for f32"},
      {"decode", false, true, "400 query rows of a KV head, from 65 on the next is faster"},
      {"hopper_prefill", true, true, ""},
      {"prefill", false, true, ""},
      {"hopper_latent", false, false, "head sizes 128 and 128: it is for 576 and 512"},
      {"hopper_latent_codes", false, false,
       "bf16 queries over bf16 entries: it multiplies e4m3 by e4m3"},
      {"hopper_gathered", false, false,
       "bf16 entries in blocks: it is for lists of entries, and for e4m3"},
      {"hopper_tiles", false, false, "it has no form of attend"},
      {"general", false, true, ""}};
  CHECK(decision.candidates == expected);
  const AttendDecision forced = decide_attend(target_of_sm(90), Form(100).call(), "general");
  CHECK_FALSE(forced.candidates[2].is_chosen);
  CHECK(forced.candidates.back().is_chosen);
}

TEST_CASE("a forced kernel is taken wherever it fits, and refused with its reason elsewhere") {
  for (const char* name : {"decode", "hopper_prefill", "prefill", "general"}) {
    CHECK(Form(100).chosen(AttendOperation::kWhole, name) == name);
    CHECK(Form(1).chosen(AttendOperation::kWhole, name) == name);
  }
  CHECK(refusal([] { Form(1, 92).chosen(AttendOperation::kWhole, "prefill"); }) ==
        "kernel prefill cannot do attend: head size 92 is not a multiple of 8");
  CHECK(refusal([] { Form().chosen(AttendOperation::kSplits, "prefill"); }) ==
        "kernel prefill cannot do attend_splits: it has no form of attend_splits");
}

TEST_CASE("operations launch the forced kernel until the force ends, and combine as ever") {
  const Form form;
  std::vector<KernelSpec> specs;
  std::vector<AttendDecision> decisions;
  const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs, &decisions);
  ops->force_kernel("general");
  ops->attend_splits(form.params, form.split);
  ops->attend_splits(form.params, form.split);
  ops->force_kernel("");
  ops->attend_splits(form.params, form.split);
  REQUIRE(specs.size() == 2);
  CHECK(specs[0].function == "attn::general_splits");
  CHECK(specs[1].function == "attn::decode_splits");
  CHECK(decisions.size() == 2);
  ops->force_kernel("prefill");
  CHECK_THROWS_AS(ops->attend_splits(form.params, form.split), Error);
  CHECK(decisions.size() == 3);  // is known, though nothing was launched
  CHECK(specs.size() == 2);
}

namespace {

/// One token of 128 heads over bf16 latents in pages of 64.
Form latent_form() {
  Form latents(1, 576);
  attn::AttendParams& p = latents.params;
  p.v_head_size = 512;
  p.num_heads = 128;
  p.num_kv_heads = 1;
  p.query_token_stride = 128 * 576;
  p.output_token_stride = 128 * 512;
  p.output_head_stride = 512;
  p.score.window_left = -1;
  p.kv.value = p.kv.key;
  p.kv.block_size = 64;
  p.kv.token_stride_key = p.kv.token_stride_value = 576;
  p.kv.block_stride = 64 * 576;
  return latents;
}

}  // namespace

TEST_CASE("latents on Hopper attend by their kernel, and by the general one where it is forced") {
  const Form latents = latent_form();
  for (const AttendOperation operation :
       {AttendOperation::kWhole, AttendOperation::kSplits, AttendOperation::kPlan}) {
    CHECK(latents.chosen(operation) == "hopper_latent");
    CHECK(latents.chosen(operation, "general") == "general");
  }
  CHECK(latents.chosen(AttendOperation::kPlan, "hopper_latent:evict_first=0") == "hopper_latent");
  CHECK(forced_options_misfit("hopper_latent:evict_first=1:promotion=256:few=0") == "");
  CHECK(forced_options_misfit("hopper_latent:evict_first=2") ==
        "option 'evict_first=2': expected evict_first=0 or 1, promotion=128 or 256, few=0 or 1");
  const auto reason_with = [&](const auto& change) {
    Form changed = latents;
    change(changed.params);
    return changed.reason("hopper_latent");
  };
  using attn::AttendParams;
  using attn::Element;
  CHECK(reason_with([](AttendParams& c) { c.kv.element = Element::kE4M3; }) ==
        "bf16 queries over e4m3 entries: it multiplies bf16 or f16 of one type");
  CHECK(reason_with([](AttendParams& c) { c.output_element = Element::kF16; }) ==
        "output in f16: it stores the type of the query or f32");
  CHECK(reason_with([](AttendParams& c) { c.num_kv_heads = 2; }) == "2 KV heads: it is for 1");
  CHECK(reason_with([](AttendParams& c) { c.kv.block_table = nullptr; }) ==
        "keys that are not in blocks: it goes by a block table");
  CHECK(reason_with([](AttendParams& c) { c.kv.token_stride_value = 512; }) ==
        "values beside the keys: it takes them from the keys");
  CHECK(reason_with([](AttendParams& c) { c.kv.block_size = 48; }) ==
        "blocks of 48 keys: it takes 16, 32 and multiples of 64");
  CHECK(reason_with([](AttendParams& c) { c.kv.block_stride += 4; }) ==
        "entries lie on multiples of 8 bytes, 16 are needed");
  CHECK(reason_with([](AttendParams& c) { c.score.window_left = 100; }) ==
        "masks: it has the causal one");
  CHECK(reason_with([](AttendParams& c) { c.score.soft_cap = 30.0f; }) ==
        "soft-caps, ALiBi and sinks: it has none of them");
  CHECK(reason_with([](AttendParams& c) { c.score.softmax_scale = 0.0f; }) ==
        "a softmax scale of 0: it has to be above 0");
  CHECK(reason_with([](AttendParams& c) { c.e4m3_probability = 1; }) ==
        "codes of one byte: scores, probabilities and output have 16 or 32 bits");
  CHECK(reason_with([](AttendParams& c) { c.output_head_stride += 4; }) ==
        "rows of output lie on multiples of 8 bytes, 16 are needed");
  CHECK(decide_attend(target_of_sm(80), latents.call(), {}).candidates[4].reason ==
        "compute capability 80: it is for 90");
}

TEST_CASE("lists of latents and e4m3 ones are gathered") {
  using attn::Element;
  using attn::MlaEntry;
  const Form lists = latent_form();
  for (const AttendOperation operation : {AttendOperation::kSparse, AttendOperation::kSparsePlan}) {
    CHECK(lists.chosen(operation) == "hopper_gathered");
    CHECK(lists.chosen(operation, "general") == "general");
    CHECK(lists.reason("hopper_latent", operation) ==
          "it has no form of " + std::string(operation_name(operation)));
  }
  Form codes = latent_form();
  codes.params.kv.element = Element::kE4M3;
  for (const AttendOperation operation :
       {AttendOperation::kWhole, AttendOperation::kSplits, AttendOperation::kPlan}) {
    CHECK(codes.chosen(operation) == "hopper_gathered");
    CHECK(codes.chosen(operation, "general") == "general");
    CHECK(lists.reason("hopper_gathered", operation) ==
          "bf16 entries in blocks: it is for lists of entries, and for e4m3");
  }
  CHECK(codes.reason("hopper_gathered", AttendOperation::kSegments) ==
        "it has no form of attend_segments");
  const auto reason_with = [](const Form& form, AttendOperation operation, const auto& change) {
    Form changed = form;
    change(changed);
    return changed.reason("hopper_gathered", operation);
  };
  CHECK(lists.chosen(AttendOperation::kSparse, "hopper_gathered:pieces=0") == "hopper_gathered");
  CHECK(forced_options_misfit("hopper_gathered:fences=0:pieces=1") == "");
  CHECK(forced_options_misfit("hopper_gathered:fences=2") ==
        "option 'fences=2': expected pieces, fences, few or pair, =0 or 1");
  constexpr AttendOperation kWhole = AttendOperation::kWhole;
  constexpr AttendOperation kSparse = AttendOperation::kSparse;
  // Nobody looks at masks of a list.
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.score.window_left = 7; }) ==
        lists.reason("hopper_gathered", kSparse));
  CHECK(reason_with(codes, kWhole, [](Form& f) { f.params.score.window_left = 7; }) ==
        "masks: it has the causal one");
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.query_element = Element::kF16; }) ==
        "f16 queries over bf16 entries: it multiplies bf16 or f16 of one type");
  CHECK(reason_with(lists, kSparse, [](Form& f) {
          f.params.query_element = Element::kF16;
          f.sparse.format = MlaEntry::kDsMla;
        }) == "f16 queries over fp8_ds_mla entries: it takes bf16 ones");
  CHECK(reason_with(lists, kSparse, [](Form& f) {
          f.sparse.format = MlaEntry::kModel1;
          f.params.head_size = 512;
        }) == "fp8_model1_mla entries: it is for fp8_ds_mla, e4m3 and 16 bits");
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.kv.token_stride_key += 4; }) ==
        "entries lie on multiples of 8 bytes, 16 are needed");
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.kv.block_stride += 8; }) ==
        "blocks 36872 apart, entries 576: it counts in whole entries");
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.kv.block_stride += 576; }) ==
        lists.reason("hopper_gathered", kSparse));
  CHECK(reason_with(lists, kSparse, [](Form& f) { f.params.kv.block_stride = 576 << 21; }) ==
        "blocks 1207959552 apart: it takes strides up to 1073741823");
  CHECK(reason_with(codes, kWhole, [](Form& f) { f.params.query_element = Element::kF32; }) ==
        "f32 queries over e4m3 entries: it takes queries of 16 bits or e4m3");
  CHECK(reason_with(codes, kWhole, [](Form& f) {
          f.params.query_element = Element::kE4M3;
          f.params.query_head_stride = 584;
        }) == "rows of queries lie on multiples of 8 bytes, 16 are needed");
  CHECK(reason_with(codes, kWhole, [](Form& f) {
          static constexpr float kOther = 1.0f;
          f.params.kv.round_dequantized = 1;
          f.params.kv.v_scale = &kOther;
        }) == "values with a scale of their own: they are the rounded keys");
  CHECK(reason_with(codes, kWhole, [](Form& f) { f.params.output_element = Element::kE4M3; }) ==
        "output in e4m3: it stores 16 bits or f32");
  CHECK(reason_with(codes, kWhole, [](Form& f) { f.params.output_head_stride += 4; }) ==
        "rows of output lie on multiples of 8 bytes, 16 are needed");
}

TEST_CASE("latents in e4m3 are those of a kernel of their own where the query is in e4m3, too") {
  using attn::Element;
  Form codes = latent_form();
  codes.params.query_element = codes.params.kv.element = Element::kE4M3;
  for (const AttendOperation operation :
       {AttendOperation::kWhole, AttendOperation::kSplits, AttendOperation::kPlan}) {
    CHECK(codes.chosen(operation) == "hopper_latent_codes");
    CHECK(codes.chosen(operation, "hopper_gathered") == "hopper_gathered");
  }
  const auto reason_with = [&](const auto& change) {
    Form changed = codes;
    change(changed.params);
    return changed.reason("hopper_latent_codes", AttendOperation::kWhole);
  };
  CHECK(reason_with([](attn::AttendParams&) {}) == "");
  CHECK(reason_with([](attn::AttendParams& p) { p.query_element = Element::kBF16; }) ==
        "bf16 queries over e4m3 entries: it multiplies e4m3 by e4m3");
  CHECK(reason_with([](attn::AttendParams& p) { p.kv.round_dequantized = 1; }) ==
        "entries that are rounded: it takes codes as they are");
  CHECK(reason_with([](attn::AttendParams& p) { p.output_element = Element::kE4M3; }) ==
        "output in e4m3: it stores 16 bits or f32");
  CHECK(reason_with([](attn::AttendParams& p) { p.query_head_stride = 584; }) ==
        "rows of queries lie on multiples of 8 bytes, 16 are needed");
  CHECK(reason_with([](attn::AttendParams& p) { p.head_size = 320; }) ==
        "head sizes 320 and 512: it is for 576 and 512");
  CHECK(reason_with([](attn::AttendParams& p) { p.kv.block_size = 48; }) ==
        "blocks of 48 keys: it takes 16, 32 and multiples of 64");
  CHECK(reason_with([](attn::AttendParams& p) { p.score.window_left = 7; }) ==
        "masks: it has the causal one");
  CHECK(reason_with([](attn::AttendParams& p) { p.e4m3_probability = 1; }) == "");
  CHECK(reason_with([](attn::AttendParams& p) { p.output_scale = 1.0f; }) ==
        "codes of one byte: scores, probabilities and output have 16 or 32 bits");
  CHECK(codes.reason("hopper_latent_codes", AttendOperation::kSegments) ==
        "it has no form of attend_segments");
  CHECK(decide_attend(target_of_sm(80), codes.call(), {}).candidates[5].reason ==
        "compute capability 80: it is for 90");
}

TEST_CASE("the covering cases take every kernel, and every one of them is forced in some case") {
  std::set<std::string> taken;
  std::set<std::string> fitting;
  std::vector<OperationCase> cases = all_operation_cases();
  const std::size_t unforced = cases.size();
  add_latent_attend_cases(cases);
  const std::size_t latents = cases.size();
  add_gathered_attend_cases(cases);
  const std::size_t gathered = cases.size();
  add_latent_codes_cases(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const OperationCase& c = cases[i];
    std::vector<KernelSpec> specs;
    std::vector<AttendDecision> decisions;
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs, &decisions);
    if (i >= unforced) {
      ops->force_kernel(i < latents    ? kLatentKernel
                        : i < gathered ? kGatheredKernel
                                       : kLatentCodesKernel);
    }
    c.run(*ops);
    for (const AttendDecision& decision : decisions) {
      for (const CandidateVerdict& verdict : decision.candidates) {
        if (verdict.is_chosen) taken.insert(verdict.name);
        if (verdict.fits && !verdict.is_chosen) fitting.insert(verdict.name);
        if (!verdict.fits) CHECK_FALSE(verdict.reason.empty());
      }
    }
  }
  CHECK(taken.size() == attend_candidates().size());
  // Those of latents and of lists of tiles are the choice wherever they fit, but for latents in
  // e4m3, which two kernels take and either is forced to.
  CHECK(fitting == std::set<std::string>{"decode", "hopper_prefill", "prefill",
                                         "hopper_latent_codes", "hopper_gathered", "general"});
}

TEST_CASE("splits with counters are joined by a cluster, the last CTA, or a launch of its own") {
  const auto functions = [](AttendCase c, const char* forced = "", int sm = 90) {
    std::vector<KernelSpec> specs;
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
    ops->force_kernel(forced);
    run_attend(*ops, c);
    std::vector<std::string> names;
    for (const KernelSpec& spec : specs) names.push_back(spec.function);
    return names;
  };
  using Names = std::vector<std::string>;
  AttendCase c{.name = "",
               .form = AttendForm::kJoined,
               .parts = 8,
               .query_lens = {1, 1},
               .context_lens = {100, 30}};
  CHECK(functions(c) == Names{"attn::decode_cluster"});
  CHECK(functions(c, "decode:cluster=0") == Names{"attn::decode_joined"});
  CHECK(functions(c, "", 80) == Names{"attn::decode_joined"});
  c.parts = 9;
  CHECK(functions(c) == Names{"attn::decode_joined"});
  c.parts = 4000;  // weights of 16 rows do not fit beside each other
  CHECK(functions(c) == Names{"attn::decode_splits", "attn::combine_splits"});
  c.parts = 8;
  c.head_size = 92;
  CHECK(functions(c) == Names{"attn::general_splits", "attn::combine_splits"});
  c.head_size = 128;
  c.form = AttendForm::kPlanned;
  CHECK(functions(c) == Names{"attn::make_plan", "attn::decode_plan", "attn::combine_plan"});
}

TEST_CASE(
    "CTAs of a cluster leave room for what they are sent, and a grid has room for the batch") {
  const Target target = target_of_sm(90);
  for (const int rows : {16, 32}) {
    HopperProblem problem(rows / 4, 120, 120, 16);  // keys that are not whole lines
    CAPTURE(rows);
    const DecodeForm whole{.entry = "decode"};
    const DecodeForm clustered{.entry = std::string(kClusterEntry), .parts = 8};
    const AttendKernel kernel = decode_kernel(target, problem.params, clustered);
    CHECK(kernel.shared_bytes > kernel.ring_bytes);
    CHECK(kernel.shared_bytes + kTiledStaticSharedBytes <= target.max_shared_bytes);
    CHECK(fits_in_cluster(target, problem.params, kernel));
    const auto stages = [](const AttendKernel& of) {
      return std::stoi(value_of(of.spec, "int kStages"));
    };
    const int all = stages(decode_kernel(target, problem.params, whole));
    CHECK(stages(kernel) == (rows == 16 ? all - 1 : all));
    problem.params.num_requests = 65535;
    CHECK(fits_in_cluster(target, problem.params, kernel));
    problem.params.num_requests = 65536;
    CHECK_FALSE(fits_in_cluster(target, problem.params, kernel));
    problem.params.num_requests = 1;
    problem.params.num_kv_heads = 65536;
    CHECK_FALSE(fits_in_cluster(target, problem.params, kernel));
  }
}

TEST_CASE("each part is weighed once, by a lane, where no row has more parts than a warp lanes") {
  const HopperProblem problem(1, 128, 128, 16);
  const auto weighs_once = [&](int parts, std::int64_t most) {
    return value_of(combine_kernel(problem.params, "combine_splits", parts, most).spec,
                    "bool kFewParts");
  };
  CHECK(weighs_once(3, 3) == "true");
  CHECK(weighs_once(32, 32) == "true");
  CHECK(weighs_once(33, 33) == "false");
  // A plan deals parts by length: few on average, and all of them to one request.
  CHECK(weighs_once(2, 64) == "false");
}

TEST_CASE("few splits are combined with all of them under way, by a kernel of as many") {
  const HopperProblem problem(1, 128, 128, 16);
  const auto constants_of = [&](const char* entry, int parts) {
    const AttendKernel kernel = combine_kernel(problem.params, entry, parts, parts);
    return kernel.spec.constants.back().first + " " + kernel.spec.constants.back().second;
  };
  CHECK(constants_of("combine_splits", 2) == "int kTogether 2");
  CHECK(constants_of("combine_splits", 8) == "int kTogether 8");
  CHECK(constants_of("combine_splits", 9) == "bool kFewParts true");
  // Of these a row may have any number.
  CHECK(constants_of("combine_plan", 2) == "bool kFewParts true");
  CHECK(constants_of("reduce_segments", 2) == "bool kFewParts true");
}

TEST_CASE("options of decodes override the tile, and what there are is said") {
  const auto constants = [](const char* forced) {
    std::vector<KernelSpec> specs;
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(90), specs);
    ops->force_kernel(forced);
    // 56 rows of 7 heads.
    run_attend(*ops, {.name = "",
                      .cache = Dtype::kE4M3,
                      .query_lens = {8, 1},
                      .context_lens = {100, 30},
                      .group = 7});
    std::string text;
    for (const auto& [name, value] : specs.at(0).constants) {
      if (name == "int kRowWarps" || name == "int kWarps" || name == "int kStages") {
        text += " " + name.substr(5) + value;
      }
    }
    return text;
  };
  CHECK(constants("") == " Warps8 RowWarps2 Stages7");
  CHECK(constants("decode:rows=16") == " Warps8 RowWarps1 Stages4");
  CHECK(constants("decode:rows=32") == " Warps8 RowWarps2 Stages7");
  CHECK(constants("decode:rows=128") == " Warps8 RowWarps4 Stages15");
  CHECK(constants("decode:rows=16:warps=16:stages=2") == " Warps16 RowWarps1 Stages2");
  CHECK(forced_options_misfit("decode:rows=64:cluster=0:ctas=2").empty());
  CHECK(forced_options_misfit("decode:rows=24") ==
        "option 'rows=24': expected rows=16, 32, 64 or 128, cluster=0 or 1, warps=4, 8 or 16, "
        "stages=2 to 6, ctas=1 or 2, heads=1 or 2, save=0 or 1, few=0 or 1, own_call=0 or 1");
  CHECK(refusal([&] {
          constants("decode:rows=16:warps=16:stages=6");
        }).starts_with("kernel decode: 16 warps of 6 steps, 1 CTAs a multiprocessor: "));
}

}  // namespace attnbench::cuda
