#include "scenario/resolve/unread.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/problem/fields.h"
#include "scenario/test_support.h"

namespace attnbench {
namespace {

using namespace testing;

/// One case of each kind that reads other keys than its neighbours.
std::vector<Problem> cases_of_all_kinds() {
  const std::string op = "name: t\nattention: {type: op, num_heads: 8, head_size: 64}\n";
  const std::string images =
      "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 64}\n";
  const std::string mla = "name: t\nattention: {type: mla, num_heads: 8}\nbatch: q1s64\n";
  std::vector<Problem> all;
  for (const std::string& text :
       {base_text("batch: q1s64\n"),
        base_text("batch: q1s64\nkv_cache: {dtype: fp8}\ndcp: {world_size: 2}\n"),
        base_text("batch: q1s64\nkv_cache: {dtype: fp8_e5m2}\noutput_quant: {type: nvfp4}\n"),
        base_text("batch: q1s64\nkv_cache: {dtype: int8_per_token_head}\n"
                  "output_quant: {type: fp8_group128}\n"),
        base_text("batch: q1s64\nkv_cache: {int8_level: 1}\noutput_quant: {type: fp8_static}\n"),
        std::string(
            "name: t\nattention: {type: encoder, num_heads: 8, head_size: 64}\nbatch: q8\n"),
        mla,
        mla + "mla: {sparse_topk: 128}\n",
        mla + "mla: {sparse_topk: 128, sparse: {indices: indexer}}\n",
        mla + "mla: {sparse_topk: 128, sparse: {extra_topk: 128, extra_keys: 9}}\n",
        images + "batch: q8\n",
        images + "mm_encoder: {images: [[28, 28]], attn_dtype: fp8, fp8_scale_save_path: s.json}\n",
        op + "op: {name: reshape_and_cache, tokens: 8}\n",
        op + "op: {name: merge, tokens: 8}\n",
        op + "op: {name: gather, tokens: 8}\n",
        op + "op: {name: rope, tokens: 8}\n",
        op + "op: {name: quantize, tokens: 8}\n",
        op + "op: {name: dcp_correct, tokens: 8}\n",
        op + "op: {name: mm_quant, tokens: 8}\n",
        op + "op: {name: metadata, tokens: 8}\n",
        base_text("batch: q1s64\ninputs: {file: a.safetensors}\ntiming: {order: alternate}\n"),
        base_text(
            "batch: q1s64\nkv_cache: {dtype: fp8, calculate_kv_scales: true, layers: 2}\n")}) {
    // Entries of a gather have the sizes of mla, so that head_size is left out.
    const bool has_latents = text.find("gather") != std::string::npos;
    const std::string head = ", head_size: 64";
    std::string fitting = text;
    if (has_latents) fitting.erase(fitting.find(head), head.size());
    all.push_back(only_case(fitting));
  }
  return all;
}

TEST_CASE("every field has one row that says which cases read it, in the order of the fields") {
  const std::vector<Field>& fields = problem_fields();
  const std::vector<ReadRule>& rules = read_rules();
  REQUIRE(rules.size() == fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    CAPTURE(fields[i].key);
    CHECK(rules[i].key == fields[i].key);
    CHECK((rules[i].reads == nullptr) == rules[i].with.empty());
    if (!rules[i].decided_by.empty()) CHECK(find_field(rules[i].decided_by) != nullptr);
  }
}

TEST_CASE("a row with a condition is true of some cases and false of others") {
  const std::vector<Problem> cases = cases_of_all_kinds();
  for (const ReadRule& rule : read_rules()) {
    if (rule.reads == nullptr) continue;
    CAPTURE(rule.key);
    CHECK(std::any_of(cases.begin(), cases.end(), rule.reads));
    CHECK_FALSE(std::all_of(cases.begin(), cases.end(), rule.reads));
  }
}

TEST_CASE("a key that no case reads is an error that says what would read it and what was found") {
  CHECK(error_of(base_text("batch: q1s64\nmla:\n  kv_lora_rank: 512\n")) ==
        "E-CONFIG: s.yaml:5: mla.kv_lora_rank: read only with attention.type mla, or an operation "
        "with op.mla true; found attention.type decoder");
  CHECK(error_of(base_text("batch: q1s64\nkv_cache: {k_scale: 0.5}\n")) ==
        "E-CONFIG: s.yaml:4: kv_cache.k_scale: read only with a KV cache of dtype fp8, fp8_e4m3, "
        "fp8_e5m2 or nvfp4; found attention.type decoder, kv_cache.dtype auto");
  CHECK(error_of(base_text("batch: q1s64\n"),
                 {.overrides = {{"op.raw", "true"}}, .search_path = {}}) ==
        "E-CONFIG: --set op.raw=true: op.raw: read only with op.name gather; found attention.type "
        "decoder");
  CHECK(error_of(base_text("batch: q1s64\nsweep:\n  mla.v_pad: [auto, \"on\"]\n")) ==
        "E-CONFIG: s.yaml:5: mla.v_pad: read only with attention.type mla; found attention.type "
        "decoder in the first of 2 cases");
}

TEST_CASE("all keys that nothing reads are told at once") {
  const std::string error = error_of(
      "name: t\nattention: {type: op, num_heads: 8, head_size: 64, scale: 1, causal: "
      "true, sliding_window: 4}\nop: {name: reshape_and_cache, tokens: 8}\n"
      "kv_cache: {q_scale: 0.5}\ncascade: {mode: never}\n");
  CHECK(std::count(error.begin(), error.end(), '\n') == 4);
  for (const char* key : {"attention.scale", "attention.causal", "attention.sliding_window",
                          "kv_cache.q_scale", "cascade.mode"}) {
    CHECK(error.find(std::string(key) + ": read only with") != std::string::npos);
  }
}

TEST_CASE("what is drawn is unread beside a file, and rounds where nothing takes turns") {
  for (const char* key : {"distribution: normal", "std: 2", "mean: 1", "needles: true"}) {
    CAPTURE(key);
    const std::string inputs = fmt::format("batch: q1s64\ninputs: {{{}", key);
    CHECK(error_of(base_text(inputs + "}\n")) == "accepted");
    const std::string error = error_of(base_text(inputs + ", file: a.safetensors}\n"));
    CHECK(error.starts_with("E-CONFIG: s.yaml:4: inputs."));
    CHECK(error.find("inputs.file null; found attention.type decoder") != std::string::npos);
  }
  CHECK(error_of(base_text("batch: q1s64\ninputs: {file: a.safetensors, seed: 3}\n")) ==
        "accepted");
  CHECK(error_of(base_text("batch: q1s64\ntiming: {rounds: 3}\n")) ==
        "E-CONFIG: s.yaml:4: timing.rounds: read only with timing.order alternate; found "
        "attention.type decoder, timing.order sequential");
  CHECK(error_of(base_text("batch: q1s64\ntiming: {rounds: 3, order: alternate}\n")) == "accepted");
}

TEST_CASE("a key of a file that an option leaves unread is left out, with a notice") {
  const ScenarioOptions sequential{.overrides = {{"timing.order", "sequential"}},
                                   .search_path = {}};
  const std::string text = base_text("batch: q1s64\ntiming: {rounds: 7, order: alternate}\n");
  const Scenario scenario = parse_scenario(text, "s.yaml", sequential);
  CHECK(scenario.notices ==
        std::vector<std::string>{
            "s.yaml:4: timing.rounds: left out, since with the options of the command line nothing "
            "reads it (read only with timing.order alternate; found attention.type decoder, "
            "timing.order sequential)"});
  // As if it had never been there: a baseline without it is of the same problem.
  CHECK(scenario.cases.at(0).timing.rounds == Problem().timing.rounds);
  CHECK(scenario.cases.at(0).timing.order == TimingOrder::kSequential);
  CHECK(parse_scenario(text, "s.yaml").notices.empty());
}

TEST_CASE("an option excuses only what it left unread") {
  const auto with = [](const std::string& more, const char* key, const char* value) {
    return error_of(base_text("batch: q1s64\n" + more),
                    {.overrides = {{key, value}}, .search_path = {}});
  };
  const std::string fp8 = "kv_cache: {dtype: fp8, k_scale: 0.5}\n";
  CHECK(with(fp8, "kv_cache.dtype", "auto") == "accepted");
  // Its own contradiction, whatever else is set.
  CHECK(with("kv_cache: {k_scale: 0.5}\n", "inputs.seed", "3")
            .starts_with("E-CONFIG: s.yaml:4: kv_cache.k_scale: read only with"));
  // Another option's key.
  const ScenarioOptions both{.overrides = {{"kv_cache.dtype", "auto"}, {"kv_cache.v_scale", "0.5"}},
                             .search_path = {}};
  CHECK(error_of(base_text("batch: q1s64\n" + fp8), both)
            .starts_with("E-CONFIG: --set kv_cache.v_scale=0.5: kv_cache.v_scale: read only with"));
  // A sweep's, by which its cases are named.
  CHECK(with("kv_cache: {dtype: fp8}\nsweep:\n  kv_cache.k_scale: [0.5, 1]\n", "kv_cache.dtype",
             "auto")
            .starts_with("E-CONFIG: s.yaml:6: kv_cache.k_scale: read only with"));
}

TEST_CASE("a key needs one case that reads it, and null and auto are no values") {
  CHECK(error_of(base_text("batch: q1s64\nkv_cache: {k_scale: 0.5}\n"
                           "sweep: {kv_cache.dtype: [auto, fp8]}\n")) == "accepted");
  CHECK(error_of(base_text("batch: q1s64\nmla: {sparse_topk: null, v_pad: auto}\n")) == "accepted");
  CHECK(error_of(base_text("batch: q1s64\nmla: null\n")) == "accepted");
}

TEST_CASE("an extended file may describe a model, and nothing else that the case does not read") {
  const TempFolder folder;
  const auto path = (folder.path() / "case.yaml").string();
  const auto error_over = [&](const std::string& base) {
    folder.write("base.yaml", base);
    try {
      parse_scenario(
          "name: t\nextends: base.yaml\nattention: {type: op}\n"
          "op: {name: merge, tokens: 8, mla: false}\n",
          path);
    } catch (const Error& error) {
      return error.full_message();
    }
    return std::string("accepted");
  };
  const std::string model =
      "name: m\nattention: {num_heads: 8, head_size: 64, sliding_window: 4, scale: 0.5}\n"
      "mla: {kv_lora_rank: 512}\nkv_cache: {block_size: 64}\nbatch: q8\n";
  CHECK(error_over(model) == "accepted");
  const std::string error = error_over(model + "triton: {path: 2d}\n");
  CHECK(error.find("base.yaml:6: triton.path: read only with") != std::string::npos);
}

}  // namespace
}  // namespace attnbench
