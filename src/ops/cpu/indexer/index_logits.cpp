// Logits of the sparse indexer (semantics §8.10): a piece of work is a token and a run of its keys,
// each of which is decoded once for all heads.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/common/numeric.cuh"
#include "kernels/params_indexer.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

constexpr std::int64_t kKeysPerTask = 256;
constexpr std::size_t kSums = 16;

/// The values of all e4m3 codes.
const std::array<float, 256>& code_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> made{};
    for (std::size_t code = 0; code < made.size(); ++code) {
      made[code] = attn::e4m3_to_float(static_cast<attn::u8>(code));
    }
    return made;
  }();
  return values;
}

/// In several running sums, which the compiler keeps in one register.
float dot(const float* a, const float* b) {
  std::array<float, kSums> sums{};
  for (int d = 0; d < attn::kIndexKey; d += static_cast<int>(kSums)) {
    for (std::size_t l = 0; l < kSums; ++l) {
      sums[l] += a[d + static_cast<int>(l)] * b[d + static_cast<int>(l)];
    }
  }
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

void decode(const unsigned char* codes, float* values) {
  for (int d = 0; d < attn::kIndexKey; ++d) values[d] = code_values()[codes[d]];
}

/// The keys that token `t` of request `request` sees.
std::int64_t visible_keys(const attn::IndexLogitsParams& p, int request, std::int64_t t) {
  const std::int64_t query_len = p.query_start_loc[request + 1] - p.query_start_loc[request];
  const std::int64_t seen = p.seq_lens[request] - query_len + t - p.query_start_loc[request] + 1;
  return std::clamp<std::int64_t>(seen, 0, p.num_columns);
}

/// Columns [begin, end) of row t; `query` are its values [H, 128].
void fill_row(const attn::IndexLogitsParams& p, std::int64_t t, std::int64_t begin,
              std::int64_t end, const float* query) {
  const int request = static_cast<int>(
      std::upper_bound(p.query_start_loc, p.query_start_loc + p.num_requests + 1, t) -
      p.query_start_loc - 1);
  const std::int64_t seen = visible_keys(p, request, t);
  const int* table = p.block_table + request * p.block_table_stride;
  const float* weights = p.weights + t * p.weights_token_stride;
  float* logits = p.logits + t * p.logits_stride;
  std::array<float, attn::kIndexKey> key{};
  for (std::int64_t j = begin; j < std::min(end, seen); ++j) {
    const unsigned char* block = p.cache + table[j / p.block_size] * p.block_stride;
    decode(block + attn::index_codes_at(j % p.block_size), key.data());
    float scale = 0.0f;
    std::memcpy(&scale, block + attn::index_scale_at(p.block_size, j % p.block_size), sizeof scale);
    float sum = 0.0f;
    for (int h = 0; h < p.num_heads; ++h) {
      const float product = dot(query + std::int64_t{h} * attn::kIndexKey, key.data());
      sum += weights[h] * (product > 0.0f ? product : 0.0f);
    }
    logits[j] = sum * scale;
  }
  for (std::int64_t j = std::max(begin, seen); j < end; ++j) {
    logits[j] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void index_logits(const attn::IndexLogitsParams& params, Workers& workers) {
  const std::int64_t runs = (params.num_columns + kKeysPerTask - 1) / kKeysPerTask;
  workers.pool.parallel_for(params.num_tokens * runs, [&](std::int64_t task, int thread) {
    const std::int64_t t = task / runs;
    const std::int64_t begin = task % runs * kKeysPerTask;
    float* query = room_for(workers.scratch[static_cast<std::size_t>(thread)].line,
                            std::int64_t{params.num_heads} * attn::kIndexKey);
    for (int h = 0; h < params.num_heads; ++h) {
      decode(params.query + t * params.query_token_stride + h * params.query_head_stride,
             query + std::int64_t{h} * attn::kIndexKey);
    }
    fill_row(params, t, begin, std::min<std::int64_t>(begin + kKeysPerTask, params.num_columns),
             query);
  });
}

}  // namespace attnbench::cpu
