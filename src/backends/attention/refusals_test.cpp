#include <doctest/doctest.h>

#include <algorithm>

#include "backends/attention/refusals_testing.h"
#include "backends/upstream_names.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench {

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
  CHECK(names == Reasons{"REFERENCE", "FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN", "TURBOQUANT",
                         "MLA", "FLASHMLA", "FLASH_ATTN_MLA", "FLASHMLA_SPARSE", "CUTLASS_MLA",
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
    REQUIRE(!reasons.empty());
    return reasons.front();
  };
  CHECK(reason("MM_ROCM_AITER_FA") == "ROCM_AITER_FA requires ROCm");
  CHECK(reason("MM_FLEX_ATTENTION") ==
        "Unsupported multi-modal encoder attention backend for CUDA: FLEX_ATTENTION.");
  CHECK(reason("MM_FLASHMLA") ==
        "Unsupported multi-modal encoder attention backend for CUDA: FLASHMLA.");
  CHECK(find_upstream_backend("MM_FLASH_ATTN_IX") == nullptr);
  CHECK(find_upstream_backend("MM_OPS") == nullptr);
  CHECK(reason("ROCM_AITER_FA") ==
        "Selected backend AttentionBackendEnum.ROCM_AITER_FA is not valid for this configuration. "
        "Reason: ['compute capability not supported']");
  CHECK(find_upstream_backend("ROCM_AITER_FA")->refusals(plain(), DeviceFacts{}).back() ==
        "ROCM_AITER_FA has no pipeline of its own here");
  CHECK(reason("ROCM_AITER_UNIFIED_ATTN") == "No module named 'aiter'");
  CHECK(reason("NO_ATTENTION") ==
        "Selected backend AttentionBackendEnum.NO_ATTENTION is not valid for this configuration. "
        "Reason: ['ImportError']");
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

}  // namespace attnbench
