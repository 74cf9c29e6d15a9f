// Uploads what is not there yet, launches, and sums the records of the columns; latent attention is
// in screen_latent.cpp.
#include "ops/cuda/measure/screen.h"

#include <algorithm>
#include <optional>
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

unsigned elements_of(const attn::ScreenParams& params) {
  unsigned elements = 0;
  for (const attn::ScreenOperand* const operand :
       {&params.query, &params.key, &params.query_rope, &params.key_rope, &params.value}) {
    if (operand->width > 0) elements |= screen_element_bit(operand->element);
  }
  return elements;
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

std::int64_t ScreenInputs::num_rows() const {
  return static_cast<std::int64_t>(visible_begin.size()) * query->dim(1);
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
  std::size_t bytes = kept_.size_bytes();
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
  const std::int64_t partial_rows = plan.num_partials * plan.rows;
  params.partial_sums = work.make<double>(partial_rows * plan.columns, "partial sums");
  params.partial_states = work.make<double>(partial_rows * 3, "partial states");

  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.grid_x = ceil_quotient(norms, attn::kScreenThreads);
  launch(launcher_, plan.value_squares_spec(), shape, params);
  const auto launch_items = [&](const KernelSpec& spec,
                                const std::vector<attn::ScreenItem>& items) {
    if (items.empty()) return;
    params.items = work.upload(std::span<const attn::ScreenItem>(items), "items");
    shape.grid_x = static_cast<std::int64_t>(items.size());
    shape.shared_bytes = plan.shared_bytes();
    launch(launcher_, spec, shape, params);
  };
  const ScreenForm form{elements_of(params), params.rows != nullptr};
  launch_items(plan.attention_spec(form), plan.items);
  launch_items(plan.merge_spec(form), plan.merges);
}

attn::ScreenParams Screen::attention_params(const ScreenInputs& inputs, Work& work) {
  attn::ScreenParams params{};
  params.query = operand(*inputs.query, "query");
  params.query.row_stride = params.query.head_stride;  // rows count token * H + head
  params.key = operand(*inputs.key, "key");
  params.value = operand(*inputs.value, "value");
  if (!inputs.key_index.empty()) params.key_index = work.upload(inputs.key_index, "listed keys");
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
  return params;
}

KeptRows Screen::make_rows(const ScreenInputs& inputs, ScreenKey key) {
  const ScreenBatch batch = inputs.batch();
  const std::int64_t rows = inputs.num_rows();
  const auto allocate = [&](std::int64_t row_bytes, const char* name) {
    return ops_.allocate(static_cast<std::size_t>(rows * row_bytes),
                         std::string("screening: ") + name);
  };
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  constexpr auto kRecord = static_cast<std::int64_t>(sizeof(attn::ScreenRecord));
  KeptRows fresh{std::move(key), allocate(batch.v_head_size * kDouble, "rows"),
                 allocate(num_screen_chunks(batch.v_head_size) * kRecord, "sizes of rows")};
  Work work(*this);
  attn::ScreenParams params = attention_params(inputs, work);
  params.rows = fresh.rows->as<double>();
  params.records = fresh.sizes->as<attn::ScreenRecord>();
  attend(batch, params, work);
  ops_.synchronize();  // before the work's memory goes
  return fresh;
}

const KeptRows& Screen::rows_of(const ScreenInputs& inputs) {
  ScreenKey key(inputs);
  if (const KeptRows* const known = kept_.find(key)) return *known;
  kept_.make_room(screen_rows_bytes(inputs.num_rows(), inputs.value->dim(2)));
  return kept_.add(make_rows(inputs, std::move(key)));
}

std::vector<attn::ScreenRecord> Screen::compare_rows(const ScreenInputs& inputs,
                                                     const KeptRows& kept,
                                                     const ScreenOutput& output) {
  Work work(*this);
  attn::ScreenRowsParams params{};
  params.output = output_params(output, work);
  params.rows = static_cast<const double*>(kept.rows->data());
  params.sizes = static_cast<const attn::ScreenRecord*>(kept.sizes->data());
  params.v_head_size = static_cast<int>(inputs.value->dim(2));
  params.num_chunks = num_screen_chunks(params.v_head_size);
  params.chunk_columns = screen_chunk_columns(params.v_head_size);
  params.num_rows = inputs.num_rows();
  const std::int64_t count = params.num_rows * params.num_chunks;
  params.records = work.make<attn::ScreenRecord>(count, "records");
  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.grid_x = ceil_quotient(count, attn::kScreenThreads / attn::kScreenLanes);
  launch(launcher_, screen_compare_rows_spec(), shape, params);
  return join_chunks(work.download(params.records, count), params.num_chunks);
}

std::vector<attn::ScreenRecord> Screen::compare_where_made(const ScreenInputs& inputs,
                                                           const ScreenOutput& output) {
  Work work(*this);
  attn::ScreenParams params = attention_params(inputs, work);
  params.output = output_params(output, work);
  const ScreenBatch batch = inputs.batch();
  const int chunks = num_screen_chunks(batch.v_head_size);
  const std::int64_t count = inputs.num_rows() * chunks;
  params.records = work.make<attn::ScreenRecord>(count, "records");
  attend(batch, params, work);
  return join_chunks(work.download(params.records, count), chunks);
}

std::vector<attn::ScreenRecord> Screen::compare(const ScreenInputs& inputs,
                                                const ScreenOutput& output) {
  if (inputs.visible_begin.empty()) return {};
  std::optional<std::vector<attn::ScreenRecord>> records;
  if (kept_.has_room_for(screen_rows_bytes(inputs.num_rows(), inputs.value->dim(2)))) {
    try {
      records = inputs.keeps_rows
                    ? compare_rows(inputs, rows_of(inputs), output)
                    : compare_rows(inputs, make_rows(inputs, ScreenKey(inputs)), output);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCapacity) throw;
      if (inputs.keeps_rows) kept_.limit(0);  // the device has too little memory beside this case
    }
  }
  if (!records) {
    kept_.clear();
    records = compare_where_made(inputs, output);
  }
  return *std::move(records);
}

}  // namespace attnbench::cuda
