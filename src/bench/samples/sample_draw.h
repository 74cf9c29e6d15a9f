// What the judge looks at in timed samples, drawn when the last of them is over.
//
// Every request is looked at, in few rows and heads: the whole batch would cost as much as its
// validation, while a few whole requests would leave the others to whoever skips them. The samples
// of a run share the work: heads, and requests of very long batches, take turns, so that what is
// left out in every sample is seen as soon as its turn comes, and not by chance. By how much
// shares are missed is in docs/verdicts.md; sample_draw_test.cpp counts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// A request of a sample that is to be judged: its number, its first row in the batch, and which of
/// its rows and heads.
struct JudgedRequest {
  std::int64_t request = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::vector<std::int32_t> rows;  // of the request, ascending
  std::vector<int> heads;          // of the query, ascending; empty = all
};

/// Of the samples of one run. Must not be made before they are over: what it draws later follows
/// from what it drew before.
class SampleDraw {
 public:
  SampleDraw(const Problem& problem, std::uint64_t seed);

  /// What is looked at in the next sample: requests with a query, in any order.
  std::vector<JudgedRequest> next();

 private:
  /// A request, and its heads in the order of their turns.
  struct Deck {
    JudgedRequest request;  // without rows and heads
    std::int64_t num_keys = 0;
    std::vector<int> heads;
    std::size_t next_head = 0;
  };
  std::vector<int> shuffled_heads();
  std::vector<int> deal(Deck& deck, std::int64_t count);

  int num_heads_;
  int num_kv_heads_;
  std::mt19937_64 random_;
  std::vector<Deck> decks_;  // in the order of their turns
  std::size_t next_deck_ = 0;
};

/// Whether it is all there is: every row and head of every request.
bool is_all_of(const Problem& problem, const std::vector<JudgedRequest>& drawn);

/// Token rows that a device screens of a sample, ascending: all, or where that takes longer than a
/// tenth of a second of a H200, tiles of rows that are drawn as far as that goes.
std::vector<std::int32_t> draw_screened_rows(const Problem& problem, std::uint64_t seed);

/// Token rows, ascending, as rows of their requests, with all heads. Beside them some others of the
/// same requests, for limits that go by medians: what is suspicious is no ordinary row.
std::vector<JudgedRequest> judged_with_others(const Problem& problem,
                                              const std::vector<std::int32_t>& rows);

}  // namespace attnbench
