// The lines of the second-level cache and of shared memory.
#pragma once

namespace attn {

/// A line of the second-level cache; of shared memory, all its banks once.
constexpr int kLineBytes = 128;

}  // namespace attn
