// The unit in which memory moves, on every GPU since sm_80: lines of 128 bytes, four sectors of 32.
// Copies to shared memory are laid out by it (kernels/attention/products.cuh, prefill_layout.cuh).
// The L2 sends whole sectors, and one whose halves a warp copies to two different 32-byte places of
// shared memory it sends twice: rows of a tile keep sectors together. Shared memory has 32 banks of
// 4 bytes, which are one line: two words a multiple of kLineBytes apart lie in the same bank, and
// reading both at once takes two passes.
//
// In a file of its own and not in platform.cuh, because a compiled kernel keeps a copy of every
// constant that it includes, and most kernels have no use for this one.
#pragma once

namespace attn {

/// A line of the second-level cache; of shared memory, all its banks once.
constexpr int kLineBytes = 128;

}  // namespace attn
