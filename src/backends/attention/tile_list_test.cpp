// Pipelines that attend by a list of tiles, on the CPU, whose attend_tiles() stands for the kernel.
#include "backends/attention/tile_list.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "backends/backend_list.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// The CPU as a device whose kernel works by a list of tiles, on as many multiprocessors.
class TileCpu final : public ForwardingOps {
 public:
  TileCpu(Ops& cpu, int num_sms, TileUse beside)
      : ForwardingOps(cpu), num_sms_(num_sms), beside_(beside) {}
  TileUse tile_use(const attn::AttendParams&) const override { return TileUse::kAlways; }
  TileUse beside_use(const attn::AttendParams&) const override { return beside_; }
  int num_sms() const override { return num_sms_; }
  void attend_tiles(const attn::AttendParams& params, const attn::TileListParams& list) override {
    last = list;
    inner().attend_tiles(params, list);
  }
  attn::TileListParams last{};

 private:
  int num_sms_;
  TileUse beside_;
};

Problem tile_problem() {
  Problem p;
  p.attention.type = AttentionType::kDecoder;
  p.attention.num_heads = 8;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 32;
  p.attention.scale = 0.2;
  p.attention.causal = true;
  p.batch = {{1, 330}, {70, 100}, {1, 257}, {1, 300}, {3, 290}, {0, 0}, {1, 40}};
  p.kv_cache.num_blocks = 160;
  return p;
}

struct Outcome {
  Tensor output;
  Tensor lse;
  std::string steps;
  attn::TileListParams list{};
};

Outcome run(const Problem& p, bool by_tiles, int num_sms = 13, TileUse beside = TileUse::kNever) {
  const Backend* backend = find_backend("FLASH_ATTN");
  const AttentionInputs inputs = make_inputs(p);
  const StoredKv stored = store_kv(inputs, resolve_store_rule(p, backend->kernel_rules()));
  BackendInputs sources;
  sources.inputs = &inputs;
  sources.query = store_query(p, inputs, backend->kernel_rules());
  sources.stored = &stored;
  sources.cache = make_paged_cache(p, inputs, stored, *backend->cache_layout());
  const std::unique_ptr<Ops> cpu = make_cpu_ops(2);
  TileCpu tiles(*cpu, num_sms, beside);
  Ops& ops = by_tiles ? static_cast<Ops&>(tiles) : *cpu;
  const std::unique_ptr<Pipeline> pipeline = backend->prepare(p, sources, ops);
  pipeline->poison_outputs();
  Outcome outcome;
  for (const Step& step : pipeline->steps()) {
    step.run();
    outcome.steps += " " + step.name;
  }
  ops.synchronize();
  PipelineOutput output = pipeline->read_output(false);
  outcome.output = output.output;
  outcome.lse = output.lse.value();
  outcome.list = tiles.last;
  return outcome;
}

double largest_gap(const Tensor& a, const Tensor& b) {
  double gap = 0;
  for (std::int64_t i = 0; i < a.num_elements(); ++i) {
    const double difference = std::fabs(double{a.at(i)} - double{b.at(i)});
    if (!(difference <= gap)) gap = difference;
  }
  return gap;
}

void check_same(const Problem& p, TileUse beside = TileUse::kNever) {
  const Outcome plain = run(p, false);
  const Outcome tiles = run(p, true, 13, beside);
  REQUIRE(plain.output.num_elements() == tiles.output.num_elements());
  CHECK(largest_gap(plain.output, tiles.output) < 2e-2);
  CHECK(largest_gap(plain.lse, tiles.lse) < 1e-2);
}

}  // namespace

TEST_CASE("decodes and prefills of a batch are one list, and give what they give by requests") {
  const Problem p = tile_problem();
  const Outcome tiles = run(p, true);
  CHECK(tiles.steps == " write_cache attend");
  CHECK(tiles.list.num_ctas == 13);
  CHECK(tiles.list.parts.num_splits == 1);
  check_same(p);
}

TEST_CASE("prefixes of a cascade are parts of a list that one combination follows") {
  Problem p = tile_problem();
  p.cascade = {32, CascadeMode::kAlways};
  p.batch = {{1, 330}, {3, 100}, {1, 257}, {0, 0}, {1, 40}};
  check_same(p);
  p.cascade = {};
  p.cascade.mode = CascadeMode::kAlways;
  p.cascade.groups = {{2, 256}, {2, 32}};
  p.batch = {{1, 330}, {3, 290}, {1, 257}, {70, 110}, {1, 40}, {0, 0}};
  const Outcome tiles = run(p, true, 200);
  CHECK(tiles.steps == " write_cache attend combine");
  CHECK(tiles.list.parts.num_splits >= 2);
  check_same(p);
  p.attention.sinks = SinksKind::kNormal;
  check_same(p);
}

TEST_CASE(
    "tiles of few rows are beside the others where the device is asked to, or where it pays") {
  const Problem p = tile_problem();
  const auto list = [&](TileUse beside) { return run(p, true, 13, beside).list; };
  CHECK(list(TileUse::kNever).num_beside == 0);
  CHECK(list(TileUse::kWhereItPays).num_beside == 0);  // heads of 32 columns
  // The decodes, of 4 rows; 3 tokens have 12.
  CHECK(list(TileUse::kAlways).num_beside == 4 * 2);
  CHECK(list(TileUse::kAlways).tile_rows == 128);
  check_same(p, TileUse::kAlways);
}

TEST_CASE("what a list cannot express is attended otherwise") {
  CHECK(takes_tiles(tile_problem()));
  Problem p = tile_problem();
  p.attention.chunk_size = 64;
  CHECK_FALSE(takes_tiles(p));
  p = tile_problem();
  p.attention.mm_prefix_ranges[1] = {{2, 5}};
  CHECK_FALSE(takes_tiles(p));
  p = tile_problem();
  p.dcp.world_size = 2;
  CHECK_FALSE(takes_tiles(p));
  p = tile_problem();
  p.attention.num_splits = 4;
  CHECK_FALSE(takes_tiles(p));
  p = tile_problem();
  p.attention.split_form = SplitForm::kPlanned;
  CHECK_FALSE(takes_tiles(p));
  p = tile_problem();
  p.kv_cache.int8_level = 1;
  CHECK_FALSE(takes_tiles(p));
}

}  // namespace attnbench
