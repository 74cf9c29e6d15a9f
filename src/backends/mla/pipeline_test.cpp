// What the stages of the MLA pipeline compute, against the float64 reference and each other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "backends/mla/pipeline.h"
#include "backends/mla/prefill.h"
#include "backends/mla/reference_pipeline.h"
#include "backends/output_quant.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/mla_inputs.h"
#include "inputs/mla_problem_testing.h"
#include "ops/forwarding_ops.h"
#include "reference/mla/cache_entry.h"
#include "reference/mla/literal.h"
#include "reference/mla/mla_reference.h"

namespace attnbench::mla_pipeline_test {
namespace {

constexpr double kTolerance = 2e-2;

Problem small_problem() {
  Problem problem = mla_test_problem({4, 64, 32, 16, 24});
  problem.mla.workspace_tokens = 96;
  problem.kv_cache.block_size = 16;
  problem.kv_cache.num_blocks = 96;
  problem.batch = {{1, 70}, {1, 1}, {1, 130}, {9, 100}, {20, 61}, {13, 13}};
  return problem;
}

/// The CPU, which notes how many tokens of a request decodes were made for, whether readers of a
/// query wait for it, and where keys of prompts lie, and may say of itself that it makes queries,
/// and outputs with their codes, in one go, and takes keys whose rope part lies apart.
class WatchedOps final : public ForwardingOps {
 public:
  WatchedOps(Ops& cpu, bool fuses) : ForwardingOps(cpu), fuses_(fuses) {}
  bool fuses(const attn::LatentQueryParams&) const override { return fuses_; }
  bool fuses(const attn::ValueOutputParams&) const override { return fuses_; }
  bool takes_rope_apart(const attn::AttendParams& params) const override {
    CHECK(params.kv.rope != nullptr);
    return fuses_;
  }
  void attend(const attn::AttendParams& params) override {
    ++(params.kv.rope == nullptr ? whole_calls : apart_calls);
    inner().attend(params);
  }
  void concat(const attn::ConcatParams& params) override {
    if (params.second != nullptr && params.second_head_stride == 0) ++key_copies;
    inner().concat(params);
  }
  void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) override {
    decode_tokens = params.max_query_len;
    inner().attend_plan(params, plan);
  }
  void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) override {
    decode_tokens = params.max_query_len;
    inner().attend_splits(params, split);
  }
  void attend_sparse_plan(const attn::AttendParams& params, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override {
    decode_tokens = params.max_query_len;
    inner().attend_sparse_plan(params, sparse, plan);
  }
  void make_latent_query(const attn::LatentQueryParams& params) override {
    reader_waits = params.next_waits;
    inner().make_latent_query(params);
  }
  int decode_tokens = -1;
  int reader_waits = -1;
  int whole_calls = 0;
  int apart_calls = 0;
  int key_copies = 0;

 private:
  bool fuses_;
};

/// A case run by one backend on the CPU, and what the reference says about it.
struct Run {
  explicit Run(const Problem& of, const char* name = "MLA",
               const std::function<void(MlaInputs&)>& change = {}, int sm = 90, bool fuses = false)
      : problem(of),
        capability(*find_backend(name)->mla_capability(of)),
        inputs(make_mla_inputs(problem)) {
    if (change) change(inputs);
    plan = plan_mla(capability, problem, 132, sm);
    stored = store_mla_cache(inputs.kv_c, inputs.k_pe, mla_cache_dtype(capability, problem),
                             static_cast<float>(problem.kv_cache.k_scale.at(0)));
    cache = make_mla_cache(problem, inputs, stored.codes);
    ops = make_cpu_ops(1, 132, sm);
    watched = std::make_unique<WatchedOps>(*ops, fuses);
    BackendInputs given;
    given.mla = &inputs;
    given.mla_cache = &cache;
    pipeline = make_mla_pipeline(capability, problem, given, *watched);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    output = pipeline->read_output();
  }

  MlaReferenceInputs sources() const {
    MlaReferenceInputs in;
    in.query = &inputs.query;
    in.kv_c = &stored.kv_c_dequantized;
    in.k_pe = &stored.k_pe_dequantized;
    in.kv_c_unquantized = &inputs.kv_c;
    in.k_pe_unquantized = &inputs.k_pe;
    in.w_uk = &inputs.w_uk;
    in.w_uv = &inputs.w_uv;
    if (problem.mla.sparse_topk) in.topk_indices = &inputs.topk_indices;
    in.num_decode_tokens = plan.batch.num_decode_tokens;
    in.query_start_loc = inputs.query_start_loc;
    in.seq_lens = inputs.seq_lens;
    in.key_start_loc = inputs.key_start_loc;
    in.softmax_scale = problem.attention.scale;
    return in;
  }

  /// Largest difference from the reference, NaN included.
  double error() const {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(inputs.num_tokens()));
    std::iota(rows.begin(), rows.end(), 0);
    const auto expected = mla_reference_mqa(sources(), rows);
    double worst = 0;
    for (std::size_t i = 0; i < expected->output.size(); ++i) {
      const double difference =
          std::abs(output.output.at(static_cast<std::int64_t>(i)) - expected->output[i]);
      worst = std::isnan(difference) ? 1e9 : std::max(worst, difference);
    }
    return worst;
  }

  bool has_step(const std::string& name) const {
    return std::ranges::any_of(pipeline->steps(),
                               [&](const Step& step) { return step.name == name; });
  }

  Problem problem;
  const MlaCapability& capability;
  MlaInputs inputs;
  MlaPlan plan;
  StoredMlaCache stored;
  MlaCache cache;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<WatchedOps> watched;
  std::unique_ptr<Pipeline> pipeline;
  PipelineOutput output;
};

const Tensor* more(const PipelineOutput& output, const std::string& name) {
  for (const auto& [known, tensor] : output.more) {
    if (known == name) return &tensor;
  }
  return nullptr;
}

double difference(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    worst = std::max<double>(worst, std::abs(a.at(i) - b.at(i)));
  }
  return worst;
}

Problem sparse_problem() {
  Problem problem = small_problem();
  set_mla_dims({4, 512, 32, 64, 24}, problem);
  problem.mla.sparse_topk = 128;
  problem.kv_cache.block_size = 64;
  problem.batch = {{1, 300}, {1, 200}, {7, 90}, {5, 5}};
  return problem;
}

}  // namespace

TEST_CASE("decodes and prefills of one batch write their own rows and the whole cache") {
  const Run run(small_problem());
  CHECK(run.plan.batch.num_decodes == 3);
  CHECK(run.plan.chunks->chunks.size() > 1);
  CHECK(run.error() < kTolerance);
  CHECK(run.output.defect.empty());
  CHECK(check_mla_cache(run.problem, run.stored.codes, run.cache, *run.output.cache).empty());
}

TEST_CASE("decodes are attended as long as they are, whatever prompts stand beside them") {
  Problem problem = small_problem();
  problem.kv_cache.num_blocks = 160;
  problem.batch = {{1, 700}, {1, 900}, {1, 130}, {9, 100}, {20, 61}};
  const Run by_plan(problem, "FLASHMLA");
  CHECK(by_plan.plan.num_parts > 1);
  CHECK(by_plan.watched->decode_tokens == 1);
  CHECK(by_plan.error() < kTolerance);
  const Run in_splits(problem);
  CHECK(in_splits.plan.num_parts > 1);
  CHECK(in_splits.watched->decode_tokens == 1);
  Problem sparse = sparse_problem();
  sparse.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  const Run listed(sparse, "FLASHMLA_SPARSE");
  CHECK(listed.plan.sparse_batch.num_decodes == 2);
  CHECK(listed.watched->decode_tokens == 1);
}

TEST_CASE("the query of decodes is made in one step with the writing of the cache, or in several") {
  const auto run = [](Problem problem, const char* name, bool makes_queries) {
    return Run(problem, name, {}, 90, makes_queries);
  };
  Problem quantised = small_problem();
  quantised.kv_cache.dtype = KvCacheDtype::kFp8;
  Problem padded = small_problem();
  padded.mla.q_pad_num_heads = 16;
  Problem listed = sparse_problem();
  listed.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  const std::vector<std::pair<Problem, const char*>> cases{
      {quantised, "FLASHMLA"}, {padded, "MLA"}, {listed, "FLASHMLA_SPARSE"}};
  for (const auto& [problem, name] : cases) {
    CAPTURE(name);
    const Run apart = run(problem, name, false);
    CHECK(apart.has_step("write_cache"));
    CHECK(apart.has_step("concat_query"));
    const Run whole = run(problem, name, true);
    CHECK(whole.has_step("project_query"));
    CHECK(whole.watched->reader_waits == 1);
    for (const char* step : {"write_cache", "concat_query", "quantise_query", "pad_query_heads"}) {
      CHECK_FALSE(whole.has_step(step));
    }
    CHECK(difference(whole.output.output, apart.output.output) == 0);
    CHECK(check_mla_cache(whole.problem, whole.stored.codes, whole.cache, *whole.output.cache)
              .empty());
    Problem off = problem;
    off.mla.fused_steps = false;
    CHECK(run(off, name, true).has_step("concat_query"));
  }
  // Ranks exchange the query between its steps.
  Problem ranks = small_problem();
  ranks.dcp.world_size = 2;
  CHECK(run(ranks, "MLA", true).has_step("concat_query"));
}

TEST_CASE("a plan of whole requests has no combination, except over ranks, whose steps are alike") {
  Problem problem = small_problem();
  problem.batch = {{1, 5}, {1, 7}};
  const Run whole(problem, "FLASHMLA");
  CHECK(whole.plan.num_parts > 1);
  CHECK_FALSE(whole.has_step("combine_decode"));
  CHECK(whole.error() < kTolerance);
  problem.dcp.world_size = 2;
  const Run ranks(problem, "FLASHMLA");
  CHECK(ranks.has_step("combine_decode"));
  CHECK(ranks.error() < kTolerance);
  problem.dcp.world_size = 1;
  problem.kv_cache.num_blocks = 160;
  problem.batch = {{1, 700}, {1, 900}};
  CHECK(Run(problem, "FLASHMLA").has_step("combine_decode"));
}

TEST_CASE("the number of context chunks does not change a prefill") {
  Problem problem = small_problem();
  problem.mla.workspace_tokens = 512;
  const Run whole(problem);
  CHECK(whole.plan.chunks->chunks.size() == 1);
  const Run parts(small_problem());
  CHECK(difference(whole.output.output, parts.output.output) < 1e-2);
}

TEST_CASE("padding columns of V never reach the output") {
  Problem problem = small_problem();
  const Run plain(problem);
  problem.mla.v_pad = Switch::kOn;
  const Run padded(problem);
  CHECK(padded.output.output.shape() == plain.output.output.shape());
  CHECK(difference(padded.output.output, plain.output.output) == 0);
}

TEST_CASE("keys of prompts are copied together only where attention cannot read them apart") {
  const auto run = [](const Problem& problem, bool fuses) {
    return Run(problem, "MLA", {}, 90, fuses);
  };
  const Problem problem = small_problem();
  const Run copied = run(problem, false);
  const int calls = static_cast<int>(copied.plan.chunks->chunks.size()) + 1;
  CHECK(copied.watched->key_copies == calls);
  CHECK(copied.watched->apart_calls == 0);
  const Run apart = run(problem, true);
  CHECK(apart.watched->key_copies == 0);
  CHECK(apart.watched->apart_calls == calls);
  CHECK(apart.watched->whole_calls == copied.watched->whole_calls - calls);
  CHECK(difference(apart.output.output, copied.output.output) == 0);
  CHECK(difference(*apart.output.lse, *copied.output.lse) == 0);
  Problem off = problem;
  off.mla.fused_steps = false;
  Problem padded = problem;
  padded.mla.v_pad = Switch::kOn;
  for (const Problem& whole : {off, padded}) {
    CHECK(run(whole, true).watched->key_copies == calls);
    CHECK(run(whole, true).watched->apart_calls == 0);
  }
  Problem ranks = problem;
  ranks.dcp.world_size = 2;
  ranks.mla.workspace_tokens = 192;
  const Run of_ranks = run(ranks, true);
  CHECK(of_ranks.watched->key_copies == 0);
  CHECK(of_ranks.watched->apart_calls > 0);
  CHECK(difference(of_ranks.output.output, run(ranks, false).output.output) == 0);
}

namespace {

/// Prompts by a user's kernel, which only looks at where its keys are.
class UsersPrefill final : public MlaPipeline {
 public:
  UsersPrefill(const MlaCapability& capability, const Problem& problem, const BackendInputs& inputs,
               Ops& ops)
      : MlaPipeline(capability, problem, inputs, ops) {
    work().users_prefill = [this](const attn::AttendParams& p, const std::vector<std::int32_t>&) {
      ++calls;
      CHECK(p.kv.rope == nullptr);
      CHECK(p.kv.head_stride_key == work().sizes.qk());
      return [] {};
    };
    add_mla_prefill(work());
  }
  int calls = 0;
};

}  // namespace

TEST_CASE("users' kernels are given whole keys, whatever the device can read") {
  const Run run(small_problem());
  WatchedOps ops(*run.ops, true);
  BackendInputs given;
  given.mla = &run.inputs;
  given.mla_cache = &run.cache;
  CHECK(UsersPrefill(run.capability, run.problem, given, ops).calls > 1);
}

TEST_CASE("padded heads never reach the output") {
  Problem problem = small_problem();
  const Run plain(problem);
  problem.mla.q_pad_num_heads = 16;
  const Run padded(problem);
  CHECK(padded.has_step("pad_query_heads"));
  CHECK(difference(padded.output.output, plain.output.output) == 0);
}

TEST_CASE("ranks hold the attention over their own keys and give the output of one rank") {
  const Run one(small_problem());
  for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kAgAr, DcpComm::kA2a}) {
    for (const int interleave : {1, 4, 16}) {
      Problem problem = small_problem();
      problem.dcp.world_size = 4;
      problem.dcp.interleave_size = interleave;
      problem.dcp.comm = comm;
      problem.mla.workspace_tokens = 192;
      const Run run(problem);
      CAPTURE(to_string(comm));
      CAPTURE(interleave);
      CHECK(difference(run.output.output, one.output.output) < 1e-2);
      CHECK(check_mla_cache(problem, run.stored.codes, run.cache, *run.output.cache).empty());
      const std::vector<std::int32_t> rows{0, 1, 2};
      const Tensor& partials = *more(run.output, "rank_output");
      for (int rank = 0; rank < 4; ++rank) {
        const auto expected = mla_rank_partial(run.sources(), rows, {4, interleave}, rank);
        double worst = 0;
        for (std::size_t i = 0; i < expected->output.size(); ++i) {
          const std::int64_t at = rank * 3 * 4 * 64 + static_cast<std::int64_t>(i);
          worst = std::max<double>(worst, std::abs(partials.at(at) - expected->output[i]));
        }
        CHECK(worst < kTolerance);
      }
    }
  }
}

TEST_CASE("speculative decodes of several tokens on ranks see bottom-right causal keys") {
  Problem problem = small_problem();
  set_mla_dims({4, 256, 32, 64, 24}, problem);
  problem.batch = {{3, 70}, {3, 5}, {2, 33}, {1, 64}};
  problem.dcp.world_size = 2;
  const Run run(problem, "FLASH_ATTN_MLA");
  CHECK(run.plan.batch.num_decodes == 4);
  CHECK(run.error() < kTolerance);
}

TEST_CASE("a sparse row attends to its list: repeats count, a missing index is no key") {
  const Problem problem = sparse_problem();
  const auto lists = [](MlaInputs& inputs) {
    std::int32_t* topk = inputs.topk_indices.data<std::int32_t>();
    std::fill(topk, topk + inputs.topk_indices.num_elements(), -1);
    topk[5] = 7;
    topk[6] = 7;
    topk[127] = 250;
    // The second row lists nothing, the third its first key only.
    topk[2 * 128 + 3] = 0;
  };
  const Run run(problem, "FLASHMLA_SPARSE", lists);
  CHECK(run.error() < kTolerance);
  const std::int64_t row = 4 * 24;
  for (std::int64_t i = row; i < 2 * row; ++i) CHECK(run.output.output.at(i) == 0);
  CHECK(std::isinf(run.output.lse->at(1)));
}

TEST_CASE("an fp8_ds_mla cache is decoded by a plan and prefilled over an upconverted copy") {
  Problem problem = sparse_problem();
  problem.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  problem.mla.workspace_tokens = 64;  // a request at a time
  const Run run(problem, "FLASHMLA_SPARSE");
  CHECK(run.plan.sparse_batch.num_decodes == 2);
  CHECK(run.has_step("attend_sparse_decode"));
  const auto steps = run.pipeline->steps();
  CHECK(std::ranges::count_if(
            steps, [](const Step& step) { return step.name == "upconvert_context"; }) == 2);
  CHECK(run.error() < kTolerance);
}

TEST_CASE(
    "short queries over 16-bit entries have their lists dealt out where that fills a device") {
  Problem problem = sparse_problem();
  problem.mla.sparse_topk = 2048;
  problem.batch = {{2, 300}, {2, 200}, {2, 90}};
  const Run run(problem, "FLASHMLA_SPARSE");
  CHECK(run.plan.sparse_batch.num_decodes == 3);
  CHECK(run.plan.num_parts == 132 / 2);
  CHECK(run.has_step("attend_sparse_decode"));
  CHECK(run.has_step("combine_decode"));
  CHECK(run.error() < kTolerance);
  // As many requests as parts have a part each.
  problem.mla.sparse_topk = 128;
  problem.batch.assign(132, {1, 70});
  problem.kv_cache.num_blocks = 300;
  const Run whole(problem, "FLASHMLA_SPARSE");
  CHECK(whole.plan.num_parts == 132);
  CHECK(!whole.has_step("combine_decode"));
  CHECK(whole.error() < kTolerance);
  for (const std::vector<Request>& batch :
       {std::vector<Request>{{1, 300}, {2, 90}}, std::vector<Request>{{9, 300}, {9, 90}}}) {
    problem.batch = batch;
    CHECK(!Run(problem, "FLASHMLA_SPARSE").has_step("attend_sparse_decode"));
  }
  problem.batch = {{1, 300}};
  problem.attention.batch_invariant = true;
  CHECK(!Run(problem, "FLASHMLA_SPARSE").has_step("attend_sparse_decode"));
}

TEST_CASE("a quantised output is what the 16-bit output gives, and no row more") {
  for (const OutputQuantType type :
       {OutputQuantType::kFp8Static, OutputQuantType::kFp8Group64, OutputQuantType::kNvfp4}) {
    Problem mixed = small_problem();
    mixed.attention.num_heads = 8;  // 192 columns
    mixed.output_quant.type = type;
    mixed.output_quant.scale = type == OutputQuantType::kNvfp4 ? 896 : 0.02;
    Problem decodes = mixed;
    decodes.batch = {{1, 70}, {1, 1}, {1, 130}};
    Problem apart = decodes;
    apart.mla.fused_steps = false;
    // Codes of decodes are made where their values are, on a device that can; those of prompts are
    // not, since the rows of a batch are quantised together.
    struct Case {
      const Problem& problem;
      bool can_fuse;
      bool is_apart;
    };
    for (const Case& c :
         {Case{mixed, false, true}, Case{mixed, true, true}, Case{decodes, false, true},
          Case{decodes, true, false}, Case{apart, true, true}}) {
      const Run run(c.problem, "MLA", {}, 90, c.can_fuse);
      const OutputQuantTensors expected =
          quantise_output(c.problem, *more(run.output, "output_unquantized"));
      CAPTURE(to_string(type));
      CHECK(run.has_step("project_value"));
      CHECK(run.has_step("quantise_output") == c.is_apart);
      CHECK(run.output.defect.empty());
      REQUIRE(run.output.output.size_bytes() == expected.codes.size_bytes());
      CHECK(std::equal(expected.codes.bytes(), expected.codes.bytes() + expected.codes.size_bytes(),
                       run.output.output.bytes()));
      const Tensor& scales = *more(run.output, "output_scales");
      CHECK(std::equal(expected.scales.bytes(),
                       expected.scales.bytes() + expected.scales.size_bytes(), scales.bytes()));
    }
  }
}

TEST_CASE("CUTLASS_MLA decodes with 128 heads, of which those of padding show nowhere") {
  Problem problem = small_problem();
  set_mla_dims({4, 256, 32, 64, 24}, problem);
  problem.kv_cache.block_size = 128;
  problem.mla.workspace_tokens = 768;
  const Run run(problem, "CUTLASS_MLA", {}, 100);
  CHECK(run.has_step("pad_query_heads"));
  CHECK(run.error() < kTolerance);
  CHECK(run.output.lse->dim(0) == 4);
  const Run plain(problem, "MLA");
  CHECK_FALSE(plain.has_step("pad_query_heads"));
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.k_scale = {0.023};
  problem.kv_cache.q_scale = 0.031;
  const Run fp8(problem, "CUTLASS_MLA", {}, 100);
  CHECK(fp8.has_step("quantise_query"));
  CHECK(fp8.error() < 6e-2);
}

TEST_CASE("FLASHINFER_MLA_SPARSE reads listed e4m3 entries by their scale, with an e4m3 query") {
  Problem problem = sparse_problem();
  const Run plain(problem, "FLASHINFER_MLA_SPARSE", {}, 100);
  CHECK_FALSE(plain.has_step("quantise_query"));
  CHECK_FALSE(plain.has_step("pad_query_heads"));
  CHECK(plain.error() < kTolerance);
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  problem.kv_cache.k_scale = {0.023};
  problem.kv_cache.q_scale = 0.031;
  const Run run(problem, "FLASHINFER_MLA_SPARSE", {}, 100);
  CHECK(run.has_step("quantise_query"));
  CHECK(run.stored.codes.dtype() == Dtype::kE4M3);
  CHECK(run.error() < 6e-2);
  CHECK(check_mla_cache(problem, run.stored.codes, run.cache, *run.output.cache).empty());
}

TEST_CASE("a native e4m3 prefill gives what the emulated one gives") {
  Problem problem = small_problem();
  set_mla_dims({2, 256, 128, 64, 128}, problem);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.mla.emulate_fp8_prefill = true;
  const Run emulated(problem);
  CHECK(emulated.has_step("cast_query"));
  problem.mla.emulate_fp8_prefill = false;
  problem.mla.use_prefill_query_quantization = true;
  const Run in_16_bits(problem);
  CHECK_FALSE(in_16_bits.has_step("cast_query"));
  for (const char* prefill : {"FLASHINFER", "TRTLLM_RAGGED"}) {
    problem.mla.prefill_backend = prefill;
    const Run native(problem, "MLA", {}, 100);
    CHECK(native.has_step("cast_query"));
    CHECK(difference(native.output.output, emulated.output.output) == 0);
  }
}

TEST_CASE("values are padded on the devices whose FlashAttention wants it, with the same output") {
  const Run narrow(small_problem());
  const Run wide(small_problem(), "MLA", {}, 80);
  CHECK(wide.plan.pad_v);
  CHECK(difference(wide.output.output, narrow.output.output) == 0);
}

TEST_CASE("FLASHMLA reads an fp8 cache with a quantised query") {
  Problem problem = small_problem();
  set_mla_dims({4, 256, 32, 64, 24}, problem);
  problem.kv_cache.block_size = 64;
  problem.mla.workspace_tokens = 384;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.k_scale = {0.023};
  problem.kv_cache.q_scale = 0.031;
  const Run run(problem, "FLASHMLA");
  CHECK(run.has_step("quantise_query"));
  CHECK(run.error() < 6e-2);
}

}  // namespace attnbench::mla_pipeline_test
