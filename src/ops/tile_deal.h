// Which tiles a batch is cut into for attend_tiles(), and in which order they start: a pure
// function of lengths, so that choices are tested and printed without a GPU.
//
// The order mixes tiles that the memory binds with tiles that the tensor cores bind, in proportion
// to what each kind costs in all: at any time the same share of the multiprocessors reads the keys
// of decodes while the others multiply. Within a kind the most expensive tiles come first, so that
// what starts last is short. Whichever CTA is free takes the next tile. Tiles that take so little
// time that a draw for each would count are dealt in bundles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params_tiles.h"

namespace attnbench {

/// Consecutive tokens that see one run of keys.
struct TileSequence {
  int first_token = 0;
  int num_tokens = 0;
  int context_len = 0;  // position of the first token
  int table_row = 0;    // of the block table
  int key_begin = 0;    // a multiple of the block size
  int key_end = 0;      // <= key_begin: no keys, and the rows still get an (empty) result
  int part = 0;
};

/// What the cut goes by.
struct TileForm {
  int tile_rows = 192;  // packed query rows of a tile
  int group = 1;        // G, query heads of a KV head
  int num_kv_heads = 1;
  int columns = 256;  // D + Dv
  bool causal = true;
  bool has_beside = false;  // tiles of at most attn::kMostFewRows rows are done beside the others
};

struct TileDeal {
  std::vector<attn::AttendTile> tiles;  // in the order in which they should start; behind them
                                        // those beside, in theirs
  std::vector<int> bundles{0};          // where each bundle of tiles begins, and their number
  int num_beside = 0;                   // tiles beside
  int most_keys = 0;                    // of a tile of more than 64 rows, as those of prompts are
  std::int64_t longest_ns = 0;          // estimated: of the CTA that ends last
  std::int64_t total_ns = 0;            // of all tiles, one after another
};

/// Every packed row of every sequence and KV head in one tile. Estimates are of one H200. Errors:
/// E-INTERNAL where an extent of the form or num_ctas is below 1; so of prefix_parts().
TileDeal deal_tiles(std::span<const TileSequence> sequences, const TileForm& form, int num_ctas);

/// Estimated time of `rows` packed rows against `keys` keys on a multiprocessor while others leave
/// it the memory and the power that it can use, and whether the tensor cores bind it.
struct TileCost {
  std::int64_t ns = 0;
  bool is_product_bound = false;
};
TileCost tile_cost(int rows, std::int64_t keys, const TileForm& form);

/// Rows of a tile for a head size: 192 of three warpgroups where their registers hold the output,
/// else 128. Sequences of few rows in all take 128, whose tiles of keys are longer.
int tile_rows_for(int head_size, int v_head_size, std::int64_t most_rows);

/// A prefix that the tokens of consecutive requests share.
struct SharedKeys {
  int first_token = 0;
  int num_tokens = 0;
  int table_row = 0;  // of one of the requests
  int num_keys = 0;   // a multiple of the block size; 0: none are shared
};

/// Whether tiles of few rows are better done beside the others than among them: where both kinds
/// take a good part of the time; of a cascade, where there are more of them than warps beside.
bool beside_pays(std::span<const TileSequence> own, std::span<const SharedKeys> prefixes,
                 const TileForm& form, int num_ctas);

/// Runs that the keys of the longest shared prefix are cut into: as few as let no tile of it take
/// longer than half of what each CTA has to do, none of fewer than 128 keys; at least 1.
int prefix_parts(std::span<const SharedKeys> prefixes, std::span<const TileSequence> own,
                 const TileForm& form, int num_ctas);

/// The sequences of a cascade (semantics §6.2): each prefix in `parts` runs of whole blocks, parts
/// 0 and on, where its rows see every key; then each request's own keys as part `parts`.
std::vector<TileSequence> cascade_sequences(std::span<const SharedKeys> prefixes,
                                            std::vector<TileSequence> own, int parts,
                                            int block_size);

}  // namespace attnbench
