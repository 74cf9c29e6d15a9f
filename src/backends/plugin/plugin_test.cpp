// What a plugin is given: tensors, the problem as a struct, refusals before it is asked.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/plugin/pipeline.h"
#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench::plugin_test {
namespace {

/// What the plugin of these tests saw last.
struct Seen {
  const AttnbenchProblem* problem = nullptr;
  const AttnbenchTensors* tensors = nullptr;
  int destroyed = 0;
  void* spoiled = nullptr;  // run() changes its first byte
  const AttnbenchHost* host = nullptr;
  void* late_memory = nullptr;
};
Seen seen;

const char* prepare(const AttnbenchBackend*, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost* host, void** state) {
  seen.host = host;
  seen.problem = problem;
  seen.tensors = tensors;
  *state = &seen;
  return nullptr;
}
const char* run(void*, void*) {
  if (seen.spoiled != nullptr) *static_cast<unsigned char*>(seen.spoiled) ^= 1;
  return nullptr;
}
const char* allocate_in_run(void*, void*) {
  seen.late_memory = seen.host->allocate(seen.host, 8, "late");
  return nullptr;
}
#if !defined(__SANITIZE_ADDRESS__)
const char* prepare_past_its_memory(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                                    const AttnbenchTensors* tensors, const AttnbenchHost* host,
                                    void** state) {
  static_cast<char*>(host->allocate(host, 8, "eight"))[8] = 0;
  return prepare(self, problem, tensors, host, state);
}
#endif
void destroy(void* state) { ++static_cast<Seen*>(state)->destroyed; }

AttnbenchBackend table(std::uint32_t kv) {
  AttnbenchBackend t{};
  t.struct_size = sizeof t;
  t.abi_version = ATTNBENCH_ABI_VERSION;
  t.name = "MINE";
  t.version = "1";
  t.devices = ATTNBENCH_CPU;
  t.attention_types = ~0u;
  t.dtypes = ~0u;
  t.kv = kv;
  t.lse = ATTNBENCH_LSE_NATURAL;
  t.features = ~0ull;
  t.prepare = prepare;
  t.run = run;
  t.destroy = destroy;
  return t;
}

Problem small_problem() {
  Problem p;
  p.scenario = "s";
  p.case_name = "c";
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 32;
  p.attention.scale = 0.125;
  p.attention.dtype = Dtype::kBF16;
  p.batch = {{1, 37}, {0, 9}, {5, 20}, {17, 17}};
  for (const Request& request : p.batch) {
    p.kv_cache.num_blocks += ceil_div(request.seq_len, p.kv_cache.block_size);
  }
  p.kv_cache.num_blocks += 3;
  return p;
}

/// A pipeline of the plugin with its cache written.
struct Prepared {
  AttentionInputs inputs;
  StoredKv stored;
  BackendInputs sources;
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  AttnbenchBackend own;
  PluginTable plugin;
  std::unique_ptr<PluginPipeline> pipeline;

  Prepared(const Problem& p, std::uint32_t kv) : Prepared(p, table(kv)) {}
  Prepared(const Problem& p, const AttnbenchBackend& backend)
      : inputs(make_inputs(p)), own(backend) {
    const std::uint32_t kv = own.kv;
    plugin.self = &own;
    plugin.table = own;
    sources.inputs = &inputs;
    sources.query = store_query(p, inputs, kPluginRules);
    if (!has_direct_kv(p.attention.type)) {
      stored = store_kv(inputs, resolve_store_rule(p, kPluginRules));
      sources.stored = &stored;
    }
    if (!has_direct_kv(p.attention.type) && kv != ATTNBENCH_KV_RAGGED) {
      const auto kind = kv == ATTNBENCH_KV_PAGED ? CacheLayoutKind::kFa : CacheLayoutKind::kTr;
      sources.cache = make_paged_cache(p, inputs, stored, kind);
    }
    pipeline = std::make_unique<PluginPipeline>(p, sources, *ops, plugin, PluginDevice{});
    for (const Step& step : pipeline->steps()) step.run();
    ops->synchronize();
  }
};

std::vector<std::int64_t> shape_of(const AttnbenchTensor* tensor) {
  REQUIRE(tensor != nullptr);
  return {tensor->shape, tensor->shape + tensor->ndim};
}

/// The element bytes at `index`, by the strides.
const std::byte* at(const AttnbenchTensor* tensor, const std::vector<std::int64_t>& index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    REQUIRE(index[axis] < tensor->shape[axis]);
    offset += index[axis] * tensor->strides[axis];
  }
  return static_cast<const std::byte*>(tensor->data) + offset * tensor->dtype.bits / 8;
}

/// Whether every key of `tensor` (a cache, read through the table) is the code in `expected`,
/// [S, Hk, D].
bool pages_hold(const Problem& p, const AttnbenchTensor* cache, const Tensor& expected) {
  const auto row_bytes =
      static_cast<std::size_t>(p.attention.head_size) * dtype_size(expected.dtype());
  const std::byte* next = expected.bytes();
  for (std::int64_t b = 0; b < p.num_requests(); ++b) {
    for (std::int64_t j = 0; j < p.batch[static_cast<std::size_t>(b)].seq_len; ++j) {
      std::int32_t block = 0;
      std::memcpy(&block, at(seen.tensors->block_table, {b, j / p.kv_cache.block_size}),
                  sizeof block);
      for (std::int64_t head = 0; head < p.attention.num_kv_heads; ++head, next += row_bytes) {
        const std::byte* row = at(cache, {block, j % p.kv_cache.block_size, head, 0});
        if (std::memcmp(row, next, row_bytes) != 0) return false;
      }
    }
  }
  return true;
}

Problem fp8_problem() {
  Problem p = small_problem();
  p.attention.query_dtype = QueryDtype::kFp8E4M3;
  p.kv_cache.dtype = KvCacheDtype::kFp8;
  p.kv_cache.q_scale = 0.25;
  return p;
}

std::uint64_t features(const Problem& p) {
  return PluginProblem(p, PluginDevice{}).get()->features;
}

}  // namespace

TEST_CASE("a plugin reads every key and value through the block table, in every layout") {
  for (const std::uint32_t kv : {ATTNBENCH_KV_PAGED, ATTNBENCH_KV_PAGED_INTERLEAVED}) {
    for (const CacheLayout layout : {CacheLayout::kNhd, CacheLayout::kHnd}) {
      for (const KvCacheDtype dtype : {KvCacheDtype::kAuto, KvCacheDtype::kFp8E4M3}) {
        Problem p = small_problem();
        p.kv_cache.layout = layout;
        p.kv_cache.dtype = dtype;
        p.kv_cache.k_scale = {0.5};
        const Prepared prepared(p, kv);
        const AttnbenchTensors& t = *seen.tensors;
        CHECK(shape_of(t.key_cache) == std::vector<std::int64_t>{p.kv_cache.num_blocks, 16, 2, 32});
        CHECK(pages_hold(p, t.key_cache, prepared.stored.key_codes));
        CHECK(pages_hold(p, t.value_cache, prepared.stored.value_codes));
        CHECK(t.key == nullptr);
        CHECK(t.key_start_loc == nullptr);
        const bool is_fp8 = dtype == KvCacheDtype::kFp8E4M3;
        CHECK(t.key_cache->dtype.code == (is_fp8 ? 10 : 4));
        CHECK(t.key_cache->dtype.bits == (is_fp8 ? 8 : 16));
        CHECK((t.k_scale != nullptr) == is_fp8);
        if (is_fp8) {
          CHECK(shape_of(t.k_scale) == std::vector<std::int64_t>{2});
          CHECK(static_cast<const float*>(t.k_scale->data)[1] == 0.5f);
          CHECK(static_cast<const float*>(t.v_scale->data)[1] == 1.0f);
        }
      }
    }
  }
}

TEST_CASE("ragged keys are the tensors of the case, also where the type has a cache") {
  for (const AttentionType type : {AttentionType::kDecoder, AttentionType::kEncoder}) {
    Problem p = small_problem();
    p.attention.type = type;
    if (type == AttentionType::kEncoder) {
      p.attention.causal = false;
      for (Request& request : p.batch) request.query_len = request.seq_len;
    }
    const Prepared prepared(p, ATTNBENCH_KV_RAGGED);
    const AttnbenchTensors& t = *seen.tensors;
    CHECK(shape_of(t.key) == prepared.inputs.key.shape());
    CHECK(std::memcmp(t.key->data, prepared.inputs.key.bytes(), prepared.inputs.key.size_bytes()) ==
          0);
    CHECK(std::memcmp(t.value->data, prepared.inputs.value.bytes(),
                      prepared.inputs.value.size_bytes()) == 0);
    const auto* starts = static_cast<const std::int64_t*>(t.key_start_loc->data);
    CHECK(std::vector<std::int64_t>(starts, starts + 5) == prepared.inputs.key_start_loc);
    CHECK(t.block_table == nullptr);
    CHECK(t.key_cache == nullptr);
    CHECK(prepared.pipeline->steps().size() == 1);
  }
}

TEST_CASE("queries, lengths, output and LSE are of the tokens that there are") {
  const Problem p = small_problem();
  const Prepared prepared(p, ATTNBENCH_KV_PAGED);
  const AttnbenchTensors& t = *seen.tensors;
  CHECK(shape_of(t.query) == std::vector<std::int64_t>{23, 4, 32});
  CHECK(shape_of(t.output) == std::vector<std::int64_t>{23, 4, 32});
  CHECK(shape_of(t.lse) == std::vector<std::int64_t>{4, 23});
  CHECK(t.lse->dtype.code == 2);
  CHECK(t.lse->dtype.bits == 32);
  const auto* starts = static_cast<const std::int32_t*>(t.query_start_loc->data);
  CHECK(std::vector<std::int32_t>(starts, starts + 5) == std::vector<std::int32_t>{0, 1, 1, 6, 23});
  CHECK(std::memcmp(t.query->data, prepared.inputs.query.bytes(), 23 * 4 * 32 * 2) == 0);
  const AttnbenchProblem& view = *seen.problem;
  CHECK(view.num_tokens == 23);
  CHECK(view.num_keys == 83);
  CHECK(view.query_lens[2] == 5);
  CHECK(view.seq_lens[0] == 37);
  CHECK(std::string(view.json).find("\"num_kv_heads\":2") != std::string::npos);
  CHECK(t.sinks == nullptr);
  CHECK(t.alibi_slopes == nullptr);
  CHECK(t.mm_prefix_ranges == nullptr);
}

TEST_CASE("an e4m3 query comes as codes with its scale, over pages and over ragged keys") {
  for (const std::uint32_t kv : {ATTNBENCH_KV_PAGED, ATTNBENCH_KV_RAGGED}) {
    const Problem p = fp8_problem();
    const Prepared prepared(p, kv);
    const AttnbenchTensors& t = *seen.tensors;
    CHECK(shape_of(t.query) == std::vector<std::int64_t>{23, 4, 32});
    CHECK(t.query->dtype.code == 10);
    CHECK(t.query->dtype.bits == 8);
    CHECK(std::memcmp(t.query->data, prepared.sources.query.query.bytes(), 23 * 4 * 32) == 0);
    CHECK(shape_of(t.q_scale) == std::vector<std::int64_t>{1});
    CHECK(*static_cast<const float*>(t.q_scale->data) == 0.25f);
    CHECK(seen.problem->dtype == ATTNBENCH_BFLOAT16);
    CHECK(t.output->dtype.bits == 16);
    CHECK(seen.problem->scale == 0.125);  // without q_scale
  }
  const Prepared plain(small_problem(), ATTNBENCH_KV_PAGED);
  CHECK(seen.tensors->q_scale == nullptr);
}

TEST_CASE("ragged keys of an fp8 cache are its codes, with a scale for each head") {
  for (const KvCacheDtype dtype : {KvCacheDtype::kFp8E4M3, KvCacheDtype::kFp8E5M2}) {
    Problem p = small_problem();
    p.kv_cache.dtype = dtype;
    p.kv_cache.k_scale = {0.5, 2};
    p.kv_cache.v_scale = {4};
    const Prepared prepared(p, ATTNBENCH_KV_RAGGED);
    const AttnbenchTensors& t = *seen.tensors;
    const StoredKv& stored = prepared.stored;
    CHECK(shape_of(t.key) == stored.key_codes.shape());
    CHECK(t.key->dtype.code == (dtype == KvCacheDtype::kFp8E4M3 ? 10 : 12));
    CHECK(std::memcmp(t.key->data, stored.key_codes.bytes(), stored.key_codes.size_bytes()) == 0);
    CHECK(std::memcmp(t.value->data, stored.value_codes.bytes(), stored.value_codes.size_bytes()) ==
          0);
    const auto* k_scale = static_cast<const float*>(t.k_scale->data);
    const auto* v_scale = static_cast<const float*>(t.v_scale->data);
    CHECK(std::vector<float>(k_scale, k_scale + 2) == std::vector<float>{0.5f, 2});
    CHECK(std::vector<float>(v_scale, v_scale + 2) == std::vector<float>{4, 4});
    CHECK(t.block_table == nullptr);
  }
}

TEST_CASE("a state is destroyed once, before its memory goes") {
  seen.destroyed = 0;
  { const Prepared prepared(small_problem(), ATTNBENCH_KV_PAGED); }
  CHECK(seen.destroyed == 1);
}

// The sanitizer itself finds a write past a buffer, and ends the program.
#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a state is destroyed as well when what follows prepare() fails") {
  seen.destroyed = 0;
  AttnbenchBackend backend = table(ATTNBENCH_KV_PAGED);
  backend.prepare = prepare_past_its_memory;
  CHECK_THROWS_WITH_AS(Prepared(small_problem(), backend),
                       doctest::Contains("eight: 1 byte past its end"), Error);
  CHECK(seen.destroyed == 1);
}
#endif

TEST_CASE("an LSE is written in the order that the plugin declares") {
  const Problem p = small_problem();
  for (const std::uint32_t axes : {ATTNBENCH_LSE_HT, ATTNBENCH_LSE_TH}) {
    AttnbenchBackend backend = table(ATTNBENCH_KV_PAGED);
    backend.lse_axes = axes;
    backend.run = [](void*, void*) -> const char* {
      const AttnbenchTensor& lse = *seen.tensors->lse;
      for (std::int64_t h = 0; h < lse.shape[0]; ++h) {
        for (std::int64_t t = 0; t < lse.shape[1]; ++t) {
          static_cast<float*>(lse.data)[h * lse.strides[0] + t * lse.strides[1]] =
              static_cast<float>(100 * h + t);
        }
      }
      return nullptr;
    };
    const Prepared prepared(p, backend);
    CHECK(seen.tensors->lse->strides[axes == ATTNBENCH_LSE_TH ? 0 : 1] == 1);
    if (axes == ATTNBENCH_LSE_TH) CHECK(seen.tensors->lse->strides[1] == 4);
    const PipelineOutput output = prepared.pipeline->read_output(false);
    REQUIRE(output.lse.has_value());
    REQUIRE(output.lse->shape() == std::vector<std::int64_t>{4, 23});
    int wrong = 0;
    for (std::int64_t i = 0; i < 4 * 23; ++i) {
      if (output.lse->data<float>()[i] != static_cast<float>(i / 23 * 100 + i % 23)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("memory is given in prepare() alone") {
  AttnbenchBackend backend = table(ATTNBENCH_KV_PAGED);
  backend.run = allocate_in_run;
  seen.late_memory = &seen;
  CHECK_THROWS_WITH_AS(Prepared(small_problem(), backend),
                       "MINE: host->allocate() of 'late' after prepare()", BackendFailure);
  CHECK(seen.late_memory == nullptr);
}

TEST_CASE("negated inputs are negated in the cache, also what a run writes, and twice is once") {
  for (const KvCacheDtype dtype : {KvCacheDtype::kAuto, KvCacheDtype::kFp8E4M3}) {
    Problem p = small_problem();
    p.kv_cache.dtype = dtype;
    const Prepared prepared(p, ATTNBENCH_KV_PAGED_INTERLEAVED);
    Tensor keys = prepared.stored.key_codes, values = prepared.stored.value_codes;
    for (int times = 1; times <= 2; ++times) {
      prepared.pipeline->negate_inputs();
      negate(keys);
      negate(values);
      CHECK(pages_hold(p, seen.tensors->key_cache, keys));
      CHECK(pages_hold(p, seen.tensors->value_cache, values));
      for (const Step& step : prepared.pipeline->steps()) step.run();
      CHECK(pages_hold(p, seen.tensors->key_cache, keys));
      CHECK(pages_hold(p, seen.tensors->value_cache, values));
    }
    CHECK(prepared.pipeline->read_output(true).defect == "");
  }
  const Prepared ragged(fp8_problem(), ATTNBENCH_KV_RAGGED);
  Tensor keys = ragged.stored.key_codes, query = ragged.sources.query.query;
  negate(keys);
  negate(query);
  ragged.pipeline->negate_inputs();
  CHECK(std::memcmp(seen.tensors->key->data, keys.bytes(), keys.size_bytes()) == 0);
  CHECK(std::memcmp(seen.tensors->query->data, query.bytes(), query.size_bytes()) == 0);
}

TEST_CASE("a change of any input is a defect that names it") {
  Problem full = small_problem();
  full.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  full.attention.alibi = AlibiKind::kLinear;
  full.attention.sinks = SinksKind::kNormal;
  full.attention.mm_prefix_ranges = {{2, {{1, 4}, {6, 9}}}};
  using Member = const AttnbenchTensor* AttnbenchTensors::*;
  const auto defect_of = [](const Problem& p, std::uint32_t kv, Member member) {
    const Prepared prepared(p, kv);
    REQUIRE(seen.tensors->*member != nullptr);
    CHECK(prepared.pipeline->read_output(true).defect == "");
    seen.spoiled = (seen.tensors->*member)->data;
    prepared.pipeline->steps().back().run();
    seen.spoiled = nullptr;
    return prepared.pipeline->read_output(true).defect;
  };
  for (const auto& [name, member] : std::vector<std::pair<std::string, Member>>{
           {"query", &AttnbenchTensors::query},
           {"block_table", &AttnbenchTensors::block_table},
           {"query_start_loc", &AttnbenchTensors::query_start_loc},
           {"seq_lens", &AttnbenchTensors::seq_lens},
           {"k_scale", &AttnbenchTensors::k_scale},
           {"v_scale", &AttnbenchTensors::v_scale},
           {"alibi_slopes", &AttnbenchTensors::alibi_slopes},
           {"sinks", &AttnbenchTensors::sinks},
           {"mm_prefix_ranges", &AttnbenchTensors::mm_prefix_ranges}}) {
    const std::string defect = defect_of(full, ATTNBENCH_KV_PAGED, member);
    CHECK(defect.substr(0, name.size() + 15) == name + " was changed at");
  }
  CHECK(defect_of(fp8_problem(), ATTNBENCH_KV_PAGED, &AttnbenchTensors::q_scale) ==
        "q_scale was changed at [0]: it is an input");
  for (const auto& [name, member] : std::vector<std::pair<std::string, Member>>{
           {"key", &AttnbenchTensors::key},
           {"value", &AttnbenchTensors::value},
           {"key_start_loc", &AttnbenchTensors::key_start_loc}}) {
    const std::string defect = defect_of(small_problem(), ATTNBENCH_KV_RAGGED, member);
    CHECK(defect.substr(0, name.size() + 15) == name + " was changed at");
  }
}

TEST_CASE("slopes, sinks and ranges arrive as they are in the case") {
  Problem p = small_problem();
  p.attention.alibi = AlibiKind::kLinear;
  p.attention.sinks = SinksKind::kNormal;
  p.attention.mm_prefix_ranges = {{2, {{1, 4}, {6, 9}}}};
  const Prepared prepared(p, ATTNBENCH_KV_PAGED);
  const AttnbenchTensors& t = *seen.tensors;
  CHECK(seen.problem->alibi == ATTNBENCH_BIAS_KEY_INDEX);
  CHECK(std::equal(prepared.inputs.alibi_slopes.begin(), prepared.inputs.alibi_slopes.end(),
                   static_cast<const float*>(t.alibi_slopes->data)));
  CHECK(std::equal(prepared.inputs.sinks.begin(), prepared.inputs.sinks.end(),
                   static_cast<const float*>(t.sinks->data)));
  CHECK(seen.problem->num_mm_ranges == 2);
  CHECK(shape_of(t.mm_prefix_ranges) == std::vector<std::int64_t>{4, 2, 2});
  const auto* ranges = static_cast<const std::int32_t*>(t.mm_prefix_ranges->data);
  CHECK(std::vector<std::int32_t>(ranges + 8, ranges + 12) ==
        std::vector<std::int32_t>{1, 4, 6, 9});
}

TEST_CASE("a problem needs exactly the features that it uses") {
  Problem p = small_problem();
  constexpr std::uint64_t base = ATTNBENCH_CAUSAL | ATTNBENCH_GQA;
  CHECK(features(p) == base);
  const auto with = [](auto&& change) {
    Problem changed = small_problem();
    change(changed);
    return features(changed);
  };
  CHECK(with([](Problem& q) { q.attention.causal = false; }) ==
        (ATTNBENCH_NON_CAUSAL | ATTNBENCH_GQA));
  CHECK(with([](Problem& q) { q.attention.num_kv_heads = 4; }) == ATTNBENCH_CAUSAL);
  CHECK(with([](Problem& q) { q.attention.v_head_size = 16; }) == (base | ATTNBENCH_V_HEAD_SIZE));
  CHECK(with([](Problem& q) { q.attention.sliding_window = 8; }) ==
        (base | ATTNBENCH_SLIDING_WINDOW));
  CHECK(with([](Problem& q) { q.attention.logits_soft_cap = 30; }) == (base | ATTNBENCH_SOFT_CAP));
  CHECK(with([](Problem& q) { q.attention.alibi = AlibiKind::kLinear; }) ==
        (base | ATTNBENCH_ALIBI));
  CHECK(with([](Problem& q) { q.attention.alibi = AlibiKind::kSqrt; }) ==
        (base | ATTNBENCH_ALIBI_SQRT));
  CHECK(with([](Problem& q) { q.attention.sinks = SinksKind::kNormal; }) ==
        (base | ATTNBENCH_SINKS));
  CHECK(with([](Problem& q) {
          q.attention.mm_prefix_ranges = {{2, {{1, 4}}}};
        }) == (base | ATTNBENCH_MM_PREFIX));
  CHECK(with([](Problem& q) { q.kv_cache.dtype = KvCacheDtype::kFp8; }) ==
        (base | ATTNBENCH_FP8_KV));
  CHECK(with([](Problem& q) { q.kv_cache.dtype = KvCacheDtype::kFp8E5M2; }) ==
        (base | ATTNBENCH_FP8_E5M2_KV));
  CHECK(with([](Problem& q) { q.output_quant.type = OutputQuantType::kFp8Static; }) ==
        (base | ATTNBENCH_FP8_OUTPUT));
  CHECK(with([](Problem& q) { q.kv_cache.layout = CacheLayout::kHnd; }) == base);
  constexpr std::uint64_t kE4M3 = base | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_QUERY;
  Problem fp8 = fp8_problem();
  CHECK(features(fp8) == kE4M3);
  fp8.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
  CHECK(features(fp8) == (kE4M3 | ATTNBENCH_FP8_PROBABILITY));
}

TEST_CASE("int8 attention and the ranks of a group are features, and say what they lack") {
  Problem p = fp8_problem();
  p.attention.query_dtype = QueryDtype::kAuto;
  p.attention.dtype = Dtype::kBF16;
  p.kv_cache.dtype = KvCacheDtype::kAuto;
  p.kv_cache.int8_level = 2;
  CHECK(common_refusals(p).empty());
  const PluginProblem int8(p, PluginDevice{});
  CHECK((int8.get()->features & ATTNBENCH_INT8_CODES) != 0);
  CHECK((int8.get()->features & ATTNBENCH_FP8_QUERY) == 0);
  CHECK(int8.get()->kv_cache_dtype == ATTNBENCH_INT8);
  CHECK(int8.get()->int8_level == 2);
  p.attention.sinks = SinksKind::kNormal;
  CHECK(common_refusals(p) == std::vector<std::string>{"attention sinks with int8 attention"});

  p.kv_cache.int8_level = 0;
  p.dcp.world_size = 2;
  CHECK(common_refusals(p) == std::vector<std::string>{"DCP with sinks"});
  p.attention.sinks = SinksKind::kNone;
  CHECK(common_refusals(p).empty());
  PluginProblem rank(p, PluginDevice{});
  const std::vector<std::int32_t> lens(p.batch.size(), 3);
  rank.set_rank(1, lens);
  const AttnbenchProblem& view = *rank.get();
  CHECK((view.features & (ATTNBENCH_DCP | ATTNBENCH_NON_CAUSAL | ATTNBENCH_CAUSAL)) ==
        (ATTNBENCH_DCP | ATTNBENCH_NON_CAUSAL));
  CHECK(view.causal == 0);
  CHECK(view.window_right == -1);
  CHECK(view.dcp_rank == 1);
  CHECK(view.num_keys == 3 * static_cast<std::int64_t>(lens.size()));
  CHECK(view.seq_lens[0] == 3);
  p.dcp.transport = DcpTransport::kNccl;
  CHECK(common_refusals(p) == std::vector<std::string>{"DCP over nccl with a user's kernel"});
}

TEST_CASE("e4m3 queries and probabilities are for caches of e4m3") {
  Problem p = fp8_problem();
  p.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
  CHECK(common_refusals(p).empty());
  const std::vector<std::string> both{"fp8 query", kProbabilityRefusal};
  for (const KvCacheDtype other : {KvCacheDtype::kAuto, KvCacheDtype::kFp8E5M2}) {
    p.kv_cache.dtype = other;
    CHECK(common_refusals(p) == both);
  }
  p.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  p.attention.query_dtype = QueryDtype::kAuto;
  CHECK(common_refusals(p) == std::vector<std::string>{kProbabilityRefusal});
}

}  // namespace attnbench::plugin_test
