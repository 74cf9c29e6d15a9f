#include "ops/cpu/attention/soft_cap.h"

#include <cmath>

#include "ops/cpu/attention/fast_exp.h"

namespace attnbench::cpu {
namespace {

/// To a few ulp everywhere; written so that loops over it become vector code.
float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const float e = exp_nonpositive(-2.0f * magnitude);
  const float far = std::copysign((1.0f - e) / (1.0f + e), x);
  // Near 0 the formula above cancels; x + x^3 q(x^2) with the minimax q of Cephes' tanhf.
  const float square = x * x;
  float q = mul_add(square, -5.70498872745e-3f, 2.06390887954e-2f);
  q = mul_add(q, square, -5.37397155531e-2f);
  q = mul_add(q, square, 1.33314422036e-1f);
  q = mul_add(q, square, -3.33332819422e-1f);
  const float near = mul_add(q * square, x, x);
  return magnitude < 0.625f ? near : far;
}

}  // namespace

void soft_cap(float cap, std::int64_t count, float* scores) {
  const float inverse = 1.0f / cap;
  for (std::int64_t i = 0; i < count; ++i) scores[i] = cap * fast_tanh(scores[i] * inverse);
}

}  // namespace attnbench::cpu
