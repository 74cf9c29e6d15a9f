// The sample of a forward, quantisation by the format of a scale file, and the sums of the error.
#include "calibrate/attention_error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "core/error.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "reference/quantise/encoder.h"

namespace attnbench {
namespace {

// Keys of a sample: float64 attention is computed over them for every method, in several forwards
// of every layer.
constexpr std::int64_t kSampleKeys = 2048;

using Dequantised = std::array<Tensor, kNumRoles>;

/// Indices of the sequences of a sample, ascending: the first, the last, others until their keys
/// are kSampleKeys.
std::vector<std::size_t> sample_requests(const std::vector<Request>& batch, std::uint64_t seed) {
  std::vector<std::size_t> order;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    if (batch[b].query_len > 0) order.push_back(b);
  }
  std::mt19937_64 generator(seed);
  if (order.size() > 2) {
    std::swap(order[1], order.back());
    // Fisher-Yates: the numbers of the generator are fixed by the standard, std::shuffle is not.
    for (std::size_t i = order.size() - 1; i > 2; --i) {
      std::swap(order[i], order[2 + generator() % (i - 1)]);
    }
  }
  std::int64_t keys = 0;
  std::size_t count = 0;
  while (count < order.size() &&
         (count == 0 || keys + batch[order[count]].seq_len <= kSampleKeys)) {
    keys += batch[order[count++]].seq_len;
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

/// Rows [begin, begin + count) of `source` behind the rows that `target` has up to `at`.
void copy_rows(const Tensor& source, std::int64_t begin, std::int64_t count, std::int64_t at,
               Tensor& target) {
  if (count == 0) return;
  const std::size_t row = target.size_bytes() / static_cast<std::size_t>(target.dim(0));
  std::memcpy(target.bytes() + static_cast<std::size_t>(at) * row,
              source.bytes() + static_cast<std::size_t>(begin) * row,
              static_cast<std::size_t>(count) * row);
}

/// As the operations take it: of a type that models compute in.
Tensor in_model_type(Tensor tensor) {
  const Dtype dtype = tensor.dtype();
  const bool is_model_type = dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
  return is_model_type ? std::move(tensor) : convert(tensor, Dtype::kF32);
}

/// The rows of the chosen requests; `length` is how many rows a request has.
template <typename Length>
Tensor gather(Tensor source, const std::vector<Request>& batch,
              const std::vector<std::size_t>& chosen, const Length& length) {
  if (chosen.size() == batch.size()) return in_model_type(std::move(source));
  std::int64_t total = 0;
  for (const std::size_t b : chosen) total += length(batch[b]);
  Tensor result(source.dtype(), {total, source.dim(1), source.dim(2)});
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::size_t next = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    if (next < chosen.size() && chosen[next] == b) {
      copy_rows(source, from, length(batch[b]), to, result);
      to += length(batch[b]);
      ++next;
    }
    from += length(batch[b]);
  }
  return in_model_type(std::move(result));
}

/// Rows `rows` of [T, H, D], and back to their places: between rows that are not read.
Tensor pick_rows(const Tensor& source, const std::vector<std::int32_t>& rows) {
  Tensor result(source.dtype(),
                {static_cast<std::int64_t>(rows.size()), source.dim(1), source.dim(2)});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_rows(source, rows[i], 1, static_cast<std::int64_t>(i), result);
  }
  return result;
}
Tensor spread_rows(const Tensor& picked, const std::vector<std::int32_t>& rows,
                   std::int64_t num_rows) {
  Tensor result(picked.dtype(), {num_rows, picked.dim(1), picked.dim(2)});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_rows(picked, static_cast<std::int64_t>(i), 1, rows[i], result);
  }
  return result;
}

Dequantised quantise_mm(const AttentionInputs& inputs,
                        const std::array<std::vector<double>, kNumRoles>& scales) {
  MmScales used;
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    used.scale[role] = static_cast<float>(scales[role].at(0));
    used.skip[role] = scales[role].at(0) == 1.0;
  }
  return quantise_mm_forward({view_of(inputs.query), view_of(inputs.key), view_of(inputs.value)},
                             used)
      .dequantized;
}

/// By the rules of the caches; `rules` say whether the query is quantised with q_scale.
Dequantised quantise_cache(const Problem& problem, const AttentionInputs& inputs,
                           const KernelRules& rules) {
  StoredQuery query = store_query(problem, inputs, rules);
  StoredKv stored = store_kv(inputs, resolve_store_rule(problem, rules));
  return {query.dequantized ? *std::move(query.dequantized) : inputs.query,
          std::move(stored.key_dequantized), std::move(stored.value_dequantized)};
}

Dequantised quantise(const Problem& problem, AttentionInputs& inputs, ScaleFormat format,
                     const std::array<std::vector<double>, kNumRoles>& scales) {
  if (format == ScaleFormat::kVllmMm) return quantise_mm(inputs, scales);
  Problem stored = problem;
  KvCacheSpec& cache = stored.kv_cache;
  cache = {};
  stored.attention.query_dtype = QueryDtype::kAuto;
  if (format == ScaleFormat::kInt8Value) {
    cache.int8_level = 1;
    inputs.value_channel_scale.assign(scales[kValueRole].begin(), scales[kValueRole].end());
    return quantise_cache(stored, inputs, {});
  }
  cache.dtype = KvCacheDtype::kFp8E4M3;
  cache.k_scale = scales[kKeyRole];
  cache.v_scale = scales[kValueRole];
  if (format == ScaleFormat::kKvCacheLegacy) return quantise_cache(stored, inputs, {});
  cache.q_scale = scales[kQueryRole].at(0);
  return quantise_cache(stored, inputs, {.quantises_query = true});
}

}  // namespace

void OutputError::add(const OutputError& other) {
  squared_error += other.squared_error;
  squared_reference += other.squared_reference;
  max_abs = std::max(max_abs, other.max_abs);
}

double OutputError::rms_rel() const {
  if (squared_error == 0) return 0;
  if (squared_reference == 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(squared_error / squared_reference);
}

AttentionSample::AttentionSample(Observation observation, const SampleOptions& options)
    : problem_(observation.problem), rules_(observation.rules) {
  const std::vector<Request> batch = observation.problem.batch;
  const std::vector<std::size_t> chosen = sample_requests(batch, options.seed);
  const auto query_len = [](const Request& request) { return request.query_len; };
  const auto seq_len = [](const Request& request) { return request.seq_len; };
  auto& [query, key, value] = observation.tensors;
  inputs_.query = gather(*std::exchange(query, std::nullopt), batch, chosen, query_len);
  inputs_.key = gather(*std::exchange(key, std::nullopt), batch, chosen, seq_len);
  inputs_.value = gather(*std::exchange(value, std::nullopt), batch, chosen, seq_len);
  inputs_.sinks = observation.sinks;
  inputs_.alibi_slopes = observation.alibi_slopes;
  problem_.batch.clear();
  auto& ranges = problem_.attention.mm_prefix_ranges;
  const auto all_ranges = std::exchange(ranges, {});
  for (const std::size_t b : chosen) {
    const auto found = all_ranges.find(static_cast<int>(b));
    if (found != all_ranges.end()) {
      ranges[static_cast<int>(problem_.batch.size())] = found->second;
    }
    problem_.batch.push_back(batch[b]);
  }
  BatchLengths lengths = batch_lengths(problem_);
  inputs_.query_start_loc = std::move(lengths.query_start_loc);
  inputs_.seq_lens = std::move(lengths.seq_lens);
  inputs_.key_start_loc = std::move(lengths.key_start_loc);
  problem_.validation.max_rows = options.max_rows;
  options_.num_threads = options.num_threads;
  rows_ = select_rows(problem_, options.seed);
  inputs_.query = pick_rows(inputs_.query, rows_);
  exact_ = attend(inputs_.query, inputs_.key, inputs_.value);
}

ReferenceOutput AttentionSample::attend(const Tensor& query, const Tensor& key,
                                        const Tensor& value) const {
  const Tensor in_place = spread_rows(query, rows_, inputs_.num_tokens());
  ReferenceInputs inputs;
  inputs.query = &in_place;
  inputs.key = &key;
  inputs.value = &value;
  inputs.query_start_loc = inputs_.query_start_loc;
  inputs.seq_lens = inputs_.seq_lens;
  inputs.key_start_loc = inputs_.key_start_loc;
  inputs.sinks = inputs_.sinks;
  inputs.alibi_slopes = inputs_.alibi_slopes;
  return *reference_attention(resolve_attention_math(problem_, rules_), inputs, rows_, options_);
}

OutputError AttentionSample::error(ScaleFormat format,
                                   const std::array<std::vector<double>, kNumRoles>& scales) {
  const Dequantised tensors = quantise(problem_, inputs_, format, scales);
  const ReferenceOutput output = attend(tensors[0], tensors[1], tensors[2]);
  OutputError error;
  for (std::size_t i = 0; i < output.output.size(); ++i) {
    const double difference = output.output[i] - exact_.output[i];
    error.squared_error += difference * difference;
    error.squared_reference += exact_.output[i] * exact_.output[i];
    error.max_abs = std::max(error.max_abs, std::fabs(difference));
  }
  return error;
}

}  // namespace attnbench
