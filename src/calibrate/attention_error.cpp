// Quantisation by the format of a scale file, and the sums of the error.
#include "calibrate/attention_error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "calibrate/sample_rows.h"
#include "core/error.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "reference/quantise/encoder.h"

namespace attnbench {
namespace {

using Dequantised = std::array<Tensor, kNumRoles>;

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

OutputError output_error(const ReferenceOutput& output, const ReferenceOutput& exact) {
  OutputError error;
  for (std::size_t i = 0; i < output.output.size(); ++i) {
    const double difference = output.output[i] - exact.output[i];
    error.squared_error += difference * difference;
    error.squared_reference += exact.output[i] * exact.output[i];
    error.max_abs = std::max(error.max_abs, std::fabs(difference));
  }
  return error;
}

AttentionSample::AttentionSample(Observation observation, const SampleOptions& options)
    : problem_(observation.problem), rules_(observation.rules) {
  const std::vector<Request> batch = observation.problem.batch;
  const std::vector<std::size_t> chosen = sample_requests(batch, options.seed);
  auto& [query, key, value] = observation.tensors;
  inputs_.query =
      rows_of_requests(*std::exchange(query, std::nullopt), batch, chosen, &Request::query_len);
  inputs_.key =
      rows_of_requests(*std::exchange(key, std::nullopt), batch, chosen, &Request::seq_len);
  inputs_.value =
      rows_of_requests(*std::exchange(value, std::nullopt), batch, chosen, &Request::seq_len);
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
  if (options.device_error && set_single_rows()) device_error_ = options.device_error;
}

AttentionMath AttentionSample::math() const { return resolve_attention_math(problem_, rules_); }

bool AttentionSample::set_single_rows() {
  const AttentionMath math = this->math();
  const bool all_alike = !math.causal && math.window_left < 0 && math.window_right < 0 &&
                         math.alibi == AlibiForm::kNone;
  if (math.chunk_size > 0 || !math.mm_prefix_ranges.empty() ||
      math.alibi == AlibiForm::kContextRelative || !(math.causal || all_alike)) {
    return false;
  }
  std::size_t b = 0;
  single_starts_.push_back(0);
  for (const std::int32_t row : rows_) {
    while (inputs_.query_start_loc[b + 1] <= row) ++b;
    const std::int32_t seq_len = inputs_.seq_lens[b];
    // Rows stand at the end of their keys; what follows a causal one it does not see.
    const std::int32_t behind = inputs_.query_start_loc[b + 1] - 1 - row;
    single_starts_.push_back(single_starts_.back() + 1);
    single_lens_.push_back(math.causal ? std::max(0, seq_len - behind) : seq_len);
    single_keys_.push_back(inputs_.key_start_loc[b]);
  }
  single_keys_.push_back(inputs_.key_start_loc.back());
  return true;
}

ReferenceInputs AttentionSample::single_rows(const Tensor& query, const Tensor& key,
                                             const Tensor& value) const {
  ReferenceInputs inputs;
  inputs.query = &query;
  inputs.key = &key;
  inputs.value = &value;
  inputs.query_start_loc = single_starts_;
  inputs.seq_lens = single_lens_;
  inputs.key_start_loc = single_keys_;
  inputs.sinks = inputs_.sinks;
  inputs.alibi_slopes = inputs_.alibi_slopes;
  return inputs;
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
  return *reference_attention(math(), inputs, rows_, options_);
}

OutputError AttentionSample::error(ScaleFormat format,
                                   const std::array<std::vector<double>, kNumRoles>& scales) {
  const Dequantised tensors = quantise(problem_, inputs_, format, scales);
  if (device_error_) {
    const std::optional<OutputError> found =
        device_error_(math(), single_rows(inputs_.query, inputs_.key, inputs_.value),
                      single_rows(tensors[0], tensors[1], tensors[2]));
    if (found) return *found;
    device_error_ = {};
  }
  if (!exact_) exact_ = attend(inputs_.query, inputs_.key, inputs_.value);
  return output_error(attend(tensors[0], tensors[1], tensors[2]), *exact_);
}

}  // namespace attnbench
