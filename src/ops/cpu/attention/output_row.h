// Storing one finished row of attention output.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace attnbench::cpu {

/// Rounds values [Dv] to the output element and stores them at (token, head); a static FP8 output
/// is divided by its scale first (semantics §4.5). Changes `values`.
void store_output_row(const attn::AttendParams& params, std::int64_t token, int head,
                      float* values);

/// Stores the LSE of (token, head) where one is wanted.
void store_lse(const attn::AttendParams& params, std::int64_t token, int head, float lse);

}  // namespace attnbench::cpu
