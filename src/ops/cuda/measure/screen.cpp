// Uploads what is not there yet, launches, and sums the records of the columns; latent attention is
// in screen_latent.cpp.
#include "ops/cuda/measure/screen.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "ops/cuda/measure/screen_work.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

void add_record(const attn::ScreenRecord& part, attn::ScreenRecord& whole) {
  whole.error_squares += part.error_squares;
  whole.reference_squares += part.reference_squares;
  whole.spread_squares += part.spread_squares;
  whole.largest_error = std::max(whole.largest_error, part.largest_error);
  whole.misplaced += part.misplaced;
}

}  // namespace

std::vector<attn::ScreenRecord> join_chunks(std::vector<attn::ScreenRecord> records,
                                            int num_chunks) {
  if (num_chunks == 1) return records;
  std::vector<attn::ScreenRecord> joined;
  const auto step = static_cast<std::size_t>(num_chunks);
  for (std::size_t at = 0; at < records.size(); at += step) {
    attn::ScreenRecord record = records[at];
    for (std::size_t i = 1; i < step; ++i) add_record(records[at + i], record);
    joined.push_back(record);
  }
  return joined;
}

ScreenBatch ScreenInputs::batch() const {
  ScreenBatch batch;
  batch.query_start_loc = query_start_loc;
  batch.seq_lens = seq_lens;
  batch.key_start_loc = key_start_loc;
  batch.visible_begin = visible_begin;
  batch.visible_end = visible_end;
  batch.num_kv_heads = static_cast<int>(key->dim(1));
  batch.group = static_cast<int>(query->dim(1) / key->dim(1));
  batch.v_head_size = static_cast<int>(value->dim(2));
  return batch;
}

std::unique_ptr<Buffer> Screen::upload(const void* data, std::size_t size_bytes, const char* name) {
  // Why at least a byte: an empty batch still has parameters.
  std::unique_ptr<Buffer> buffer =
      ops_.allocate(std::max<std::size_t>(1, size_bytes), std::string("screening: ") + name);
  if (size_bytes > 0) ops_.upload(*buffer, data, size_bytes);
  return buffer;
}

Buffer& Screen::upload_once(const Tensor& tensor, const char* name) {
  std::unique_ptr<Buffer>& known = uploaded_[tensor.bytes()];
  if (!known) known = upload(tensor.bytes(), tensor.size_bytes(), name);
  return *known;
}

void Screen::drop_large_uploads() {
  // What is timed next may need the memory; half of the smallest device's that large cases run on.
  constexpr std::size_t kKeptBytes = std::size_t{16} << 30;
  std::size_t bytes = 0;
  for (const auto& [data, buffer] : uploaded_) bytes += buffer->size_bytes();
  if (bytes > kKeptBytes) uploaded_.clear();
}

/// [rows, heads, columns], or [rows, columns] of one head.
attn::ScreenOperand Screen::operand(const Tensor& tensor, const char* name) {
  const auto& shape = tensor.shape();
  attn::ScreenOperand operand{};
  operand.element = static_cast<attn::Element>(tensor.dtype());
  operand.data = upload_once(tensor, name).data();
  operand.width = static_cast<int>(shape.back());
  operand.head_stride = shape.back();
  operand.row_stride = shape.size() == 3 ? shape[1] * shape[2] : shape[1];
  return operand;
}

attn::ScreenOutputParams Screen::output_params(const ScreenOutput& output, Work& work) {
  attn::ScreenOutputParams params{};
  params.element = static_cast<attn::Element>(output.output->dtype());
  params.data = work.upload(*output.output, "output");
  params.scale = output.scale;
  params.limit = output.limit;
  params.saturates = output.saturates ? 1 : 0;
  return params;
}

void Screen::attend(const ScreenBatch& batch, attn::ScreenParams params, Work& work) {
  const ScreenPlan plan = plan_screen(batch, launcher_.target().num_sms);
  if (plan.items.empty()) return;
  params.group = batch.group;
  params.num_kv_heads = batch.num_kv_heads;
  params.v_head_size = batch.v_head_size;
  params.num_chunks = plan.num_chunks;
  const std::int64_t norms = params.num_keys * params.num_kv_heads * plan.num_chunks;
  params.value_squares = work.make<double>(norms, "squares of values");
  const std::int64_t partial_rows = plan.num_partials * plan.tile_rows();
  params.partial_sums = work.make<double>(partial_rows * plan.tile_columns(), "partial sums");
  params.partial_states = work.make<double>(partial_rows * 3, "partial states");

  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.grid_x = ceil_quotient(norms, attn::kScreenThreads);
  launch(launcher_, plan.spec("screen_value_squares"), shape, params);
  const auto launch_items = [&](const std::string& function,
                                const std::vector<attn::ScreenItem>& items) {
    if (items.empty()) return;
    params.items = work.upload(std::span<const attn::ScreenItem>(items), "items");
    shape.grid_x = static_cast<std::int64_t>(items.size());
    shape.shared_bytes = plan.shared_bytes();
    launch(launcher_, plan.spec(function), shape, params);
  };
  launch_items("screen_attention", plan.items);
  launch_items("screen_merge", plan.merges);
}

std::vector<attn::ScreenRecord> Screen::compare(const ScreenInputs& inputs,
                                                const ScreenOutput& output) {
  if (inputs.visible_begin.empty()) return {};
  Work work(*this);
  attn::ScreenParams params{};
  params.query = operand(*inputs.query, "query");
  params.query.row_stride = params.query.head_stride;  // rows count token * H + head
  params.key = operand(*inputs.key, "key");
  params.value = operand(*inputs.value, "value");
  if (!inputs.key_index.empty()) params.key_index = work.upload(inputs.key_index, "listed keys");
  params.output = output_params(output, work);
  params.num_heads = static_cast<int>(inputs.query->dim(1));
  params.num_keys = inputs.key->dim(0);
  params.softmax_scale = inputs.softmax_scale;
  params.soft_cap = inputs.soft_cap;
  params.alibi = inputs.alibi;
  params.visible_begin = work.upload(inputs.visible_begin, "first keys");
  params.visible_end = work.upload(inputs.visible_end, "last keys");
  if (!inputs.alibi_slopes.empty()) {
    params.alibi_slopes = work.upload(inputs.alibi_slopes, "slopes");
  }
  if (!inputs.sinks.empty()) params.sinks = work.upload(inputs.sinks, "sinks");
  const ScreenBatch batch = inputs.batch();
  const int chunks = num_screen_chunks(batch.v_head_size);
  const auto count =
      static_cast<std::int64_t>(inputs.visible_begin.size()) * params.num_heads * chunks;
  params.records = work.make<attn::ScreenRecord>(count, "records");
  attend(batch, params, work);
  std::vector<attn::ScreenRecord> records = work.download(params.records, count);
  drop_large_uploads();
  return join_chunks(std::move(records), chunks);
}

}  // namespace attnbench::cuda
