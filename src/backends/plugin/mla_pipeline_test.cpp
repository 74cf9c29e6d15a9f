// What a plugin is given over the latents of MLA: the problem as a struct, tensors, and what is
// refused before it is asked. tests/cli/plugin_mla_test.py has what is judged.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/plugin/mla_pipeline.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/mla_inputs.h"
#include "inputs/mla_problem_testing.h"
#include "ops/forwarding_ops.h"
#include "reference/mla/cache_entry.h"

namespace attnbench::plugin_mla_pipeline_test {
namespace {

constexpr std::uint64_t kAll = ATTNBENCH_CAUSAL | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_QUERY |
                               ATTNBENCH_MLA_TOPK | ATTNBENCH_MLA_DS_KV;

const AttnbenchTensors* seen = nullptr;

const char* prepare(const AttnbenchBackend*, const AttnbenchProblem*,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void**) {
  seen = tensors;
  return nullptr;
}
const char* run(void*, void*) { return nullptr; }

AttnbenchBackend table(std::uint64_t features) {
  AttnbenchBackend t{};
  t.struct_size = sizeof t;
  t.abi_version = ATTNBENCH_ABI_VERSION;
  t.name = "MINE";
  t.version = "1";
  t.devices = ATTNBENCH_CPU;
  t.attention_types = ATTNBENCH_MLA;
  t.dtypes = ATTNBENCH_BFLOAT16;
  t.lse = ATTNBENCH_LSE_NATURAL;
  t.features = features;
  t.prepare = prepare;
  t.run = run;
  return t;
}

/// The CPU, which says of itself that it makes queries in one go, and notes how it was asked to.
class FusingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  bool fuses(const attn::LatentQueryParams&) const override { return true; }
  bool fuses(const attn::ValueOutputParams&) const override { return false; }
  void make_latent_query(const attn::LatentQueryParams& params) override {
    query = params;
    inner().make_latent_query(params);
  }
  std::optional<attn::LatentQueryParams> query;
};

Problem small_problem() {
  Problem problem = mla_test_problem({4, 512, 32, 64, 24});
  problem.kv_cache.block_size = 64;
  problem.kv_cache.num_blocks = 32;
  problem.batch = {{1, 70}, {5, 100}, {13, 13}};
  return problem;
}

/// A pipeline of the plugin that has run once.
struct Prepared {
  Prepared(const Problem& of, std::uint64_t features = kAll, bool fuses = false)
      : problem(of), inputs(make_mla_inputs(problem)) {
    own = plugin.table = table(features);
    plugin.self = &own;
    capability = plugin_mla_capability(own, problem.mla.sparse_topk.has_value());
    const StoredMlaCache stored =
        store_mla_cache(inputs.kv_c, inputs.k_pe, mla_cache_dtype(capability, problem),
                        static_cast<float>(problem.kv_cache.k_scale.at(0)));
    cache = make_mla_cache(problem, inputs, stored.codes);
    given.mla = &inputs;
    given.mla_cache = &cache;
    Ops& used = fuses ? static_cast<Ops&>(fusing) : *ops;
    pipeline = std::make_unique<PluginMlaPipeline>(capability, problem, given, used, plugin,
                                                   PluginDevice{});
    run_steps();
  }
  void run_steps() {
    for (const Step& step : pipeline->steps()) step.run();
    ops->synchronize();
  }

  Problem problem;
  MlaInputs inputs;
  MlaCache cache;
  BackendInputs given;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  FusingOps fusing{*ops};
  AttnbenchBackend own;
  PluginTable plugin;
  MlaCapability capability;
  std::unique_ptr<PluginMlaPipeline> pipeline;
};

std::vector<std::int64_t> shape_of(const AttnbenchTensor* tensor) {
  REQUIRE(tensor != nullptr);
  return {tensor->shape, tensor->shape + tensor->ndim};
}

/// Bytes of a tensor in one piece.
std::string bytes_of(const AttnbenchTensor* tensor) {
  std::size_t size = tensor->dtype.bits / 8;
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    size *= static_cast<std::size_t>(tensor->shape[axis]);
  }
  return {static_cast<const char*>(tensor->data), size};
}

std::uint64_t features_of(const Problem& problem, std::uint64_t declared = kAll) {
  const MlaCapability capability =
      plugin_mla_capability(table(declared), problem.mla.sparse_topk.has_value());
  return PluginProblem(problem, capability, PluginDevice{}).get()->features;
}

}  // namespace

TEST_CASE("the problem is attention over latents that all heads share") {
  Problem problem = small_problem();
  problem.mla.q_pad_num_heads = 16;
  const MlaCapability capability = plugin_mla_capability(table(kAll), false);
  const PluginProblem view(problem, capability, PluginDevice{});
  const AttnbenchProblem& p = *view.get();
  CHECK(p.type == ATTNBENCH_MLA);
  CHECK(p.num_heads == 16);
  CHECK(p.num_kv_heads == 1);
  CHECK(p.head_size == 576);
  CHECK(p.v_head_size == 512);
  CHECK(p.causal == 1);
  CHECK(p.scale == problem.attention.scale);
  CHECK(p.window_left == -1);
  CHECK(p.topk == 0);
  CHECK(p.num_tokens == 19);
  CHECK(p.kv_cache_dtype == ATTNBENCH_BFLOAT16);
}

TEST_CASE("an MLA problem needs exactly the features that its cache and lists ask for") {
  Problem problem = small_problem();
  CHECK(features_of(problem) == ATTNBENCH_CAUSAL);
  problem.output_quant.type = OutputQuantType::kFp8Static;  // done behind the kernel
  CHECK(features_of(problem) == ATTNBENCH_CAUSAL);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  const std::uint64_t fp8 = ATTNBENCH_CAUSAL | ATTNBENCH_FP8_KV;
  CHECK(features_of(problem) == (fp8 | ATTNBENCH_FP8_QUERY));
  CHECK(features_of(problem, fp8) == fp8);
  problem.mla.sparse_topk = 128;
  CHECK(features_of(problem) == (fp8 | ATTNBENCH_MLA_TOPK));
  const std::uint64_t ds_mla = ATTNBENCH_CAUSAL | ATTNBENCH_MLA_TOPK | ATTNBENCH_MLA_DS_KV;
  CHECK(features_of(problem, ds_mla) == ds_mla);
  problem.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  CHECK(features_of(problem) == ds_mla);
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  CHECK(features_of(problem) == (ATTNBENCH_CAUSAL | ATTNBENCH_MLA_TOPK));
}

TEST_CASE("tensors have the sizes of the latents") {
  Problem problem = small_problem();
  {
    const Prepared prepared(problem);
    CHECK(shape_of(seen->query) == std::vector<std::int64_t>{19, 4, 576});
    CHECK(shape_of(seen->output) == std::vector<std::int64_t>{19, 4, 512});
    CHECK(shape_of(seen->lse) == std::vector<std::int64_t>{4, 19});
    CHECK(shape_of(seen->kv_cache) == std::vector<std::int64_t>{32, 64, 576});
    CHECK(seen->kv_cache->dtype.code == 4);
    CHECK(seen->key_cache == nullptr);
    CHECK(seen->k_scale == nullptr);
    CHECK(seen->q_scale == nullptr);
    CHECK(seen->topk_slots == nullptr);
    // The rope part of the query is the end of the one that there was.
    const std::size_t rope = 64 * 2;
    CHECK(bytes_of(seen->query).substr(512 * 2, rope) ==
          std::string(reinterpret_cast<const char*>(prepared.inputs.query.bytes()) + 32 * 2, rope));
  }
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.k_scale = {0.5};
  problem.kv_cache.q_scale = 0.25;
  {
    const Prepared prepared(problem);
    CHECK(seen->query->dtype.code == 10);
    CHECK(seen->kv_cache->dtype.code == 10);
    CHECK(*static_cast<const float*>(seen->k_scale->data) == 0.5f);
    CHECK(*static_cast<const float*>(seen->q_scale->data) == 0.25f);
  }
  problem.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  problem.mla.sparse_topk = 128;
  const Prepared prepared(problem);
  CHECK(shape_of(seen->kv_cache) == std::vector<std::int64_t>{32, 64, 656});
  CHECK(seen->kv_cache->dtype.code == 1);
  CHECK(seen->k_scale == nullptr);
  CHECK(shape_of(seen->topk_slots) == std::vector<std::int64_t>{19, 128});
  // The first row sees 70 keys; slots are those of its two blocks.
  const auto* slots = static_cast<const std::int32_t*>(seen->topk_slots->data);
  const auto* blocks = prepared.cache.block_table.data<std::int32_t>();
  int listed = 0;
  for (int k = 0; k < 128; ++k) {
    if (slots[k] < 0) continue;
    ++listed;
    CHECK((slots[k] / 64 == blocks[0] || slots[k] / 64 == blocks[1]));
  }
  CHECK(listed == 70);
}

TEST_CASE("a user's kernel never starts before its query is there, however that is made") {
  const Problem problem = small_problem();
  const Prepared apart(problem);
  const std::string expected = bytes_of(seen->query);
  const Prepared whole(problem, kAll, /*fuses=*/true);
  REQUIRE(whole.fusing.query.has_value());
  // Its launch may be one that overlaps without waiting, as FlashMLA's is.
  CHECK(whole.fusing.query->next_waits == 0);
  CHECK(whole.fusing.query->write.cache == nullptr);
  CHECK(bytes_of(seen->query) == expected);
}

TEST_CASE("the run with another query has half of every list") {
  Problem problem = small_problem();
  problem.mla.sparse_topk = 128;
  problem.mla.sparse_valid = 0.5;
  const Prepared prepared(problem);
  const std::string own = bytes_of(seen->topk_slots);
  const auto slots_of_row = [](std::int64_t row) {
    std::vector<std::int32_t> slots;
    const auto* list = static_cast<const std::int32_t*>(seen->topk_slots->data) + row * 128;
    std::copy_if(list, list + 128, std::back_inserter(slots), [](int slot) { return slot >= 0; });
    return slots;
  };
  std::vector<std::vector<std::int32_t>> before;
  for (std::int64_t row = 0; row < 19; ++row) before.push_back(slots_of_row(row));
  prepared.pipeline->negate_query();
  for (std::int64_t row = 0; row < 19; ++row) {
    const std::vector<std::int32_t> half = slots_of_row(row);
    const std::vector<std::int32_t>& all = before[static_cast<std::size_t>(row)];
    CHECK(half.size() == (all.size() + 1) / 2);
    CHECK(std::ranges::includes(all, half, [&](int a, int b) {
      return std::ranges::find(all, a) < std::ranges::find(all, b);
    }));
  }
  prepared.pipeline->negate_query();
  CHECK(bytes_of(seen->topk_slots) == own);
  prepared.pipeline->negate_inputs();  // the reference is that of these lists
  CHECK(bytes_of(seen->topk_slots) == own);
}

TEST_CASE("negated inputs negate query and entries, also those that a run writes, but no scale") {
  for (const KvCacheDtype dtype :
       {KvCacheDtype::kAuto, KvCacheDtype::kFp8, KvCacheDtype::kFp8DsMla}) {
    Problem problem = small_problem();
    problem.kv_cache.dtype = dtype;
    const bool is_ds_mla = dtype == KvCacheDtype::kFp8DsMla;
    Prepared prepared(problem);
    const std::string query = bytes_of(seen->query), cache = bytes_of(seen->kv_cache);
    prepared.pipeline->negate_inputs();
    prepared.run_steps();
    const std::string other = bytes_of(seen->kv_cache);
    CHECK(bytes_of(seen->query) != query);
    REQUIRE(other.size() == cache.size());
    std::size_t wrong = 0;
    const std::size_t step = dtype == KvCacheDtype::kAuto ? 2 : 1;
    for (std::size_t i = 0; i < cache.size(); ++i) {
      const std::size_t at = i % 656;
      const bool is_scale = is_ds_mla && at >= 512 && at < 528;
      const bool has_sign = is_ds_mla ? at < 512 || at % 2 == 1 : i % step == step - 1;
      const int flipped = has_sign && !is_scale ? 0x80 : 0;
      if ((cache[i] ^ other[i]) != static_cast<char>(flipped)) ++wrong;
    }
    CHECK(wrong == 0);
    prepared.pipeline->negate_inputs();
    prepared.run_steps();
    CHECK(bytes_of(seen->query) == query);
    CHECK(bytes_of(seen->kv_cache) == cache);
  }
}

}  // namespace attnbench::plugin_mla_pipeline_test
