// Decoding and encoding of rows. f16 goes through the F16C instructions where the machine has them;
// what is left over at the end of a row, and every row elsewhere, through core/dtype.h.
#include "ops/cpu/rows.h"

#include "core/numbers/dtype.h"
#include "kernels/common/numeric.cuh"

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
