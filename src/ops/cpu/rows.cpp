#include "ops/cpu/rows.h"

#include "core/numbers/dtype.h"
#include "kernels/common/numeric.cuh"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace attnbench::cpu {
namespace {

void store_f16(const float* source, std::int64_t count, std::uint16_t* destination) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(destination + i), half);
  }
#endif
  store_floats(Dtype::kF16, source + i, count - i, destination + i);
}

}  // namespace

void store_row(attn::Element element, const float* source, std::int64_t count, void* destination) {
  const auto dtype = static_cast<Dtype>(element);
  if (dtype == Dtype::kBF16) {
    auto* codes = static_cast<std::uint16_t*>(destination);
    for (std::int64_t i = 0; i < count; ++i) codes[i] = attn::bf16_from_float(source[i]);
  } else if (dtype == Dtype::kF16) {
    store_f16(source, count, static_cast<std::uint16_t*>(destination));
  } else {
    store_floats(dtype, source, count, destination);
  }
}

}  // namespace attnbench::cpu
