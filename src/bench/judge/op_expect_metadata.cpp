// The first prefill decides everything: requests before it are decodes, all others prefills.
#include "bench/judge/op_expect_metadata.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "metadata/batch.h"

namespace attnbench {
namespace {

constexpr const char* kRule = "semantics 1.6";

using Ints = std::vector<std::int32_t>;

OpExpectation ints(std::string name, const Ints& values) {
  return equal(std::move(name), kRule, Tensor::from_i32(values));
}

/// Requests before the first that is no decode: longer than one token and its speculative ones, or
/// of a prompt where such requests are prefills whatever their length (§1.3).
std::size_t count_decodes(const Problem& problem) {
  const int speculative = problem.attention.num_speculative_tokens;
  std::size_t count = 0;
  for (const Request& request : problem.batch) {
    const bool asked = !problem.treat_short_extends_as_decodes;
    if (request.query_len > 1 + speculative) break;
    if (asked && is_prefilling(request, speculative)) break;
    ++count;
  }
  return count;
}

std::int32_t longest_query(const Problem& problem, std::size_t first, std::size_t last) {
  std::int64_t longest = 0;
  for (std::size_t b = first; b < last; ++b) {
    longest = std::max(longest, problem.batch[b].query_len);
  }
  return static_cast<std::int32_t>(longest);
}

Ints table_rows(const Tensor& table, std::size_t first, std::size_t last) {
  const std::int32_t* data = table.data<std::int32_t>();
  const std::int64_t columns = table.dim(1);
  return Ints(data + static_cast<std::int64_t>(first) * columns,
              data + static_cast<std::int64_t>(last) * columns);
}

/// [last - first + 1], from 0.
template <typename LengthOf>
Ints sums(const Problem& problem, std::size_t first, std::size_t last, LengthOf length_of) {
  Ints result{0};
  for (std::size_t b = first; b < last; ++b) {
    result.push_back(result.back() + static_cast<std::int32_t>(length_of(problem.batch[b])));
  }
  return result;
}

}  // namespace

OpExpectations expect_metadata(const Problem& problem, const OpInputs& inputs) {
  const std::size_t requests = problem.batch.size();
  const std::size_t decodes = count_decodes(problem);
  const auto query_len = [](const Request& request) { return request.query_len; };
  const auto seq_len = [](const Request& request) { return request.seq_len; };
  const std::int32_t decode_tokens = sums(problem, 0, decodes, query_len).back();
  const bool has_prefills = decodes < requests;
  Ints seq_lens;
  for (std::size_t b = 0; b < decodes; ++b) {
    seq_lens.push_back(static_cast<std::int32_t>(problem.batch[b].seq_len));
  }
  const std::int32_t longest = seq_lens.empty() ? 0 : *std::ranges::max_element(seq_lens);
  OpExpectations expected;
  const auto add = [&](const char* name, const Ints& values) {
    expected.outputs.push_back(ints(name, values));
  };
  add("batch_split",
      {static_cast<std::int32_t>(decodes), static_cast<std::int32_t>(requests - decodes),
       decode_tokens, static_cast<std::int32_t>(problem.num_tokens()) - decode_tokens,
       longest_query(problem, 0, decodes), longest, decodes > 0 && !has_prefills ? 1 : 0,
       has_prefills ? longest_query(problem, 0, requests) : 0});
  const Tensor& table = inputs.at("block_table");
  if (decodes > 0) {
    add("decode_query_start_loc", sums(problem, 0, decodes, query_len));
    add("decode_seq_lens", seq_lens);
    add("decode_block_table", table_rows(table, 0, decodes));
  }
  if (has_prefills) {
    add("prefill_query_start_loc", sums(problem, decodes, requests, query_len));
    add("prefill_key_start_loc", sums(problem, decodes, requests, seq_len));
    add("prefill_block_table", table_rows(table, decodes, requests));
  }
  const Tensor& replaced = inputs.at("new_block_table");
  if (decodes > 0) add("updated_decode_block_table", table_rows(replaced, 0, decodes));
  if (has_prefills) add("updated_prefill_block_table", table_rows(replaced, decodes, requests));
  expected.outputs.push_back(equal("updated_slot_mapping", kRule, inputs.at("new_slot_mapping")));
  return expected;
}

}  // namespace attnbench
