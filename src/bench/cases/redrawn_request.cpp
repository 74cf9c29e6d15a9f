// Requests are drawn anew for every sample, when its output is there already.
#include "bench/cases/redrawn_request.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "bench/cases/single_request.h"
#include "core/system/parallel.h"

namespace attnbench {
namespace {

/// So many that a tenth of wrong rows, or of wrong requests, is not missed by three samples but
/// once in a hundred times.
constexpr std::size_t kRequests = 16;
constexpr std::size_t kRows = 16;
/// Keys of a sample that are looked at, at most, where it is not one request that has more.
constexpr std::int64_t kKeys = 65536;

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

AttentionInputs redrawn_request(const AttentionInputs& inputs, const JudgedRequest& one,
                                std::uint64_t nonce, const RedrawBlocks& blocks) {
  AttentionInputs alone = keys_of_request(inputs, one.request);
  const std::int64_t first_row = inputs.query_start_loc[static_cast<std::size_t>(one.request)];
  alone.query = redrawn_query(inputs.query, first_row, one, nonce);
  const std::vector<MovedRows> moved = blocks.moved_rows(one.request, nonce);
  move_rows(alone.key, inputs.key, inputs.key_start_loc, moved);
  move_rows(alone.value, inputs.value, inputs.key_start_loc, moved);
  return alone;
}

RedrawnRows redrawn_rows(const AttentionInputs& inputs, const JudgedRequest& one,
                         std::uint64_t nonce, const RedrawBlocks& blocks) {
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
  for (const MovedRows& rows : blocks.moved_rows(one.request, nonce)) {
    const auto source = static_cast<std::size_t>(rows.source_request);
    redrawn.moved.push_back(
        {rows.first, rows.count, inputs.key_start_loc[source] + rows.source_first});
  }
  return redrawn;
}

AttentionInputs redrawn_whole_request(const AttentionInputs& inputs, std::int64_t request,
                                      std::uint64_t nonce) {
  AttentionInputs alone = inputs_of_request(inputs, request);
  const std::int64_t row = elements_of_row(inputs.query);
  redraw_signs(alone.query, nonce, alone.num_tokens() * row,
               inputs.query_start_loc[static_cast<std::size_t>(request)] * row);
  return alone;
}

MlaInputs redrawn_request(const MlaInputs& inputs, const JudgedRequest& one, std::uint64_t nonce,
                          const RedrawBlocks& blocks) {
  const auto b = static_cast<std::size_t>(one.request);
  const std::int64_t first_row = inputs.query_start_loc[b];
  const std::int64_t num_rows = inputs.query_start_loc[b + 1] - first_row;
  const std::int64_t first_key = inputs.key_start_loc[b];
  const std::int64_t num_keys = inputs.seq_lens[b];
  MlaInputs alone;
  alone.query = redrawn_query(inputs.query, first_row, one, nonce);
  alone.kv_c = slice_rows(inputs.kv_c, first_key, num_keys);
  alone.k_pe = slice_rows(inputs.k_pe, first_key, num_keys);
  const std::vector<MovedRows> moved = blocks.moved_rows(one.request, nonce);
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

PipelineOutput rows_of_request(const PipelineOutput& output, std::int64_t first,
                               std::int64_t count) {
  PipelineOutput own;
  own.output = Tensor::view_rows(output.output, first, count);
  own.declared_lse = output.declared_lse;
  if (!output.lse) return own;
  const std::int64_t heads = output.lse->dim(0), tokens = output.lse->dim(1);
  own.lse = Tensor(Dtype::kF32, {heads, count});
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy_n(output.lse->data<float>() + head * tokens + first, count,
                own.lse->data<float>() + head * count);
  }
  return own;
}

std::vector<JudgedRequest> draw_judged(const Problem& problem) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<JudgedRequest> all;
  std::int64_t first_row = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    if (request.query_len > 0) {
      all.push_back({static_cast<std::int64_t>(b), first_row, request.query_len, {}});
    }
    first_row += request.query_len;
  }
  std::shuffle(all.begin(), all.end(), random);
  std::vector<JudgedRequest> drawn;
  std::int64_t keys = 0;
  for (JudgedRequest& one : all) {
    keys += problem.batch[static_cast<std::size_t>(one.request)].seq_len;
    if (drawn.size() == kRequests || (!drawn.empty() && keys > kKeys)) break;
    std::uniform_int_distribution<std::int64_t> any(0, one.num_rows - 1);
    std::set<std::int32_t> rows;
    for (std::size_t i = 0; i < kRows; ++i) rows.insert(static_cast<std::int32_t>(any(random)));
    one.rows.assign(rows.begin(), rows.end());
    drawn.push_back(std::move(one));
  }
  return drawn;
}

std::optional<SampleVerdict> judge_drawn(const Problem& problem, const ReferenceOptions& options,
                                         const JudgeRequest& judge) {
  const std::vector<JudgedRequest> drawn = draw_judged(problem);
  if (drawn.empty()) return SampleVerdict{};  // no new tokens: there is nothing to judge
  std::vector<std::optional<Judgement>> judgements(drawn.size());
  if (drawn.size() == 1) {
    judgements[0] = judge(drawn[0], options);
  } else {
    // Why not one after the other on all threads: a row of one request is too little for them.
    const int threads = options.num_threads > 0 ? options.num_threads : available_cores();
    const auto requests = static_cast<int>(drawn.size());
    const ReferenceOptions share{std::max(1, threads / requests), {}};
    for_each_index(requests, threads, [&](std::int64_t i, int) {
      const auto at = static_cast<std::size_t>(i);
      judgements[at] = judge(drawn[at], share);
    });
  }
  SampleVerdict verdict;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const JudgedRequest& one = drawn[i];
    std::optional<Judgement>& judgement = judgements[i];
    if (!judgement) return std::nullopt;
    const auto beyond = [](const Judgement& j) { return j.error.row_error / j.error.row_limit; };
    const bool is_worse = !verdict.is_judged || !judgement->reasons.empty() ||
                          beyond(*judgement) > beyond(verdict.judgement);
    if (is_worse) {
      verdict.judgement = std::move(*judgement);
      verdict.request = one.request;
    }
    verdict.is_judged = true;
    if (!verdict.judgement.reasons.empty()) break;
  }
  return verdict;
}

}  // namespace attnbench
