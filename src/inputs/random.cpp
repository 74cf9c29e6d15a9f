// The generator and the distributions. Compiled without contraction into fused multiply-adds (a
// compiler flag of the build): a fused operation rounds once where two round twice, and seeded
// bytes must be the same on every machine.
#include "inputs/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace attnbench {
namespace {

constexpr double kSqrt3 = 1.7320508075688772;
constexpr std::uint64_t kLanes = 4;

constexpr int kRounds = 10;
constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;

std::array<std::uint32_t, 4> philox_block(const RandomStream& stream, std::uint64_t block) {
  return philox4x32(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(stream.id), 0},
      {static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)});
}

double open_unit(std::uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

/// Horner's rule; coefficients from the constant term up.
template <std::size_t N>
inline double polynomial(const std::array<double, N>& coefficients, double x) {
  double sum = coefficients[N - 1];
  for (std::size_t i = N - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// Coefficients of PPND16: |p - 0.5| <= 0.425, then r = sqrt(-ln min(p, 1-p)) up to 5, then beyond.
constexpr std::array<double, 8> kCentreP{3.3871328727963666080e0, 1.3314166789178437745e2,
                                         1.9715909503065514427e3, 1.3731693765509461125e4,
                                         4.5921953931549871457e4, 6.7265770927008700853e4,
                                         3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr std::array<double, 8> kCentreQ{1.0,
                                         4.2313330701600911252e1,
                                         6.8718700749205790830e2,
                                         5.3941960214247511077e3,
                                         2.1213794301586595867e4,
                                         3.9307895800092710610e4,
                                         2.8729085735721942674e4,
                                         5.2264952788528545610e3};
constexpr std::array<double, 8> kMiddleP{1.42343711074968357734e0,  4.63033784615654529590e0,
                                         5.76949722146069140550e0,  3.64784832476320460504e0,
                                         1.27045825245236838258e0,  2.41780725177450611770e-1,
                                         2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr std::array<double, 8> kMiddleQ{1.0,
                                         2.05319162663775882187e0,
                                         1.67638483018380384940e0,
                                         6.89767334985100004550e-1,
                                         1.48103976427480074590e-1,
                                         1.51986665636164571966e-2,
                                         5.47593808499534494600e-4,
                                         1.05075007164441684324e-9};
constexpr std::array<double, 8> kTailP{6.65790464350110377720e0,  5.46378491116411436990e0,
                                       1.78482653991729133580e0,  2.96560571828504891230e-1,
                                       2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                       2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr std::array<double, 8> kTailQ{1.0,
                                       5.99832206555887937690e-1,
                                       1.36929880922735805310e-1,
                                       1.48753612908506148525e-2,
                                       7.86869131145613259100e-4,
                                       1.84631831751005468180e-5,
                                       1.42151175831644588870e-7,
                                       2.04426310338993978564e-15};

// |p - 0.5| up to which the central polynomials serve.
constexpr double kCentre = 0.425;

inline double central_quantile(double q) {
  const double r = 0.180625 - q * q;
  return q * polynomial(kCentreP, r) / polynomial(kCentreQ, r);
}

/// Of r = sqrt(-ln min(p, 1-p)) <= 5.
inline double middle_magnitude(double r) {
  return polynomial(kMiddleP, r - 1.6) / polynomial(kMiddleQ, r - 1.6);
}

inline double log_of(double x) {
  constexpr std::uint64_t kMantissaMask = 0x000FFFFFFFFFFFFF;
  constexpr double kSqrt2 = 1.4142135623730951;
  // ln 2 in two parts; the upper has 21 trailing zero bits, so exponent * kLn2High is exact.
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & kMantissaMask) | 0x3FF0000000000000);
  const bool above = mantissa > kSqrt2;
  mantissa = above ? mantissa * 0.5 : mantissa;
  exponent += above ? 1 : 0;
  // ln m = 2 artanh(s), |s| <= 0.1716: the first term left out is below 2^-60.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double series = 0.0;
  for (int odd = 23; odd >= 3; odd -= 2) series = (series + 1.0 / odd) * square;
  const double tail = 2.0 * s * series;
  return exponent * kLn2High + (2.0 * s + (tail + exponent * kLn2Low));
}

// Elements are drawn in batches, one step after the other over the whole batch, because each of
// these loops runs in vector registers. Every element goes through the operations of
// normal_quantile() in their order, so its bits are the same.
constexpr std::size_t kBatch = 512;
constexpr std::size_t kBlocks = kBatch / kLanes;

/// Blocks [first, first + kBlocks) of a stream, their words in order.
void philox_batch(const RandomStream& stream, std::uint64_t first,
                  std::array<std::uint32_t, kBatch>& words) {
  std::array<std::array<std::uint32_t, kBlocks>, kLanes> counter;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    counter[0][i] = static_cast<std::uint32_t>(first + i);
    counter[1][i] = static_cast<std::uint32_t>((first + i) >> 32);
    counter[2][i] = static_cast<std::uint32_t>(stream.id);
    counter[3][i] = 0;
  }
  auto key0 = static_cast<std::uint32_t>(stream.seed);
  auto key1 = static_cast<std::uint32_t>(stream.seed >> 32);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::uint64_t product0 = kMultiplier0 * counter[0][i];
      const std::uint64_t product1 = kMultiplier1 * counter[2][i];
      counter[0][i] = static_cast<std::uint32_t>(product1 >> 32) ^ counter[1][i] ^ key0;
      counter[2][i] = static_cast<std::uint32_t>(product0 >> 32) ^ counter[3][i] ^ key1;
      counter[1][i] = static_cast<std::uint32_t>(product1);
      counter[3][i] = static_cast<std::uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  for (std::size_t i = 0; i < kBlocks; ++i) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) words[i * kLanes + lane] = counter[lane][i];
  }
}

/// normal_quantile() of every element.
void normal_batch(const std::array<double, kBatch>& p, std::array<double, kBatch>& out) {
  for (std::size_t i = 0; i < kBatch; ++i) out[i] = central_quantile(p[i] - 0.5);
  // The others, about 15 %, side by side.
  std::array<std::uint32_t, kBatch + 1> others;
  std::size_t count = 0;
  for (std::size_t i = 0; i < kBatch; ++i) {
    others[count] = static_cast<std::uint32_t>(i);
    count += std::fabs(p[i] - 0.5) > kCentre ? 1 : 0;
  }
  std::array<double, kBatch> x;
  for (std::size_t i = 0; i < count; ++i) {
    const double other = p[others[i]];
    x[i] = other < 0.5 ? other : 1.0 - other;
  }
  // Why three loops: only the square root, which may set errno, does not vectorise. Why no tail:
  // 32 bits make p at least 2^-33, whose r is 4.8.
  for (std::size_t i = 0; i < count; ++i) x[i] = -log_of(x[i]);
  for (std::size_t i = 0; i < count; ++i) x[i] = std::sqrt(x[i]);
  for (std::size_t i = 0; i < count; ++i) x[i] = middle_magnitude(x[i]);
  for (std::size_t i = 0; i < count; ++i) out[others[i]] = p[others[i]] < 0.5 ? -x[i] : x[i];
}

/// Elements [first, first + kBatch) of draw(); first is a multiple of kLanes.
void draw_batch(const RandomStream& stream, Distribution distribution, double std,
                std::uint64_t first, std::array<float, kBatch>& out) {
  std::array<std::uint32_t, kBatch> words;
  philox_batch(stream, first / kLanes, words);
  std::array<double, kBatch> p;
  for (std::size_t i = 0; i < kBatch; ++i) p[i] = open_unit(words[i]);
  if (distribution == Distribution::kUniform) {
    const double half_width = std * kSqrt3;
    for (std::size_t i = 0; i < kBatch; ++i) {
      out[i] = static_cast<float>((2.0 * p[i] - 1.0) * half_width);
    }
    return;
  }
  std::array<double, kBatch> normal;
  normal_batch(p, normal);
  for (std::size_t i = 0; i < kBatch; ++i) out[i] = static_cast<float>(normal[i] * std);
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double portable_log(double x) { return log_of(x); }

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= kCentre) return central_quantile(q);
  const double r = std::sqrt(-log_of(q < 0.0 ? p : 1.0 - p));
  const double magnitude =
      r <= 5.0 ? middle_magnitude(r) : polynomial(kTailP, r - 5.0) / polynomial(kTailQ, r - 5.0);
  return q < 0.0 ? -magnitude : magnitude;
}

std::uint32_t RandomStream::bits(std::uint64_t index) const {
  return philox_block(*this, index / kLanes)[index % kLanes];
}

double RandomStream::uniform(std::uint64_t index) const { return open_unit(bits(index)); }

void draw(const RandomStream& stream, Distribution distribution, double std, std::uint64_t first,
          std::span<float> out) {
  std::array<float, kBatch> batch;
  std::size_t skipped = first % kLanes;  // elements of the first block before `first`
  for (std::size_t done = 0; done < out.size();) {
    draw_batch(stream, distribution, std, first + done - skipped, batch);
    const std::size_t count = std::min(kBatch - skipped, out.size() - done);
    std::copy_n(batch.data() + skipped, count, out.data() + done);
    done += count;
    skipped = 0;
  }
}

std::uint64_t observation_seed(std::uint64_t seed, std::size_t layer, int step) {
  const auto key = philox4x32(
      {static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(step) + 1, 0x6D6D, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{key[1]} << 32 | key[0];
}

}  // namespace attnbench
