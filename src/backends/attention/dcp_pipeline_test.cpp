// Groups of simulated ranks against plain attention (semantics §7).
#include "backends/attention/dcp_pipeline.h"

#include <doctest/doctest.h>

#include <cstring>

#include "backends/attention/pipeline_testing.h"

namespace attnbench {

TEST_CASE("ranks of a DCP group agree with plain attention, whatever the exchange") {
  Problem p = base_problem();
  p.attention.num_heads = 8;
  p.batch = {{1, 70}, {1, 1}, {5, 40}, {33, 33}, {0, 0}, {20, 150}};
  for (const char* name : {"FLASH_ATTN", "FLASH_ATTN_IX"}) {
    for (const int world_size : {2, 4, 8}) {
      for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
        p.dcp.world_size = world_size;
        p.dcp.interleave_size = world_size == 4 ? 8 : world_size == 8 ? 16 : 1;
        p.dcp.comm = comm;
        expect_agreement(p, name);
      }
    }
  }
}

TEST_CASE("a rank whose heads begin inside a KV group reads the right KV heads") {
  Problem p = base_problem();
  p.attention.num_heads = 12;
  p.attention.num_kv_heads = 4;
  for (const int world_size : {2, 3, 6}) {
    p.dcp.world_size = world_size;
    expect_agreement(p, "FLASH_ATTN");
  }
}

TEST_CASE("ranks see the keys of a window by global positions, however they are striped") {
  Problem p = base_problem();
  p.batch = {{1, 1}, {1, 40}, {1, 333}, {5, 70}, {20, 20}, {17, 300}};
  for (const int world_size : {2, 4}) {
    p.dcp.world_size = world_size;
    for (const int interleave : {1, 4, 16}) {
      p.dcp.interleave_size = interleave;
      for (const int window : {1, 2, 16, 63, 100}) {
        CAPTURE(world_size);
        CAPTURE(interleave);
        CAPTURE(window);
        p.attention.sliding_window = window;
        expect_agreement(p, "FLASH_ATTN");
      }
    }
  }
}

TEST_CASE("ranks have ALiBi by global positions, with and without a window") {
  Problem p = base_problem();
  p.attention.num_heads = 8;
  p.batch = {{1, 1}, {1, 40}, {1, 1333}, {5, 70}, {20, 20}, {0, 0}, {17, 300}};
  for (const auto& [name, kind] :
       {std::pair{"FLASH_ATTN", AlibiKind::kLinear}, std::pair{"FLASH_ATTN_IX", AlibiKind::kLinear},
        std::pair{"FLASH_ATTN_IX", AlibiKind::kSqrt}}) {
    p.attention.alibi = kind;
    for (const int world_size : {2, 4}) {
      p.dcp.world_size = world_size;
      for (const int interleave : {1, 4, 16}) {
        p.dcp.interleave_size = interleave;
        CAPTURE(world_size);
        CAPTURE(interleave);
        p.attention.sliding_window.reset();
        expect_agreement(p, name);
        p.attention.sliding_window = 63;
        expect_agreement(p, name);
      }
    }
  }
  // Decodes alone, whose context is split.
  p.batch = {{1, 2500}, {1, 900}};
  p.attention.sliding_window.reset();
  expect_agreement(p, "FLASH_ATTN");
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.5F, 0.25F};
  p.kv_cache.v_scale = {0.125F, 0.5F};
  p.attention.alibi = AlibiKind::kLinear;
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("ranks attend to the new keys as an fp8 cache stores them") {
  Problem p = base_problem();
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.k_scale = {0.5F, 0.25F};
  p.kv_cache.v_scale = {0.125F, 0.5F};
  p.batch = {{1, 1}, {1, 40}, {5, 70}, {20, 20}, {0, 0}, {17, 300}};
  for (const int world_size : {2, 4}) {
    p.dcp.world_size = world_size;
    p.dcp.interleave_size = 4 / world_size;
    expect_agreement(p, "FLASH_ATTN");
    Problem windowed = p;
    windowed.attention.sliding_window = 19;
    expect_agreement(windowed, "FLASH_ATTN");
  }
}

TEST_CASE("a DCP group takes the steps of its order, splits long decodes and keeps its parts") {
  Problem p = base_problem();
  p.attention.logits_soft_cap = 20;
  p.batch = {{1, 2500}, {1, 900}};
  p.dcp.world_size = 2;
  expect_agreement(p, "FLASH_ATTN_IX");
  finish(p);
  const Run run(p, "FLASH_ATTN_IX");
  std::string names;
  for (const Step& step : run.pipeline->steps()) names += step.name + (step.in_median ? "* " : " ");
  CHECK(names ==
        "write_cache all_gather_query attend_context* all_gather_lse correct reduce_scatter "
        "attend_new* merge* ");
  REQUIRE(run.output.more.size() == 2);
  CHECK(run.output.more[0].second.shape() == std::vector<std::int64_t>{2, 2, 4, 64});
  CHECK(run.output.more[1].second.shape() == std::vector<std::int64_t>{2, 4, 2});
}

TEST_CASE("decodes that lead a batch are split over their context, whatever follows them") {
  Problem p = base_problem();
  p.dcp.world_size = 2;
  p.batch = {{1, 2500}, {1, 1}, {1, 900}, {20, 700}, {1, 300}};
  CHECK(dcp_context_splits(p, 132) > 1);
  expect_agreement(p, "FLASH_ATTN");
  // Splits are of the decodes' keys: what follows them may have more.
  p.batch = {{1, 120}, {20, 9000}};
  CHECK(dcp_context_splits(p, 132) == 1);
  expect_agreement(p, "FLASH_ATTN");
  p.batch = {{20, 700}, {1, 2500}};
  CHECK(dcp_context_splits(p, 132) == 1);
  expect_agreement(p, "FLASH_ATTN");
  p.batch = {{1, 2500}, {20, 700}};
  p.attention.batch_invariant = true;
  CHECK(dcp_context_splits(p, 132) == 1);
  expect_agreement(p, "FLASH_ATTN");
}

TEST_CASE("a DCP group that overlaps attends to the new tokens before the context") {
  Problem p = base_problem();
  p.batch = {{1, 70}, {5, 40}};
  p.dcp.world_size = 2;
  for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
    p.dcp.comm = comm;
    p.dcp.overlap = false;
    finish(p);
    const Run plain(p, "FLASH_ATTN");
    p.dcp.overlap = true;
    expect_agreement(p, "FLASH_ATTN");
    const Run run(p, "FLASH_ATTN");
    std::string names;
    for (const Step& step : run.pipeline->steps())
      names += step.name + (step.in_median ? "* " : " ");
    CHECK(
        names.starts_with("write_cache all_gather_query attend_new* await_query attend_context* "));
    CHECK(names.ends_with(" merge* "));
    // The same operations in another order: the same bytes.
    const Tensor& output = run.output.output;
    CHECK(std::memcmp(output.bytes(), plain.output.output.bytes(), output.size_bytes()) == 0);
  }
}

TEST_CASE("random DCP problems agree with the reference") {
  std::mt19937_64 random(77);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  for (int i = 0; i < 120; ++i) {
    Problem p = base_problem();
    AttentionSpec& a = p.attention;
    p.dcp.world_size = pick(2, 3, 4, 5, 7, 8);
    a.num_kv_heads = pick(1, 2, 3);
    a.num_heads = p.dcp.world_size * a.num_kv_heads * pick(1, 2);
    a.head_size = a.v_head_size = pick(32, 64, 80);
    a.scale = 1.0 / std::sqrt(double(a.head_size));
    a.dtype = pick(Dtype::kBF16, Dtype::kF16);
    a.logits_soft_cap = pick(0.0, 30.0);
    p.kv_cache.block_size = pick(16, 32);
    p.kv_cache.layout = pick(CacheLayout::kNhd, CacheLayout::kHnd);
    p.dcp.interleave_size = pick(1, 2, 8, 16);
    p.dcp.comm = pick(DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a);
    p.dcp.overlap = pick(false, true);
    a.alibi = pick(AlibiKind::kNone, AlibiKind::kLinear);
    p.batch.clear();
    for (int b = pick(1, 2, 5); b > 0; --b) {
      const std::int64_t query_len = pick(0, 1, 1, 3, 20);
      p.batch.push_back({query_len, query_len + pick(0, 1, 15, 16, 17, 130, 600)});
    }
    p.inputs.seed = static_cast<std::uint64_t>(i);
    expect_agreement(p, pick(0, 1) == 1 ? "FLASH_ATTN" : "FLASH_ATTN_IX");
  }
}

}  // namespace attnbench
