// Decoding of one row of elements to float32, quickly for the formats that caches use.
#pragma once

#include <cstdint>

#include "core/numbers/dtype.h"
#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

inline std::int64_t element_size(attn::Element element) {
  return static_cast<std::int64_t>(dtype_size(static_cast<Dtype>(element)));
}

/// destination [count]; `codes` holds the values of one-byte formats and is unused for others.
void decode_row(attn::Element element, const void* source, int count, const CodeTable& codes,
                float* destination);

}  // namespace attnbench::cpu
