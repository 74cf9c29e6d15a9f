#include "bench/cases/sample_look.h"

#include <algorithm>
#include <random>
#include <utility>

namespace attnbench {
namespace {

std::uint64_t drawn_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

ScreenTable table_of_request(const ScreenTable& batch, const JudgedRequest& one) {
  ScreenTable table;
  table.is_float64 = batch.is_float64;
  table.num_heads = one.heads.empty() ? batch.num_heads : std::ssize(one.heads);
  for (const std::int32_t row : one.rows) {
    const auto in_batch = static_cast<std::int32_t>(one.first_row + row);
    const auto found = std::lower_bound(batch.rows.begin(), batch.rows.end(), in_batch);
    if (found == batch.rows.end() || *found != in_batch) continue;
    table.rows.push_back(row);
    const auto place = static_cast<std::size_t>(found - batch.rows.begin());
    for (std::int64_t i = 0; i < table.num_heads; ++i) {
      table.of.push_back(
          batch.at(place, one.heads.empty() ? i : one.heads[static_cast<std::size_t>(i)]));
    }
  }
  return table;
}

std::optional<SampleVerdict> SampleLook::judge(const Problem& problem,
                                               const ReferenceOptions& options, const Ways& ways) {
  if (!draw_) draw_.emplace(problem, drawn_seed());
  std::vector<JudgedRequest> requests = draw_->next();
  ScreenTable screened;
  if (ways.by_screening && screening_.can_compare_samples() && !is_all_of(problem, requests)) {
    const std::vector<std::int32_t> rows = draw_screened_rows(problem, drawn_seed());
    std::optional<ScreenTable> table = ways.by_screening(rows);
    if (table) {
      screened = *std::move(table);
      const std::optional<std::vector<std::int32_t>> suspicious = ways.suspicious(screened);
      if (!suspicious) return std::nullopt;
      // First: they decide soonest.
      std::vector<JudgedRequest> suspects = judged_with_others(problem, *suspicious);
      requests.insert(requests.begin(), suspects.begin(), suspects.end());
    }
  }
  std::optional<SampleVerdict> verdict =
      judge_requests(requests, options, [&](const JudgedRequest& one, const ReferenceOptions& own) {
        return ways.by_reference(one, own, table_of_request(screened, one));
      });
  if (verdict) verdict->screened_rows = std::ssize(screened.rows);
  return verdict;
}

}  // namespace attnbench
