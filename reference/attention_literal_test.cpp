// Attention as the kernels cut it - splits, segments, cascade, ranks - literally in f64, against
// the direct form to 1e-12 (semantics §15.4).
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <span>

#include "metadata/parts/dcp.h"
#include "metadata/parts/segments.h"
#include "reference/attention.h"
#include "reference/mla/partial_states.h"
#include "reference/naive_attention.h"

namespace attnbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One (token, head) of a case and what it reads.
struct Row {
  const NaiveCase* problem = nullptr;
  std::size_t request = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;

  std::int64_t seq_len() const { return problem->seq_lens[request]; }
  std::int64_t query_len() const {
    return problem->query_start_loc[request + 1] - problem->query_start_loc[request];
  }
  std::int64_t context_len() const { return seq_len() - query_len(); }
  /// i of §3.2.
  std::int64_t index() const { return token - problem->query_start_loc[request]; }
  std::int64_t position() const { return index() + context_len(); }
  double sink() const {
    return problem->sinks.empty() ? -kInfinity
                                  : double{problem->sinks[static_cast<std::size_t>(head)]};
  }
  bool is_visible(std::int64_t j) const {
    return naive_allowed(problem->math, request, position(), j);
  }
  double score(std::int64_t j) const {
    return static_cast<double>(naive_score(*problem, request, token, head, position(), j));
  }
  double value(std::int64_t j, std::int64_t d) const {
    const std::int64_t kv_head = head / (problem->num_heads / problem->num_kv_heads);
    const std::int64_t row = problem->key_start_loc[request] + j;
    return double{
        problem->value.at((row * problem->num_kv_heads + kv_head) * problem->v_head_size + d)};
  }
};

/// max, sum and weighted values over a set of keys, before the division.
struct State {
  double max = -kInfinity;
  double sum = 0;
  std::vector<double> acc;
};

State state_over(const Row& row, const std::vector<std::int64_t>& keys, bool with_sink) {
  State state;
  state.acc.assign(static_cast<std::size_t>(row.problem->v_head_size), 0.0);
  if (with_sink) state.max = row.sink();
  for (const std::int64_t j : keys) state.max = std::max(state.max, row.score(j));
  if (state.max == -kInfinity) return state;
  if (with_sink) state.sum = std::exp(row.sink() - state.max);
  for (const std::int64_t j : keys) {
    const double weight = std::exp(row.score(j) - state.max);
    state.sum += weight;
    for (std::size_t d = 0; d < state.acc.size(); ++d) {
      state.acc[d] += weight * row.value(j, static_cast<std::int64_t>(d));
    }
  }
  return state;
}

/// A partial result of one row and head, as combine_partials and merge_partials take it.
ReferenceOutput partial(const State& state) {
  ReferenceOutput result;
  result.rows = {0};
  result.num_heads = 1;
  result.v_head_size = static_cast<int>(state.acc.size());
  for (const double sum : state.acc) result.output.push_back(state.sum == 0 ? 0 : sum / state.sum);
  result.lse = {state.sum == 0 ? -kInfinity : state.max + std::log(state.sum)};
  return result;
}

/// Keys of [begin, end) that `seen` admits.
std::vector<std::int64_t> keys_in(std::int64_t begin, std::int64_t end,
                                  const std::function<bool(std::int64_t)>& seen) {
  std::vector<std::int64_t> keys;
  for (std::int64_t j = begin; j < end; ++j) {
    if (seen(j)) keys.push_back(j);
  }
  return keys;
}

/// Flash decoding: runs of whole tiles of 64 keys, the sink in the first.
ReferenceOutput in_splits(const Row& row, int num_splits) {
  const std::int64_t tiles = (row.seq_len() + 63) / 64;
  const std::int64_t run = std::max<std::int64_t>(1, (tiles + num_splits - 1) / num_splits) * 64;
  std::vector<ReferenceOutput> parts;
  for (int g = 0; g < num_splits; ++g) {
    const auto keys = keys_in(g * run, std::min((g + 1) * run, row.seq_len()),
                              [&](std::int64_t j) { return row.is_visible(j); });
    parts.push_back(partial(state_over(row, keys, g == 0)));
  }
  return combine_partials(parts);
}

/// §4.3: unnormalised parts, weights relative to the largest maximum.
ReferenceOutput in_segments(const Row& row, int tile) {
  const SegmentPlan plan = plan_segments(row.seq_len(), tile);
  std::vector<State> parts;
  for (int g = 0; g < std::max(1, plan.num_active); ++g) {
    const KeySegment run = plan.num_active == 0 ? KeySegment{} : segment_keys(plan, g);
    const auto keys = keys_in(run.begin, std::min(run.end, row.seq_len()),
                              [&](std::int64_t j) { return row.is_visible(j); });
    parts.push_back(state_over(row, keys, g == 0));
  }
  State total;
  total.acc.assign(parts[0].acc.size(), 0.0);
  for (const State& part : parts) total.max = std::max(total.max, part.max);
  for (const State& part : parts) {
    if (part.max == -kInfinity) continue;
    const double weight = std::exp(part.max - total.max);
    total.sum += part.sum * weight;
    for (std::size_t d = 0; d < total.acc.size(); ++d) total.acc[d] += part.acc[d] * weight;
  }
  return partial(total);
}

/// §6.2: the prefix without a mask and with the sink, the suffix causal and bottom-right aligned to
/// its own keys.
ReferenceOutput in_cascade(const Row& row, std::int64_t prefix) {
  const auto shared = keys_in(0, prefix, [](std::int64_t) { return true; });
  const std::int64_t suffix = row.seq_len() - prefix;
  const std::int64_t last = row.index() + suffix - row.query_len();
  const auto own =
      keys_in(prefix, row.seq_len(), [&](std::int64_t j) { return j - prefix <= last; });
  return merge_partials(partial(state_over(row, shared, true)),
                        partial(state_over(row, own, false)), 1);
}

/// §7.6: every rank over its local context without a mask, the ranks combined, then the new tokens
/// of this step, which all ranks have.
ReferenceOutput on_ranks(const Row& row, const DcpGroup& group) {
  std::vector<ReferenceOutput> parts;
  for (int rank = 0; rank < group.world_size; ++rank) {
    std::vector<std::int64_t> keys;
    const auto context = static_cast<std::int32_t>(row.context_len());
    for (std::int64_t local = 0; local < dcp_local_seq_len(context, rank, group); ++local) {
      keys.push_back(dcp_global_position(local, rank, group));
    }
    parts.push_back(partial(state_over(row, keys, false)));
  }
  const auto fresh = keys_in(row.context_len(), row.seq_len(),
                             [&](std::int64_t j) { return j - row.context_len() <= row.index(); });
  return merge_partials(combine_partials(parts), partial(state_over(row, fresh, false)), 1);
}

/// Decodes, chunks, prompts and padding; finite or -inf sinks.
NaiveCase random_case(std::uint64_t seed, std::int64_t least_context, bool plain_mask) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::initializer_list<int> values) {
    return values.begin()[random() % values.size()];
  };
  NaiveCase c;
  c.num_kv_heads = pick({1, 2});
  c.num_heads = c.num_kv_heads * pick({1, 2, 4});
  c.head_size = pick({4, 8});
  c.v_head_size = pick({3, 8});
  c.math.causal = true;
  c.math.window_left = -1;
  c.math.window_right = 0;
  c.math.softmax_scale = pick({1, 4}) * 0.25;
  c.math.logits_soft_cap = pick({0, 0, 5});
  for (int b = pick({1, 2, 3}); b > 0; --b) {
    const int query_len = pick({0, 1, 1, 2, 7});
    const int context = static_cast<int>(least_context) + pick({0, 1, 15, 63, 64, 130, 300});
    c.add_request(query_len, query_len + context);
  }
  if (!plain_mask) {
    c.math.window_left = pick({-1, 0, 5, 70});
    c.math.alibi = static_cast<AlibiForm>(pick({0, 1, 2, 3, 4}));
  }
  const bool sinks = pick({0, 1}) == 1;
  c.math.has_sinks = sinks;
  for (int h = 0; h < c.num_heads; ++h) {
    c.alibi_slopes.push_back(std::ldexp(1.0f, -2 - h));
    if (sinks) {
      c.sinks.push_back(h == 0 ? -std::numeric_limits<float>::infinity()
                               : static_cast<float>(pick({0, 3, 50})));
    }
  }
  std::normal_distribution<float> normal;
  c.fill(Dtype::kF32, [&] { return normal(random); });
  return c;
}

bool close(double actual, double expected) {
  return actual == expected || std::abs(actual - expected) <= 1e-12 * (1 + std::abs(expected));
}

void expect_same(const NaiveCase& c, const std::function<ReferenceOutput(const Row&)>& form) {
  const std::vector<std::int32_t> rows = c.all_rows();
  const auto direct = reference_attention(c.math, c.inputs(), rows, {1, {}});
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (std::int64_t t = c.query_start_loc[b]; t < c.query_start_loc[b + 1]; ++t) {
      for (std::int64_t head = 0; head < c.num_heads; ++head) {
        const ReferenceOutput literal = form({&c, b, t, head});
        const auto at = static_cast<std::size_t>(head * c.num_tokens() + t);
        CHECK(close(literal.lse[0], direct->lse[at]));
        const auto first = static_cast<std::size_t>((t * c.num_heads + head) * c.v_head_size);
        for (std::size_t d = 0; d < literal.output.size(); ++d) {
          CHECK(close(literal.output[d], direct->output[first + d]));
        }
      }
    }
  }
}

TEST_CASE("keys in splits, combined by their LSE, equal the direct form") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const NaiveCase c = random_case(seed, 0, false);
    for (const int num_splits : {1, 3, 16}) {
      expect_same(c, [&](const Row& row) { return in_splits(row, num_splits); });
    }
  }
}

TEST_CASE("keys in segments, reduced unnormalised, equal the direct form") {
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    CAPTURE(seed);
    const NaiveCase c = random_case(seed, 0, false);
    for (const int tile : {16, 32}) {
      expect_same(c, [&](const Row& row) { return in_segments(row, tile); });
    }
  }
}

TEST_CASE("shared prefix and suffix, merged, equal the direct form") {
  for (std::uint64_t seed = 200; seed < 260; ++seed) {
    CAPTURE(seed);
    const NaiveCase c = random_case(seed, 32, true);
    for (const std::int64_t prefix : {16, 32}) {
      expect_same(c, [&](const Row& row) { return in_cascade(row, prefix); });
    }
  }
}

TEST_CASE("context on ranks and new tokens, merged, equal the direct form") {
  for (std::uint64_t seed = 300; seed < 360; ++seed) {
    CAPTURE(seed);
    NaiveCase c = random_case(seed, 0, true);
    c.sinks.clear();
    c.math.has_sinks = false;
    for (const DcpGroup group : {DcpGroup{1, 1}, DcpGroup{2, 1}, DcpGroup{4, 16}, DcpGroup{8, 3}}) {
      expect_same(c, [&](const Row& row) { return on_ranks(row, group); });
    }
  }
}

}  // namespace
}  // namespace attnbench
