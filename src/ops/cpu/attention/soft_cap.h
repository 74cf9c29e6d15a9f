// Soft-capping of scores (semantics §3.1 step 2).
#pragma once

#include <cstdint>

namespace attnbench::cpu {

/// scores [count] <- cap * tanh(scores / cap).
void soft_cap(float cap, std::int64_t count, float* scores);

}  // namespace attnbench::cpu
