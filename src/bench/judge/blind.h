// What a case cannot see. A verdict says that an output is right; how much that means depends on
// the values: on keys of equal scores every softmax is a mean, and nobody sees a scale that is off.
// So well-known mistakes are made on purpose, in the reference and on a handful of rows, and are
// judged by the rule of the case. One that would pass is named in the result (blind_to).
//
// A mutant is the reference with one change of its inputs or its mathematics: it needs no kernel
// and costs as much as the rows do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/judge/judge.h"
#include "core/enum_names.h"
#include "core/problem/problem.h"
#include "metadata/mask/attention_math.h"
#include "reference/attention.h"

namespace attnbench {

enum class Mutant {
  kZeros,
  kMeanOfValues,
  kNoScale,
  kScaleOff,
  kLastKeyDropped,
  kFirstPageDropped,
  kKeyDoubled,
  kWindowShort,
  kWindowLong,
  kE4M3Probability,
  kWrongKvHead,
  kBase2Lse
};
std::span<const EnumRow<Mutant>> enum_rows(Mutant);  // named "zeros", "mean of V", ...

/// A change of the inputs or the mathematics; none by default.
struct MutantChange {
  double scale_factor = 1;
  bool uniform = false;               // every visible key has the same weight
  std::int64_t last_dropped = 0;      // keys at the end of what a row sees
  std::int64_t first_dropped = 0;     // keys at the start of the request
  std::int64_t window_change = 0;     // of the keys visible before a row
  bool next_kv_head = false;          // a head reads the keys and values of the next KV head
  std::optional<EmulationRule> rule;  // rounds as a kernel would; nothing: exact

  bool operator==(const MutantChange&) const = default;
};

/// Computes the rows of the case under a change; nothing when should_stop said so.
using MutantReference = std::function<std::optional<ReferenceOutput>(const MutantChange&)>;

/// What a case's rule decides by, and the rows that mutants are made of.
struct BlindCase {
  const Problem* problem = nullptr;
  Numerics numerics;
  bool gives_lse = false;
  std::span<const std::int32_t> rows;  // token indices, ascending; not empty
};

/// The mutants that mean something for the case: no window without a window, no other KV head
/// where there is one. Order of the enumerators.
std::vector<Mutant> mutants_of(const BlindCase& blind_case);

/// Those of `candidates` that the rule of the case would let pass on these values. One that gives
/// the reference itself, to the last bits, is no mistake there and is not named. Nothing when
/// should_stop said so.
std::optional<std::vector<Mutant>> unseen_mutants(const BlindCase& blind_case,
                                                  const std::vector<Mutant>& candidates,
                                                  const MutantReference& reference);

/// The same, of all mutants_of() where candidates is nothing; remembered for cases that are judged
/// alike, so that backends with the same mathematics share the answer.
class BlindAnswers {
 public:
  std::optional<std::vector<Mutant>> get(const BlindCase& blind_case,
                                         const std::optional<std::vector<Mutant>>& candidates,
                                         const MutantReference& reference);

 private:
  struct Entry {
    Numerics numerics;
    bool gives_lse;
    std::optional<std::vector<Mutant>> candidates;
    std::vector<Mutant> unseen;
  };
  std::vector<Entry> entries_;
};

std::vector<std::string> names_of(const std::vector<Mutant>& mutants);

/// reference_attention() or emulate_attention() under a change.
std::optional<ReferenceOutput> mutated_attention(AttentionMath math, ReferenceInputs inputs,
                                                 const MutantChange& change,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options);

/// Lengths and starts of requests that lost keys, [B] and [B + 1]: what drops keys in any
/// reference.
struct ShorterRequests {
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc;
};
ShorterRequests shorter_requests(std::span<const std::int32_t> seq_lens,
                                 std::span<const std::int64_t> key_start_loc,
                                 const MutantChange& change);

}  // namespace attnbench
