// Every row gets its cost and whether it is an end or an edge; the rows are then put in an order of
// preference and cut off where the reference can no longer afford the next one.
#include "reference/row_selection.h"

#include <algorithm>
#include <random>

#include "metadata/mask/attention_math.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

// About two seconds of the reference on two cores. A constant of the program and not of the
// machine, so that `checked_rows` is the same everywhere.
constexpr double kAffordableFlops = 60e9;
constexpr std::size_t kLeastRows = 64;

/// Everything the choice needs to know of a token row.
struct RowFacts {
  double flops = 0;     // of all its heads
  bool is_end = false;  // first or last row of its request
  bool is_edge = false;
};

/// Whether a page or a tile begins at `position` or beside it.
bool is_beside_multiple(std::int64_t position, std::int64_t step) {
  const std::int64_t rest = (position % step + step) % step;
  return rest <= 1 || rest == step - 1;
}

std::vector<RowFacts> facts_of_rows(const Problem& problem) {
  const AttentionSpec& attention = problem.attention;
  const AttentionMath math = resolve_attention_math(problem, KernelRules{});
  const double flops_per_pair =
      2.0 * attention.num_heads * (attention.head_size + attention.v_head_size);
  const std::int64_t block_size = std::max(1, problem.kv_cache.block_size);
  std::vector<RowFacts> facts;
  facts.reserve(static_cast<std::size_t>(problem.num_tokens()));
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      const std::int64_t position = i + request.seq_len - request.query_len;
      const std::int64_t pairs =
          count_visible(math, static_cast<std::int64_t>(b), position, request.seq_len);
      RowFacts row;
      row.flops = flops_per_pair * static_cast<double>(pairs);
      row.is_end = i == 0 || i == request.query_len - 1;
      // Tiles of 128 begin where tiles of 64 do; kernels tile positions (keys) and rows (queries).
      row.is_edge = is_beside_multiple(position, block_size) || is_beside_multiple(position, 64) ||
                    is_beside_multiple(i, 64);
      facts.push_back(row);
    }
  }
  return facts;
}

/// Fisher-Yates with a generator whose numbers the standard fixes, unlike std::shuffle.
void shuffle(std::vector<std::int32_t>& rows, std::mt19937_64& generator) {
  for (std::size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[generator() % i]);
}

/// All rows, most wanted first: ends of requests, then edges and others by turns, so that neither
/// crowds the other out.
std::vector<std::int32_t> rows_by_priority(const std::vector<RowFacts>& facts, std::uint64_t seed) {
  std::vector<std::int32_t> order;
  std::vector<std::int32_t> edges;
  std::vector<std::int32_t> others;
  for (std::size_t row = 0; row < facts.size(); ++row) {
    auto& list = facts[row].is_end ? order : facts[row].is_edge ? edges : others;
    list.push_back(static_cast<std::int32_t>(row));
  }
  std::mt19937_64 generator(seed);
  shuffle(order, generator);
  shuffle(edges, generator);
  shuffle(others, generator);
  for (std::size_t i = 0; i < std::max(edges.size(), others.size()); ++i) {
    if (i < edges.size()) order.push_back(edges[i]);
    if (i < others.size()) order.push_back(others[i]);
  }
  return order;
}

/// How many of `order`, from its start, are affordable: at least kLeastRows.
std::size_t affordable_count(const std::vector<std::int32_t>& order,
                             const std::vector<RowFacts>& facts) {
  double flops = 0;
  for (std::size_t count = 0; count < order.size(); ++count) {
    flops += facts[static_cast<std::size_t>(order[count])].flops;
    if (flops > kAffordableFlops && count >= kLeastRows) return count;
  }
  return order.size();
}

}  // namespace

std::vector<std::int32_t> select_rows(const Problem& problem, std::uint64_t seed) {
  const std::vector<RowFacts> facts = facts_of_rows(problem);
  std::vector<std::int32_t> order = rows_by_priority(facts, seed);
  const std::size_t count =
      problem.validation.max_rows
          ? std::min(order.size(), static_cast<std::size_t>(
                                       std::max<std::int64_t>(0, *problem.validation.max_rows)))
          : affordable_count(order, facts);
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace attnbench
