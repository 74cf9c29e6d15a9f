// Plans the tiles, uploads what is not there yet, launches, and sums the records of the columns.
#include "ops/cuda/measure/screen.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Items for each multiprocessor where there is work enough: so the last ones do not run on a
/// device that is idle otherwise.
constexpr std::int64_t kItemsPerSm = 8;
/// Splitting costs a partial result, which should be small beside the work itself.
constexpr std::int64_t kLeastSplitTiles = 8;

attn::Element element_of(const Tensor& tensor) {
  return static_cast<attn::Element>(tensor.dtype());
}

/// The hull of what rows [first, first + count) of a request and KV head see.
attn::ScreenItem item_of_rows(const ScreenInputs& inputs, std::size_t request, int first, int count,
                              int group) {
  attn::ScreenItem item{};
  item.first_key = inputs.key_start_loc[request];
  item.first_token = inputs.query_start_loc[request];
  item.query_len = inputs.query_start_loc[request + 1] - item.first_token;
  item.seq_len = inputs.seq_lens[request];
  item.first_row = first;
  item.num_rows = count;
  item.partial = -1;
  item.key_begin = item.seq_len;
  for (int token = first / group; token <= (first + count - 1) / group; ++token) {
    const auto at = static_cast<std::size_t>(item.first_token + token);
    if (inputs.visible_begin[at] >= inputs.visible_end[at]) continue;
    item.key_begin = std::min(item.key_begin, inputs.visible_begin[at]);
    item.key_end = std::max(item.key_end, inputs.visible_end[at]);
  }
  item.key_begin = std::min(item.key_begin, item.key_end);
  return item;
}

std::int64_t tiles_of(const attn::ScreenItem& item) {
  return ceil_quotient(item.key_end - item.key_begin, attn::kScreenKeys);
}

/// Adds the item, or its parts of at most `most_tiles` tiles of keys.
void add_item(attn::ScreenItem item, std::int64_t most_tiles, ScreenPlan& plan) {
  const std::int64_t tiles = tiles_of(item);
  if (tiles <= most_tiles) {
    plan.items.push_back(item);
    return;
  }
  const auto splits = static_cast<int>(ceil_quotient(tiles, most_tiles));
  const auto keys = static_cast<int>(ceil_quotient(tiles, splits) * attn::kScreenKeys);
  item.partial = static_cast<int>(plan.num_partials);
  attn::ScreenItem part = item;
  for (; part.key_begin < item.key_end; part.key_begin = part.key_end) {
    part.key_end = std::min(item.key_end, part.key_begin + keys);
    plan.items.push_back(part);
    ++part.partial;
    ++item.num_splits;
  }
  plan.num_partials += item.num_splits;
  plan.merges.push_back(item);
}

KernelSpec spec_of(const std::string& function, const ScreenPlan& plan) {
  KernelSpec spec;
  spec.source = "measure/screen.cuh";
  spec.function = "attn::" + function;
  spec.constants = {{"int kRowsPerThread", std::to_string(plan.rows_per_thread)},
                    {"int kColumnsPerThread", std::to_string(plan.columns_per_thread)}};
  spec.name =
      function + " " + std::to_string(plan.tile_rows()) + "x" + std::to_string(plan.tile_columns());
  std::replace(spec.name.begin(), spec.name.end(), '_', ' ');
  return spec;
}

/// Few rows take small tiles, narrow values narrow ones.
ScreenPlan plan_of_tiles(std::int64_t most_rows, std::int64_t v_head_size) {
  ScreenPlan plan;
  plan.rows_per_thread = most_rows <= 16 ? 1 : 4;
  plan.columns_per_thread = v_head_size <= 64 ? 4 : 8;
  plan.num_chunks = static_cast<int>(ceil_quotient(v_head_size, plan.tile_columns()));
  return plan;
}

/// sizeof(attn::ScreenMemory<Config>), which only the device file knows; a test compares the two.
int shared_bytes_of(const ScreenPlan& plan) {
  constexpr int kDepth = 32;
  const int row_stride = plan.tile_rows() + 1;
  const int doubles = kDepth * (row_stride + attn::kScreenKeys + 1) +
                      attn::kScreenKeys * row_stride + attn::kScreenKeys + 4 * plan.tile_rows() +
                      attn::kScreenKeys;
  return doubles * static_cast<int>(sizeof(double));
}

void add_record(const attn::ScreenRecord& part, attn::ScreenRecord& whole) {
  whole.error_squares += part.error_squares;
  whole.reference_squares += part.reference_squares;
  whole.spread_squares += part.spread_squares;
  whole.largest_error = std::max(whole.largest_error, part.largest_error);
  whole.misplaced += part.misplaced;
}

/// All columns of a row together.
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

template <typename T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

std::vector<KernelSpec> screen_specs(std::int64_t most_rows, std::int64_t v_head_size) {
  const ScreenPlan plan = plan_of_tiles(most_rows, v_head_size);
  return {spec_of("screen_value_squares", plan), spec_of("screen_attention", plan),
          spec_of("screen_merge", plan)};
}

ScreenPlan plan_screen(const ScreenInputs& inputs, int num_sms) {
  const int num_kv_heads = static_cast<int>(inputs.key->dim(1));
  const int group = static_cast<int>(inputs.query->dim(1)) / num_kv_heads;
  const int v_head_size = static_cast<int>(inputs.value->dim(2));
  std::int64_t most_rows = 0;
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    const int query_len = inputs.query_start_loc[b + 1] - inputs.query_start_loc[b];
    most_rows = std::max<std::int64_t>(most_rows, std::int64_t{query_len} * group);
  }
  ScreenPlan plan = plan_of_tiles(most_rows, v_head_size);

  std::vector<attn::ScreenItem> whole;
  std::int64_t tiles = 0;
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    const int rows = (inputs.query_start_loc[b + 1] - inputs.query_start_loc[b]) * group;
    for (int first = 0; first < rows; first += plan.tile_rows()) {
      attn::ScreenItem item =
          item_of_rows(inputs, b, first, std::min(plan.tile_rows(), rows - first), group);
      for (item.kv_head = 0; item.kv_head < num_kv_heads; ++item.kv_head) {
        for (item.chunk = 0; item.chunk < plan.num_chunks; ++item.chunk) {
          whole.push_back(item);
          tiles += tiles_of(item);
        }
      }
    }
  }
  const std::int64_t most_tiles =
      std::max(kLeastSplitTiles, ceil_quotient(tiles, kItemsPerSm * std::max(1, num_sms)));
  for (const attn::ScreenItem& item : whole) add_item(item, most_tiles, plan);
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [](const attn::ScreenItem& a, const attn::ScreenItem& b) {
                     return tiles_of(a) > tiles_of(b);
                   });
  return plan;
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

std::vector<attn::ScreenRecord> Screen::compare(const ScreenInputs& inputs,
                                                const ScreenOutput& output) {
  const ScreenPlan plan = plan_screen(inputs, launcher_.target().num_sms);
  if (plan.items.empty()) return {};
  attn::ScreenParams params{};
  params.query_element = element_of(*inputs.query);
  params.key_element = element_of(*inputs.key);
  params.value_element = element_of(*inputs.value);
  params.output_element = element_of(*output.output);
  params.output_scale = output.scale;
  params.output_limit = output.limit;
  params.output_saturates = output.saturates ? 1 : 0;
  params.num_heads = static_cast<int>(inputs.query->dim(1));
  params.num_kv_heads = static_cast<int>(inputs.key->dim(1));
  params.head_size = static_cast<int>(inputs.query->dim(2));
  params.v_head_size = static_cast<int>(inputs.value->dim(2));
  params.num_chunks = plan.num_chunks;
  params.num_keys = inputs.key->dim(0);
  params.softmax_scale = inputs.softmax_scale;
  params.soft_cap = inputs.soft_cap;
  params.alibi = inputs.alibi;

  std::vector<std::unique_ptr<Buffer>> buffers;  // of this comparison
  const auto give = [&](const void* data, std::size_t size_bytes, const char* name) {
    buffers.push_back(upload(data, size_bytes, name));
    return buffers.back()->data();
  };
  const auto make = [&](std::size_t size_bytes, const char* name) {
    buffers.push_back(
        ops_.allocate(std::max<std::size_t>(1, size_bytes), std::string("screening: ") + name));
    return buffers.back()->data();
  };
  params.query = upload_once(*inputs.query, "query").data();
  params.key = upload_once(*inputs.key, "key").data();
  params.value = upload_once(*inputs.value, "value").data();
  params.output = give(output.output->bytes(), output.output->size_bytes(), "output");
  params.visible_begin = static_cast<const int*>(
      give(inputs.visible_begin.data(), inputs.visible_begin.size_bytes(), "first keys"));
  params.visible_end = static_cast<const int*>(
      give(inputs.visible_end.data(), inputs.visible_end.size_bytes(), "last keys"));
  if (!inputs.alibi_slopes.empty()) {
    params.alibi_slopes = static_cast<const float*>(
        give(inputs.alibi_slopes.data(), inputs.alibi_slopes.size_bytes(), "slopes"));
  }
  if (!inputs.sinks.empty()) {
    params.sinks =
        static_cast<const float*>(give(inputs.sinks.data(), inputs.sinks.size_bytes(), "sinks"));
  }
  const std::int64_t norms = params.num_keys * params.num_kv_heads * plan.num_chunks;
  params.value_squares = static_cast<double*>(
      make(static_cast<std::size_t>(norms) * sizeof(double), "squares of values"));
  const auto partial_rows = static_cast<std::size_t>(plan.num_partials * plan.tile_rows());
  params.partial_sums = static_cast<double*>(
      make(partial_rows * static_cast<std::size_t>(plan.tile_columns()) * sizeof(double),
           "partial sums"));
  params.partial_states =
      static_cast<double*>(make(partial_rows * 3 * sizeof(double), "partial states"));
  std::vector<attn::ScreenRecord> records(inputs.visible_begin.size() *
                                          static_cast<std::size_t>(params.num_heads) *
                                          static_cast<std::size_t>(plan.num_chunks));
  params.records = static_cast<attn::ScreenRecord*>(make(bytes_of(records), "records"));
  Buffer& of_records = *buffers.back();

  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.grid_x = ceil_quotient(norms, attn::kScreenThreads);
  launch(launcher_, spec_of("screen_value_squares", plan), shape, params);
  const auto launch_items = [&](const std::string& function,
                                const std::vector<attn::ScreenItem>& items) {
    if (items.empty()) return;
    params.items =
        static_cast<const attn::ScreenItem*>(give(items.data(), bytes_of(items), "items"));
    shape.grid_x = static_cast<std::int64_t>(items.size());
    shape.shared_bytes = shared_bytes_of(plan);
    launch(launcher_, spec_of(function, plan), shape, params);
  };
  launch_items("screen_attention", plan.items);
  launch_items("screen_merge", plan.merges);
  ops_.synchronize();
  ops_.download(records.data(), of_records, bytes_of(records));
  drop_large_uploads();
  return join_chunks(std::move(records), plan.num_chunks);
}

}  // namespace attnbench::cuda
