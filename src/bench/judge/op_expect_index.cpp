#include "bench/judge/op_expect_index.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/system/parallel.h"
#include "reference/mla/indexer.h"

namespace attnbench {
namespace {

struct TokenPlace {
  std::size_t request = 0;
  std::int64_t visible = 0;
};

std::vector<TokenPlace> places_of(const Problem& problem) {
  std::vector<TokenPlace> places;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      places.push_back({b, request.seq_len - request.query_len + i + 1});
    }
  }
  return places;
}

std::span<const std::int32_t> blocks_of(const OpInputs& inputs, std::size_t request) {
  const Tensor& table = inputs.at("block_table");
  const auto columns = static_cast<std::size_t>(table.dim(1));
  return {table.data<std::int32_t>() + request * columns, columns};
}

/// The cache after a correct write of the new keys.
Tensor written_index_cache(const Problem& problem, const OpInputs& inputs) {
  Tensor cache = inputs.at("index_cache_before");
  const Tensor& slots = inputs.at("slot_mapping");
  for (std::int64_t row = 0; row < slots.num_elements(); ++row) {
    const std::int64_t slot = slots.data<std::int64_t>()[row];
    if (slot < 0) continue;
    store_index_key(inputs.at("new_index_key"), row, problem.mla.index_ue8m0,
                    problem.kv_cache.block_size, slot, cache);
  }
  return cache;
}

}  // namespace

OpExpectations expect_index_key_cache(const Problem& problem, const OpInputs& inputs) {
  OpExpectations expected;
  expected.outputs.push_back(
      equal("index_cache", "semantics 8.10: cache bytes", written_index_cache(problem, inputs)));
  return expected;
}

OpExpectations expect_index_logits(const Problem& problem, const OpInputs& inputs) {
  const std::int64_t columns = std::max<std::int64_t>(1, problem.max_seq_len());
  const std::vector<std::int32_t> rows = checked_rows(problem, columns);
  const std::vector<TokenPlace> places = places_of(problem);
  std::vector<double> values(rows.size() * static_cast<std::size_t>(columns),
                             -std::numeric_limits<double>::infinity());
  const auto count = static_cast<std::int64_t>(rows.size());
  for_each_chunk(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t token = rows[static_cast<std::size_t>(i)];
      const TokenPlace& place = places[static_cast<std::size_t>(token)];
      const std::vector<double> logits = index_logits_of(
          {inputs.at("index_query"), inputs.at("index_weights"), inputs.at("index_cache"),
           blocks_of(inputs, place.request), problem.kv_cache.block_size, token, place.visible});
      std::copy(logits.begin(), logits.end(), values.begin() + i * columns);
    }
  });
  Tolerance tolerance;
  tolerance.rule = "semantics 8.10 index logits";
  tolerance.atol = tolerance.rtol = 1e-3;
  tolerance.relative_to_max = true;
  tolerance.max_err_ratio = std::numeric_limits<double>::infinity();
  OpExpectations expected;
  expected.outputs.push_back(close("logits", tolerance, values, values, Dtype::kF32, rows));
  return expected;
}

OpExpectations expect_index_topk(const Problem& problem, const OpInputs& inputs) {
  OpExpectation choice;
  choice.name = "topk_slots";
  choice.rule = "semantics 8.10: the largest logits";
  choice.wrong = [&problem, &inputs](const Tensor& slots) -> std::string {
    const Tensor& logits = inputs.at("logits");
    const std::vector<TokenPlace> places = places_of(problem);
    const auto topk = static_cast<std::size_t>(slots.dim(1));
    for (std::size_t t = 0; t < places.size(); ++t) {
      const auto columns = static_cast<std::size_t>(logits.dim(1));
      const auto seen = static_cast<std::size_t>(std::max<std::int64_t>(places[t].visible, 0));
      const std::string wrong = wrong_choice(
          {logits.data<float>() + t * columns, seen}, {slots.data<std::int32_t>() + t * topk, topk},
          blocks_of(inputs, places[t].request), problem.kv_cache.block_size, 0.0);
      if (!wrong.empty()) return "topk_slots[" + std::to_string(t) + "]: " + wrong;
    }
    return "";
  };
  OpExpectations expected;
  expected.outputs.push_back(std::move(choice));
  return expected;
}

}  // namespace attnbench
