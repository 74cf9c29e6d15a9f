// Checks what arrives, cuts the rows into blocks and lets a pool of threads work on them. The
// mathematics is in block_attention; both arithmetics (f64, and f32 with rounding) go through here.
#include "reference/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/system/parallel.h"
#include "reference/block_attention.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

void check_tensor(const char* name, const Tensor* tensor) {
  if (tensor == nullptr || tensor->shape().size() != 3) {
    fail(ErrorKind::kShape, "{}: expected a tensor of rank 3, got {}", name,
         tensor == nullptr ? "none" : "rank " + std::to_string(tensor->shape().size()));
  }
  if (!is_floating(tensor->dtype())) {
    fail(ErrorKind::kDtype, "{}: expected a floating type, got {}", name,
         dtype_name(tensor->dtype()));
  }
}

void check_extent(const char* name, std::int64_t expected, std::int64_t actual) {
  if (expected != actual) {
    fail(ErrorKind::kShape, "{}: expected {}, got {}", name, expected, actual);
  }
}

void check_at_least(const char* name, std::int64_t least, std::int64_t actual) {
  if (actual < least) {
    fail(ErrorKind::kShape, "{}: expected at least {}, got {}", name, least, actual);
  }
}

void check_tensors(const ReferenceInputs& inputs) {
  check_tensor("query", inputs.query);
  check_tensor("key", inputs.key);
  check_tensor("value", inputs.value);
  check_extent("key head size", inputs.query->dim(2), inputs.key->dim(2));
  check_extent("value KV heads", inputs.key->dim(1), inputs.value->dim(1));
  const std::int64_t num_kv_heads = inputs.key->dim(1);
  if (num_kv_heads < 1 || inputs.query->dim(1) % num_kv_heads != 0) {
    fail(ErrorKind::kShape, "query heads: expected a multiple of the {} KV heads, got {}",
         num_kv_heads, inputs.query->dim(1));
  }
}

void check_heads(const AttentionMath& math, const ReferenceInputs& inputs) {
  const std::int64_t num_heads = inputs.query->dim(1);
  if (math.has_sinks || !inputs.sinks.empty()) {
    check_extent("sinks", num_heads, static_cast<std::int64_t>(inputs.sinks.size()));
  }
  if (math.alibi != AlibiForm::kNone) {
    check_extent("alibi_slopes", num_heads, static_cast<std::int64_t>(inputs.alibi_slopes.size()));
  }
}

void check_batch(const ReferenceInputs& inputs, std::span<const std::int32_t> rows) {
  const auto num_requests = static_cast<std::int64_t>(inputs.seq_lens.size());
  check_extent("query_start_loc", num_requests + 1,
               static_cast<std::int64_t>(inputs.query_start_loc.size()));
  check_at_least("key_start_loc", num_requests,
                 static_cast<std::int64_t>(inputs.key_start_loc.size()));
  for (std::size_t request = 0; request < inputs.seq_lens.size(); ++request) {
    const std::int64_t end = inputs.key_start_loc[request] + inputs.seq_lens[request];
    check_at_least("keys", end, inputs.key->dim(0));
    check_at_least("values", end, inputs.value->dim(0));
  }
  if (!inputs.moved_keys.empty()) check_extent("requests with moved keys", 1, num_requests);
  for (const MovedKeys& moved : inputs.moved_keys) {
    check_at_least("row of moved keys", 0, moved.source);
    check_at_least("keys", moved.source + moved.count, inputs.key->dim(0));
    check_at_least("values", moved.source + moved.count, inputs.value->dim(0));
  }
  const std::int64_t num_tokens = inputs.query_start_loc.back();
  if (inputs.query_is_of_rows) {
    check_extent("query rows", std::ssize(rows), inputs.query->dim(0));
  } else {
    check_at_least("query rows", num_tokens, inputs.query->dim(0));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool ascending = i == 0 || rows[i - 1] < rows[i];
    if (!ascending || rows[i] < 0 || rows[i] >= num_tokens) {
      fail(ErrorKind::kValue, "rows: expected ascending indices below {}, got {} at {}", num_tokens,
           rows[i], i);
    }
  }
}

void check_chosen_heads(std::span<const int> heads, std::int64_t num_heads) {
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const bool ascending = i == 0 || heads[i - 1] < heads[i];
    if (!ascending || heads[i] < 0 || heads[i] >= num_heads) {
      fail(ErrorKind::kValue, "heads: expected ascending indices below {}, got {} at {}", num_heads,
           heads[i], i);
    }
  }
}

/// The parts of the blocks that are of these heads.
std::vector<RowBlock> of_heads(const std::vector<RowBlock>& blocks, std::span<const int> heads) {
  std::vector<RowBlock> parts;
  for (const RowBlock& block : blocks) {
    auto next = std::lower_bound(heads.begin(), heads.end(), block.first_head);
    while (next != heads.end() && *next < block.first_head + block.num_heads) {
      RowBlock part = block;
      part.first_head = *next;
      part.num_heads = 0;
      for (; next != heads.end() && *next == part.first_head + part.num_heads &&
             *next < block.first_head + block.num_heads;
           ++next) {
        ++part.num_heads;
      }
      parts.push_back(part);
    }
  }
  return parts;
}

/// Leaves only these heads in `result`.
void keep_heads(std::span<const int> heads, ReferenceOutput& result) {
  const auto all = static_cast<std::size_t>(result.num_heads);
  const std::size_t num_rows = result.rows.size();
  const auto keep = [&](std::vector<double>& values, std::size_t width) {  // [rows, H, width]
    if (values.empty()) return;
    std::vector<double> kept;
    kept.reserve(num_rows * heads.size() * width);
    for (std::size_t row = 0; row < num_rows; ++row) {
      for (const int head : heads) {
        const double* first = values.data() + (row * all + static_cast<std::size_t>(head)) * width;
        kept.insert(kept.end(), first, first + width);
      }
    }
    values = std::move(kept);
  };
  keep(result.output, static_cast<std::size_t>(result.v_head_size));
  for (auto* values : {&result.row_size, &result.output_loss, &result.lse_loss}) keep(*values, 1);
  std::vector<double> lse;  // [H, rows]
  for (const int head : heads) {
    const double* first = result.lse.data() + static_cast<std::size_t>(head) * num_rows;
    lse.insert(lse.end(), first, first + num_rows);
  }
  result.lse = std::move(lse);
  result.num_heads = static_cast<int>(heads.size());
}

template <typename Real>
std::optional<ReferenceOutput> attend(const AttentionMath& math, const ReferenceInputs& inputs,
                                      const EmulationRule* rule, std::span<const std::int32_t> rows,
                                      const ReferenceOptions& options) {
  check_tensors(inputs);
  check_heads(math, inputs);
  check_batch(inputs, rows);
  check_chosen_heads(inputs.heads, inputs.query->dim(1));
  ReferenceOutput result;
  result.rows.assign(rows.begin(), rows.end());
  result.num_heads = static_cast<int>(inputs.query->dim(1));
  result.v_head_size = static_cast<int>(inputs.value->dim(2));
  const std::size_t row_heads = rows.size() * static_cast<std::size_t>(result.num_heads);
  result.output.resize(row_heads * static_cast<std::size_t>(result.v_head_size));
  result.lse.resize(row_heads);
  if (std::is_same_v<Real, double>) {
    result.row_size.resize(row_heads);
    result.output_loss.resize(row_heads);
    result.lse_loss.resize(row_heads);
  }

  std::vector<RowBlock> blocks =
      plan_row_blocks(math,
                      {inputs.query_start_loc, inputs.seq_lens, result.num_heads,
                       static_cast<int>(inputs.key->dim(1))},
                      rows);
  if (!inputs.heads.empty()) blocks = of_heads(blocks, inputs.heads);
  const int threads = options.num_threads > 0 ? options.num_threads : available_cores();
  std::vector<std::unique_ptr<BlockAttention<Real>>> workers(static_cast<std::size_t>(threads));
  // Why here as well: other threads may take all blocks of a small problem.
  std::atomic<bool> stopped{options.should_stop && options.should_stop()};
  for_each_index(
      static_cast<std::int64_t>(blocks.size()), threads, [&](std::int64_t i, int thread) {
        // Only the calling thread polls, so that should_stop need not be safe for several threads.
        if (thread == 0 && options.should_stop && options.should_stop()) stopped = true;
        if (stopped) return;
        auto& worker = workers[static_cast<std::size_t>(thread)];
        if (!worker) {
          worker = std::make_unique<BlockAttention<Real>>(math, inputs, rule, rows, result);
        }
        worker->compute(blocks[static_cast<std::size_t>(i)]);
      });
  if (stopped) return std::nullopt;
  if (!inputs.heads.empty()) keep_heads(inputs.heads, result);
  return result;
}

}  // namespace

std::optional<ReferenceOutput> reference_attention(const AttentionMath& math,
                                                   const ReferenceInputs& inputs,
                                                   std::span<const std::int32_t> rows,
                                                   const ReferenceOptions& options) {
  return attend<double>(math, inputs, nullptr, rows, options);
}

std::optional<ReferenceOutput> emulate_attention(const AttentionMath& math,
                                                 const ReferenceInputs& inputs,
                                                 const EmulationRule& rule,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options) {
  return attend<float>(math, inputs, &rule, rows, options);
}

}  // namespace attnbench
