// Requests are drawn anew for every sample, when its output is there already.
#include "bench/cases/redrawn_request.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "bench/cases/single_request.h"

namespace attnbench {
namespace {

constexpr std::size_t kRequests = 2;
constexpr std::size_t kRows = 4;
/// Keys of a sample that are looked at, at most, where it is not one request that has more.
constexpr std::int64_t kKeys = 32768;

Tensor some_rows(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape();
  const std::int64_t rows = std::max<std::int64_t>(shape[0], 1);
  const std::size_t row_bytes = tensor.size_bytes() / static_cast<std::size_t>(rows);
  shape[0] = count;
  Tensor result(tensor.dtype(), shape);
  if (count == 0) return result;
  std::memcpy(result.bytes(), tensor.bytes() + static_cast<std::size_t>(first) * row_bytes,
              static_cast<std::size_t>(count) * row_bytes);
  return result;
}

std::int64_t elements_of_row(const Tensor& tensor) {
  return tensor.num_elements() / std::max<std::int64_t>(tensor.dim(0), 1);
}

}  // namespace

AttentionInputs redrawn_request(const AttentionInputs& inputs, std::int64_t request,
                                std::uint64_t nonce, const RedrawBlocks* blocks) {
  AttentionInputs alone = inputs_of_request(inputs, request);
  const std::int64_t row = elements_of_row(inputs.query);
  redraw_signs(alone.query, nonce, alone.num_tokens() * row,
               inputs.query_start_loc[static_cast<std::size_t>(request)] * row);
  if (blocks == nullptr) return alone;
  const std::vector<MovedRows> moved = blocks->moved_rows(request, nonce);
  move_rows(alone.key, inputs.key, inputs.key_start_loc, moved);
  move_rows(alone.value, inputs.value, inputs.key_start_loc, moved);
  return alone;
}

MlaInputs redrawn_request(const MlaInputs& inputs, std::int64_t request, std::uint64_t nonce,
                          const RedrawBlocks& blocks) {
  const auto b = static_cast<std::size_t>(request);
  const std::int64_t first_row = inputs.query_start_loc[b];
  const std::int64_t num_rows = inputs.query_start_loc[b + 1] - first_row;
  const std::int64_t first_key = inputs.key_start_loc[b];
  const std::int64_t num_keys = inputs.seq_lens[b];
  MlaInputs alone;
  alone.query = some_rows(inputs.query, first_row, num_rows);
  const std::int64_t row = elements_of_row(inputs.query);
  redraw_signs(alone.query, nonce, num_rows * row, first_row * row);
  alone.kv_c = some_rows(inputs.kv_c, first_key, num_keys);
  alone.k_pe = some_rows(inputs.k_pe, first_key, num_keys);
  const std::vector<MovedRows> moved = blocks.moved_rows(request, nonce);
  move_rows(alone.kv_c, inputs.kv_c, inputs.key_start_loc, moved);
  move_rows(alone.k_pe, inputs.k_pe, inputs.key_start_loc, moved);
  alone.w_uk = inputs.w_uk;
  alone.w_uv = inputs.w_uv;
  if (!inputs.topk_indices.empty()) {
    alone.topk_indices = some_rows(inputs.topk_indices, first_row, num_rows);
  }
  alone.query_start_loc = {0, static_cast<std::int32_t>(num_rows)};
  alone.seq_lens = {inputs.seq_lens[b]};
  alone.key_start_loc = {0, num_keys};
  return alone;
}

PipelineOutput rows_of_request(const PipelineOutput& output, std::int64_t first,
                               std::int64_t count) {
  PipelineOutput own;
  own.output = some_rows(output.output, first, count);
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

std::optional<SampleVerdict> judge_drawn(
    const Problem& problem,
    const std::function<std::optional<Judgement>(const JudgedRequest&)>& judge) {
  SampleVerdict verdict;
  for (const JudgedRequest& one : draw_judged(problem)) {
    std::optional<Judgement> judgement = judge(one);
    if (!judgement) return std::nullopt;
    const auto beyond = [](const Judgement& j) { return j.error.row_error / j.error.row_limit; };
    const bool is_worse = !verdict.is_judged || !judgement->reasons.empty() ||
                          beyond(*judgement) > beyond(verdict.judgement);
    if (is_worse) verdict.judgement = std::move(*judgement);
    verdict.is_judged = true;
    if (!verdict.judgement.reasons.empty()) break;
  }
  return verdict;
}

}  // namespace attnbench
