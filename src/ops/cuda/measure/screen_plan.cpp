// Rows of a request and KV head become items, then the keys of long items are split.
#include "ops/cuda/measure/screen_plan.h"

#include <algorithm>

#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Items for each multiprocessor where there is work enough: so the last ones do not run on a
/// device that is idle otherwise.
constexpr std::int64_t kItemsPerSm = 8;
/// Splitting costs a partial result, which should be small beside the work itself.
constexpr std::int64_t kLeastSplitTiles = 8;

/// The hull of what rows [first, first + count) of a request and KV head see.
attn::ScreenItem item_of_rows(const ScreenBatch& batch, std::size_t request, int first, int count) {
  attn::ScreenItem item{};
  item.first_key = batch.key_start_loc[request];
  item.first_token = batch.query_start_loc[request];
  item.query_len = batch.query_start_loc[request + 1] - item.first_token;
  item.seq_len = batch.seq_lens[request];
  item.first_row = first;
  item.num_rows = count;
  item.partial = -1;
  item.key_begin = item.seq_len;
  for (int token = first / batch.group; token <= (first + count - 1) / batch.group; ++token) {
    const auto at = static_cast<std::size_t>(item.first_token + token);
    if (batch.visible_begin[at] >= batch.visible_end[at]) continue;
    item.key_begin = std::min(item.key_begin, batch.visible_begin[at]);
    item.key_end = std::max(item.key_end, batch.visible_end[at]);
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

/// Few rows take small tiles, narrow values narrow ones.
ScreenPlan plan_of_tiles(std::int64_t most_rows, std::int64_t v_head_size) {
  ScreenPlan plan;
  plan.rows = most_rows <= 16 ? 16 : 64;
  plan.columns = v_head_size <= 64 ? 64 : 128;
  plan.num_chunks = static_cast<int>(ceil_quotient(v_head_size, plan.columns));
  return plan;
}

std::string tile_name(const ScreenPlan& plan) {
  return std::to_string(plan.rows) + "x" + std::to_string(plan.columns);
}

/// Of each type of a set: " bf16 f64".
std::string names_of(unsigned elements) {
  std::string names;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF64}) {
    if ((elements & screen_element_bit(dtype)) == 0) continue;
    names += ' ';
    names += dtype_name(dtype);
  }
  return names;
}

}  // namespace

/// sizeof(attn::ScreenMemory<Config>), which only the device file knows; a test compares the two.
int ScreenPlan::shared_bytes() const {
  constexpr int kDepthStride = 32 + 4;
  const int groups = 64 / rows;
  const int products = (rows + attn::kScreenKeys) * kDepthStride;
  const int values = 16 * groups * (columns + 4);
  const int doubles = std::max(products, values) + rows * (attn::kScreenKeys + 4) +
                      attn::kScreenKeys + 4 * rows + attn::kScreenKeys;
  return doubles * static_cast<int>(sizeof(double));
}

KernelSpec ScreenPlan::value_squares_spec() const {
  KernelSpec spec;
  spec.source = "measure/screen.cuh";
  spec.function = "attn::screen_value_squares";
  spec.constants = {{"int kColumns", std::to_string(columns)},
                    {"unsigned kElements", std::to_string(attn::kScreenOperandElements)}};
  spec.name = "screen value squares " + std::to_string(columns);
  return spec;
}

KernelSpec ScreenPlan::merge_spec(const ScreenForm& form) const {
  KernelSpec spec;
  spec.source = "measure/screen.cuh";
  spec.function = "attn::screen_merge";
  spec.constants = {{"int kRows", std::to_string(rows)},
                    {"int kColumns", std::to_string(columns)},
                    {"bool kWritesRows", form.writes_rows ? "true" : "false"}};
  spec.name = "screen merge " + tile_name(*this);
  if (!form.writes_rows) spec.name += " compared";
  return spec;
}

KernelSpec ScreenPlan::attention_spec(const ScreenForm& form) const {
  KernelSpec spec = merge_spec(form);
  spec.function = "attn::screen_attention";
  spec.constants.emplace_back("unsigned kElements", std::to_string(form.elements));
  spec.name = "screen attention " + tile_name(*this) + names_of(form.elements);
  if (!form.writes_rows) spec.name += " compared";
  return spec;
}

ScreenPlan plan_screen(const ScreenBatch& batch, int num_sms) {
  std::int64_t most_rows = 0;
  for (std::size_t b = 0; b < batch.seq_lens.size(); ++b) {
    const int query_len = batch.query_start_loc[b + 1] - batch.query_start_loc[b];
    most_rows = std::max<std::int64_t>(most_rows, std::int64_t{query_len} * batch.group);
  }
  ScreenPlan plan = plan_of_tiles(most_rows, batch.v_head_size);

  std::vector<attn::ScreenItem> whole;
  std::int64_t tiles = 0;
  for (std::size_t b = 0; b < batch.seq_lens.size(); ++b) {
    const int rows = (batch.query_start_loc[b + 1] - batch.query_start_loc[b]) * batch.group;
    for (int first = 0; first < rows; first += plan.rows) {
      attn::ScreenItem item = item_of_rows(batch, b, first, std::min(plan.rows, rows - first));
      for (item.kv_head = 0; item.kv_head < batch.num_kv_heads; ++item.kv_head) {
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

int screen_chunk_columns(std::int64_t v_head_size) { return plan_of_tiles(1, v_head_size).columns; }

int num_screen_chunks(std::int64_t v_head_size) { return plan_of_tiles(1, v_head_size).num_chunks; }

std::vector<KernelSpec> screen_specs(std::int64_t most_rows, std::int64_t v_head_size,
                                     const ScreenForm& form) {
  const ScreenPlan plan = plan_of_tiles(most_rows, v_head_size);
  return {plan.value_squares_spec(), plan.attention_spec(form), plan.merge_spec(form)};
}

KernelSpec screen_compare_rows_spec() {
  KernelSpec spec;
  spec.source = "measure/screen_rows.cuh";
  spec.function = "attn::screen_compare_rows";
  spec.name = "screen compare rows";
  return spec;
}

std::size_t screen_rows_bytes(std::int64_t rows, std::int64_t v_head_size) {
  const std::int64_t bytes =
      v_head_size * static_cast<std::int64_t>(sizeof(double)) +
      num_screen_chunks(v_head_size) * static_cast<std::int64_t>(sizeof(attn::ScreenRecord));
  return static_cast<std::size_t>(rows * bytes);
}

}  // namespace attnbench::cuda
