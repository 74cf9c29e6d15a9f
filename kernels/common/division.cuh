// Quotients of numbers that may pass 2^32 but seldom do.
#pragma once

#include "kernels/params.h"

namespace attn {

/// a / b of a >= 0 and b > 0.
ATTN_FN i64 quotient(i64 a, i64 b) {
  // Why two ways: a 64-bit division costs a GPU some hundred instructions.
  if (((a | b) >> 32) == 0) {
    return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  }
  return a / b;
}

}  // namespace attn
