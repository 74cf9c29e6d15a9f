// Attention by a list of tiles. A tile is a block of rows against a run of keys, which every dense
// operation here is made of, so it is brought into that form: its sequence of tokens becomes the
// only request of a batch, with the position of its first token and the pages of its table row.
//
// The unit of work of a thread is a tile, whose rows are cut to the blocks that the others use; no
// sum depends on the number of threads.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/cpu_ops.h"

namespace attnbench::cpu {
namespace {

/// A batch of one request, whose tokens are those of the tile's sequence.
struct Sequence {
  std::array<int, 2> query_start_loc;
  std::array<int, 1> seq_lens;
  attn::AttendParams params;

  Sequence(const attn::AttendParams& whole, const attn::AttendTile& tile) : params(whole) {
    const int group = whole.num_heads / whole.num_kv_heads;
    const int rows = (tile.first_row + tile.num_rows + group - 1) / group;
    // Tokens that do not exist, where the keys go on behind the last row: positions are counted
    // from the end of the keys. Keys behind key_end are cut off by the run.
    const int tokens = std::max(rows, tile.key_end - tile.context_len);
    query_start_loc = {tile.first_token, tile.first_token + tokens};
    seq_lens = {tile.context_len + tokens};
    params.query_start_loc = query_start_loc.data();
    params.seq_lens = seq_lens.data();
    params.first_request = 0;
    params.num_requests = 1;
    params.kv.block_table += tile.table_row * whole.kv.block_table_stride;
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
};

/// Rows of a block, as row_blocks() makes them at most.
constexpr int kBlockRows = 64;

}  // namespace

void attend_tiles(const attn::AttendParams& params, const attn::TileListParams& list,
                  Workers& workers) {
  if (params.kv.block_table == nullptr || params.score.mm_ranges != nullptr) {
    fail(ErrorKind::kUnsupported, "attend_tiles takes pages, and no bidirectional ranges");
  }
  const attn::SplitParams& parts = list.parts;
  workers.pool.parallel_for(list.num_tiles, [&](std::int64_t i, int thread) {
    const attn::AttendTile& tile = list.tiles[i];
    const Sequence sequence(params, tile);
    Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
    for (int first = 0; first < tile.num_rows; first += kBlockRows) {
      const RowBlock block{0, tile.kv_head, tile.first_row + first,
                           std::min(kBlockRows, tile.num_rows - first)};
      attend_block(sequence.params, block, {tile.key_begin, tile.key_end}, tile.part == 0, scratch);
      for (int row = 0; row < block.num_rows; ++row) {
        const RowPlace place = place_of_row(sequence.params, block, row);
        const float lse = row_lse(scratch, row);
        normalise_row(params, row, scratch);
        if (parts.num_splits == 1) {
          store_lse(params, place.token, place.head, lse);
          store_output_row(params, place.token, place.head, scratch.line.data());
          continue;
        }
        const std::int64_t line = std::int64_t{tile.part} * params.num_heads + place.head;
        parts.partial_lse[line * parts.num_tokens + place.token] = lse;
        const std::int64_t partial =
            (tile.part * parts.num_tokens + place.token) * params.num_heads + place.head;
        std::copy_n(scratch.line.data(), params.v_head_size,
                    parts.partial_output + partial * params.v_head_size);
      }
    }
  });
}

}  // namespace attnbench::cpu
