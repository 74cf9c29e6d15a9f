#include "scenario/resolve/resolve.h"

#include <fmt/format.h>

#include "core/problem/fields.h"
#include "scenario/test_support.h"

namespace attnbench {
namespace {

using namespace testing;

/// Error of a scenario of 8 query and 2 KV heads with `attention` added to its dims.
std::string attention_error(const std::string& attention, const std::string& batch = "q16") {
  return error_of("name: t\nattention:\n  num_heads: 8\n  num_kv_heads: 2\n  head_size: 64\n  " +
                  attention + "\nbatch: " + batch + "\n");
}
std::string error_with(const std::string& line, const std::string& batch = "q16") {
  return error_of(base_text("batch: " + batch + "\n" + line + "\n"));
}
Problem typed(const std::string& type, const std::string& more) {
  return only_case("name: t\nattention: {type: " + type + ", num_heads: 8, head_size: 64}\n" +
                   more);
}

TEST_CASE("causal follows the type") {
  CHECK(typed("decoder", "batch: q16").attention.causal);
  CHECK(!typed("encoder", "batch: q16").attention.causal);
  CHECK(!typed("encoder_only", "batch: q16").attention.causal);
  CHECK(!typed("encoder_decoder", "batch: q16s4").attention.causal);
  CHECK(!typed("mm_encoder", "batch: q16").attention.causal);
  CHECK(!only_case(base_text("batch: q16"),
                   {.overrides = {{"attention.causal", "false"}}, .search_path = {}})
             .attention.causal);
  CHECK(attention_error("{type: encoder, causal: true}").find("E-FORMAT") == 0);
  CHECK(attention_error("type: encoder\n  causal: true") ==
        "E-CONFIG: s.yaml:7: attention.causal: expected false for type encoder, found true");
}

TEST_CASE("head counts that do not divide are shape errors") {
  CHECK(
      error_of("name: t\nattention: {num_heads: 8, num_kv_heads: 3, head_size: 64}\nbatch: q1\n") ==
      "E-SHAPE: s.yaml:2: attention.num_heads: expected a multiple of num_kv_heads = 3, found 8");
  CHECK(error_of("name: t\nattention: {num_heads: 2, num_kv_heads: 4, head_size: 64}\nbatch: q1\n")
            .starts_with("E-SHAPE: "));
  CHECK(
      error_with("dcp: {world_size: 3}") ==
      "E-SHAPE: s.yaml:2: attention.num_heads: expected a multiple of dcp.world_size = 3, found 8");
}

TEST_CASE("MLA derives its dims, and given ones must agree") {
  const std::string head = "name: t\nbatch: q16\nattention: {type: mla, num_heads: 16";
  const Problem problem = only_case(head + "}\n");
  CHECK(problem.attention.num_kv_heads == 1);
  CHECK(problem.attention.head_size == 192);
  CHECK(problem.attention.v_head_size == 128);
  CHECK(problem.attention.scale == doctest::Approx(0.07216878364870322));
  CHECK(problem.attention.causal);
  CHECK(
      error_of(head + ", head_size: 128}\n") ==
      "E-SHAPE: s.yaml:3: attention.head_size: expected qk_nope_head_dim + qk_rope_head_dim = 192 "
      "for type mla, found 128");
  CHECK(
      error_of(head + ", num_kv_heads: 16}\n").starts_with("E-SHAPE: s.yaml:3: attention.num_kv"));
  CHECK(error_of(head + "}\nmla: {sparse_topk: 100}\n") ==
        "E-CONFIG: s.yaml:4: mla.sparse_topk: expected a multiple of 128, found 100");
  CHECK(
      error_of(head + "}\nmla: {emulate_fp8_prefill: true}\nkv_cache: {k_scale: 0.5}\n")
          .starts_with("E-CONFIG: s.yaml:4: mla.emulate_fp8_prefill: expected kv_cache.k_scale 1"));
  CHECK(error_of(head + "}\nmla: {q_pad_num_heads: 8}\n")
            .starts_with("E-CONFIG: s.yaml:4: mla.q_pad"));
  CHECK(error_of(head + "}\nmla: {workspace_tokens: 33}\ndcp: {world_size: 2}\n")
            .starts_with("E-CONFIG: s.yaml:4: mla.workspace_tokens: expected a multiple of"));
  const std::string ds = "kv_cache: {dtype: fp8_ds_mla}\n";
  CHECK(error_of(head + "}\n" + ds + "mla: {kv_lora_rank: 256}\n")
            .starts_with("E-SHAPE: s.yaml:4: "));
  CHECK(error_of(head + ", dtype: float16}\n" + ds).starts_with("E-DTYPE: s.yaml:4: "));
  CHECK(error_of(head + "}\n" + ds) == "accepted");
}

TEST_CASE("per-head lists have one entry a head") {
  CHECK(attention_error("alibi_slopes: [1, 2, 3]\n  alibi: linear") ==
        "E-SHAPE: s.yaml:6: attention.alibi_slopes: expected 8 numbers, one a head, found 3");
  CHECK(attention_error("alibi_slopes: [1, 2, 3, 4, 5, 6, 7, 8]") ==
        "E-CONFIG: s.yaml:6: attention.alibi_slopes: expected null where attention.alibi is none, "
        "found 8 numbers");
  CHECK(attention_error("sinks: [1, 2]") ==
        "E-SHAPE: s.yaml:6: attention.sinks: expected 8 numbers, one a head, found 2");
  CHECK(attention_error("sinks: [1, 2, 3, 4, 5, 6, 7, .nan]").starts_with("E-VALUE: s.yaml:6: "));
  CHECK(attention_error("sinks: [1, 2, 3, 4, 5, 6, .inf, -.inf]") == "accepted");
  CHECK(attention_error("sinks: uniform").starts_with("E-FORMAT: s.yaml:6: attention.sinks: "));
  CHECK(error_with("kv_cache: {k_scale: [0.5]}") ==
        "E-SHAPE: s.yaml:4: kv_cache.k_scale: expected one number or num_kv_heads = 2 of them, "
        "found 1");
  CHECK(error_with("kv_cache: {v_scale: [0.5, 1, 2]}").starts_with("E-SHAPE: s.yaml:4: "));
  CHECK(error_with("kv_cache: {dtype: fp8, v_scale: [0.5, 1]}") == "accepted");
}

TEST_CASE("mask options have their ranges") {
  CHECK(
      attention_error("sliding_window: 0").starts_with("E-CONFIG: s.yaml:6: attention.sliding_w"));
  CHECK(
      attention_error("logits_soft_cap: -1").starts_with("E-CONFIG: s.yaml:6: attention.logits_"));
  CHECK(attention_error("scale: 0").starts_with("E-CONFIG: s.yaml:6: attention.scale: "));
  CHECK(attention_error("scale: .inf").starts_with("E-CONFIG: s.yaml:6: attention.scale: "));
  CHECK(attention_error("num_speculative_tokens: -1").starts_with("E-CONFIG: s.yaml:6: "));
  CHECK(attention_error("mm_prefix_ranges: {1: [[0, 4]]}") ==
        "E-VALUE: s.yaml:6: attention.mm_prefix_ranges: expected a request index below 1, found 1");
  CHECK(attention_error("mm_prefix_ranges: {0: [[-1, 4]]}") ==
        "E-VALUE: s.yaml:6: attention.mm_prefix_ranges: expected 0 <= start <= end, found [-1, 4]");
  CHECK(attention_error("mm_prefix_ranges: {0: [[5, 4]]}").starts_with("E-VALUE: s.yaml:6: "));
  CHECK(attention_error("mm_prefix_ranges: {x: [[5, 4]]}").starts_with("E-FORMAT: s.yaml:6: "));
  CHECK(attention_error("mm_prefix_ranges: {0: [[5]]}").starts_with("E-FORMAT: s.yaml:6: "));
  CHECK(attention_error("mm_prefix_ranges: {0: [[3, 3], [1, 99]]}") == "accepted");
}

TEST_CASE("sequence lengths follow the type") {
  const std::string row = "[{query_len: 4, seq_len: 3}]";
  CHECK(attention_error("type: decoder", row).starts_with("E-VALUE: s.yaml:7: batch: "));
  CHECK(attention_error("type: encoder_decoder", row) == "accepted");
  CHECK(attention_error("type: encoder_decoder", "q4s0") == "accepted");
  CHECK(
      attention_error("type: encoder", "q4s8") ==
      "E-VALUE: s.yaml:7: batch: expected seq_len = query_len for type encoder, found query_len 4 "
      "and seq_len 8 in request 0");
  CHECK(attention_error("type: mm_encoder", "q4s8").starts_with("E-VALUE: s.yaml:7: batch: "));
}

TEST_CASE("3d needs queries of one token") {
  CHECK(error_with("triton: {path: 3d}", "4q1s9") == "accepted");
  CHECK(error_with("triton: {path: 3d}", "4q1s9_q2") ==
        "E-CONFIG: s.yaml:4: triton.path: expected queries of one token for 3d, found a query_len "
        "of 2");
}

TEST_CASE("block size, interleave and cache dtype are checked") {
  CHECK(error_with("kv_cache: {block_size: 24}") ==
        "E-CONFIG: s.yaml:4: kv_cache.block_size: Block size must be a multiple of 16. Found 24; "
        "the nearest is 32");
  CHECK(error_with("kv_cache: {block_size: 0}").starts_with("E-CONFIG: s.yaml:4: kv_cache.block"));
  CHECK(error_with("dcp: {world_size: 2, interleave_size: 5}") ==
        "E-CONFIG: s.yaml:4: dcp.interleave_size: expected a divisor of kv_cache.block_size = 16, "
        "found 5");
  CHECK(error_with("dcp: {interleave_size: 32}").starts_with("E-CONFIG: s.yaml:4: dcp.interleave"));
  CHECK(
      error_with("kv_cache: {dtype: float16}") ==
      "E-DTYPE: s.yaml:4: kv_cache.dtype: expected auto or the dtype of the keys, bfloat16, found "
      "float16");
  CHECK(error_with("kv_cache: {dtype: bfloat16}") == "accepted");
  CHECK(error_with("kv_cache: {dtype: fp8_e5m2}") == "accepted");
}

TEST_CASE("num_blocks auto is what the batch needs and a sixteenth more, two at least") {
  const auto blocks = [](const std::string& more) {
    return only_case(base_text(more)).kv_cache.num_blocks;
  };
  CHECK(blocks("batch: q16\n") == 1 + 2);
  CHECK(blocks("batch: q17\n") == 2 + 2);
  CHECK(blocks("batch: 100q1s160\n") == 1000 + 62);
  // 8 shared pages, then 2 of its own for each of 100 requests.
  CHECK(blocks("batch: 100q1s160\ncascade: {common_prefix_len: 128}\n") == 208 + 13);
  // A block id holds 16 tokens on each of 2 ranks: 160 tokens are 5.
  CHECK(blocks("batch: 100q1s160\ndcp: {world_size: 2}\n") == 500 + 31);
  CHECK(blocks("batch: [{query_len: 0, seq_len: 0}]\n") == 0);
  CHECK(typed("encoder", "batch: q160").kv_cache.num_blocks == 0);
  CHECK(blocks("batch: q16\nkv_cache: {num_blocks: 1}\n") == 1);
  CHECK(error_with("kv_cache: {num_blocks: 1}", "q17") ==
        "E-CONFIG: s.yaml:4: kv_cache.num_blocks: expected at least the 2 blocks that the batch "
        "needs, found 1");
}

TEST_CASE("a shared prefix is whole pages inside every context") {
  CHECK(error_with("cascade: {common_prefix_len: 32}", "8q1s64") == "accepted");
  CHECK(
      error_with("cascade: {common_prefix_len: 24, mode: never}", "8q1s64") ==
      "E-CONFIG: s.yaml:4: cascade.common_prefix_len: expected a multiple of kv_cache.block_size = "
      "16, found 24");
  CHECK(error_with("cascade: {common_prefix_len: 64}", "8q1s64") ==
        "E-CONFIG: s.yaml:4: cascade.common_prefix_len: expected at most the context of every "
        "request "
        "(63 tokens in request 0), found 64");
  CHECK(error_with("cascade: {mode: always}", "8q1s64") ==
        "E-CONFIG: s.yaml:4: cascade.mode: expected a common_prefix_len > 0 for always, found 0");
  CHECK(error_with("cascade: {common_prefix_len: 16}",
                   "[{query_len: 1, seq_len: 32}, {query_len: 0, seq_len: 0}]") == "accepted");
}

TEST_CASE("groups of requests have prefixes of whole pages inside their contexts") {
  CHECK(error_with("cascade: {groups: [[4, 32], [2, 48]], mode: always}", "8q1s64") == "accepted");
  CHECK(error_with("cascade: {groups: [[4, 24]]}", "8q1s64") ==
        "E-CONFIG: s.yaml:4: cascade.groups: expected prefixes of a multiple of "
        "kv_cache.block_size = 16, found 24");
  CHECK(error_with("cascade: {groups: [[4, 64]]}", "8q1s64") ==
        "E-CONFIG: s.yaml:4: cascade.groups: expected a prefix of at most the context of each of "
        "its requests (63 tokens in request 0), found 64");
  CHECK(error_with("cascade: {groups: [[9, 32]]}", "8q1s64") ==
        "E-CONFIG: s.yaml:4: cascade.groups: expected no more requests than the 8 of the batch, "
        "found more");
  CHECK(error_with("cascade: {common_prefix_len: 16, groups: [[4, 32]]}", "8q1s64")
            .find("expected [] with a cascade.common_prefix_len") != std::string::npos);
  CHECK(error_with("cascade: {groups: [[4]]}", "8q1s64")
            .find("a list of [requests, keys of their shared prefix]") != std::string::npos);
  const auto blocks = [](const std::string& more) {
    return only_case(base_text(more)).kv_cache.num_blocks;
  };
  // 8 + 2 shared pages; of their own 50 requests have 2, 25 have 8 and 25 have 10.
  CHECK(blocks("batch: 100q1s160\ncascade: {groups: [[50, 128], [25, 32]]}\n") ==
        10 + 100 + 200 + 250 + (10 + 100 + 200 + 250) / 16);
}

TEST_CASE("images give the batch of a vision encoder") {
  const std::string images = "mm_encoder: {images: [[448, 672], [28, 28]]}\n";
  const Problem problem = typed("mm_encoder", images);
  CHECK(problem.batch == std::vector<Request>{{1536, 1536}, {4, 4}});
  CHECK(problem.case_name == "q1536_q4");
  CHECK(problem.mm_encoder.hidden_size == 512);
  CHECK(problem.mm_encoder.layer_names == std::vector<std::string>{"visual.blocks.0.attn.attn"});
  CHECK(typed("mm_encoder", images + "batch: q1536_q4\n").batch == problem.batch);
  CHECK(error_with(images).starts_with(
      "E-CONFIG: s.yaml:4: mm_encoder.images: expected null unless"));
  const std::string mm = "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 64}\n";
  CHECK(error_of(mm + images + "batch: q4\n") ==
        "E-CONFIG: s.yaml:4: batch: expected q1536_q4 as mm_encoder.images gives it, or no batch, "
        "found q4");
  CHECK(error_of(mm + "mm_encoder: {images: [[448, 5]]}\n")
            .starts_with("E-VALUE: s.yaml:3: mm_encoder.images: expected images of at least"));
}

TEST_CASE("the dense form of vision encoders takes its query length from the batch") {
  const std::string dense = "mm_encoder: {batch_size: 3, kv_len: 77}\n";
  CHECK(typed("mm_encoder", dense).batch == std::vector<Request>(3, {77, 77}));
  CHECK(typed("mm_encoder", dense + "batch: q100\n").batch == std::vector<Request>(3, {100, 77}));
  const std::string mm = "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 64}\n";
  CHECK(error_of(mm + dense + "batch: q100_q4\n")
            .starts_with("E-CONFIG: s.yaml:4: batch: expected one"));
  CHECK(error_of(mm + dense + "batch: 2q100\n")
            .starts_with("E-CONFIG: s.yaml:4: batch: expected one"));
  CHECK(error_of(mm + "mm_encoder: {kv_len: 5}\n")
            .starts_with("E-CONFIG: s.yaml:3: mm_encoder.kv_len"));
  CHECK(error_of(mm + "mm_encoder: {batch_size: 1, kv_len: 5, images: [[28, 28]]}\n")
            .starts_with("E-CONFIG: s.yaml:3: mm_encoder.images: expected images or batch_size"));
}

TEST_CASE("fp8 options of vision encoders fit together") {
  const auto mm_error = [](const std::string& mm) {
    return error_of(
        "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 64}\nbatch: q4\n" + mm);
  };
  CHECK(
      mm_error("mm_encoder: {fp8_scale_path: a.json}\n") ==
      "E-CONFIG: s.yaml:4: mm_encoder.fp8_scale_path: expected mm_encoder.attn_dtype fp8 with it, "
      "found auto");
  CHECK(mm_error("mm_encoder: {attn_dtype: fp8, fp8_scale_path: a, fp8_scale_save_path: b}\n")
            .find("saving requires dynamic scaling") != std::string::npos);
  CHECK(mm_error("mm_encoder: {attn_dtype: fp8, fp8_scale_path: a}\n") == "accepted");
  CHECK(mm_error("mm_encoder: {attn_dtype: fp8}\ntiming: {mode: graph}\n")
            .starts_with("E-CONFIG: s.yaml:5: timing.mode: "));
  CHECK(
      mm_error("mm_encoder: {tp_size: 3}\n") ==
      "E-CONFIG: s.yaml:1: mm_encoder.hidden_size: expected a multiple of tp_size = 3, found 512");
}

TEST_CASE("an operation needs its name, and tokens stand for a batch") {
  const Problem problem = typed("op", "op: {name: merge, tokens: 4096}\n");
  CHECK(problem.batch == std::vector<Request>{{4096, 4096}});
  CHECK(problem.case_name == "q4k");
  const std::string op = "name: t\nattention: {type: op, num_heads: 8, head_size: 64}\n";
  CHECK(error_of(op + "op: {tokens: 4}\n") ==
        "E-FORMAT: s.yaml:1: op.name: expected an operation for type op, found none");
  CHECK(error_of(op + "op: {name: marge, tokens: 4}\n").find("did you mean 'merge'?") !=
        std::string::npos);
  CHECK(error_of(op + "op: {name: merge, tokens: 4}\nbatch: q5\n")
            .starts_with("E-CONFIG: s.yaml:3: op.t"));
}

TEST_CASE("an operation takes its latents, layout and rotation from the sections around it") {
  const auto resolved = [](const std::string& more) { return typed("op", more).op; };
  CHECK(resolved("op: {name: reshape_and_cache, tokens: 4}\n").cache_layout == OpCacheLayout::kFa);
  CHECK(resolved("op: {name: reshape_and_cache, tokens: 4}\nkv_cache: {int8_level: 1}\n")
            .cache_layout == OpCacheLayout::kIx);
  CHECK(resolved("op: {name: reshape_and_cache, tokens: 4}\n"
                 "kv_cache: {dtype: int8_per_token_head}\n")
            .cache_layout == OpCacheLayout::kTr);
  CHECK(resolved("op: {name: rope_and_cache, tokens: 4}\n").cache_layout == OpCacheLayout::kTr);
  CHECK(resolved("op: {name: rope, tokens: 4}\n").rotary_dim == 64);
  CHECK(!resolved("op: {name: rope, tokens: 4}\n").mla);

  const std::string op =
      "name: t\nattention: {type: op, num_heads: 8}\nmla: {qk_rope_head_dim: 32}\n";
  const Problem latent = only_case(op + "op: {name: rope, tokens: 4}\n");
  CHECK(latent.op.mla);
  CHECK(latent.op.rotary_dim == 32);
  CHECK(latent.attention.head_size == 128 + 32);
  CHECK(latent.attention.num_kv_heads == 1);
  CHECK(only_case("name: t\nattention: {type: op, num_heads: 8}\nop: {name: gather, tokens: 4}\n")
            .op.mla);
}

TEST_CASE("an operation refuses what it would not read") {
  const auto op_error = [](const std::string& op, const std::string& more = "") {
    return error_of("name: t\nattention: {type: op, num_heads: 8, head_size: 64}\nop: {" + op +
                    "}\nbatch: q4s9\n" + more);
  };
  CHECK(op_error("name: merge") == "accepted");
  CHECK(op_error("name: merge, rotary_dim: 8") ==
        "E-CONFIG: s.yaml:3: op.rotary_dim: expected null for op merge, found 8");
  CHECK(op_error("name: rope, lse_base: two") ==
        "E-CONFIG: s.yaml:3: op.lse_base: expected e for op rope, found two");
  CHECK(op_error("name: merge, tokens_with_context: 5") ==
        "E-CONFIG: s.yaml:3: op.tokens_with_context: expected at most the 4 tokens, found 5");
  CHECK(op_error("name: rope, rotary_dim: 7").starts_with("E-SHAPE: s.yaml:3: op.rotary_dim: "));
  CHECK(op_error("name: rope, rotary_dim: 66").starts_with("E-SHAPE: s.yaml:3: op.rotary_dim: "));
  CHECK(op_error("name: output_quant") ==
        "E-CONFIG: s.yaml:1: output_quant.type: expected a quantisation for op output_quant, found "
        "none");
  CHECK(op_error("name: merge", "output_quant: {type: nvfp4}\n") ==
        "E-CONFIG: s.yaml:5: output_quant.type: expected none or fp8_static for op merge, found "
        "nvfp4");
  CHECK(op_error("name: rope", "dcp: {world_size: 2}\n") ==
        "E-CONFIG: s.yaml:5: dcp.world_size: expected 1 for op rope, found 2");
  CHECK(error_of("name: t\nattention: {type: op, num_heads: 8}\nop: {name: mm_quant, mla: true}\n"
                 "batch: q4\n")
            .starts_with("E-CONFIG: s.yaml:3: op.mla: "));
  CHECK(op_error("name: merge", "inputs: {file: a.safetensors}\n")
            .starts_with("E-CONFIG: s.yaml:5: inputs.file: "));
  const std::string packed =
      "name: t\nattention: {type: op, num_heads: 8}\nop: {name: gather}\n"
      "kv_cache: {dtype: fp8_ds_mla}\n";
  CHECK(error_of(packed + "batch: q4\n") == "accepted");
  CHECK(error_of(packed + "batch: q4s9\n").starts_with("E-CONFIG: s.yaml:5: batch: expected "));
}

TEST_CASE("a named prefill backend of MLA must fit, and FP8 prefill needs an fp8 cache") {
  const std::string head = "name: t\nbatch: q16\nattention: {type: mla, num_heads: 16}\n";
  // Whether the device is one for it, each backend says.
  CHECK(error_of(head + "mla: {prefill_backend: TRTLLM_RAGGED}\n") == "accepted");
  CHECK(error_of(head + "mla: {prefill_backend: TRTLLM_RAGGED, v_head_dim: 64}\n")
            .starts_with("E-CONFIG: s.yaml:4: mla.prefill_backend: Selected MLA prefill backend "
                         "TRTLLM_RAGGED is not valid for this configuration. Reason: [requires"));
  const std::string native =
      "mla: {prefill_backend: FLASHINFER, use_prefill_query_quantization: true}\n";
  CHECK(error_of(head + native) == "accepted");
  CHECK(error_of(head + native + "kv_cache: {dtype: fp8, k_scale: 0.5}\n")
            .starts_with("E-CONFIG: s.yaml:4: mla.use_prefill_query_quantization: expected "
                         "kv_cache.k_scale 1"));
  CHECK(error_of(head + native + "kv_cache: {dtype: fp8, calculate_kv_scales: true}\n")
            .starts_with("E-CONFIG: s.yaml:5: kv_cache.calculate_kv_scales: expected false with "
                         "mla.use_prefill_query_quantization"));
  CHECK(error_of(head + "mla: {prefill_backend: FLASH_ATTN_PREFILL, qk_nope_head_dim: 256}\n") ==
        "E-CONFIG: s.yaml:4: mla.prefill_backend: Selected MLA prefill backend FLASH_ATTN_PREFILL "
        "is not valid for this configuration. Reason: [head_size 320 not supported]");
  CHECK(error_of(head + "mla: {prefill_backend: FLASH_ATTN}\n")
            .starts_with("E-CONFIG: s.yaml:4: mla.prefill_backend: expected FLASH_ATTN_PREFILL"));
  CHECK(error_of(head + "mla: {emulate_fp8_prefill: true}\n") ==
        "E-CONFIG: s.yaml:4: mla.emulate_fp8_prefill: expected kv_cache.dtype fp8 with it, found "
        "auto");
}

TEST_CASE("limits of an engine hold its batch, size the workspace, and are of MLA alone") {
  const std::string head = "name: t\nbatch: 3q1s200\nattention: {type: mla, num_heads: 16}\n";
  CHECK(error_of(head + "engine: {max_model_len: 200, max_num_seqs: 3}\n") == "accepted");
  CHECK(error_of(head + "engine: {max_model_len: 199}\n") ==
        "E-CONFIG: s.yaml:4: engine.max_model_len: expected at least the 200 tokens of the longest "
        "request of the batch, found 199");
  CHECK(error_of(head + "engine: {max_num_seqs: 2}\n")
            .starts_with("E-CONFIG: s.yaml:4: engine.max_num_seqs: expected at least the 3 "));
  CHECK(error_of(head + "mla: {workspace_tokens: 4096}\nengine: {max_num_seqs: 4}\n")
            .starts_with("E-CONFIG: s.yaml:5: engine.max_num_seqs: expected null with mla.work"));
  CHECK(error_with("engine: {max_num_seqs: 4}") ==
        "E-CONFIG: s.yaml:4: engine.max_num_seqs: expected it with type mla only, found type "
        "decoder");
}

TEST_CASE("splits are of decodes, and fixed in batch-invariant mode") {
  CHECK(attention_error("num_splits: 4") == "accepted");
  CHECK(attention_error("num_splits: auto") == "accepted");
  CHECK(attention_error("num_splits: 257").starts_with("E-CONFIG: "));
  CHECK(attention_error("num_splits: 4\n  type: encoder")
            .find("expected it with type decoder, encoder_decoder or mla only") !=
        std::string::npos);
  CHECK(attention_error("num_splits: 4\n  batch_invariant: true")
            .find("expected 1 or null with attention.batch_invariant, found 4") !=
        std::string::npos);
  CHECK(attention_error("num_splits: 1\n  batch_invariant: true") == "accepted");
}

TEST_CASE("scales are finite and above 0 in float32 too") {
  CHECK(error_with("kv_cache: {dtype: fp8, k_scale: 1.0e-50}") ==
        "E-VALUE: s.yaml:4: kv_cache.k_scale: expected a number that is finite and > 0 in float32, "
        "found 1e-50");
  for (const char* number : {"1.0e-50", "1.0e+39"}) {
    for (const char* key : {"kv_cache: {dtype: fp8, v_scale: ", "kv_cache: {dtype: fp8, q_scale: ",
                            "output_quant: {type: fp8_static, scale: "}) {
      CAPTURE(key);
      const std::string error = error_with(fmt::format("{}{}}}", key, number));
      CHECK(error.starts_with("E-VALUE: s.yaml:4: "));
      CHECK(error.find("finite and > 0 in float32") != std::string::npos);
    }
    for (const char* key : {"scale: ", "logits_soft_cap: "}) {
      CAPTURE(key);
      CHECK(attention_error(fmt::format("{}{}", key, number)).starts_with("E-VALUE: s.yaml:"));
    }
  }
  CHECK(attention_error("logits_soft_cap: 0") == "accepted");
  CHECK(error_with("kv_cache: {dtype: fp8, k_scale: 1.0e-30}") == "accepted");
}

TEST_CASE("needles are those of the probe, and may be asked for") {
  CHECK(only_case(base_text("batch: q1s64\ninputs: {distribution: probe}\n")).inputs.needles);
  CHECK(only_case(base_text("batch: q1s64\ninputs: {needles: true}\n")).inputs.needles);
  CHECK_FALSE(only_case(base_text("batch: q1s64\n")).inputs.needles);
  CHECK(error_with("inputs: {distribution: outlier, needles: true}") ==
        "E-CONFIG: s.yaml:4: inputs.needles: expected false with inputs.distribution outlier, "
        "found true");
  CHECK(error_with("inputs: {distribution: probe, needles: false}").starts_with("E-CONFIG: "));
  CHECK(error_with("inputs: {mean: 1.0e+39}").starts_with("E-VALUE: s.yaml:4: inputs.mean: "));
}

TEST_CASE("a shared cache is of decoders, and makes no scales") {
  CHECK(attention_error("kv_sharing: true") == "accepted");
  CHECK(attention_error("kv_sharing: true\n  type: encoder_decoder").starts_with("E-CONFIG: "));
  CHECK(
      attention_error("kv_sharing: true", "q16\nkv_cache: {dtype: fp8, calculate_kv_scales: true}")
          .ends_with("expected false with attention.kv_sharing (nothing is written), found true"));
  CHECK(error_with("kv_cache: {k_scale_constant: 100}")
            .ends_with("kv_cache.k_scale_constant: expected 200 without "
                       "kv_cache.calculate_kv_scales, found 100"));
  CHECK(error_with("kv_cache: {dtype: fp8, calculate_kv_scales: true, k_scale_constant: 100}") ==
        "accepted");
}

TEST_CASE("chunks are whole pages of a causal decoder without a window") {
  CHECK(attention_error("chunk_size: 64") == "accepted");
  CHECK(attention_error("chunk_size: 40")
            .ends_with(
                "attention.chunk_size: expected a multiple of kv_cache.block_size = 16, found 40"));
  CHECK(attention_error("chunk_size: 64\n  sliding_window: 8")
            .ends_with("expected null with attention.sliding_window, found 64"));
  CHECK(attention_error("chunk_size: 64\n  mm_prefix_ranges: {0: [[0, 3]]}")
            .ends_with("expected null with attention.mm_prefix_ranges, found 64"));
  CHECK(attention_error("chunk_size: 64\n  causal: false").starts_with("E-CONFIG: "));
  CHECK(attention_error("chunk_size: 64\n  type: encoder")
            .ends_with("expected it with type decoder only, found type encoder"));
}

TEST_CASE("layers of an allocation and blocks of a manager fit the cache") {
  CHECK(error_with("kv_cache: {layers: 4, layer: 3}") == "accepted");
  CHECK(error_with("kv_cache: {layers: 4, layer: 4}")
            .ends_with("kv_cache.layer: expected less than kv_cache.layers = 4, found 4"));
  CHECK(error_with("kv_cache: {layer: 1}")
            .ends_with("kv_cache.layer: expected 0 without kv_cache.layers, found 1"));
  CHECK(error_with("kv_cache: {layers: 4, layout: HND}")
            .ends_with("expected kv_cache.layout NHD with it, found HND"));
  CHECK(error_with("kv_cache: {layers: 2}\ndcp: {world_size: 2}").starts_with("E-CONFIG: "));
  CHECK(error_with("kv_cache: {manager_block_size: 40}")
            .ends_with("expected a multiple of kv_cache.block_size = 16, found 40"));
  CHECK(error_with("kv_cache: {manager_block_size: 64}\ncascade: {common_prefix_len: 32}", "q1s40")
            .find("expected a divisor of cascade.common_prefix_len = 32") != std::string::npos);
  CHECK(error_with("kv_cache: {manager_block_size: 64, num_blocks: 9}")
            .ends_with("expected whole blocks of the manager, of 4 kernel blocks each, found 9"));
  // One block of the manager for 16 tokens, and as many spare ones as there must be.
  CHECK(
      only_case(base_text("batch: q16\nkv_cache: {manager_block_size: 64}")).kv_cache.num_blocks ==
      8);
}

TEST_CASE("a graph of MLA that no backend could capture is an error") {
  const std::string head =
      "name: t\nattention: {type: mla, num_heads: 16}\ntiming: {mode: graph}\n";
  CHECK(error_of(head + "batch: 3q1s200\n") == "accepted");
  CHECK(error_of(head + "batch: 3q200s200\n") == "accepted");  // FLASH_ATTN_MLA's are decodes
  CHECK(error_of(head + "batch: q1s200_q513\n") ==
        "E-CONFIG: s.yaml:3: timing.mode: MLA graph: expected max_query_len <= 1, got 513");
  CHECK(error_of(head + "batch: q1s200_q513\nmla: {sparse_topk: 128}\n") == "accepted");
}

TEST_CASE("a row of a batch says whether its tokens are of a prompt") {
  const Problem problem = only_case(base_text(
      "batch:\n- {query_len: 1, seq_len: 9, prefilling: true}\n- {query_len: 1, seq_len: 9}\n"));
  CHECK(problem.batch[0].prefilling == true);
  CHECK_FALSE(problem.batch[1].prefilling.has_value());
  CHECK(problem_to_json(problem).find(
            R"({"count":1,"query_len":1,"seq_len":9,"prefilling":true})") != std::string::npos);
  CHECK(error_of(base_text("batch: [{query_len: 1, seq_len: 9, prefilling: 1}]\n"))
            .find("batch.prefilling: expected true or false, found 1") != std::string::npos);
}

TEST_CASE("weights of kv_b_proj are in fp8 with blocks or without, and NVFP4 and AWQ are refused") {
  const std::string head = "name: t\nbatch: q16\nattention: {type: mla, num_heads: 16}\n";
  CHECK(error_of(head + "mla: {kv_b_proj: {dtype: fp8}}\n") == "accepted");
  CHECK(error_of(head + "mla: {kv_b_proj: {dtype: fp8, block_size: 128}}\n") == "accepted");
  CHECK(
      error_of(head + "mla: {kv_b_proj: {block_size: 128}}\n") ==
      "E-CONFIG: s.yaml:4: mla.kv_b_proj.block_size: expected null with mla.kv_b_proj.dtype auto, "
      "found 128");
  for (const auto& [name, words] : {std::pair{"nvfp4", "NVFP4 weights"}, {"awq", "AWQ weights"}}) {
    const std::string error = error_of(head + "mla: {kv_b_proj: {dtype: " + name + "}}\n");
    CHECK(error.starts_with("E-CONFIG: s.yaml:4: mla.kv_b_proj.dtype: expected auto or fp8"));
    CHECK(error.find(words) != std::string::npos);
  }
}

TEST_CASE("under DCP output groups fill the row of a rank") {
  CHECK(error_of("name: t\nattention: {type: mla, num_heads: 2}\nbatch: q1\n"
                 "mla: {v_head_dim: 64}\ndcp: {world_size: 2}\n"
                 "output_quant: {type: fp8_group128}\n")
            .ends_with("expected num_heads / dcp.world_size * v_head_size to be a multiple of 128 "
                       "for fp8_group128, found 64"));
}

TEST_CASE("output groups fill the row") {
  CHECK(
      error_of("name: t\nattention: {num_heads: 3, head_size: 64}\nbatch: q1\n"
               "output_quant: {type: fp8_group128}\n") ==
      "E-SHAPE: s.yaml:4: output_quant.type: expected num_heads * v_head_size to be a multiple of "
      "128 for fp8_group128, found 192");
}

TEST_CASE("an error that only one swept case has names the swept value's line") {
  CHECK(error_of(base_text("batch: q1\nsweep:\n  kv_cache.block_size:\n  - 16\n  - 24\n")) ==
        "E-CONFIG: s.yaml:7: kv_cache.block_size: Block size must be a multiple of 16. Found 24; "
        "the nearest is 32");
}

TEST_CASE("problem_to_json read as a scenario gives the same problem") {
  const std::vector<std::string> texts = {
      base_text("description: d\nbatch: 60q1s4k_4q1ks3k\n"),
      base_text(
          "batch: [{query_len: 0, seq_len: 0}, {query_len: 3, seq_len: 300}]\n"
          "kv_cache: {k_scale: [0.1, 3], dtype: fp8, layout: HND, block_size: 32}\n"
          "triton: {path: 2d, capture_sizes: [1, 2]}\ninputs: {seed: 77, file: x/y.safetensors}\n"
          "validation: {max_rows: 5}\ntiming: {samples: 9, l2: warm}\n"),
      base_text("batch: q1\ntiming: {l2: clean}\n"),
      "name: t\nattention: {num_heads: 2, head_size: 96, sinks: [.inf, -1], alibi: sqrt,"
      " alibi_slopes: [0.5, 0.25], mm_prefix_ranges: {1: [[1, 4]], 0: [[0, 0]]}, causal: false,"
      " sliding_window: 7, scale: 0.1, logits_soft_cap: 30}\nbatch: 2q9\n",
      "name: t\nattention: {type: mla, num_heads: 16}\nbatch: q1s5\n"
      "mla: {sparse_topk: 2048, sparse: {valid: 0.5}, workspace_tokens: 64, q_pad_num_heads: 128,"
      " kv_b_proj: {dtype: fp8, block_size: 128}}\n"
      "output_quant: {type: nvfp4, scale: 0.1}\n",
      "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 80}\n"
      "mm_encoder: {images: [[100, 100]], window: 3, layer_names: {template: 'a.{}.b', count: "
      "3}}\n",
      "name: t\nattention: {type: mm_encoder, num_heads: 8, head_size: 80}\nbatch: q9\n"
      "mm_encoder: {batch_size: 4, kv_len: 7}\n",
      "name: t\nattention: {type: op, num_heads: 8, head_size: 64}\nop: {name: rope, tokens: 7}\n",
      "name: t\nattention: {type: encoder, num_heads: 8, head_size: 64, sinks: normal}\nbatch: "
      "q5\n"};
  for (const std::string& text : texts) {
    const std::string json = problem_to_json(only_case(text));
    CAPTURE(json);
    CHECK(problem_to_json(only_case(json)) == json);
  }
}

TEST_CASE("problem_to_json nests and names as the contract does") {
  const std::string json = problem_to_json(only_case(base_text("batch: 2q1s8_q4\n")));
  CHECK(
      json.starts_with(R"({"schema":1,"name":"t","description":"","attention":{"type":"decoder",)"
                       R"("num_heads":8,"num_kv_heads":2,"head_size":64,"v_head_size":64,)"
                       R"("dtype":"bfloat16","query_dtype":"auto","scale":0.125,"causal":true,)"));
  CHECK(json.find(R"("batch":[{"count":2,"query_len":1,"seq_len":8},)"
                  R"({"count":1,"query_len":4,"seq_len":4}],"batch_options":)") !=
        std::string::npos);
  CHECK(json.find(R"("sparse":{"valid":1.0,"duplicates":0.0,"indices":"random",)"
                  R"("topk_length":null,"extra_topk":)") != std::string::npos);
}

TEST_CASE("calculated scales contradict scales that are given, and raw latents") {
  const std::string text = "name: s\nbatch: q4\nattention: {num_heads: 2, head_size: 64}\n";
  const auto message = [](const std::string& scenario) {
    try {
      parse_scenario(scenario, "f.yaml", {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(text + "kv_cache: {dtype: fp8, calculate_kv_scales: true}\n").empty());
  CHECK(message(text + "kv_cache: {dtype: fp8, calculate_kv_scales: true, v_scale: 0.5}\n")
            .find("expected k_scale, v_scale and q_scale of 1 with it (they are calculated), found "
                  "1, 0.5 and 1") != std::string::npos);
  CHECK(message("name: s\nbatch: q4\nattention: {type: mla, num_heads: 2}\n"
                "mla: {emulate_fp8_prefill: true}\n"
                "kv_cache: {dtype: fp8, calculate_kv_scales: true, block_size: 64}\n")
            .find("the cache is gathered raw") != std::string::npos);
}

}  // namespace
}  // namespace attnbench
