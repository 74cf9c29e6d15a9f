#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/bare_reasons_testing.h"
#include "backends/traffic.h"
#include "backends/upstream_names.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench {
namespace {

using Reasons = std::vector<std::string>;
using Change = std::function<void(Problem&)>;

Problem plain() {
  Problem p;
  p.attention.num_heads = 8;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 64;
  p.attention.scale = 0.125;
  p.batch = {{1, 70}, {33, 33}};
  p.kv_cache.num_blocks = 100;
  return p;
}

Reasons refusals(const std::string& backend, const Change& change, int sm = 90) {
  Problem p = plain();
  change(p);
  return bare_reasons(find_backend(backend)->refusals(p, DeviceFacts{sm, 132}));
}

const char* const kFa = "FLASH_ATTN";
const char* const kIx = "FLASH_ATTN_IX";
const char* const kTriton = "TRITON_ATTN";

void encoder(Problem& p) {
  p.attention.type = AttentionType::kEncoder;
  p.attention.causal = false;
}
void cascade(Problem& p) { p.cascade = {64, CascadeMode::kAlways}; }

}  // namespace

TEST_CASE("a plain decoder is supported by the reference and every backend of decoders") {
  for (const Backend* backend : all_backends()) {
    if (!backend->is_default_for(AttentionType::kDecoder) && backend->name() != "REFERENCE") {
      CHECK_FALSE(backend->refusals(plain(), DeviceFacts{}).empty());
      continue;
    }
    CHECK(backend->refusals(plain(), DeviceFacts{}).empty());
  }
}

TEST_CASE("backends are listed in the order of the contract and found by name") {
  Reasons names;
  for (const Backend* backend : all_backends()) names.emplace_back(backend->name());
  CHECK(names == Reasons{"REFERENCE", "FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN", "MLA",
                         "FLASHMLA", "FLASH_ATTN_MLA", "FLASHMLA_SPARSE", "CUTLASS_MLA",
                         "FLASHINFER_MLA_SPARSE", "MM_TORCH_SDPA", "MM_FLASH_ATTN",
                         "MM_TRITON_ATTN", "MM_FLASHINFER", "OPS", "CUDNN"});
  CHECK(find_backend("FLASHINFER") == nullptr);
  CHECK(find_backend("TRITON_ATTN")->name() == "TRITON_ATTN");
}

TEST_CASE("upstream's other names are backends of the list, or refuse every case in its words") {
  CHECK(find_upstream_backend("TRITON_MLA") == find_backend("MLA"));
  CHECK(find_upstream_backend("FLASH_ATTENTION") == nullptr);
  for (const Backend* backend : all_backends()) {
    CHECK(find_upstream_backend(backend->name()) == nullptr);
  }
  const auto reason = [](const char* name) {
    const Backend* backend = find_upstream_backend(name);
    REQUIRE(backend != nullptr);
    CHECK(backend->name() == name);
    CHECK(find_backend(name) == nullptr);
    const Reasons reasons = backend->refusals(plain(), DeviceFacts{});
    REQUIRE(reasons.size() == 1);
    return reasons.front();
  };
  CHECK(reason("MM_ROCM_AITER_FA") == "ROCM_AITER_FA requires ROCm");
  CHECK(reason("ROCM_ATTN") ==
        "Selected backend ROCM_ATTN is not valid for this configuration. Reason: ['ImportError']");
  CHECK(reason("CUSTOM") ==
        "Backend CUSTOM must be registered before use. Use register_backend(Backend.CUSTOM, "
        "'your.module.YourClass')");
  CHECK(reason("FLASHINFER").find("python:attnbench.adapters.flashinfer") != std::string::npos);
}

TEST_CASE("backends state their rules, and a name that is none of theirs has no rules") {
  CHECK(find_kernel_rules(kFa) == kFlashRules);
  CHECK(find_kernel_rules(kIx) == kFlashIxRules);
  CHECK(find_kernel_rules(kTriton) == kTritonRules);
  CHECK(find_kernel_rules("CUDNN") == kFlashRules);
  CHECK(find_kernel_rules("REFERENCE") == KernelRules{.reads_dequantised = true});
  for (const char* name : {"MLA", "FLASHMLA_SPARSE", "MM_TRITON_ATTN", "MM_FLASHINFER", "OPS"}) {
    CHECK(find_kernel_rules(name) == KernelRules{});
  }
  CHECK_FALSE(find_kernel_rules("FLASHINFER").has_value());
  CHECK_FALSE(find_kernel_rules("").has_value());
}

TEST_CASE("head sizes: multiples of 8 up to 256 for FlashAttention, 32 and more for Triton") {
  for (const auto& [size, fa, triton] :
       {std::tuple{24, true, false}, {36, false, true}, {256, true, true}, {264, false, true}}) {
    const Change change = [size = size](Problem& p) {
      p.attention.head_size = p.attention.v_head_size = size;
    };
    const Reasons refused{"head_size not supported"};
    CHECK(refusals(kFa, change) == (fa ? Reasons{} : refused));
    CHECK(refusals(kIx, change) == (fa ? Reasons{} : refused));
    CHECK(refusals(kTriton, change) == (triton ? Reasons{} : refused));
  }
}

TEST_CASE("element types: float32 is Triton's alone") {
  const Change change = [](Problem& p) { p.attention.dtype = Dtype::kF32; };
  CHECK(refusals(kFa, change) == Reasons{"dtype not supported"});
  CHECK(refusals(kIx, change) == Reasons{"dtype not supported"});
  CHECK(refusals(kTriton, change).empty());
}

TEST_CASE("KV types follow the table of each backend") {
  const auto with = [](KvCacheDtype dtype) {
    return [dtype](Problem& p) {
      p.kv_cache.dtype = dtype;
      if (dtype == KvCacheDtype::kFloat16) p.attention.dtype = Dtype::kF16;
    };
  };
  const Reasons refused{"kv_cache_dtype not supported"};
  using enum KvCacheDtype;
  for (const KvCacheDtype dtype : {kInt8PerTokenHead, kFp8PerTokenHead, kFp8E5M2}) {
    CHECK(refusals(kFa, with(dtype)) == refused);
    CHECK(refusals(kIx, with(dtype)) == refused);
    CHECK(refusals(kTriton, with(dtype)).empty());
  }
  CHECK(refusals(kFa, with(kFloat16)).empty());
  CHECK(refusals(kIx, with(kFloat16)) == refused);
  CHECK(refusals(kFa, with(kFp8)).empty());
  CHECK(refusals(kFa, with(kFp8), 80) == refused);
  CHECK(refusals(kTriton, with(kFp8DsMla)) == refused);
}

TEST_CASE("mm_prefix is Triton's, for decoders only; ranges of one token are none") {
  const Change ranges = [](Problem& p) { p.attention.mm_prefix_ranges[0] = {{1, 4}}; };
  const Reasons refused{"partial multimodal token full attention not supported"};
  CHECK(refusals(kFa, ranges) == refused);
  CHECK(refusals(kIx, ranges) == refused);
  CHECK(refusals(kTriton, ranges).empty());
  CHECK(refusals(kFa, [](Problem& p) { p.attention.mm_prefix_ranges[0] = {{3, 3}}; }).empty());
  CHECK(refusals(kTriton, [&](Problem& p) {
          ranges(p);
          encoder(p);
        }) == Reasons{"mm_prefix applies to decoder attention only"});
  CHECK(refusals(kTriton, [&](Problem& p) {
          ranges(p);
          p.dcp.world_size = 2;
        }) == Reasons{refused[0], "DCP requires LSE from decode"});
}

TEST_CASE("other attention types are refused by name") {
  CHECK(refusals(kFa, [](Problem& p) { p.attention.type = AttentionType::kMla; }) ==
        Reasons{"MLA not supported"});
  CHECK(refusals(kTriton, [](Problem& p) {
          p.attention.type = AttentionType::kMla;
          p.mla.sparse_topk = 2048;
        }) == Reasons{"MLA not supported", "sparse not supported"});
  CHECK(refusals(kFa, [](Problem& p) { p.attention.type = AttentionType::kMmEncoder; }) ==
        Reasons{"attention type mm_encoder not supported"});
  CHECK(refusals(kTriton, [](Problem& p) { p.attention.type = AttentionType::kOp; }) ==
        Reasons{"attention type op not supported"});
}

TEST_CASE("per-head scales need FlashAttention 3") {
  const Change change = [](Problem& p) {
    p.kv_cache.dtype = KvCacheDtype::kFp8;
    p.kv_cache.k_scale = {1.0, 1.0};
  };
  CHECK(refusals(kFa, change).empty());
  CHECK(refusals(kTriton, change) == Reasons{"per-head quant scales not supported"});
}

TEST_CASE("capability limits: 8.0 for FlashAttention, 9.0 for its sinks") {
  const Change none = [](Problem&) {};
  const Change sinks = [](Problem& p) { p.attention.sinks = SinksKind::kNormal; };
  CHECK(refusals(kFa, none, 75) == Reasons{"compute capability not supported"});
  CHECK(refusals(kTriton, none, 75).empty());
  CHECK(refusals(kIx, sinks, 80) == Reasons{"sink not supported on compute capability < 9.0"});
  CHECK(refusals(kFa, sinks, 90).empty());
  CHECK(refusals(kTriton, sinks, 75).empty());
}

TEST_CASE("a non-causal decoder is FLASH_ATTN's alone") {
  const Change change = [](Problem& p) { p.attention.causal = false; };
  CHECK(refusals(kFa, change).empty());
  CHECK(refusals(kIx, change) == Reasons{"non-causal attention not supported"});
  CHECK(refusals(kTriton, change) == Reasons{"non-causal attention not supported"});
}

TEST_CASE("forced cascade names ALiBi, window, Triton and sinks of layout IX") {
  CHECK(refusals(kTriton, cascade) == Reasons{"cascade attention not supported by TRITON_ATTN"});
  CHECK(refusals(kFa,
                 [](Problem& p) {
                   cascade(p);
                   p.attention.alibi = AlibiKind::kLinear;
                   p.attention.sliding_window = 10;
                 }) == Reasons{"Cascade attention does not support ALiBi.",
                               "Cascade attention does not support sliding window."});
  const Change sinks = [](Problem& p) {
    cascade(p);
    p.attention.sinks = SinksKind::kNormal;
  };
  CHECK(refusals(kFa, sinks).empty());
  CHECK(refusals(kIx, sinks) == Reasons{"attention sinks with ixformer cascade attention"});
  CHECK(refusals(kTriton, [](Problem& p) { p.cascade.common_prefix_len = 64; }).empty());
}

TEST_CASE("a forced cascade of cross attention is refused, an idle one is not") {
  const Change cross = [](Problem& p) {
    p.attention.type = AttentionType::kEncoderDecoder;
    p.attention.causal = false;
    p.cascade.common_prefix_len = 16;
  };
  CHECK(refusals(kFa, cross).empty());
  CHECK(refusals(kFa, [&](Problem& p) {
          cross(p);
          p.cascade.mode = CascadeMode::kAlways;
        }) == Reasons{"cascade attention for attention type encoder_decoder"});
}

TEST_CASE("reasons of cascade stand before those of DCP, the scales' own ones among them") {
  CHECK(refusals(kFa, [](Problem& p) {
          cascade(p);
          p.kv_cache.dtype = KvCacheDtype::kFp8;
          p.kv_cache.v_scale = {0.5};
          p.dcp.world_size = 2;
        }) == Reasons{"cascade attention with fp8 descale", "DCP with cascade"});
}

TEST_CASE("head sizes of per-token-head caches matter where there are such caches") {
  const Change change = [](Problem& p) {
    p.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
    p.attention.head_size = p.attention.v_head_size = 42;
  };
  CHECK(refusals(kTriton, change) ==
        Reasons{"per-token-head KV cache requires head_size % 4 == 0"});
  const Reasons refused{"head_size not supported", "kv_cache_dtype not supported"};
  CHECK(refusals(kFa, change) == refused);
  CHECK(refusals(kIx, change) == refused);
}

TEST_CASE("an encoder with a quantised cache is refused by the reference too") {
  for (const AttentionType type :
       {AttentionType::kEncoder, AttentionType::kEncoderOnly, AttentionType::kMmEncoder}) {
    CHECK(refusals("REFERENCE", [type](Problem& p) {
            p.attention.type = type;
            p.attention.causal = false;
            p.kv_cache.dtype = KvCacheDtype::kFp8;
          }) == Reasons{"quantized KV cache is not supported for encoder attention"});
  }
}

TEST_CASE("e4m3 P goes with e4m3 queries, keys and values, and with nothing else") {
  const auto with = [](KvCacheDtype kv, QueryDtype query) {
    return [kv, query](Problem& p) {
      p.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
      p.kv_cache.dtype = kv;
      p.attention.query_dtype = query;
    };
  };
  using enum KvCacheDtype;
  const Reasons refused{"e4m3 P without fp8 query, key and value"};
  CHECK(refusals(kFa, with(kFp8, QueryDtype::kAuto)).empty());
  CHECK(refusals(kIx, with(kFp8, QueryDtype::kAuto)) == refused);
  CHECK(refusals(kIx, with(kFp8, QueryDtype::kFp8E4M3)).empty());
  CHECK(refusals(kTriton, with(kFp8, QueryDtype::kAuto)) == refused);
  for (const char* backend : {kFa, kIx, kTriton}) {
    CHECK(refusals(backend, with(kAuto, QueryDtype::kAuto)) == refused);
  }
  CHECK(refusals("REFERENCE", with(kAuto, QueryDtype::kAuto)).empty());
  const auto encoder_with = [&](MmAttnDtype dtype) {
    return [&, dtype](Problem& p) {
      p.attention.type = AttentionType::kMmEncoder;
      p.attention.causal = false;
      p.batch = {{33, 33}};
      p.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
      p.mm_encoder.attn_dtype = dtype;
    };
  };
  CHECK(refusals("MM_FLASHINFER", encoder_with(MmAttnDtype::kFp8)).empty());
  CHECK(refusals("MM_FLASHINFER", encoder_with(MmAttnDtype::kAuto)) == refused);
}

TEST_CASE("fast fp8 sums go with e4m3 P, and with nothing else") {
  const auto with = [](KvCacheDtype kv, ProbabilityDtype probability) {
    return [kv, probability](Problem& p) {
      p.attention.fp8_accumulation = Fp8Accumulation::kFast;
      p.attention.probability_dtype = probability;
      p.kv_cache.dtype = kv;
    };
  };
  const std::string refusal = "fast fp8 sums without e4m3 P";
  using enum KvCacheDtype;
  CHECK(refusals(kFa, with(kFp8, ProbabilityDtype::kFp8E4M3)).empty());
  CHECK(refusals(kFa, with(kFp8, ProbabilityDtype::kAuto)) == Reasons{refusal});
  CHECK(refusals(kFa, with(kFp8, ProbabilityDtype::kModel)) == Reasons{refusal});
  CHECK(refusals(kTriton, with(kAuto, ProbabilityDtype::kAuto)) == Reasons{refusal});
  const Reasons both = refusals(kTriton, with(kAuto, ProbabilityDtype::kFp8E4M3));
  CHECK(std::ranges::find(both, refusal) != both.end());
}

TEST_CASE("DCP names every feature it cannot have, and nothing where it has none of them") {
  CHECK(refusals(kFa,
                 [](Problem& p) {
                   cascade(p);
                   p.dcp.world_size = 2;
                   p.dcp.interleave_size = 4;
                   p.attention.num_speculative_tokens = 1;
                   p.attention.sliding_window = 10;
                   p.attention.alibi = AlibiKind::kLinear;
                   p.attention.sinks = SinksKind::kNormal;
                   p.kv_cache.dtype = KvCacheDtype::kFp8;
                   p.kv_cache.calculate_kv_scales = true;
                 }) == Reasons{"Cascade attention does not support ALiBi.",
                               "Cascade attention does not support sliding window.",
                               "cascade attention with fp8 descale", "DCP with sinks",
                               "DCP with calculate_kv_scales", "DCP with cascade",
                               "MTP with cp_kv_cache_interleave_size > 1 is not supported"});
  const Change two = [](Problem& p) { p.dcp.world_size = 2; };
  CHECK(refusals(kFa, [&](Problem& p) {
          two(p);
          p.attention.alibi = AlibiKind::kLinear;
        }).empty());
  CHECK(refusals(kFa, two).empty());
  CHECK(refusals(kIx, two).empty());
  CHECK(refusals(kFa, [&](Problem& p) {
          two(p);
          p.dcp.transport = DcpTransport::kNccl;
        }) == Reasons{"DCP over nccl: NCCL not found"});
  CHECK(refusals(kIx, [&](Problem& p) {
          two(p);
          p.attention.type = AttentionType::kEncoderDecoder;
          p.attention.causal = false;
        }) == Reasons{"DCP with attention type encoder_decoder"});
  CHECK(refusals(kTriton, two) == Reasons{"DCP requires LSE from decode"});
}

TEST_CASE("encoders name what their kernels ignore") {
  const Change many = [](Problem& p) {
    encoder(p);
    p.attention.alibi = AlibiKind::kLinear;
    p.attention.logits_soft_cap = 30;
    p.attention.sinks = SinksKind::kNormal;
    p.output_quant.type = OutputQuantType::kFp8Static;
    p.kv_cache.dtype = KvCacheDtype::kFp8;
  };
  CHECK(refusals(kTriton, many) ==
        Reasons{"TRITON_ATTN encoder attention ignores ALiBi",
                "TRITON_ATTN encoder attention ignores softcap",
                "TRITON_ATTN encoder attention ignores sinks",
                "TRITON_ATTN encoder attention ignores output_scale",
                "quantized KV cache is not supported for encoder attention"});
  CHECK(refusals(kFa, many) ==
        Reasons{"FLASH_ATTN encoder attention ignores sinks",
                "quantized KV cache is not supported for encoder attention",
                "fused output quantization is not yet supported for FlashAttentionImpl"});
}

TEST_CASE("scales: layout IX takes 1 only, Triton a q_scale of 1 only") {
  const Change k_scale = [](Problem& p) {
    p.kv_cache.dtype = KvCacheDtype::kFp8;
    p.kv_cache.k_scale = {0.5};
  };
  CHECK(refusals(kIx, k_scale) == Reasons{"fp8 descale in ixformer layout"});
  CHECK(refusals(kTriton, k_scale).empty());
  CHECK(refusals(kTriton, [](Problem& p) {
          p.kv_cache.dtype = KvCacheDtype::kFp8;
          p.kv_cache.q_scale = 0.5;
        }) == Reasons{"A non 1.0 q_scale is not currently supported."});
  const Change calculated = [](Problem& p) {
    p.kv_cache.dtype = KvCacheDtype::kFp8;
    p.kv_cache.calculate_kv_scales = true;
  };
  CHECK(refusals(kIx, calculated) == Reasons{"fp8 descale in ixformer layout"});
  CHECK(refusals(kFa, calculated).empty());
  CHECK(refusals(kTriton, calculated).empty());  // its query is not quantised
}

TEST_CASE("output quantisation: Triton has the static FP8 form, FlashAttention none") {
  const auto with = [](OutputQuantType type) {
    return [type](Problem& p) { p.output_quant.type = type; };
  };
  CHECK(refusals(kTriton, with(OutputQuantType::kFp8Static)).empty());
  CHECK(refusals(kTriton, with(OutputQuantType::kFp8Group128)) ==
        Reasons{"fused block_scale output quantization is not yet supported for "
                "TritonAttentionImpl"});
  CHECK(refusals(kIx, with(OutputQuantType::kFp8Static)) ==
        Reasons{"fused output quantization is not yet supported for FlashAttentionImpl"});
}

TEST_CASE("sqrt ALiBi, FP8 queries and value heads of another size are refused where they fail") {
  const Change sqrt_alibi = [](Problem& p) { p.attention.alibi = AlibiKind::kSqrt; };
  CHECK(refusals(kFa, sqrt_alibi) == Reasons{"alibi sqrt not supported"});
  CHECK(refusals(kIx, sqrt_alibi).empty());
  CHECK(refusals(kTriton, sqrt_alibi).empty());
  const Change fp8_query = [](Problem& p) { p.attention.query_dtype = QueryDtype::kFp8E4M3; };
  CHECK(refusals(kTriton, fp8_query) == Reasons{"fp8 query"});
  CHECK(refusals(kTriton, [](Problem& p) { p.attention.v_head_size = 32; }) ==
        Reasons{"v_head_size not supported"});
}

TEST_CASE("int8 levels name their conflicts in layout IX") {
  const Change many = [](Problem& p) {
    cascade(p);
    p.kv_cache.int8_level = 2;
    p.kv_cache.dtype = KvCacheDtype::kFp8;
    p.attention.sinks = SinksKind::kNormal;
    p.dcp.world_size = 2;
  };
  const Reasons reasons = refusals(kIx, many);
  REQUIRE(reasons.size() >= 5);
  CHECK(Reasons(reasons.begin(), reasons.begin() + 5) ==
        Reasons{"int8 attention level 2 with fp8 kv cache", "attention sinks with int8 attention",
                "cascade attention with int8 attention",
                "attention sinks with ixformer cascade attention", "DCP with int8 attention"});
  CHECK(refusals(kIx, [](Problem& p) {
          encoder(p);
          p.kv_cache.int8_level = 1;
        }) == Reasons{"int8 attention for attention type encoder"});
}

TEST_CASE("int8 levels are for layout IX and the reference, with 16-bit types and small pages") {
  for (const int level : {1, 2}) {
    const auto with = [&](const Change& change) {
      return [&, level](Problem& p) {
        p.kv_cache.int8_level = level;
        change(p);
      };
    };
    const Change nothing = [](Problem&) {};
    CHECK(refusals(kIx, with(nothing)).empty());
    CHECK(refusals("REFERENCE", with(nothing)).empty());
    CHECK(refusals(kFa, with(nothing)) == Reasons{"int8 attention not supported"});
    CHECK(refusals(kTriton, with(nothing)) == Reasons{"int8 attention not supported"});
    CHECK(refusals(kIx, with([](Problem& p) { p.attention.dtype = Dtype::kF32; })) ==
          Reasons{"dtype not supported"});
    CHECK(refusals(kIx, with([](Problem& p) { p.kv_cache.block_size = 256; })).empty());
    CHECK(refusals(kIx, with([](Problem& p) { p.kv_cache.block_size = 272; })) ==
          Reasons{"block_size not supported"});
    for (const AlibiKind alibi : {AlibiKind::kLinear, AlibiKind::kSqrt}) {
      CHECK(refusals(kIx, with([&](Problem& p) { p.attention.alibi = alibi; })).empty());
    }
  }
}

TEST_CASE("a format that is not taken is named with its value and what is taken") {
  Problem p = plain();
  p.attention.head_size = p.attention.v_head_size = 20;
  p.attention.dtype = Dtype::kF32;
  p.kv_cache.block_size = 24;
  CHECK(find_backend(kFa)->refusals(p, DeviceFacts{}) ==
        Reasons{"head_size not supported (found 20; expected a multiple of 8, at most 256)",
                "dtype not supported (found float32; expected float16 or bfloat16)",
                "block_size not supported (found 24; expected a multiple of 16)"});
  CHECK(find_backend(kIx)->refusals(p, DeviceFacts{}).back() ==
        "block_size not supported (found 24; expected a multiple of 16, 32 or 64)");
}

TEST_CASE("several reasons keep the order of the table") {
  CHECK(refusals(kFa,
                 [](Problem& p) {
                   p.attention.head_size = p.attention.v_head_size = 300;
                   p.attention.dtype = Dtype::kF32;
                   p.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
                   p.attention.mm_prefix_ranges[0] = {{0, 9}};
                 }) == Reasons{"head_size not supported", "dtype not supported",
                               "kv_cache_dtype not supported",
                               "partial multimodal token full attention not supported"});
}

TEST_CASE("FLOPs count visible pairs, traffic the keys that some row sees") {
  Problem p = plain();
  p.batch = {{2, 4}};  // 3 + 4 pairs
  CHECK(attention_flops(p, *find_backend(kFa)) == 2.0 * 8 * 128 * 7);
  const double per_key = 2 * 64 * 2 * 2.0;
  const double rows = 2 * 8 * 128 * 2.0;
  CHECK(attention_traffic(p, *find_backend(kFa)).unique_bytes == 4 * per_key + rows);
  p.attention.sliding_window = 2;
  CHECK(attention_traffic(p, *find_backend(kFa)).kv_bytes == 3 * per_key);
}

TEST_CASE("int8 traffic counts one scale a key, and values in their own width") {
  Problem p = plain();
  p.batch = {{1, 10}};
  p.kv_cache.int8_level = 1;
  CHECK(attention_traffic(p, *find_backend(kIx)).kv_bytes == 10 * 2 * (64 + 64 + 4.0));
  p.kv_cache.int8_level = 2;
  CHECK(attention_traffic(p, *find_backend(kIx)).kv_bytes == 10 * 2 * (64 + 2 * 64 + 4.0));
  // The query is read as int8, the output written in 16 bits.
  CHECK(attention_traffic(p, *find_backend(kIx)).unique_bytes ==
        attention_traffic(p, *find_backend(kIx)).kv_bytes + 8 * (64 + 2 * 64.0));
}

TEST_CASE("shared prefix pages are read once, each request's own keys beside them") {
  Problem p = plain();
  p.batch = {{1, 100}, {1, 80}, {1, 64 + 1}};
  p.cascade.common_prefix_len = 64;
  const double per_key = 2 * 64 * 2 * 2.0;
  const Traffic traffic = attention_traffic(p, *find_backend(kFa));
  CHECK(traffic.kv_bytes == (100 + 80 + 65) * per_key);
  CHECK(traffic.unique_bytes == (64 + 36 + 16 + 1) * per_key + 3 * 8 * 128 * 2.0);
}

TEST_CASE("a number of splits is refused where another one would be made") {
  const auto asked = [](int count, std::vector<Request> batch) {
    return [=](Problem& p) {
      p.attention.num_splits = count;
      p.batch = batch;
    };
  };
  const std::vector<Request> decodes = {{1, 70}, {1, 300}};
  const std::vector<Request> mixed = {{1, 70}, {33, 33}};
  CHECK(refusals(kFa, asked(7, decodes)).empty());
  CHECK(refusals(kFa, asked(1, mixed)).empty());
  CHECK(refusals(kFa, asked(7, mixed)) ==
        Reasons{"num_splits 7 with prefills in the same varlen call"});
  CHECK(refusals(kIx, asked(7, mixed)).empty());
  CHECK(refusals(kIx, asked(7, {{33, 33}})) == Reasons{"num_splits 7 without decodes"});
  CHECK(refusals(kTriton, asked(1, decodes)) == Reasons{"num_splits not supported"});
  CHECK(refusals(kFa, [&](Problem& p) {
          asked(7, {{1, 128}, {1, 128}})(p);
          cascade(p);
        }) == Reasons{"num_splits 7 with cascade attention"});
  CHECK(refusals(kFa, [&](Problem& p) {
          asked(7, mixed)(p);
          p.dcp.world_size = 2;
        }) == Reasons{"num_splits 7 with queries of several tokens over ranks"});
}

TEST_CASE("a form of splits is refused where there are none of it") {
  const auto asked = [](SplitForm form, std::vector<Request> batch) {
    return [=](Problem& p) {
      p.attention.split_form = form;
      p.batch = batch;
    };
  };
  using enum SplitForm;
  const std::vector<Request> decodes = {{1, 70}, {1, 300}};
  const std::vector<Request> mixed = {{1, 70}, {33, 33}};
  for (const SplitForm form : {kAuto, kSeparate, kJoined, kPlanned}) {
    CHECK(refusals(kFa, asked(form, decodes)).empty());
    CHECK(refusals(kIx, asked(form, mixed)).empty());
  }
  CHECK(refusals(kFa, asked(kPlanned, mixed)) ==
        Reasons{"split_form planned with prefills in the same varlen call"});
  CHECK(refusals(kIx, asked(kJoined, {{33, 33}})) == Reasons{"split_form joined without decodes"});
  CHECK(refusals(kTriton, asked(kPlanned, decodes)) == Reasons{"split_form not supported"});
  CHECK(refusals(kFa, [&](Problem& p) {
          asked(kPlanned, {{1, 128}, {1, 128}})(p);
          cascade(p);
        }) == Reasons{"split_form planned with cascade attention"});
  CHECK(refusals(kFa, [&](Problem& p) {
          asked(kJoined, decodes)(p);
          p.dcp.world_size = 2;
        }) == Reasons{"split_form joined over ranks"});
}

TEST_CASE("a shared cache is not quantised anew and not striped over ranks") {
  const Change shared = [](Problem& p) { p.attention.kv_sharing = true; };
  for (const char* backend : {kFa, kIx, kTriton}) CHECK(refusals(backend, shared).empty());
  CHECK(refusals(kIx, [&](Problem& p) {
          shared(p);
          p.kv_cache.int8_level = 1;
        }) == Reasons{"KV sharing with int8 attention"});
  CHECK(refusals(kFa, [&](Problem& p) {
          shared(p);
          p.dcp.world_size = 2;
        }) == Reasons{"DCP with KV sharing"});
  CHECK(refusals("MLA", shared).back() == "KV sharing is not supported for MLA");
}

TEST_CASE("chunks are requests of their own, which some features cannot have") {
  const auto chunked = [](const Change& more) {
    return [=](Problem& p) {
      p.attention.chunk_size = 32;
      more(p);
    };
  };
  const Change nothing = [](Problem&) {};
  for (const char* backend : {kFa, kIx, kTriton}) {
    CHECK(refusals(backend, chunked(nothing)).empty());
    CHECK(refusals(backend, chunked([](Problem& p) { p.attention.alibi = AlibiKind::kLinear; })) ==
          Reasons{"chunked local attention with ALiBi"});
  }
  CHECK(refusals(kFa, chunked(cascade)) ==
        Reasons{"cascade attention with chunked local attention"});
  CHECK(refusals(kFa, chunked([](Problem& p) { p.dcp.world_size = 2; })) ==
        Reasons{"DCP with chunked local attention"});
  CHECK(refusals("CUDNN", chunked(nothing)).size() > refusals("CUDNN", nothing).size());
}

}  // namespace attnbench
