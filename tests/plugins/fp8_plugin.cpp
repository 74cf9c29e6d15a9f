// Attention with e4m3 query, keys and values on one CPU thread, and backends of it that forget or
// mix up a scale or round their probabilities unasked, for tests/cli/plugin_fp8_test.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attnbench_backend.h"

namespace {

struct Variant {
  const char* name;
  uint32_t kv = ATTNBENCH_KV_PAGED;
  bool has_q_scale = true;
  bool has_k_scale = true;
  bool has_v_scale = true;
  bool swaps_scales = false;
  bool always_rounds_p = false;
  uint64_t features = ~0ull;  // of those that there are
  bool has_token_scales = true;
};

constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"RAGGED", ATTNBENCH_KV_RAGGED},
    {"NO_Q_SCALE", ATTNBENCH_KV_PAGED, false},
    {"NO_K_SCALE", ATTNBENCH_KV_PAGED, true, false},
    {"NO_V_SCALE", ATTNBENCH_KV_RAGGED, true, true, false},
    {"SWAPS_SCALES", ATTNBENCH_KV_PAGED, true, true, true, true},
    {"ALWAYS_ROUNDS_P", ATTNBENCH_KV_PAGED, true, true, true, false, true},
    {"WIDE_P", ATTNBENCH_KV_PAGED, true, true, true, false, false, ~ATTNBENCH_FP8_PROBABILITY},
    {"WIDE_QUERY", ATTNBENCH_KV_PAGED, true, true, true, false, false,
     ~(ATTNBENCH_FP8_QUERY | ATTNBENCH_FP8_PROBABILITY)},
    {"INTERLEAVED", ATTNBENCH_KV_PAGED_INTERLEAVED},
    {"NO_TOKEN_SCALES", ATTNBENCH_KV_PAGED_INTERLEAVED, true, true, true, false, false, ~0ull,
     false},
};
constexpr int kNumVariants = sizeof kVariants / sizeof kVariants[0];

struct Work {
  const Variant* variant;
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
};

template <typename T>
const T* data_of(const AttnbenchTensor* tensor) {
  return static_cast<const T*>(tensor->data);
}

/// e4m3, int8, or bfloat16.
float load(const AttnbenchTensor* tensor, int64_t index) {
  if (tensor->dtype.bits == 16) {
    const uint32_t bits = uint32_t{data_of<uint16_t>(tensor)[index]} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  if (tensor->dtype.code == 0) return data_of<int8_t>(tensor)[index];
  const unsigned code = data_of<uint8_t>(tensor)[index];
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

void store_bfloat16(const AttnbenchTensor* tensor, int64_t index, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7FFF + (bits >> 16 & 1);  // to nearest even
  static_cast<uint16_t*>(tensor->data)[index] = static_cast<uint16_t>(bits >> 16);
}

/// Of at most 256.
float round_to_e4m3(float value) {
  const int exponent = value > 0 ? std::ilogb(value) : -6;
  const int last_bit = std::max(exponent, -6) - 3;
  return std::ldexp(std::nearbyint(std::ldexp(value, -last_bit)), last_bit);
}

int64_t offset_of(const AttnbenchTensors& t, const AttnbenchTensor* keys, int64_t b, int64_t j,
                  int64_t kv_head) {
  const int64_t* stride = keys->strides;
  if (t.block_table == nullptr) {
    return (data_of<int64_t>(t.key_start_loc)[b] + j) * stride[0] + kv_head * stride[1];
  }
  const int64_t column = b * t.block_table->strides[0] + j / keys->shape[1];
  return data_of<int32_t>(t.block_table)[column] * stride[0] + j % keys->shape[1] * stride[1] +
         kv_head * stride[2];
}

/// Of the code of key j, where each token and head has its own.
float token_scale_of(const Work& work, const AttnbenchTensor* scales, int64_t b, int64_t j,
                     int64_t kv_head) {
  if (scales == nullptr || !work.variant->has_token_scales) return 1;
  return data_of<float>(scales)[offset_of(*work.tensors, scales, b, j, kv_head)];
}

float scale_of(const AttnbenchTensor* scale, int64_t index, bool is_used) {
  return scale != nullptr && is_used ? data_of<float>(scale)[index] : 1;
}

void attend_row(const Work& work, int64_t b, int64_t i, int64_t head) {
  const AttnbenchProblem& p = *work.problem;
  const AttnbenchTensors& t = *work.tensors;
  const Variant& variant = *work.variant;
  const AttnbenchTensor* keys = t.block_table ? t.key_cache : t.key;
  const AttnbenchTensor* values = t.block_table ? t.value_cache : t.value;
  const int64_t kv_head = head / (p.num_heads / p.num_kv_heads);
  const int64_t row = data_of<int32_t>(t.query_start_loc)[b] + i;
  const int64_t num_keys = p.seq_lens[b] - p.query_lens[b] + i + 1;
  float k_scale = scale_of(t.k_scale, kv_head, variant.has_k_scale);
  float v_scale = scale_of(t.v_scale, kv_head, variant.has_v_scale);
  if (variant.swaps_scales) std::swap(k_scale, v_scale);
  const float scale =
      static_cast<float>(p.scale) * k_scale * scale_of(t.q_scale, 0, variant.has_q_scale);

  std::vector<float> scores(static_cast<std::size_t>(num_keys));
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    float score = 0;
    for (int64_t d = 0; d < p.head_size; ++d) {
      score += load(t.query, row * t.query->strides[0] + head * t.query->strides[1] + d) *
               load(keys, offset_of(t, keys, b, j, kv_head) + d);
    }
    score *= scale * token_scale_of(work, t.k_scale_cache, b, j, kv_head);
    scores[static_cast<std::size_t>(j)] = score;
    highest = std::max(highest, score);
  }
  const bool rounds = variant.always_rounds_p || (p.features & ATTNBENCH_FP8_PROBABILITY) != 0;
  constexpr float kLargestP = 256;  // where e4m3 has the fewest subnormal numbers below
  float sum = 0;
  for (float& score : scores) {
    score = kLargestP * std::exp(score - highest);
    sum += score;
    if (rounds) score = round_to_e4m3(score);
  }
  for (int64_t d = 0; d < p.head_size; ++d) {
    float o = 0;
    for (int64_t j = 0; j < num_keys; ++j) {
      o += scores[static_cast<std::size_t>(j)] *
           load(values, offset_of(t, values, b, j, kv_head) + d) *
           token_scale_of(work, t.v_scale_cache, b, j, kv_head);
    }
    store_bfloat16(t.output, row * t.output->strides[0] + head * t.output->strides[1] + d,
                   o * v_scale / sum);
  }
  const float lse = highest + std::log(sum / kLargestP);
  static_cast<float*>(t.lse->data)[head * t.lse->strides[0] + row] = lse;
}

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  *state = new Work{static_cast<const Variant*>(self->user), problem, tensors};
  return nullptr;
}

const char* run(void* state, void*) {
  const Work& work = *static_cast<Work*>(state);
  for (int64_t b = 0; b < work.problem->num_requests; ++b) {
    for (int64_t i = 0; i < work.problem->query_lens[b]; ++i) {
      for (int64_t head = 0; head < work.problem->num_heads; ++head) attend_row(work, b, i, head);
    }
  }
  return nullptr;
}

void destroy(void* state) { delete static_cast<Work*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  static AttnbenchBackend tables[kNumVariants];
  if (index >= kNumVariants) return nullptr;
  const Variant& variant = kVariants[index];
  AttnbenchBackend& b = tables[index];
  b.struct_size = sizeof b;
  b.abi_version = ATTNBENCH_ABI_VERSION;
  b.name = variant.name;
  b.version = "1.0";
  b.user = &variant;
  b.devices = ATTNBENCH_CPU;
  b.attention_types = ATTNBENCH_DECODER;
  b.dtypes = ATTNBENCH_BFLOAT16;
  b.kv = variant.kv;
  b.lse = ATTNBENCH_LSE_NATURAL;
  b.features = (ATTNBENCH_CAUSAL | ATTNBENCH_GQA | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_QUERY |
                ATTNBENCH_FP8_PROBABILITY | ATTNBENCH_TOKEN_HEAD_KV) &
               variant.features;
  b.prepare = prepare;
  b.run = run;
  b.destroy = destroy;
  return &b;
}
