// Features that do not go together (semantics §13.4): cascade, DCP, int8 levels, splits, shared
// caches and chunks beside each other and beside the rest.
#include <doctest/doctest.h>

#include "backends/attention/refusals_testing.h"

namespace attnbench {

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

TEST_CASE("TURBOQUANT takes its caches only, and refuses what upstream's class leaves alone") {
  constexpr const char* kTurbo = "TURBOQUANT";
  const auto slots = [](const Change& more) {
    return [=](Problem& p) {
      p.kv_cache.dtype = KvCacheDtype::kTurbo4Bit;
      more(p);
    };
  };
  const Change nothing = [](Problem&) {};
  CHECK(refusals(kTurbo, slots(nothing)).empty());
  CHECK(refusals(kTurbo, nothing) == Reasons{"kv_cache_dtype not supported"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.attention.alibi = AlibiKind::kLinear; })) ==
        Reasons{"TURBOQUANT ignores ALiBi"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.attention.logits_soft_cap = 20; })) ==
        Reasons{"TURBOQUANT ignores softcap"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.attention.sliding_window = 40; })) ==
        Reasons{"TURBOQUANT ignores windows"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.attention.sinks = SinksKind::kNormal; })) ==
        Reasons{"attention sinks not supported"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.attention.batch_invariant = true; })) ==
        Reasons{"batch invariance not supported"});
  CHECK(refusals(kTurbo, slots([](Problem& p) {
                   p.attention.head_size = p.attention.v_head_size = 96;
                 })) == Reasons{"turboquant_4bit_nc KV cache requires a head_size that is a power "
                                "of two from 32 to 512"});
  CHECK(refusals(kTurbo, slots([](Problem& p) { p.kv_cache.layers = 2; })) ==
        Reasons{"turboquant_4bit_nc KV cache of several layers"});
  const Backend& backend = *find_backend(kTurbo);
  Problem e4m3 = plain();
  e4m3.kv_cache.dtype = KvCacheDtype::kTurboK8V4;
  CHECK(backend.refusals(e4m3, DeviceFacts{89, 132}).empty());
  CHECK(backend.refusals(e4m3, DeviceFacts{86, 84}) ==
        Reasons{"turboquant_k8v4 has keys in fp8e4b15 below compute capability 8.9"});
  CHECK(backend.runs_by_default(e4m3));
  CHECK_FALSE(backend.runs_by_default(plain()));
  CHECK_FALSE(find_backend("TRITON_ATTN")->refusals(e4m3, DeviceFacts{}).empty());
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
