// The choice here is made from the drawn integers themselves and not from codes: a cache that
// quantises wrongly, or a kernel that multiplies wrongly, chooses others.
#include "inputs/index_inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/system/parallel.h"
#include "inputs/draw_rows.h"
#include "inputs/make_inputs.h"
#include "inputs/random.h"
#include "kernels/params_indexer.h"

namespace attnbench {
namespace {

constexpr std::int64_t kWidth = attn::kIndexKey;
constexpr TensorStreams kDrawnQuery{StreamId::kIndexQuery, StreamId::kIndexQuery,
                                    StreamId::kQueryChannels, StreamId::kQueryTokens,
                                    StreamId::kQueryTokens};
constexpr TensorStreams kDrawnKeys{StreamId::kIndexKey, StreamId::kIndexKeyPrefix,
                                   StreamId::kKeyChannels, StreamId::kKeyTokens,
                                   StreamId::kKeyPrefixTokens};

IndexInputs tensors_of(const Problem& problem) {
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t heads = problem.mla.index_n_heads;
  return {Tensor(Dtype::kE4M3, {tokens, heads, kWidth}), Tensor(Dtype::kF32, {tokens, heads}),
          Tensor(problem.attention.dtype, {problem.num_keys(), kWidth})};
}

/// low, low + 1, ..., low + count - 1.
float integer(const RandomStream& stream, std::int64_t index, int low, int count) {
  const std::uint64_t bits = stream.bits(static_cast<std::uint64_t>(index));
  return static_cast<float>(low + static_cast<int>(bits * static_cast<std::uint64_t>(count) >> 32));
}

/// The positions with the largest logits among `logits` [seen], ascending.
void choose(const std::vector<float>& logits, std::int64_t topk, std::int32_t* chosen) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(topk)));
  std::sort(order.begin(), order.end());
  std::fill(std::copy(order.begin(), order.end(), chosen), chosen + topk, -1);
}

/// Values of a tensor as floats; float32 holds all of them.
std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.at(static_cast<std::int64_t>(i));
  }
  return values;
}

float logit_of(const float* query, const float* weights, const float* key, std::int64_t heads) {
  float sum = 0.0f;
  for (std::int64_t h = 0; h < heads; ++h) {
    float product = 0.0f;
    for (std::int64_t d = 0; d < kWidth; ++d) product += query[h * kWidth + d] * key[d];
    sum += weights[h] * std::max(product, 0.0f);
  }
  return sum;
}

}  // namespace

IndexInputs make_exact_index_inputs(const Problem& problem) {
  IndexInputs inputs = tensors_of(problem);
  if (problem.inputs.shapes_only) return inputs;
  const std::uint64_t seed = problem.inputs.seed;
  for (std::int64_t i = 0; i < inputs.query.num_elements(); ++i) {
    inputs.query.set(i, integer({seed, StreamId::kIndexQuery}, i, -3, 7));
  }
  for (std::int64_t i = 0; i < inputs.weights.num_elements(); ++i) {
    inputs.weights.set(i, integer({seed, StreamId::kIndexWeights}, i, -4, 13) / 4);
  }
  const std::vector<SourceRow> sources = key_sources(problem);
  for (std::size_t row = 0; row < sources.size(); ++row) {
    const StreamId id = sources[row].shared ? StreamId::kIndexKeyPrefix : StreamId::kIndexKey;
    for (std::int64_t d = 0; d < kWidth; ++d) {
      inputs.keys.set(static_cast<std::int64_t>(row) * kWidth + d,
                      integer({seed, id}, sources[row].index * kWidth + d, -3, 7));
    }
  }
  return inputs;
}

IndexInputs make_drawn_index_inputs(const Problem& problem) {
  IndexInputs inputs = tensors_of(problem);
  if (problem.inputs.shapes_only) return inputs;
  std::vector<SourceRow> tokens(static_cast<std::size_t>(problem.num_tokens()));
  for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t].index = static_cast<std::int64_t>(t);
  fill_rows(problem.inputs, kDrawnQuery, tokens, problem.mla.index_n_heads * kWidth, inputs.query);
  InputsSpec plain = problem.inputs;
  plain.distribution = Distribution::kNormal;
  plain.std = 1;
  const StreamId weights = StreamId::kIndexWeights;
  fill_rows(plain, {weights, weights, weights, weights, weights}, tokens, problem.mla.index_n_heads,
            inputs.weights);
  fill_rows(problem.inputs, kDrawnKeys, key_sources(problem), kWidth, inputs.keys);
  return inputs;
}

Tensor choose_index_keys(const Problem& problem, const IndexInputs& inputs) {
  const std::int64_t topk = problem.mla.sparse_topk.value_or(0);
  const std::int64_t heads = problem.mla.index_n_heads;
  Tensor indices(Dtype::kI32, {problem.num_tokens(), topk});
  if (problem.inputs.shapes_only) return indices;
  const std::vector<float> query = values_of(inputs.query);
  const std::vector<float> keys = values_of(inputs.keys);
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;  // first key and how many are seen
  std::int64_t first_key = 0;
  for (const Request& request : problem.batch) {
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      rows.emplace_back(first_key, request.seq_len - request.query_len + i + 1);
    }
    first_key += request.seq_len;
  }
  for_each_chunk(problem.num_tokens(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const auto [first, seen] = rows[static_cast<std::size_t>(t)];
      std::vector<float> logits(static_cast<std::size_t>(std::max<std::int64_t>(seen, 0)));
      for (std::size_t j = 0; j < logits.size(); ++j) {
        logits[j] =
            logit_of(query.data() + t * heads * kWidth, inputs.weights.data<float>() + t * heads,
                     keys.data() + (first + static_cast<std::int64_t>(j)) * kWidth, heads);
      }
      choose(logits, topk, indices.data<std::int32_t>() + t * topk);
    }
  });
  return indices;
}

}  // namespace attnbench
