#include "ops/cpu/element.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace attnbench::cpu {
namespace {

void decode_f16(const std::uint16_t* source, int count, float* destination) {
  int i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(half));
  }
#endif
  load_floats(Dtype::kF16, source + i, count - i, destination + i);
}

}  // namespace

void decode_row(attn::Element element, const void* source, int count, const CodeTable& codes,
                float* destination) {
  const auto dtype = static_cast<Dtype>(element);
  if (dtype == Dtype::kF16) {
    decode_f16(static_cast<const std::uint16_t*>(source), count, destination);
  } else if (dtype_size(dtype) == 1) {
    const auto* bytes = static_cast<const std::uint8_t*>(source);
    for (int i = 0; i < count; ++i) destination[i] = codes[bytes[i]];
  } else {
    load_floats(dtype, source, count, destination);
  }
}

}  // namespace attnbench::cpu
