#include "metadata/mla/prefill.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

TEST_CASE("workspace sizes match the golden values") {
  CHECK(mla_workspace_tokens(2048, 128, 16) == 16384);
  CHECK(mla_workspace_tokens(4096, 256, 16) == 32768);
  CHECK(mla_workspace_tokens(131072, 1024, 64) == 65536);
  CHECK(mla_workspace_tokens(131072, 2048, 64) == 131072);
  CHECK(error_of([] { mla_workspace_tokens(INT64_MAX, 1, 16); }) == "E-CAPACITY");
  CHECK(mla_workspace_rows(1024, 1) == 1024);
  CHECK(mla_workspace_rows(1024, 4) == 1280);
  CHECK(error_of([] { mla_workspace_rows(1023, 4); }) == "E-CONFIG");
}

TEST_CASE("the workspace is that of the engine's limits, else of the batch's lengths") {
  Problem problem;
  problem.batch = {{1, 100}, {4, 64}};
  CHECK(mla_workspace_tokens(problem) == mla_workspace_tokens(100, 2, 16));
  problem.engine.max_model_len = 4096;
  CHECK(mla_workspace_tokens(problem) == mla_workspace_tokens(4096, 2, 16));
  problem.engine.max_num_seqs = 4096;
  CHECK(mla_workspace_tokens(problem) == mla_workspace_tokens(4096, 4096, 16));
  problem.mla.workspace_tokens = 128;
  CHECK(mla_workspace_tokens(problem) == 128);
}

TEST_CASE("the chunk plan matches the golden values") {
  const auto plan = plan_mla_chunks(Ints{0, 3, 5, 12}, Ints{103, 22, 7}, 128, 16);
  REQUIRE(plan);
  CHECK(plan->num_with_context == 2);
  CHECK(plan->max_context_chunk == 64);
  CHECK(plan->prefill_tokens_with_context == 5);
  REQUIRE(plan->chunks.size() == 2);
  const MlaChunk& first = plan->chunks[0];
  const MlaChunk& second = plan->chunks[1];
  CHECK(first.starts == Ints{0, 0, 0});
  CHECK(second.starts == Ints{64, 64, 64});
  CHECK(first.lens == Ints{64, 20, 0});
  CHECK(second.lens == Ints{36, 0, 0});
  CHECK(first.cu_seq_lens == Ints{0, 64, 84, 84});
  CHECK(second.cu_seq_lens == Ints{0, 36, 36, 36});
  CHECK(first.num_tokens == 84);
  CHECK(second.num_tokens == 36);
  CHECK(first.max_seq_len == 64);
  CHECK(first.token_to_seq.size() == 84);
  CHECK(second.token_to_seq == Ints(84, 0));
  CHECK(std::ranges::count(first.token_to_seq, 1) == 20);
}

TEST_CASE("batches without context have no plan") {
  CHECK_FALSE(plan_mla_chunks(Ints{0, 3, 5}, Ints{3, 2}, 128, 16));
  CHECK_FALSE(plan_mla_chunks(Ints{0}, Ints{}, 128, 16));
}

TEST_CASE("wrong order, small workspaces and uneven shares are refused") {
  const auto plan = [](Ints seq_lens, int64_t workspace, DcpGroup group = {}) {
    return error_of([&] { plan_mla_chunks(Ints{0, 3, 5}, seq_lens, workspace, 16, group); });
  };
  CHECK(plan({3, 22}, 128) == "E-VALUE");
  CHECK(plan({30, 22}, 31) == "E-CONFIG");
  CHECK(plan({30, 22}, 32) == "none");
  CHECK(plan({30, 22}, 62, {2, 16}) == "E-CONFIG");
  CHECK(plan({30, 22}, 64, {2, 16}) == "none");
  CHECK(plan({30, 22}, 129, {2, 1}) == "E-CONFIG");
  CHECK(plan({30, 22}, 128, {2, 3}) == "E-CONFIG");
}

struct RandomPrefills {
  Ints starts = {0};
  Ints seq_lens;
  Ints context;
};

RandomPrefills random_prefills(Draw& draw) {
  RandomPrefills batch;
  const int num_requests = draw(1, 6);
  const int num_with_context = draw(1, num_requests);
  for (int b = 0; b < num_requests; ++b) {
    const int query_len = draw(1, 9);
    const int context = b < num_with_context ? draw(1, 400) : 0;
    batch.starts.push_back(batch.starts.back() + query_len);
    batch.seq_lens.push_back(context + query_len);
    batch.context.push_back(context);
  }
  return batch;
}

TEST_CASE("chunks gather every context position exactly once and fit the workspace") {
  Draw draw(6);
  for (int round = 0; round < 1000; ++round) {
    const RandomPrefills batch = random_prefills(draw);
    const int64_t workspace = 16 * 6 * draw(1, 8) + draw(0, 15);
    const auto plan = plan_mla_chunks(batch.starts, batch.seq_lens, workspace, 16);
    REQUIRE(plan);
    std::vector<Ints> gathered;
    for (const int32_t length : batch.context) {
      gathered.emplace_back(static_cast<size_t>(length), 0);
    }
    for (const MlaChunk& chunk : plan->chunks) {
      REQUIRE(chunk.num_tokens <= workspace);
      for (int32_t t = 0; t < chunk.num_tokens; ++t) {
        const auto b = static_cast<size_t>(chunk.token_to_seq[static_cast<size_t>(t)]);
        const int32_t position = t - chunk.cu_seq_lens[b] + chunk.starts[b];
        REQUIRE(t < chunk.cu_seq_lens[b + 1]);
        ++gathered[b].at(static_cast<size_t>(position));
      }
    }
    for (const Ints& counts : gathered)
      REQUIRE(std::ranges::all_of(counts, [](int n) { return n == 1; }));
  }
}

/// Context position that a row of the all-gathered buffer holds, -1 for a padded row.
int64_t position_of_row(const MlaChunkPlan& plan, const MlaChunk& chunk, size_t request,
                        int64_t row) {
  const auto rank = static_cast<size_t>(row / chunk.num_local_tokens);
  const int64_t local =
      row % chunk.num_local_tokens - chunk.padded_local_cu[request] + chunk.local_starts[request];
  const auto world_size = static_cast<size_t>(plan.group.world_size);
  if (local >= plan.local_context_lens[request * world_size + rank]) return -1;
  return dcp_global_position(local, static_cast<int>(rank), plan.group);
}

TEST_CASE("under DCP the reordered rows hold every context position exactly once") {
  Draw draw(7);
  for (int round = 0; round < 3000; ++round) {
    const RandomPrefills batch = random_prefills(draw);
    const DcpGroup group = {draw(2, 5), 1 << draw(0, 4)};
    const int64_t unit = std::lcm(16, group.world_size * group.interleave_size);
    const int64_t workspace = (unit * 6 * draw(1, 4) + group.world_size * draw(0, 7)) /
                              group.world_size * group.world_size;
    const auto plan = plan_mla_chunks(batch.starts, batch.seq_lens, workspace, 16, group);
    REQUIRE(plan);
    REQUIRE(plan->max_context_chunk % unit == 0);
    std::vector<Ints> gathered;
    for (const int32_t length : batch.context) {
      gathered.emplace_back(static_cast<size_t>(length), 0);
    }
    for (size_t i = 0; i < plan->chunks.size(); ++i) {
      const MlaChunk& chunk = plan->chunks[i];
      REQUIRE(chunk.num_local_tokens <= workspace / group.world_size);
      const std::vector<int64_t> rows = reorg_source_rows(*plan, i);
      REQUIRE(static_cast<int32_t>(rows.size()) == chunk.num_tokens);
      for (size_t t = 0; t < rows.size(); ++t) {
        const auto b = static_cast<size_t>(chunk.token_to_seq[t]);
        const int64_t position = position_of_row(*plan, chunk, b, rows[t]);
        REQUIRE(position >= chunk.starts[b]);
        REQUIRE(position < chunk.starts[b] + chunk.lens[b]);
        ++gathered[b].at(static_cast<size_t>(position));
      }
    }
    for (const Ints& counts : gathered)
      REQUIRE(std::ranges::all_of(counts, [](int n) { return n == 1; }));
  }
}

TEST_CASE("rows are rank-major inside a request and padded rows are dropped") {
  // Context 5 on 2 ranks, interleave 1: rank 0 holds 0 2 4, rank 1 holds 1 3 and one padded row.
  const auto plan = plan_mla_chunks(Ints{0, 1}, Ints{6}, 32, 16, {2, 1});
  REQUIRE(plan);
  REQUIRE(plan->chunks.size() == 1);
  CHECK(plan->local_context_lens == Ints{3, 2});
  CHECK(plan->chunks[0].padded_local_lens == Ints{3});
  CHECK(reorg_source_rows(*plan, 0) == std::vector<int64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("reordering refuses lengths that do not add up") {
  auto plan = plan_mla_chunks(Ints{0, 1}, Ints{6}, 32, 16, {2, 1});
  plan->local_context_lens = {3, 1};
  CHECK(error_of([&] { reorg_source_rows(*plan, 0); }) == "E-VALUE");
  const auto single = plan_mla_chunks(Ints{0, 1}, Ints{6}, 32, 16);
  CHECK(error_of([&] { reorg_source_rows(*single, 0); }) == "E-VALUE");
}

}  // namespace

namespace {

std::vector<std::string> reasons(int nope, int rope, int value,
                                 const char* name = "FLASH_ATTN_PREFILL",
                                 Dtype dtype = Dtype::kBF16) {
  MlaSpec mla;
  mla.qk_nope_head_dim = nope;
  mla.qk_rope_head_dim = rope;
  mla.v_head_dim = value;
  return mla_prefill_reasons(name, mla, dtype);
}

}  // namespace

TEST_CASE("the FlashAttention prefill takes 256 columns in multiples of 8 and values no wider") {
  CHECK(reasons(128, 64, 128).empty());
  CHECK(reasons(192, 64, 256).empty());
  CHECK(reasons(192, 72, 128) == std::vector<std::string>{"head_size 264 not supported"});
  CHECK(reasons(60, 64, 64) == std::vector<std::string>{"head_size 124 not supported"});
  CHECK(reasons(64, 64, 129) == std::vector<std::string>{"v_head_dim 129 larger than 128"});
  CHECK(reasons(128, 64, 128, "FLASH_ATTN_PREFILL", Dtype::kF32) ==
        std::vector<std::string>{"dtype not supported"});
}

TEST_CASE("the prefills of SM 10 take the heads of R1, and no other device") {
  const MlaSpec r1;
  for (const char* name : {"TRTLLM_RAGGED", "FLASHINFER"}) {
    CHECK(is_mla_prefill_backend(name));
    CHECK(reasons(128, 64, 128, name).empty());
    CHECK(reasons(64, 64, 128, name).size() == 1);
    CHECK(reasons(128, 64, 128, name, Dtype::kF32).front() == "dtype not supported");
    for (const int sm : {100, 103}) CHECK(mla_prefill_reasons(name, r1, Dtype::kBF16, sm).empty());
    CHECK(mla_prefill_reasons(name, r1, Dtype::kBF16, 90) ==
          std::vector<std::string>{"compute capability 9.0 not supported"});
    CHECK(mla_prefill_reasons(name, r1, Dtype::kBF16, 120) ==
          std::vector<std::string>{"compute capability 12.0 not supported"});
  }
  CHECK_FALSE(is_mla_prefill_backend("FLASH_ATTN"));
}

TEST_CASE("the message lists all reasons") {
  CHECK(mla_prefill_message("FLASHINFER", {"a", "b"}) ==
        "Selected MLA prefill backend FLASHINFER is not valid for this configuration. "
        "Reason: [a, b]");
}

}  // namespace attnbench
