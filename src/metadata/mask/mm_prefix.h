// Bidirectional ranges of multimodal prefixes: validation and packing (semantics §3.6). The tokens
// of an image see each other in both directions, whatever the causal rule and the window say; a
// range only ever adds keys to a row. Triton's kernel takes the ranges of all requests as one
// padded array.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attnbench {

/// [start, end], both inclusive, absolute positions.
using MmRange = std::array<int64_t, 2>;

/// Both ends inclusive, so one token is (i, i). start >= 0 and end >= start, else E-VALUE. A range
/// past the sequence end is legal.
void check_mm_range(const MmRange& range);

/// The ranges that have an effect on a sequence of seq_len keys: start < end strictly (a single
/// token sees itself anyway), cut at seq_len. Checks every range.
std::vector<MmRange> effective_mm_ranges(std::span<const MmRange> ranges, int64_t seq_len);

/// int32 [num_requests, max_ranges, 2], padded with (0, 0): the array that the kernel reads. The
/// padding lets token 0 see itself, which it does anyway, so a kernel need not know how many ranges
/// there are.
struct PackedMmRanges {
  int64_t num_requests = 0;
  int64_t max_ranges = 0;
  std::vector<int32_t> values;
};

/// ranges[b] lists the ranges of request b as given, empty = none. nullopt, the feature being off
/// in the kernel that is launched, when every request is trivial: no range, or the single
/// placeholder (0, 0).
std::optional<PackedMmRanges> pack_mm_ranges(std::span<const std::vector<MmRange>> ranges);

}  // namespace attnbench
