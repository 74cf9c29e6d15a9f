// Every row gets its cost and whether it is an end or an edge; the rows are then put in an order of
// preference and cut off where the reference can no longer afford the next one.
#include "reference/row_selection.h"

#include <algorithm>
#include <optional>
#include <random>

#include "metadata/mask/attention_math.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

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

/// Takes rows of an order, each once, while they are affordable.
class RowPicker {
 public:
  RowPicker(const Problem& problem, const std::vector<RowFacts>& facts)
      : max_rows_(problem.validation.max_rows), facts_(facts), is_taken_(facts.size()) {}

  /// Up to a share of the budget, 1 being all of it; what was taken before counts.
  void pick(const std::vector<std::int32_t>& order, const RowBudget& budget, double share) {
    for (const std::int32_t row : order) {
      const auto at = static_cast<std::size_t>(row);
      if (is_taken_[at]) continue;
      if (!has_room(facts_[at].flops, budget, share)) return;
      is_taken_[at] = true;
      flops_ += facts_[at].flops;
      rows_.push_back(row);
    }
  }
  std::vector<std::int32_t> sorted() const {
    std::vector<std::int32_t> rows = rows_;
    std::sort(rows.begin(), rows.end());
    return rows;
  }

 private:
  bool has_room(double flops, const RowBudget& budget, double share) const {
    const auto count = static_cast<double>(rows_.size());
    if (max_rows_)
      return count < share * static_cast<double>(std::max<std::int64_t>(0, *max_rows_));
    return count < share * static_cast<double>(budget.least_rows) ||
           flops_ + flops <= share * budget.flops;
  }

  std::optional<std::int64_t> max_rows_;
  const std::vector<RowFacts>& facts_;
  std::vector<bool> is_taken_;
  std::vector<std::int32_t> rows_;
  double flops_ = 0;
};

}  // namespace

std::vector<std::int32_t> select_rows(const Problem& problem, std::uint64_t seed,
                                      const RowBudget& budget) {
  const std::vector<RowFacts> facts = facts_of_rows(problem);
  RowPicker picker(problem, facts);
  picker.pick(rows_by_priority(facts, seed), budget, 1);
  return picker.sorted();
}

RowSample sample_rows(const Problem& problem, std::uint64_t drawn_seed, const RowBudget& budget) {
  constexpr double kRepeatedShare = 0.25;
  const std::vector<RowFacts> facts = facts_of_rows(problem);
  RowPicker picker(problem, facts);
  picker.pick(rows_by_priority(facts, problem.inputs.seed), budget, kRepeatedShare);
  RowSample sample;
  sample.repeated = picker.sorted();
  picker.pick(rows_by_priority(facts, drawn_seed), budget, 1);
  sample.rows = picker.sorted();
  if (sample.rows.size() == facts.size()) sample.repeated = sample.rows;
  return sample;
}

}  // namespace attnbench
