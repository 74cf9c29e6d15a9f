// Where the needles of the probe are: keys that one row gives about half of its weight to, at the
// places where kernels lose or double keys. A key more or less at such a place is then an error of
// the size of the row itself, however long the row is; among keys of random scores it would be one
// of 1/S.
//
// This is the list only, a pure function of the problem; place_needles.h makes values of it. Each
// head of a row has its own needles, so the heads of a group, which read the same keys, look at
// different places.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/enum_names.h"
#include "core/problem/problem.h"

namespace attnbench {

enum class NeedleKind {
  kFirstVisible,
  kLastVisible,
  kNewToken,
  kShortestEnd,
  kLongestEnd,
  kBeforeVisible,
  kBehindVisible,
  kPageEdge,
  kTileEdge,
  kSplitEdge,
  kRangeEdge,
  kPrefixEdge,
  kShardEdge
};
std::span<const EnumRow<NeedleKind>> enum_rows(NeedleKind);  // named "first visible key", ...

/// One key that one head of one row is aligned with.
struct Needle {
  std::int64_t request = 0;
  std::int64_t token = 0;     // row of the output
  std::int64_t position = 0;  // of the row in its request
  int head = 0;
  std::int64_t key = 0;  // position in the request
  NeedleKind kind = NeedleKind::kFirstVisible;
  bool visible = true;  // false: must not count (a key just outside of what the row sees)
  double score = 0;     // scale * q.k that the row gets, before soft-cap and bias
  double length = 1;  // what the key is multiplied by, so that an ordinary query reaches the score
  bool operator==(const Needle&) const = default;
};

/// What a sparse row sees instead of all keys before it: mla.sparse_topk entries for each token,
/// -1 = none. Empty for every other case.
using ListedKeys = std::span<const std::int32_t>;

/// The needles of a draw of the probe, by token and head; one or two for each head of the chosen
/// rows. Rows: every token of short queries, up to 32 of long ones, at least one a request. Empty
/// for operations and where inputs.std or the scale is 0. Splits are those of the assumed device
/// (core/assumed_device.h), so that the draw is the same on every machine. A place that a head
/// cannot give half of its weight to (a key far away under a steep ALiBi slope) is left to another
/// head. Errors: as batch_lengths() for lengths that disagree.
std::vector<Needle> plan_needles(const Problem& problem, ListedKeys listed = {});

/// The seed of the second draw of a case: one that no scenario is likely to say, another one for
/// every seed, of at most 53 bits, which every reader of JSON keeps.
std::uint64_t probe_seed(std::uint64_t seed);

/// Tokens with needles, ascending and unique.
std::vector<std::int32_t> needle_rows(std::span<const Needle> needles);

}  // namespace attnbench
