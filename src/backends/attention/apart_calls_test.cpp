// Decodes beside prefills in a call of their own, on the CPU as a device that wants it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "backends/attention/flash_pipeline.h"
#include "backends/attention/pipeline_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// Writes down which requests each call of attention has.
class ApartCpu final : public ForwardingOps {
 public:
  ApartCpu(Ops& cpu, ApartUse use, TileUse tiles) : ForwardingOps(cpu), use_(use), tiles_(tiles) {}
  ApartUse apart_use(const attn::AttendParams& params) const override {
    asked_about = params.num_requests;
    return use_;
  }
  TileUse tile_use(const attn::AttendParams&) const override { return tiles_; }
  void attend(const attn::AttendParams& params) override {
    note("attend", params);
    inner().attend(params);
  }
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    note(fmt::format("{} splits of", split.num_splits), params);
    inner().attend_splits(params, split);
  }
  void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    note("combine", params);
    inner().combine_splits(params, split);
  }
  void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override {
    note("plan of", params);
    inner().attend_plan(params, plan);
  }
  std::string calls;
  mutable int asked_about = 0;

 private:
  /// "attend 3-7, 40 tokens, 90 keys": the requests, and the longest of them.
  void note(const std::string& what, const attn::AttendParams& params) {
    calls += fmt::format("{}{} {}-{}, {} tokens, {} keys", calls.empty() ? "" : "; ", what,
                         params.first_request, params.first_request + params.num_requests,
                         params.max_query_len, params.max_seq_len);
  }
  ApartUse use_;
  TileUse tiles_;
};

struct ApartRun {
  std::string calls;
  std::string steps;
  Facts facts;
  PipelineOutput output;
  int asked_about = 0;
};

ApartRun run_apart(Problem p, ApartUse use, const std::string& name = "FLASH_ATTN",
                   TileUse tiles = TileUse::kNever) {
  finish(p);
  Run run(p, name);  // whose inputs are used again
  ApartCpu ops(*run.ops, use, tiles);
  const std::unique_ptr<Pipeline> pipeline =
      find_backend(name)->prepare(p, run.backend_inputs, ops);
  ApartRun result;
  result.output = checked_output(p, name, run, *pipeline, ops);
  for (const Step& step : pipeline->steps()) result.steps += " " + step.name;
  result.calls = ops.calls;
  result.asked_about = ops.asked_about;
  result.facts = pipeline->facts();
  return result;
}

std::string fact_of(const Facts& facts, const std::string& name) {
  for (const auto& [key, value] : facts) {
    if (key == name) return value;
  }
  return "no such fact";
}

/// Decodes that keep every multiprocessor busy without splits, and two prefills.
Problem full_batch() {
  Problem p = base_problem();
  p.batch.assign(66, {1, 70});
  p.batch.insert(p.batch.end(), {{40, 90}, {33, 33}});
  return p;
}

/// Few decodes, whose keys are split.
Problem small_batch() {
  Problem p = base_problem();
  p.batch = {{1, 900}, {1, 600}, {40, 90}, {33, 33}};
  return p;
}

}  // namespace

TEST_CASE("decodes that are not split are attended in front of the prefills, in one step") {
  const ApartRun run = run_apart(full_batch(), ApartUse::kAlways);
  CHECK(run.calls == "attend 0-66, 1 tokens, 70 keys; attend 66-68, 40 tokens, 90 keys");
  CHECK(run.steps == " write_cache attend");
  CHECK(run.asked_about == 68);
  CHECK(fact_of(run.facts, "path") == "decode and prefill calls");
  CHECK(fact_of(run.facts, "num_splits") == "1");
  // Elsewhere all of it is one call, and layout IX does the same.
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    const ApartRun one = run_apart(full_batch(), ApartUse::kNever, name);
    CHECK(one.calls == "attend 0-68, 40 tokens, 90 keys");
    CHECK(one.facts.empty());
    CHECK(run_apart(full_batch(), ApartUse::kAlways, name).calls == run.calls);
  }
}

TEST_CASE("decodes in a call of their own are split as those of a batch by themselves") {
  Problem p = small_batch();
  const ApartRun joined = run_apart(p, ApartUse::kAlways);
  CHECK(joined.calls == "8 splits of 0-2, 1 tokens, 900 keys; attend 2-4, 40 tokens, 90 keys");
  CHECK(fact_of(joined.facts, "split form") == "joined");
  CHECK(fact_of(joined.facts, "splits").find("joined within their launch") != std::string::npos);
  p.batch = {{1, 9000}, {1, 600}, {40, 90}};
  p.attention.num_kv_heads = 1;
  const ApartRun separate = run_apart(p, ApartUse::kAlways);
  CHECK(separate.steps == " write_cache attend combine");
  CHECK(fact_of(separate.facts, "split form") == "separate");
  p.batch.assign(65, {1, 40});
  p.batch[3] = {1, 9000};
  p.batch.push_back({40, 90});
  const ApartRun planned = run_apart(p, ApartUse::kAlways);
  CHECK(planned.steps == " write_cache plan attend combine");
  CHECK(planned.calls == "plan of 0-65, 1 tokens, 9000 keys; attend 65-66, 40 tokens, 90 keys");
  CHECK(fact_of(planned.facts, "split form") == "planned");
}

TEST_CASE(
    "decodes go apart where the device says that it may pay and the batch says that it does") {
  CHECK(run_apart(full_batch(), ApartUse::kWhereItPays).facts.empty());
  // A decode whose one tile would end long after the prefill's.
  Problem p = base_problem();
  p.batch = {{1, 9000}, {33, 40}};
  const ApartRun run = run_apart(p, ApartUse::kWhereItPays);
  CHECK(fact_of(run.facts, "path") == "decode and prefill calls");
  p.attention.sliding_window = 500;
  CHECK(run_apart(p, ApartUse::kWhereItPays).facts.empty());
}

TEST_CASE("whatever rows see, decodes apart give what the reference gives") {
  for (const bool is_full : {false, true}) {
    const Problem plain = is_full ? full_batch() : small_batch();
    Problem p = plain;
    p.attention.sinks = SinksKind::kNormal;
    p.attention.sliding_window = 50;
    run_apart(p, ApartUse::kAlways);
    p = plain;
    p.attention.alibi = AlibiKind::kLinear;
    p.attention.logits_soft_cap = 30;
    run_apart(p, ApartUse::kAlways);
    p = plain;
    p.attention.causal = false;
    run_apart(p, ApartUse::kAlways);
    // Speculative decodes and padding, also among the prefills.
    p = plain;
    p.attention.num_speculative_tokens = 3;
    p.batch[0].query_len = 4;
    p.batch[1] = {0, 0};
    p.batch.insert(p.batch.end() - 1, {0, 0});
    const ApartRun speculative = run_apart(p, ApartUse::kAlways);
    CHECK(speculative.calls.find(", 4 tokens, ") != std::string::npos);
    CHECK(speculative.calls.find("attend " + std::to_string(is_full ? 66 : 2) + "-") !=
          std::string::npos);
    p = plain;
    p.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
    p.kv_cache.k_scale = {0.05, 0.2};
    p.kv_cache.v_scale = {0.1, 0.02};
    run_apart(p, ApartUse::kAlways);
    p.kv_cache.k_scale = p.kv_cache.v_scale = {0.05};
    run_apart(p, ApartUse::kAlways, "FLASH_ATTN_IX");
    p = plain;
    p.kv_cache.int8_level = 2;
    run_apart(p, ApartUse::kAlways, "FLASH_ATTN_IX");
  }
}

TEST_CASE("decodes stay in the one call where something else is asked for, or a list takes all") {
  const auto stays = [](const Problem& p) {
    const ApartRun run = run_apart(p, ApartUse::kAlways);
    return run.facts.empty() && run.asked_about == 0;
  };
  CHECK_FALSE(stays(full_batch()));
  Problem p = full_batch();
  p.attention.num_splits = 1;
  CHECK(stays(p));
  p = full_batch();
  p.attention.split_form = SplitForm::kSeparate;
  CHECK(stays(p));
  p = full_batch();
  p.attention.batch_invariant = true;
  CHECK(stays(p));
  p = full_batch();
  p.attention.chunk_size = 64;
  CHECK(stays(p));
  p = full_batch();
  p.cascade = {16, CascadeMode::kAlways};
  p.batch.back() = {33, 60};
  CHECK(stays(p));
  p = full_batch();
  p.batch.resize(66);  // no prefills
  CHECK(stays(p));
  p.batch = {{40, 90}, {1, 50}};  // no decodes in front
  CHECK(stays(p));
  p = full_batch();
  p.attention.type = AttentionType::kEncoderDecoder;
  p.attention.causal = false;
  CHECK(stays(p));
  // By a list of tiles there is one launch for all.
  const ApartRun tiles = run_apart(full_batch(), ApartUse::kAlways, "FLASH_ATTN", TileUse::kAlways);
  CHECK(tiles.calls.empty());
  CHECK(tiles.asked_about == 0);
}

TEST_CASE("what is asked of splits beside prefills is refused as it was") {
  Problem p = small_batch();
  finish(p);
  const Backend& flash = *find_backend("FLASH_ATTN");
  using Reasons = std::vector<std::string>;
  p.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  CHECK(flash.refusals(p, DeviceFacts{}).empty());
  p.attention.num_splits = 4;
  CHECK(flash.refusals(p, DeviceFacts{}) ==
        Reasons{"num_splits 4 with prefills in the same varlen call"});
  p.attention.num_splits.reset();
  p.attention.split_form = SplitForm::kJoined;
  CHECK(flash.refusals(p, DeviceFacts{}) ==
        Reasons{"split_form joined with prefills in the same varlen call"});
  // What explain says without a device is what the CPU does.
  p.attention.split_form = SplitForm::kAuto;
  CHECK(fact_of(flash.explain(p, DeviceFacts{}), "path") == "one varlen call");
}

TEST_CASE("decodes beside prefills go by a list in every layout, unless one would end last") {
  Problem p = base_problem();
  p.batch = std::vector<Request>(70, {1, 40});  // by 2 KV heads, on 132 multiprocessors
  p.batch.push_back({200, 230});
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) {
    CAPTURE(name);
    const bool is_triton = name[0] == 'T';
    const ApartRun listed = run_apart(p, ApartUse::kWhereItPays, name, TileUse::kWhereItPays);
    CHECK(listed.calls.empty());
    CHECK(listed.asked_about == 0);
    CHECK(fact_of(listed.facts, "path") ==
          (is_triton ? "2d, by a list of tiles" : "one varlen call"));
    Problem late = p;
    late.batch.front().seq_len = 400;
    CHECK(run_apart(late, ApartUse::kNever, name, TileUse::kWhereItPays).calls != "");
    Problem few = p;
    few.batch.erase(few.batch.begin(), few.batch.begin() + 40);
    CHECK(run_apart(few, ApartUse::kNever, name, TileUse::kWhereItPays).calls != "");
    // Nor where the device has no lists, or bytes may not depend on the batch.
    CHECK(run_apart(p, ApartUse::kNever, name).calls != "");
    Problem fixed = p;
    fixed.attention.batch_invariant = true;
    CHECK(run_apart(fixed, ApartUse::kNever, name, TileUse::kWhereItPays).calls != "");
  }
}

}  // namespace attnbench
