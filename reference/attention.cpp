// Checks what arrives, cuts the rows into blocks and lets a pool of threads work on them. The
// mathematics is in block_attention; both arithmetics (f64, and f32 with rounding) go through here.
#include "reference/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>

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

template <typename Real>
std::optional<ReferenceOutput> attend(const AttentionMath& math, const ReferenceInputs& inputs,
                                      const EmulationRule* rule, std::span<const std::int32_t> rows,
                                      const ReferenceOptions& options) {
  check_tensors(inputs);
  check_heads(math, inputs);
  check_batch(inputs, rows);
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

  const std::vector<RowBlock> blocks =
      plan_row_blocks(math,
                      {inputs.query_start_loc, inputs.seq_lens, result.num_heads,
                       static_cast<int>(inputs.key->dim(1))},
                      rows);
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
