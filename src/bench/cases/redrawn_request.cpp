// Requests are drawn anew for every sample, when its output is there already.
#include "bench/cases/redrawn_request.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/system/parallel.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

// Some requests are looked at in many rows and all heads, ...
constexpr std::size_t kRequests = 16;
constexpr std::size_t kRows = 16;
/// Keys of those requests, at most, where it is not one request that has more.
constexpr std::int64_t kKeys = 65536;
// ... and every other one in a row or a few, of a head or more: whoever leaves out a request is
// seen in each judged sample, whatever its length. Three samples of 16 requests miss a tenth of
// wrong ones, wherever they are, less than once in a hundred times, so that so many are the least.
// By how much other shares are missed is in docs/verdicts.md; redrawn_request_test.cpp counts it.
/// Rows times heads of a sample that are looked at, about, where there are fewer requests.
constexpr std::int64_t kLooks = 16;
constexpr std::size_t kLeastRequests = 16;
/// Keys of the other requests, at most: in a row of a head of 128 columns 9 GFLOP.
constexpr std::int64_t kOtherKeys = std::int64_t{1} << 24;
/// More heads than one where their number times the keys is at most this.
constexpr std::int64_t kOtherHeadKeys = std::int64_t{1} << 20;

std::int64_t elements_of_row(const Tensor& tensor) {
  return tensor.num_elements() / std::max<std::int64_t>(tensor.dim(0), 1);
}

/// Row `row` of the batch's query as the redraw made it.
Tensor redrawn_row(const Tensor& query, std::int64_t row, std::uint64_t nonce) {
  const std::int64_t elements = elements_of_row(query);
  Tensor own = slice_rows(query, row, 1);
  redraw_signs(own, nonce, elements, row * elements);
  return own;
}

/// The query [num_rows, ...] of the request that begins at `first_row`, as the redraw made it in
/// these of its rows; the others, which nobody reads, are anything.
Tensor redrawn_query(const Tensor& query, std::int64_t first_row, const JudgedRequest& one,
                     std::uint64_t nonce) {
  std::vector<std::int64_t> shape = query.shape();
  shape[0] = one.num_rows;
  Tensor redrawn = Tensor::for_overwriting(query.dtype(), std::move(shape));
  const std::int64_t elements = elements_of_row(query);
  const std::size_t row_bytes = static_cast<std::size_t>(elements) * dtype_size(query.dtype());
  for (const std::int32_t row : one.rows) {
    const Tensor own = redrawn_row(query, first_row + row, nonce);
    std::memcpy(redrawn.bytes() + static_cast<std::size_t>(row) * row_bytes, own.bytes(),
                row_bytes);
  }
  return redrawn;
}

}  // namespace

RedrawnRows redrawn_rows(const AttentionInputs& inputs, const JudgedRequest& one,
                         std::uint64_t nonce, const std::vector<MovedRows>& moved) {
  const auto b = static_cast<std::size_t>(one.request);
  const std::int64_t first_row = inputs.query_start_loc[b];
  RedrawnRows redrawn;
  AttentionInputs& own = redrawn.inputs;
  std::vector<std::int64_t> shape = inputs.query.shape();
  shape[0] = std::ssize(one.rows);
  own.query = Tensor::for_overwriting(inputs.query.dtype(), std::move(shape));
  std::byte* next = own.query.bytes();
  for (const std::int32_t row : one.rows) {
    const Tensor drawn = redrawn_row(inputs.query, first_row + row, nonce);
    std::memcpy(next, drawn.bytes(), drawn.size_bytes());
    next += drawn.size_bytes();
  }
  own.key = Tensor::view(inputs.key);
  own.value = Tensor::view(inputs.value);
  own.query_start_loc = {0, inputs.query_start_loc[b + 1] - inputs.query_start_loc[b]};
  own.seq_lens = {inputs.seq_lens[b]};
  own.key_start_loc = {inputs.key_start_loc[b], inputs.key_start_loc[b] + inputs.seq_lens[b]};
  own.sinks = inputs.sinks;
  own.alibi_slopes = inputs.alibi_slopes;
  own.value_channel_scale = inputs.value_channel_scale;
  for (const MovedRows& rows : moved) {
    const auto source = static_cast<std::size_t>(rows.source_request);
    redrawn.moved.push_back(
        {rows.first, rows.count, inputs.key_start_loc[source] + rows.source_first});
  }
  return redrawn;
}

MlaInputs redrawn_request(const MlaInputs& inputs, const JudgedRequest& one, std::uint64_t nonce,
                          const std::vector<MovedRows>& moved) {
  const auto b = static_cast<std::size_t>(one.request);
  const std::int64_t first_row = inputs.query_start_loc[b];
  const std::int64_t num_rows = inputs.query_start_loc[b + 1] - first_row;
  const std::int64_t first_key = inputs.key_start_loc[b];
  const std::int64_t num_keys = inputs.seq_lens[b];
  MlaInputs alone;
  alone.query = redrawn_query(inputs.query, first_row, one, nonce);
  alone.kv_c = slice_rows(inputs.kv_c, first_key, num_keys);
  alone.k_pe = slice_rows(inputs.k_pe, first_key, num_keys);
  move_rows(alone.kv_c, inputs.kv_c, inputs.key_start_loc, moved);
  move_rows(alone.k_pe, inputs.k_pe, inputs.key_start_loc, moved);
  alone.w_uk = Tensor::view(inputs.w_uk);
  alone.w_uv = Tensor::view(inputs.w_uv);
  alone.kv_b_proj = Tensor::view(inputs.kv_b_proj);
  alone.kv_b_proj_scale = Tensor::view(inputs.kv_b_proj_scale);
  if (!inputs.topk_indices.empty()) {
    alone.topk_indices = slice_rows(inputs.topk_indices, first_row, num_rows);
  }
  if (!inputs.extra.empty()) {
    const std::int64_t extra =
        inputs.extra.kv_c.dim(0) / static_cast<std::int64_t>(inputs.seq_lens.size());
    alone.extra.kv_c = slice_rows(inputs.extra.kv_c, one.request * extra, extra);
    alone.extra.k_pe = slice_rows(inputs.extra.k_pe, one.request * extra, extra);
    alone.extra.lists = slice_lists(inputs.extra.lists, first_row, num_rows);
  }
  alone.sinks = inputs.sinks;
  alone.query_start_loc = {0, static_cast<std::int32_t>(num_rows)};
  alone.seq_lens = {inputs.seq_lens[b]};
  alone.key_start_loc = {0, num_keys};
  return alone;
}

Tensor only_heads(const Tensor& tensor, std::size_t dim, const std::vector<int>& heads) {
  if (heads.empty()) return Tensor::view(tensor);
  std::vector<std::int64_t> shape = tensor.shape();
  std::size_t block = dtype_size(tensor.dtype());
  for (std::size_t i = dim + 1; i < shape.size(); ++i) block *= static_cast<std::size_t>(shape[i]);
  const std::int64_t outer = dim == 0 ? 1 : shape[0];
  const std::int64_t all = shape[dim];
  shape[dim] = std::ssize(heads);
  Tensor kept = Tensor::for_overwriting(tensor.dtype(), std::move(shape));
  std::byte* next = kept.bytes();
  for (std::int64_t i = 0; i < outer; ++i) {
    for (const int head : heads) {
      std::memcpy(next, tensor.bytes() + static_cast<std::size_t>(i * all + head) * block, block);
      next += block;
    }
  }
  return kept;
}

namespace {

/// Of one.rows alone.
PipelineOutput heads_of_request(const PipelineOutput& output, const JudgedRequest& one) {
  PipelineOutput own;
  const Tensor& whole = output.output;
  own.output =
      Tensor::for_overwriting(whole.dtype(), {one.num_rows, std::ssize(one.heads), whole.dim(2)});
  const auto bytes = static_cast<std::size_t>(whole.dim(2)) * dtype_size(whole.dtype());
  if (output.lse) own.lse = Tensor(Dtype::kF32, {std::ssize(one.heads), one.num_rows});
  for (const std::int32_t row : one.rows) {
    for (std::size_t i = 0; i < one.heads.size(); ++i) {
      const auto to = static_cast<std::size_t>(row) * one.heads.size() + i;
      const auto from =
          static_cast<std::size_t>((one.first_row + row) * whole.dim(1) + one.heads[i]);
      std::memcpy(own.output.bytes() + to * bytes, whole.bytes() + from * bytes, bytes);
      if (!output.lse) continue;
      own.lse->data<float>()[static_cast<std::int64_t>(i) * one.num_rows + row] =
          output.lse->data<float>()[one.heads[i] * output.lse->dim(1) + one.first_row + row];
    }
  }
  return own;
}

/// All of its rows and heads; the output is a view.
PipelineOutput all_of_request(const PipelineOutput& output, const JudgedRequest& one) {
  PipelineOutput own;
  own.output = Tensor::view_rows(output.output, one.first_row, one.num_rows);
  if (!output.lse) return own;
  const std::int64_t heads = output.lse->dim(0), tokens = output.lse->dim(1);
  own.lse = Tensor(Dtype::kF32, {heads, one.num_rows});
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(output.lse->data<float>() + head * tokens + one.first_row, one.num_rows,
                own.lse->data<float>() + head * one.num_rows);
  }
  return own;
}

/// `count` draws of the numbers below `of`, ascending, each number once.
template <typename Number>
std::vector<Number> draw(std::size_t count, std::int64_t of, std::mt19937_64& random) {
  std::uniform_int_distribution<std::int64_t> any(0, of - 1);
  std::set<Number> drawn;
  for (std::size_t i = 0; i < count; ++i) drawn.insert(static_cast<Number>(any(random)));
  return {drawn.begin(), drawn.end()};
}

/// `count` different ones of the heads below `of`, ascending; empty = all.
std::vector<int> draw_heads(std::int64_t count, int of, std::mt19937_64& random) {
  if (count >= of) return {};
  std::vector<int> all(static_cast<std::size_t>(of));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> heads;
  std::sample(all.begin(), all.end(), std::back_inserter(heads), count, random);
  return heads;
}

std::vector<JudgedRequest> requests_with_queries(const Problem& problem) {
  std::vector<JudgedRequest> all;
  std::int64_t first_row = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    if (request.query_len > 0) {
      all.push_back({static_cast<std::int64_t>(b), first_row, request.query_len, {}, {}});
    }
    first_row += request.query_len;
  }
  return all;
}

}  // namespace

PipelineOutput output_of_request(const PipelineOutput& output, const JudgedRequest& one) {
  PipelineOutput own =
      one.heads.empty() ? all_of_request(output, one) : heads_of_request(output, one);
  own.declared_lse = output.declared_lse;
  return own;
}

Problem problem_of_heads(Problem problem, const std::vector<int>& heads) {
  if (!heads.empty()) problem.attention.num_heads = static_cast<int>(heads.size());
  return problem;
}

std::vector<JudgedRequest> draw_judged(const Problem& problem, std::mt19937_64& random) {
  std::vector<JudgedRequest> all = requests_with_queries(problem);
  std::shuffle(all.begin(), all.end(), random);
  const auto keys_of = [&](const JudgedRequest& one) {
    return problem.batch[static_cast<std::size_t>(one.request)].seq_len;
  };
  std::size_t num_whole = 0;
  std::int64_t keys = 0;
  for (; num_whole < std::min(all.size(), kRequests); ++num_whole) {
    keys += keys_of(all[num_whole]);
    if (num_whole > 0 && keys > kKeys) break;
    all[num_whole].rows = draw<std::int32_t>(kRows, all[num_whole].num_rows, random);
  }
  std::size_t num_drawn = num_whole;
  std::int64_t other_keys = 0;
  for (; num_drawn < all.size(); ++num_drawn) {
    const std::int64_t more = other_keys + keys_of(all[num_drawn]);
    if (num_drawn >= kLeastRequests && more > kOtherKeys) break;
    other_keys = more;
  }
  all.resize(num_drawn);
  // With few requests several rows of several heads of each: whatever is left out, there are about
  // kLooks places where it may show.
  const std::int64_t looks = ceil_div(kLooks, std::max<std::int64_t>(1, std::ssize(all)));
  const std::int64_t heads =
      std::max(looks, kOtherHeadKeys / std::max<std::int64_t>(1, other_keys));
  for (std::size_t i = num_whole; i < all.size(); ++i) {
    JudgedRequest& one = all[i];
    one.rows = draw<std::int32_t>(static_cast<std::size_t>(looks), one.num_rows, random);
    one.heads = draw_heads(heads, problem.attention.num_heads, random);
  }
  return all;
}

namespace {

/// Judges what is drawn in several goes; where one is wrong, the rest need not be judged.
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

std::optional<SampleVerdict> judge_drawn(const Problem& problem, const ReferenceOptions& options,
                                         const JudgeRequest& judge) {
  std::mt19937_64 random(std::random_device{}());
  const std::vector<JudgedRequest> drawn = draw_judged(problem, random);
  if (drawn.empty()) return SampleVerdict{};  // no new tokens: there is nothing to judge
  const auto first_other =
      std::find_if(drawn.begin(), drawn.end(), [](const auto& one) { return !one.heads.empty(); });
  SampleJudge judging(options, judge);
  // Those that cost most first, and by themselves: they share the threads in another way.
  if (!judging.judge({drawn.begin(), first_other})) return std::nullopt;
  if (!judging.is_wrong() && !judging.judge({first_other, drawn.end()})) return std::nullopt;
  return judging.take_verdict();
}

}  // namespace attnbench
