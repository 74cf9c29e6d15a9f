#include "ops/cpu/attention/attend_block.h"
#include "ops/cpu/attention/output_row.h"
#include "ops/cpu/cpu_ops.h"

namespace attnbench::cpu {

void attend(const attn::AttendParams& params, Workers& workers) {
  const std::vector<RowBlock> blocks = row_blocks(params);
  workers.pool.parallel_for(
      static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i, int thread) {
        const RowBlock& block = blocks[static_cast<std::size_t>(i)];
        Scratch& scratch = workers.scratch[static_cast<std::size_t>(thread)];
        attend_block(params, block, {0, params.seq_lens[block.request]}, true, scratch);
        for (int row = 0; row < block.num_rows; ++row) {
          const RowPlace place = place_of_row(params, block, row);
          store_lse(params, place.token, place.head, row_lse(scratch, row));
          normalise_row(params, row, scratch);
          store_output_row(params, place.token, place.head, scratch.line.data());
        }
      });
}

}  // namespace attnbench::cpu
