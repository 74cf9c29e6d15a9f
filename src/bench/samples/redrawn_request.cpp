#include "bench/samples/redrawn_request.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

std::int64_t elements_of_row(const Tensor& tensor) {
  return tensor.num_elements() / std::max<std::int64_t>(tensor.dim(0), 1);
}

/// What every query of a batch has beside it: views of all keys and values, and what belongs to
/// heads. Where rows and keys begin is for the caller.
AttentionInputs beside_query(const AttentionInputs& inputs) {
  AttentionInputs shared;
  shared.key = Tensor::view(inputs.key);
  shared.value = Tensor::view(inputs.value);
  shared.sinks = inputs.sinks;
  shared.alibi_slopes = inputs.alibi_slopes;
  shared.value_channel_scale = inputs.value_channel_scale;
  return shared;
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
Tensor redrawn_query_of(const Tensor& query, std::int64_t first_row, const JudgedRequest& one,
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
  redrawn.inputs = beside_query(inputs);
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
  own.query_start_loc = {0, inputs.query_start_loc[b + 1] - inputs.query_start_loc[b]};
  own.seq_lens = {inputs.seq_lens[b]};
  own.key_start_loc = {inputs.key_start_loc[b], inputs.key_start_loc[b] + inputs.seq_lens[b]};
  for (const MovedRows& rows : moved) {
    const auto source = static_cast<std::size_t>(rows.source_request);
    redrawn.moved.push_back(
        {rows.first, rows.count, inputs.key_start_loc[source] + rows.source_first});
  }
  return redrawn;
}

Tensor redrawn_query(const Tensor& query, std::int64_t num_rows, std::uint64_t nonce) {
  Tensor redrawn = query;
  const std::int64_t elements = elements_of_row(query);
  const std::size_t row_bytes = static_cast<std::size_t>(elements) * dtype_size(query.dtype());
  for_each_chunk(num_rows, 16, [&](std::int64_t begin, std::int64_t end) {
    Tensor rows = slice_rows(query, begin, end - begin);
    redraw_signs(rows, nonce, (end - begin) * elements, begin * elements);
    std::memcpy(redrawn.bytes() + static_cast<std::size_t>(begin) * row_bytes, rows.bytes(),
                rows.size_bytes());
  });
  return redrawn;
}

AttentionInputs redrawn_batch(const AttentionInputs& inputs, std::uint64_t nonce) {
  AttentionInputs redrawn = beside_query(inputs);
  redrawn.query = redrawn_query(inputs.query, inputs.num_tokens(), nonce);
  redrawn.query_start_loc = inputs.query_start_loc;
  redrawn.seq_lens = inputs.seq_lens;
  redrawn.key_start_loc = inputs.key_start_loc;
  return redrawn;
}

std::optional<std::vector<std::int32_t>> places_of_keys(
    const std::vector<std::int64_t>& key_start_loc, std::int64_t num_keys,
    const RedrawBlocks& blocks, const RedrawBlocks::Sources& sources) {
  if (num_keys > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  std::vector<std::int32_t> places(static_cast<std::size_t>(num_keys));
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t b = 0; b < blocks.num_requests(); ++b) {
    for (const MovedRows& rows : blocks.moved_rows(static_cast<std::int64_t>(b), sources)) {
      const auto source = static_cast<std::size_t>(rows.source_request);
      const auto target = places.begin() + key_start_loc[b] + rows.first;
      std::iota(target, target + rows.count,
                static_cast<std::int32_t>(key_start_loc[source] + rows.source_first));
    }
  }
  return places;
}

MlaInputs redrawn_request(const MlaInputs& inputs, const JudgedRequest& one, std::uint64_t nonce,
                          const std::vector<MovedRows>& moved) {
  const auto b = static_cast<std::size_t>(one.request);
  const std::int64_t first_row = inputs.query_start_loc[b];
  const std::int64_t num_rows = inputs.query_start_loc[b + 1] - first_row;
  const std::int64_t first_key = inputs.key_start_loc[b];
  const std::int64_t num_keys = inputs.seq_lens[b];
  MlaInputs alone;
  alone.query = redrawn_query_of(inputs.query, first_row, one, nonce);
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

}  // namespace attnbench
