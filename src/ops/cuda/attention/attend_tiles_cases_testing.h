// Small cases of attend_tiles(): batches of decodes and prefills, and prefixes that groups of
// requests share, each at the head sizes and features that the kernel has.
#pragma once

#include "ops/cuda/attention/attend_cases_testing.h"
#include "ops/forwarding_ops.h"
#include "ops/tile_deal.h"

namespace attnbench::cuda {

/// The first `num_requests` of the remaining requests share `num_keys` keys, by the pages of the
/// first of them.
struct SharedCase {
  int num_requests;
  int num_keys;
};

struct TileCase {
  AttendCase attend;
  int tile_rows = 192;
  int num_ctas = 5;
  std::vector<SharedCase> shared{};
  int parts = 0;            // of each prefix; 0: nothing is shared
  bool has_beside = false;  // TileForm
};

inline int starts_of(const AttendCase& c, std::size_t request) {
  int start = 0;
  for (std::size_t b = 0; b < request; ++b) start += c.query_lens[b];
  return start;
}

/// Each request's tokens and, from `shared` keys on, its own keys.
inline std::vector<TileSequence> own_sequences(const TileCase& c) {
  std::vector<int> shared_of(c.attend.query_lens.size(), 0);
  std::size_t request = 0;
  for (const SharedCase& shared : c.shared) {
    for (int i = 0; i < shared.num_requests; ++i) shared_of[request++] = shared.num_keys;
  }
  std::vector<TileSequence> sequences;
  for (std::size_t b = 0; b < shared_of.size(); ++b) {
    TileSequence sequence;
    sequence.first_token = starts_of(c.attend, b);
    sequence.num_tokens = c.attend.query_lens[b];
    sequence.context_len = c.attend.context_lens[b];
    sequence.table_row = static_cast<int>(b);
    sequence.key_begin = shared_of[b];
    sequence.key_end = c.attend.context_lens[b] + c.attend.query_lens[b];
    sequences.push_back(sequence);
  }
  return sequences;
}

inline std::vector<SharedKeys> shared_keys(const TileCase& c) {
  std::vector<SharedKeys> prefixes;
  std::size_t request = 0;
  for (const SharedCase& shared : c.shared) {
    SharedKeys keys;
    keys.first_token = starts_of(c.attend, request);
    keys.table_row = static_cast<int>(request);
    request += static_cast<std::size_t>(shared.num_requests);
    keys.num_tokens = starts_of(c.attend, request) - keys.first_token;
    keys.num_keys = shared.num_keys;
    prefixes.push_back(keys);
  }
  return prefixes;
}

/// attend() of the case as a list of tiles, which `ops` then attends by.
class TilesOps final : public ForwardingOps {
 public:
  TilesOps(Ops& inner, const TileCase& c) : ForwardingOps(inner), case_(c) {}

  void attend(const attn::AttendParams& params) override {
    CaseMemory memory(inner());
    TileForm form;
    form.tile_rows = case_.tile_rows;
    form.group = params.num_heads / params.num_kv_heads;
    form.num_kv_heads = params.num_kv_heads;
    form.columns = params.head_size + params.v_head_size;
    form.causal = params.score.window_right >= 0;
    form.has_beside = case_.has_beside;
    std::vector<TileSequence> sequences = own_sequences(case_);
    if (case_.parts > 0) {
      sequences = cascade_sequences(shared_keys(case_), std::move(sequences), case_.parts,
                                    params.kv.block_size);
    }
    const TileDeal deal = deal_tiles(sequences, form, case_.num_ctas);
    attn::TileListParams list{};
    list.tiles = memory.upload(deal.tiles);
    list.bundles = memory.upload(deal.bundles);
    list.drawn = static_cast<int*>(memory.upload(std::vector<int>{0, 0}));
    list.num_tiles = static_cast<int>(deal.tiles.size());
    list.num_bundles = static_cast<int>(deal.bundles.size()) - 1;
    list.num_beside = deal.num_beside;
    list.num_ctas = case_.num_ctas;
    list.tile_rows = case_.tile_rows;
    list.parts.num_splits = case_.parts + 1;
    list.parts.num_tokens = starts_of(case_.attend, case_.attend.query_lens.size());
    if (case_.parts > 0) {
      const attn::i64 rows = list.parts.num_splits * list.parts.num_tokens * params.num_heads;
      list.parts.partial_output =
          static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows, params.v_head_size})));
      list.parts.partial_lse = static_cast<float*>(memory.upload(poisoned(Dtype::kF32, {rows})));
    }
    inner().attend_tiles(params, list);
    if (case_.parts > 0) inner().combine_splits(params, list.parts);
    inner().synchronize();  // the list's memory ends here
  }

 private:
  const TileCase& case_;
};

inline std::vector<TileCase> tile_cases() {
  std::vector<TileCase> cases;
  const auto batch = [](std::string name, int head_size = 128, int v_head_size = 128) {
    AttendCase c{
        .name = "tiles: " + std::move(name), .head_size = head_size, .v_head_size = v_head_size};
    c.query_lens = {1, 130, 0, 1, 40, 1};
    c.context_lens = {300, 173, 0, 17, -9, 0};
    return c;
  };
  cases.push_back({.attend = batch("decodes and prefills")});
  cases.push_back({.attend = batch("decodes and prefills, 128 rows"), .tile_rows = 128});
  AttendCase c = batch("decodes beside prefills");
  c.query_lens = {1, 130, 2, 1, 40, 3};
  c.context_lens = {2300, 173, 0, 17, -9, 333};
  c.group = 4;
  cases.push_back({.attend = c, .tile_rows = 128, .has_beside = true});
  c = batch("decodes beside prefills, d64 f16 window and sinks", 64, 64);
  c.query = c.cache = c.output = Dtype::kF16;
  c.window_left = 70;
  c.has_sinks = true;
  c.block_size = 32;
  cases.push_back({.attend = c, .tile_rows = 128, .num_ctas = 132, .has_beside = true});
  c = batch("both ways, groups of seven");
  c.window_right = -1;
  c.group = 7;
  cases.push_back({.attend = c});
  c = batch("window and sinks, more CTAs than tiles");
  c.window_left = 50;
  c.has_sinks = true;
  cases.push_back({.attend = c, .num_ctas = 132});
  c = batch("d64 f16 soft cap", 64, 64);
  c.query = c.cache = c.output = Dtype::kF16;
  c.soft_cap = 3.0f;
  c.has_large_queries = false;
  cases.push_back({.attend = c});
  c = batch("d192/128 to f32, pages of 64", 192, 128);
  c.output = Dtype::kF32;
  c.block_size = 64;
  cases.push_back({.attend = c});
  c = batch("d256, context-relative alibi", 256, 256);
  c.alibi = attn::Alibi::kContextRelative;
  cases.push_back({.attend = c, .tile_rows = 128});
  const auto cascade = [](std::string name, int head_size = 128) {
    AttendCase shared{
        .name = "tiles: " + std::move(name), .head_size = head_size, .v_head_size = head_size};
    shared.query_lens = {1, 1, 3, 1, 1, 2, 1};
    shared.context_lens = {336, 340, 400, 338, 32, 90, 50};
    return shared;
  };
  cases.push_back({.attend = cascade("two prefixes, one request of its own"),
                   .tile_rows = 128,
                   .shared = {{4, 336}, {2, 32}, {1, 0}},
                   .parts = 3});
  c = cascade("own keys beside prefixes");
  cases.push_back({.attend = c,
                   .tile_rows = 128,
                   .num_ctas = 3,
                   .shared = {{4, 336}, {2, 32}, {1, 0}},
                   .parts = 3,
                   .has_beside = true});
  c = cascade("a prefix under sinks");
  c.has_sinks = true;
  c.has_large_queries = false;
  c.sink_shift = 8.0f;  // above most scores: counted twice, it would show
  cases.push_back({.attend = c, .shared = {{7, 32}}, .parts = 1});
  c = cascade("prefixes of d64, many heads of a group, to e4m3", 64);
  c.group = 20;
  c.output = Dtype::kE4M3;
  c.output_scale = 0.25f;
  cases.push_back({.attend = c, .tile_rows = 192, .shared = {{4, 320}, {3, 32}}, .parts = 2});
  return cases;
}

inline void add_tile_cases(std::vector<OperationCase>& cases) {
  for (const TileCase& c : tile_cases()) {
    const double tolerance = c.attend.output == Dtype::kE4M3 ? 0.2 : 4e-2;
    cases.push_back({c.attend.name, tolerance,
                     [c](Ops& ops) {
                       TilesOps tiles(ops, c);
                       return run_attend(tiles, c.attend);
                     },
                     tolerance / 2});
  }
}

}  // namespace attnbench::cuda
