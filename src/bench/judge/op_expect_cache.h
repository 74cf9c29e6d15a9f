// Expected caches (semantics §5.1, §5.5, §8.4, §11.6), gathers out of them, and rotations, by
// themselves or before a cache write (§12).
//
// A cache is expected as a whole: the bytes that it held before, poison among them, with the cells
// of every new position overwritten. So a kernel that touches an unused slot, the padding of a cell
// or the block of another request fails, and so does one that leaves a cell as it was. Slots below
// 0 are padding and write nothing. With a context-parallel group the caches of its ranks stand one
// behind the other, each written by the slots of that rank.
//
// A rotation is compared by values, because two ways to round its products are both right; the
// cache behind a fused one is then compared with the bytes of the rows that the kernel itself
// rotated.
#pragma once

#include "backends/backend.h"
#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// K and V in the blocks that slot_mapping names; with int8 also the cache of key scales.
OpExpectations expect_cache_write(const OpInputs& inputs);
/// Latents and rotated keys of MLA, one entry a token; in the packed format with the scales of its
/// tiles inside.
OpExpectations expect_mla_cache_write(const OpInputs& inputs);

/// The new tokens' entries out of a cache of latents, dequantised or, with op.raw, as they lie
/// there. Rows of padding behind the last token keep their poison.
OpExpectations expect_gather(const Problem& problem, const OpInputs& inputs);

/// Queries and keys in one projection. `output`, when given, is what the rotation left: a fused
/// write stores those very rows (§12.2).
OpExpectations expect_rope(const Problem& problem, const OpInputs& inputs,
                           const PipelineOutput* output);
/// The last columns of each query head, and the one key of MLA; `output` as above.
OpExpectations expect_mla_rope(const Problem& problem, const OpInputs& inputs,
                               const PipelineOutput* output);

}  // namespace attnbench
