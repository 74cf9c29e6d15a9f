#include "random_problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

namespace attnbench::matrix {
namespace {

constexpr const char* kFloat32 = "attention.dtype=float32";

/// Draws settings and remembers the features that they bring.
class Drawer {
 public:
  explicit Drawer(std::uint64_t seed) : random_(seed) {}

  Draw take() {
    const int kind = below(24);
    if (kind < 9) {
      draw_decoder();
    } else if (kind < 11) {
      draw_encoder();
    } else if (kind < 13) {
      draw_cross();
    } else if (kind < 17) {
      draw_mla();
    } else if (kind < 20) {
      draw_mm();
    } else {
      draw_op();
    }
    set("inputs.seed", std::to_string(below(1000)));
    if (chance(4)) draw_distribution();
    return std::move(draw_);
  }

 private:
  /// Why not a standard distribution: those differ between libraries.
  int below(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int one_in) { return below(one_in) == 0; }
  template <typename T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }

  void feature(const std::string& name) { draw_.features.insert(name); }
  void set(const std::string& key, const std::string& value) {
    draw_.settings.emplace_back(key, value);
  }
  /// Sets one of `values` and notes "key=value" as a feature.
  std::string choose(const std::string& key, const std::vector<std::string>& values) {
    std::string value = pick(values);
    set(key, value);
    feature(key + "=" + value);
    return value;
  }
  /// An operation has neither scores nor decodes.
  bool is_op() const { return draw_.backend == "OPS"; }
  void backend(const std::vector<std::string>& names) {
    draw_.backend = pick(names);
    feature(draw_.backend);
  }

  void draw_heads(int group_limit) {
    const int group = pick(std::vector<int>{1, 2, 3, 4, 7, 8, 16});
    const int kv_heads = between(1, group > 4 ? 1 : 3);
    heads_ = std::min(group, group_limit) * kv_heads;
    set("attention.num_heads", std::to_string(heads_));
    set("attention.num_kv_heads", std::to_string(kv_heads));
    kv_heads_ = kv_heads;
    if (group == 1) feature("MHA");
    if (kv_heads == 1 && group > 1) feature("MQA");
    if (kv_heads > 1 && group > 1) feature("GQA");
  }
  /// Large scores are beyond what float32 keeps within its limit, and beyond what the 16-bit latent
  /// query of MLA does (§14.2 demands small inputs there).
  bool takes_large_scores() const { return !mla_ && !draw_.features.contains(kFloat32); }
  void draw_dtype(const std::vector<std::string>& dtypes) {
    choose("attention.dtype", dtypes);
    if (!chance(6)) return;
    const std::string scale =
        takes_large_scores() ? pick(std::vector<std::string>{"0.05", "1", "4"}) : "0.05";
    if (is_op()) return;
    set("attention.scale", scale);
    feature("scale");
  }
  void draw_distribution() {
    if (takes_large_scores()) {
      choose("inputs.distribution", {"uniform", "outlier"});
    } else {
      choose("inputs.distribution", {"uniform"});
    }
  }

  void add_request(int query_len, int seq_len) {
    if (!batch_.empty()) batch_ += ", ";
    batch_ += fmt::format("{{count: 1, query_len: {}, seq_len: {}}}", query_len, seq_len);
    ++num_requests_;
    min_context_ = std::min(min_context_, seq_len - query_len);
  }
  void set_batch() { set("batch", "[" + batch_ + "]"); }

  /// Decodes, then chunks with context, then prompts, then padding rows: the order of §1.4.
  void draw_decoder_batch(bool decodes_only, int least_context, int most_decodes = 4) {
    const int decodes = between(decodes_only ? 1 : 0, most_decodes);
    const bool speculative = !decodes_only && decodes > 0 && chance(4);
    if (speculative && !is_op()) {
      set("attention.num_speculative_tokens", std::to_string(between(1, 4)));
      feature("speculative tokens");
    }
    const bool long_decode = chance(6);
    for (int i = 0; i < decodes; ++i) {
      const int query = speculative ? between(1, 4) : 1;
      const int context = least_context + (i == 0 && long_decode ? between(520, 900) : below(90));
      add_request(query, query + context);
    }
    if (long_decode && decodes > 0) feature("long decode");
    if (!decodes_only) {
      const int chunks = below(3);
      for (int i = 0; i < chunks; ++i) {
        const int query = between(2, 24);
        add_request(query, query + least_context + between(1, 60));
      }
      const int prompts = least_context > 0 ? 0 : below(3);
      for (int i = 0; i < prompts; ++i) {
        const int length = between(1, 40);
        add_request(length, length);
      }
      if (decodes > 0 && chunks + prompts > 0) feature("mixed batch");
    }
    if (chance(5)) {
      add_padding(below(3), least_context);
    }
    if (num_requests_ == 0) add_request(1, 1 + least_context);
    set_batch();
  }
  void add_padding(int kind, int least_context) {
    feature("request without tokens");
    if (kind != 0) add_request(0, least_context + between(1, 40));
    if (kind != 1) {
      const int context = min_context_;
      add_request(0, 0);
      min_context_ = context;
    }
  }

  void draw_score(bool window, bool alibi, bool sinks) {
    if (window && chance(3)) {
      set("attention.sliding_window", std::to_string(pick(std::vector<int>{1, 5, 16, 33, 500})));
      feature("window");
    }
    if (chance(4)) {
      set("attention.logits_soft_cap", pick(std::vector<std::string>{"2", "30"}));
      feature("soft-cap");
    }
    if (alibi && chance(4)) choose("attention.alibi", {"linear", "sqrt"});
    if (sinks && chance(4)) {
      if (chance(3)) {
        std::vector<std::string> values;
        for (int h = 0; h < heads_; ++h) {
          values.push_back(pick(std::vector<std::string>{"-.inf", "0", "3", "6"}));
        }
        set("attention.sinks", fmt::format("[{}]", fmt::join(values, ", ")));
      } else {
        set("attention.sinks", "normal");
      }
      feature("sinks");
    }
  }

  void draw_pages() {
    choose("kv_cache.layout", {"NHD", "HND"});
    choose("kv_cache.block_size", {"16", "32", "64"});
    if (chance(4)) choose("kv_cache.shuffle_blocks", {"false"});
  }

  /// One number, or one for each KV head.
  void draw_kv_scale(const std::string& key, bool per_head) {
    if (!per_head) return set(key, pick(std::vector<std::string>{"1", "0.02", "0.013"}));
    std::vector<std::string> values;
    for (int h = 0; h < kv_heads_; ++h) {
      values.push_back(pick(std::vector<std::string>{"0.02", "0.013", "0.03"}));
    }
    set(key, fmt::format("[{}]", fmt::join(values, ", ")));
    feature("per-head scales");
  }

  void draw_decoder() {
    backend({"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"});
    const bool triton = draw_.backend == "TRITON_ATTN";
    const int special = below(8);
    const bool cascade = special == 0 && !triton;
    const bool dcp = special == 1 && !triton;
    draw_heads(16);
    draw_dtype(triton ? std::vector<std::string>{"bfloat16", "float16", "float32"}
                      : std::vector<std::string>{"bfloat16", "float16"});
    set("attention.head_size",
        std::to_string(pick(std::vector<int>{32, 40, 64, 80, 96, 128, 160, 192, 256})));
    draw_pages();
    if (dcp) return draw_dcp();
    if (cascade) return draw_cascade();
    const bool three_d = triton && chance(3);
    if (triton) choose("triton.path", {three_d ? "3d" : "2d"});
    draw_decoder_batch(three_d || chance(4), 0);
    if (!triton && draw_.backend == "FLASH_ATTN_IX" && chance(2)) {
      choose("kv_cache.int8_level", {"1", "2"});
      return draw_score(true, true, false);
    }
    draw_cache_format(triton);
    draw_score(true, true, true);
    if (triton && chance(5)) draw_mm_prefix();
    if (triton && chance(6)) {
      choose("output_quant.type", {"fp8_static"});
      set("output_quant.scale", "0.02");
    }
    if (draw_.backend == "FLASH_ATTN" && chance(8)) {
      set("attention.causal", "false");
      feature("non-causal decoder");
    }
    if (chance(8)) {
      set("attention.batch_invariant", "true");
      feature("batch invariance");
    }
  }

  void draw_cache_format(bool triton) {
    if (chance(2)) return;
    if (triton) {
      const std::string dtype = choose(
          "kv_cache.dtype", {"fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"});
      if (dtype == "int8_per_token_head") choose("kv_cache.pth_int8_round", {"half_away", "trunc"});
      if (dtype == "fp8_e5m2" && chance(2)) choose("kv_cache.e5m2_as_e4m3", {"true"});
      if (!dtype.ends_with("per_token_head") && draw_.backend != "OPS" && chance(3)) {
        choose("kv_cache.calculate_kv_scales", {"true"});
      } else if (!dtype.ends_with("per_token_head")) {
        draw_kv_scale("kv_cache.k_scale", false);
        draw_kv_scale("kv_cache.v_scale", false);
      }
      return;
    }
    feature(draw_.backend + " fp8");
    set("kv_cache.dtype", "fp8");
    if (draw_.backend == "FLASH_ATTN_IX") return;  // its scales are 1
    if (draw_.backend == "FLASH_ATTN" && chance(3)) {
      choose("kv_cache.calculate_kv_scales", {"true"});
      return;
    }
    const bool per_head = chance(3);
    draw_kv_scale("kv_cache.k_scale", per_head);
    draw_kv_scale("kv_cache.v_scale", per_head);
    if (!is_op()) set("kv_cache.q_scale", "0.015");
    if (draw_.backend == "FLASH_ATTN" && chance(2)) {
      choose("attention.probability_dtype", {"model", "fp8_e4m3"});
    }
  }

  void draw_mm_prefix() {
    feature("mm_prefix");
    const int start = below(20);
    set("attention.mm_prefix_ranges",
        fmt::format("{{0: [[{}, {}], [30, 34]]}}", start, start + below(12)));
  }

  void draw_cascade() {
    feature("cascade");
    draw_decoder_batch(chance(3), 64);
    set("cascade.common_prefix_len", "64");
    set("cascade.mode", "always");
    draw_score(false, false, draw_.backend == "FLASH_ATTN");
  }

  void draw_dcp() {
    feature("DCP");
    const std::string world = pick(std::vector<std::string>{"2", "4", "8"});
    choose("dcp.comm", {"ag_rs", "ag_ar", "a2a"});
    set("dcp.world_size", world);
    set("attention.num_heads", std::to_string(heads_ * std::stoi(world)));
    choose("dcp.interleave_size", {"1", "2", "16"});
    draw_decoder_batch(chance(3), 0);
    draw_score(false, false, false);
  }

  void draw_encoder() {
    backend({"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"});
    choose("attention.type", {"encoder", "encoder_only"});
    const bool triton = draw_.backend == "TRITON_ATTN";
    draw_heads(16);
    draw_dtype({"bfloat16", "float16"});
    const int head_size = pick(std::vector<int>{32, 40, 64, 80, 128, 256});
    set("attention.head_size", std::to_string(head_size));
    if (chance(4)) {
      set("attention.v_head_size", std::to_string(pick(std::vector<int>{32, 48, 64})));
      feature("narrow values");
    }
    const int requests = between(1, 5);
    for (int i = 0; i < requests; ++i) {
      const int length = chance(6) ? 0 : between(1, 80);
      add_request(length, length);
    }
    set_batch();
    if (triton) {
      if (chance(2)) set("attention.sliding_window", std::to_string(between(1, 30)));
      return;
    }
    draw_score(true, true, false);
    choose("attention.encoder_window", {"source", "symmetric"});
  }

  void draw_cross() {
    backend({"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"});
    feature("cross attention");
    set("attention.type", "encoder_decoder");
    draw_heads(8);
    draw_dtype({"bfloat16", "float16"});
    set("attention.head_size", std::to_string(pick(std::vector<int>{32, 64, 96})));
    draw_pages();
    const int requests = between(1, 5);
    for (int i = 0; i < requests; ++i) {
      add_request(between(1, 20), chance(6) ? 0 : between(1, 90));
    }
    set_batch();
    if (draw_.backend == "TRITON_ATTN") draw_cache_format(true);
    draw_score(true, true, true);
  }

  void draw_mla() {
    mla_ = true;
    backend({"MLA", "FLASHMLA", "FLASH_ATTN_MLA", "FLASHMLA_SPARSE", "REFERENCE"});
    set("attention.type", "mla");
    const bool sparse = draw_.backend == "FLASHMLA_SPARSE";
    const bool any_size = draw_.backend == "MLA" || draw_.backend == "REFERENCE";
    const int heads = between(1, 5);
    set("attention.num_heads", std::to_string(heads));
    heads_ = 1;
    const int rope = any_size ? pick(std::vector<int>{16, 32, 64}) : 64;
    const int latent = sparse ? 512 : (any_size ? pick(std::vector<int>{64, 96, 256}) : 256);
    set("mla.kv_lora_rank", std::to_string(latent));
    set("mla.qk_rope_head_dim", std::to_string(rope));
    set("mla.qk_nope_head_dim", std::to_string(pick(std::vector<int>{16, 32, 64})));
    set("mla.v_head_dim", std::to_string(pick(std::vector<int>{16, 32, 48})));
    draw_dtype(sparse ? std::vector<std::string>{"bfloat16"}
                      : std::vector<std::string>{"bfloat16", "float16"});
    set("kv_cache.block_size", any_size ? pick(std::vector<std::string>{"16", "32"}) : "64");
    draw_decoder_batch(chance(3), 0, 3);
    if (chance(3)) {
      draw_output_quant();
      set("mla.v_head_dim", "128");
      set("mla.qk_nope_head_dim", "128");
    }
    if (sparse) return draw_sparse();
    const bool ranks = chance(4);
    if (ranks) draw_mla_ranks(heads);
    if (!ranks && draw_.backend != "FLASH_ATTN_MLA" && chance(2)) {
      feature(draw_.backend + " fp8");
      set("kv_cache.dtype", "fp8");
      set("kv_cache.k_scale", "0.0625");
      set("kv_cache.q_scale", "0.05");
      if (draw_.backend != "REFERENCE" && chance(3)) {
        choose("mla.emulate_fp8_prefill", {"true"});
        set("kv_cache.k_scale", "1");  // the cache is gathered as it is
      }
    }
    choose("mla.v_pad", {"auto", "\"on\"", "\"off\""});
    if (chance(3)) {
      set("mla.workspace_tokens", std::to_string(pick(std::vector<int>{256, 512})));
      feature("context chunks");
    }
    if (chance(4)) {
      set("mla.q_pad_num_heads", "8");
      feature("padded heads");
    }
  }

  /// Heads of 128 columns make whole groups (§9).
  void draw_output_quant() {
    const std::string type =
        choose("output_quant.type", {"fp8_static", "fp8_group128", "fp8_group64", "nvfp4"});
    if (type == "nvfp4") set("output_quant.scale", "896");
    if (type == "fp8_static") set("output_quant.scale", "0.013");
    if (type == "nvfp4") choose("output_quant.swizzle", {"true", "false"});
    if (!type.starts_with("fp8_group")) return;
    choose("output_quant.ue8m0", {"true", "false"});
    choose("output_quant.column_major", {"true", "false"});
    if (chance(3)) choose("output_quant.tma_aligned", {"true"});
  }

  void draw_mla_ranks(int heads) {
    feature("MLA over ranks");
    const std::string world = pick(std::vector<std::string>{"2", "4"});
    set("dcp.world_size", world);
    set("attention.num_heads", std::to_string(heads * std::stoi(world)));
    choose("dcp.comm", {"ag_rs", "ag_ar", "a2a"});
    choose("dcp.interleave_size", {"1", "2", "16"});
  }

  void draw_sparse() {
    choose("kv_cache.dtype", {"auto", "fp8_ds_mla", "fp8"});
    set("mla.sparse_topk", "128");
    choose("mla.sparse.valid", {"1.0", "0.5", "0.0"});
    choose("mla.sparse.duplicates", {"0.0", "0.3"});
  }

  void draw_mm() {
    backend({"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER"});
    set("attention.type", "mm_encoder");
    draw_heads(4);
    const bool wide = draw_.backend == "MM_TORCH_SDPA" || draw_.backend == "MM_TRITON_ATTN";
    draw_dtype(wide ? std::vector<std::string>{"bfloat16", "float16", "float32"}
                    : std::vector<std::string>{"bfloat16", "float16"});
    set("attention.head_size", std::to_string(pick(std::vector<int>{40, 64, 72, 80, 128})));
    if (draw_.backend == "MM_FLASHINFER" && chance(2)) {
      feature("encoder fp8");
      set("mm_encoder.attn_dtype", "fp8");
      choose("mm_encoder.amax", {"abs", "signed"});
      if (chance(2)) choose("attention.probability_dtype", {"model", "fp8_e4m3"});
    }
    if (draw_.backend != "MM_FLASHINFER" && chance(4)) {
      feature("no cu_seqlens");
      set("mm_encoder.batch_size", std::to_string(between(1, 4)));
      set("mm_encoder.kv_len", std::to_string(between(1, 70)));
      return;
    }
    if (chance(4)) {
      feature("images");
      set("mm_encoder.images",
          fmt::format("[[{}, {}], [56, 84]]", 14 * between(1, 8), 14 * between(1, 8)));
      if (chance(2)) {
        set("mm_encoder.window", std::to_string(between(1, 4)));
        feature("image windows");
      }
      return;
    }
    const int requests = between(1, 12);
    for (int i = 0; i < requests; ++i) {
      const int length = chance(6) ? 0 : between(1, 60);
      add_request(length, length);
    }
    set_batch();
  }

  void draw_op() {
    backend({"OPS"});
    set("attention.type", "op");
    const std::string op =
        choose("op.name", {"reshape_and_cache", "merge", "gather", "rope", "rope_and_cache",
                           "quantize", "dcp_correct", "output_quant", "mm_quant"});
    const bool takes_latents =
        op != "gather" && op != "merge" && op != "output_quant" && op != "mm_quant";
    const bool latents = op == "gather" || (takes_latents && chance(3));
    if (latents) {
      draw_latents();
    } else {
      draw_heads(8);
      set("attention.head_size", std::to_string(pick(std::vector<int>{32, 40, 64, 80, 128})));
    }
    draw_dtype({"bfloat16", "float16", "float32"});
    draw_decoder_batch(chance(3), 0);
    if (op.starts_with("rope")) draw_rotation();
    if (op == "merge") draw_merge();
    if (op == "dcp_correct") draw_correction();
    if (op == "output_quant") draw_op_output_quant();
    if (op == "quantize") draw_quantize(latents);
    if (op == "gather" && chance(2)) choose("op.raw", {"true"});
    if (op == "reshape_and_cache" || op == "rope_and_cache" || op == "gather") {
      latents ? draw_latent_entries() : draw_written_pages(op == "reshape_and_cache");
    }
  }

  void draw_latents() {
    feature("operation on latents");
    heads_ = between(1, 4);
    set("attention.num_heads", std::to_string(heads_));
    set("op.mla", "true");
    set("mla.kv_lora_rank", std::to_string(pick(std::vector<int>{64, 256, 512})));
    set("mla.qk_rope_head_dim", "64");
  }

  void draw_latent_entries() {
    const std::string dtype = choose("kv_cache.dtype", {"auto", "fp8", "fp8_ds_mla"});
    if (dtype == "fp8") set("kv_cache.k_scale", "0.023");
    if (dtype != "fp8_ds_mla") return;
    set("mla.kv_lora_rank", "512");
    set("attention.dtype", "bfloat16");
  }

  void draw_written_pages(bool alone) {
    draw_pages();
    if (alone && chance(4)) {
      choose("kv_cache.int8_level", {"1", "2"});
      return;
    }
    const std::string layout = choose("op.cache_layout", {"FA", "IX", "TR"});
    if (alone && chance(3)) {
      set("dcp.world_size", pick(std::vector<std::string>{"2", "4"}));
      set("dcp.interleave_size", pick(std::vector<std::string>{"1", "16"}));
      feature("cache writes of ranks");
    }
    if (chance(2)) draw_cache_format(layout == "TR");
  }

  void draw_rotation() {
    choose("op.rope_style", {"neox", "gptj"});
    choose("op.cos_sin_dtype", {"auto", "float32"});
    if (chance(3)) set("op.rotary_dim", pick(std::vector<std::string>{"16", "32"}));
  }

  void draw_merge() {
    if (chance(2)) set("op.tokens_with_context", "1");
    if (chance(2)) return;
    feature("merge into fp8");
    set("output_quant.type", "fp8_static");
    set("output_quant.scale", "0.021");
  }

  void draw_correction() {
    choose("op.lse_base", {"e", "two"});
    const std::string world = pick(std::vector<std::string>{"1", "2", "4"});
    set("dcp.world_size", world);
    if (world != "1") choose("dcp.comm", {"ag_rs", "ag_ar", "a2a"});
    set("attention.num_heads", std::to_string(heads_ * std::stoi(world)));
  }

  void draw_op_output_quant() {
    draw_output_quant();
    set("attention.head_size", "128");
  }

  void draw_quantize(bool latents) {
    const int level = latents ? 0 : below(3);
    if (!latents) set("kv_cache.int8_level", std::to_string(level));
    if (level == 0) set("kv_cache.q_scale", "0.0113");
  }

  std::mt19937_64 random_;
  Draw draw_;
  std::string batch_;
  int num_requests_ = 0;
  int min_context_ = 1 << 20;
  int heads_ = 1;
  int kv_heads_ = 1;
  bool mla_ = false;
};

}  // namespace

Draw draw_problem(std::uint64_t seed) { return Drawer(seed).take(); }

}  // namespace attnbench::matrix
