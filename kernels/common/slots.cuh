// Where a slot of a paged cache lies.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params.h"

namespace attn {

struct SlotPlace {
  i64 block;
  i64 offset;  // within the block
};

/// `slot` >= 0.
ATTN_FN SlotPlace place_of_slot(i64 slot, int block_size) {
  const i64 block = quotient(slot, block_size);
  return {block, slot - block * block_size};
}

}  // namespace attn
