#include "bench/cases/sample_look.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "core/system/parallel.h"

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

namespace {

/// Where one is wrong, the rest need not be judged.
class SampleJudge {
 public:
  SampleJudge(const ReferenceOptions& options, const JudgeRequest& judge)
      : threads_(options.num_threads > 0 ? options.num_threads : available_cores()),
        options_(options),
        judge_(judge) {}

  /// False when nothing was said of one, or when should_stop said so.
  bool judge(std::span<const JudgedRequest> drawn) {
    std::vector<std::optional<Judgement>> judgements(drawn.size());
    std::vector<char> is_silent(drawn.size(), 0);
    std::atomic<bool> has_wrong{false}, stopped{false};
    const auto judge_one = [&](std::size_t i, const ReferenceOptions& options) {
      if (has_wrong || stopped) return;
      judgements[i] = with_all_heads_if_wrong(drawn[i], options);
      is_silent[i] = judgements[i] ? 0 : 1;
      if (judgements[i] && !judgements[i]->reasons.empty()) has_wrong = true;
    };
    if (drawn.size() == 1) {
      judge_one(0, options_);
    } else {
      // Why not one after the other on all threads: a row of one request is too little for them.
      const auto requests = static_cast<int>(std::min<std::size_t>(drawn.size(), 1U << 20));
      const ReferenceOptions share{std::max(1, threads_ / std::max(1, requests)), {}};
      for_each_index(std::ssize(drawn), threads_, [&](std::int64_t i, int thread) {
        // The calling thread alone polls (reference/attention.h).
        if (thread == 0 && options_.should_stop && options_.should_stop()) stopped = true;
        judge_one(static_cast<std::size_t>(i), share);
      });
    }
    if (stopped) return false;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (is_silent[i] != 0) return false;
      if (judgements[i]) take(drawn[i].request, std::move(*judgements[i]));
    }
    return true;
  }
  bool is_wrong() const { return !verdict_.judgement.reasons.empty(); }
  SampleVerdict take_verdict() { return std::move(verdict_); }

 private:
  std::optional<Judgement> with_all_heads_if_wrong(const JudgedRequest& one,
                                                   const ReferenceOptions& options) const {
    std::optional<Judgement> judgement = judge_(one, options);
    if (!judgement || judgement->reasons.empty() || one.heads.empty()) return judgement;
    JudgedRequest whole = one;
    whole.heads.clear();
    return judge_(whole, options);
  }

  void take(std::int64_t request, Judgement judgement) {
    if (is_wrong()) return;
    const auto beyond = [](const Judgement& j) { return j.error.row_error / j.error.row_limit; };
    const bool is_worse = !verdict_.is_judged || !judgement.reasons.empty() ||
                          beyond(judgement) > beyond(verdict_.judgement);
    verdict_.is_judged = true;
    if (!is_worse) return;
    verdict_.judgement = std::move(judgement);
    verdict_.request = request;
  }

  int threads_;
  const ReferenceOptions& options_;
  const JudgeRequest& judge_;
  SampleVerdict verdict_;
};

}  // namespace

std::optional<SampleVerdict> judge_requests(const std::vector<JudgedRequest>& requests,
                                            const ReferenceOptions& options,
                                            const JudgeRequest& judge) {
  if (requests.empty()) return SampleVerdict{};  // no new tokens: there is nothing to judge
  SampleJudge judging(options, judge);
  if (!judging.judge(requests)) return std::nullopt;
  return judging.take_verdict();
}

std::optional<SampleVerdict> SampleLook::judge(const Problem& problem,
                                               const ReferenceOptions& options, const Ways& ways) {
  if (!draw_) draw_.emplace(problem, drawn_seed());
  std::vector<JudgedRequest> requests = draw_->next();
  ScreenTable screened;
  if (ways.by_screening && screening_.can_compare_samples() && !is_all_of(problem, requests)) {
    const std::vector<std::int32_t> rows = draw_screened_rows(problem, drawn_seed());
    has_screened_ = true;
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
