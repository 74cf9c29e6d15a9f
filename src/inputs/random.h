// Counter-based random numbers with the same bits on every machine: element i of a stream is a
// function of (seed, stream, i) and nothing else, and no function of the maths library is called
// but sqrt, which IEEE 754 defines to the last bit. So any part of a tensor can be drawn by itself,
// on any thread, and a case that is reported from one machine can be repeated on another.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/problem/problem.h"

namespace attnbench {

/// One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// ln(x) for normal x > 0, within a few units in the last place.
double portable_log(double x);

/// Quantile of the standard normal distribution, 0 < p < 1: algorithm AS 241 (PPND16, Wichura
/// 1988), relative error about 1e-16.
double normal_quantile(double p);

/// The seed of a layer's step that a dynamic scale looked at before the measured one: no other step
/// or layer has it, and it differs from `seed`, the case's own.
std::uint64_t observation_seed(std::uint64_t seed, std::size_t layer, int step);

/// What a stream is used for; every tensor has streams of its own, so that it does not depend on
/// the others. The values are part of the seeded bytes: never renumber.
enum class StreamId : std::uint32_t {
  kQuery = 0,
  kKey = 1,
  kValue = 2,
  kSinks = 3,
  kKeyPrefix = 4,  // positions below cascade.common_prefix_len, shared by all requests
  kValuePrefix = 5,
  kQueryChannels = 6,  // which channels and tokens the outlier distribution scales
  kKeyChannels = 7,
  kValueChannels = 8,
  kQueryTokens = 9,
  kKeyTokens = 10,
  kValueTokens = 11,
  kKeyPrefixTokens = 12,
  kValuePrefixTokens = 13,
  kBlocks = 14,
  // Multi-head latent attention.
  kKvC = 32,
  kKvCPrefix = 33,
  kKvCChannels = 34,
  kKvCTokens = 35,
  kKvCPrefixTokens = 36,
  kKPe = 37,
  kKPePrefix = 38,
  kKPeChannels = 39,
  kKPeTokens = 40,
  kKPePrefixTokens = 41,
  kWUk = 42,
  kWUv = 43,
  kTopk = 44,
  kTopkOrder = 45,
  kIndexQuery = 46,
  kIndexWeights = 47,
  kIndexKey = 48,
  kIndexKeyPrefix = 49,
  // Operations: partial results of attention and their LSEs.
  kOpOutput = 64,
  kOpLse = 65,
  kOpChannels = 66,
  kOpTokens = 67,
};

struct RandomStream {
  std::uint64_t seed = 0;
  StreamId id = StreamId::kQuery;

  /// 32 random bits of element `index`: lane index % 4 of the block with counter
  /// {index / 4 low, index / 4 high, id, 0} and key {seed low, seed high}.
  std::uint32_t bits(std::uint64_t index) const;
  /// In the open interval (0, 1): (bits + 0.5) / 2^32.
  double uniform(std::uint64_t index) const;
};

/// Elements [first, first + out.size()) of a stream, mean 0 and standard deviation `std`:
/// kNormal and kOutlier normal, kUniform in [-std * sqrt(3), std * sqrt(3)].
void draw(const RandomStream& stream, Distribution distribution, double std, std::uint64_t first,
          std::span<float> out);

}  // namespace attnbench
