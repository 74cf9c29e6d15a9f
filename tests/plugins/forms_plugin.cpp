// Attention in int8, of the ranks of a decode-context group and of vision encoders in e4m3, on one
// CPU thread and by the strides of every tensor; and backends of it that forget a scale, a key or a
// rank, for tests/cli/plugin_forms_test.py.
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
  uint32_t lse = ATTNBENCH_LSE_NATURAL;
  uint64_t features = ~0ull;  // of those that there are
  bool has_query_scale = true;
  bool has_key_scale = true;
  bool has_value_scale = true;
  bool skips_last_key = false;  // of requests with more than one
  bool forgets_last_rank = false;
  bool remembers = false;  // its first results
};

constexpr uint32_t kPaged = ATTNBENCH_KV_PAGED, kNatural = ATTNBENCH_LSE_NATURAL;
constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"PLAIN", kPaged, kNatural,
     ~(ATTNBENCH_INT8_CODES | ATTNBENCH_DCP | ATTNBENCH_FP8_QUERY | ATTNBENCH_FP8_KV)},
    {"RAGGED", ATTNBENCH_KV_RAGGED},
    {"INTERLEAVED", ATTNBENCH_KV_PAGED_INTERLEAVED},
    {"WITHOUT_LSE", kPaged, ATTNBENCH_LSE_NONE},
    {"NO_QUERY_SCALE", kPaged, kNatural, ~0ull, false},
    {"NO_KEY_SCALE", kPaged, kNatural, ~0ull, true, false},
    {"NO_VALUE_SCALE", kPaged, kNatural, ~0ull, true, true, false},
    {"SKIPS_LAST_KEY", kPaged, kNatural, ~0ull, true, true, true, true},
    {"FORGETS_LAST_RANK", kPaged, kNatural, ~0ull, true, true, true, false, true},
    {"REMEMBERS", kPaged, kNatural, ~0ull, true, true, true, false, false, true},
};
constexpr int kNumVariants = sizeof kVariants / sizeof kVariants[0];

struct Work {
  const Variant* variant;
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
  std::vector<char> output;  // of the first run, where it is remembered
};

float from_e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

/// int8, e4m3, bfloat16 or float32.
float load(const AttnbenchTensor* tensor, int64_t index) {
  const char* at = static_cast<const char*>(tensor->data) + index * (tensor->dtype.bits / 8);
  if (tensor->dtype.bits == 32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  if (tensor->dtype.bits == 16) {
    uint16_t high;
    std::memcpy(&high, at, sizeof high);
    const uint32_t bits = uint32_t{high} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  if (tensor->dtype.code == 0) return static_cast<float>(static_cast<signed char>(*at));
  return from_e4m3(static_cast<unsigned char>(*at));
}

void store(const AttnbenchTensor* tensor, int64_t index, float value) {
  if (tensor->dtype.bits == 32) {
    static_cast<float*>(tensor->data)[index] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7FFF + (bits >> 16 & 1);  // to nearest even
  static_cast<uint16_t*>(tensor->data)[index] = static_cast<uint16_t>(bits >> 16);
}

int32_t int32_at(const AttnbenchTensor* tensor, int64_t index) {
  return static_cast<const int32_t*>(tensor->data)[index];
}

/// Element 0 of (key j of request b, KV head) in keys, values or their scales.
int64_t offset_of(const AttnbenchTensors& t, const AttnbenchTensor* keys, int64_t b, int64_t j,
                  int64_t kv_head) {
  const int64_t* stride = keys->strides;
  if (t.block_table == nullptr) {
    const int64_t first = static_cast<const int64_t*>(t.key_start_loc->data)[b];
    return (first + j) * stride[0] + kv_head * stride[1];
  }
  const int64_t page = int32_at(t.block_table, b * t.block_table->strides[0] + j / keys->shape[1]);
  return page * stride[0] + j % keys->shape[1] * stride[1] + kv_head * stride[2];
}

float scale_or_1(const AttnbenchTensor* scale, int64_t index, bool is_used) {
  return scale != nullptr && is_used ? load(scale, index) : 1;
}

void attend_row(const Work& work, int64_t b, int64_t i, int64_t head) {
  const AttnbenchProblem& p = *work.problem;
  const AttnbenchTensors& t = *work.tensors;
  const Variant& v = *work.variant;
  const AttnbenchTensor* keys = t.block_table ? t.key_cache : t.key;
  const AttnbenchTensor* values = t.block_table ? t.value_cache : t.value;
  const int64_t kv_head = head / (p.num_heads / p.num_kv_heads);
  const int64_t row = int32_at(t.query_start_loc, b) + i;
  int64_t num_keys = int32_at(t.seq_lens, b);
  if (p.causal) num_keys += i + 1 - p.query_lens[b];
  if (v.skips_last_key && num_keys > 1) --num_keys;
  if (v.forgets_last_rank && p.dcp_rank + 1 == p.dcp_world_size) num_keys = 0;
  float scale = static_cast<float>(p.scale) * scale_or_1(t.q_scale, 0, v.has_query_scale) *
                scale_or_1(t.k_scale, kv_head, v.has_key_scale);
  if (t.q_token_scale != nullptr && v.has_query_scale) {
    const int64_t* stride = t.q_token_scale->strides;
    scale *= load(t.q_token_scale, row * stride[0] + head * stride[1]);
  }
  std::vector<float> scores(static_cast<std::size_t>(num_keys));
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    float score = 0;
    for (int64_t d = 0; d < p.head_size; ++d) {
      score += load(t.query, row * t.query->strides[0] + head * t.query->strides[1] + d) *
               load(keys, offset_of(t, keys, b, j, kv_head) + d);
    }
    const bool has_own = t.k_scale_cache != nullptr && v.has_key_scale;
    const float own =
        has_own ? load(t.k_scale_cache, offset_of(t, t.k_scale_cache, b, j, kv_head)) : 1;
    scores[static_cast<std::size_t>(j)] = score * scale * own;
    highest = std::max(highest, score * scale * own);
  }
  float sum = 0;
  for (float& score : scores) {
    score = std::exp(score - highest);
    sum += score;
  }
  for (int64_t d = 0; d < p.v_head_size; ++d) {
    float o = 0;
    for (int64_t j = 0; j < num_keys; ++j) {
      o += scores[static_cast<std::size_t>(j)] *
           load(values, offset_of(t, values, b, j, kv_head) + d);
    }
    const float value_scale =
        scale_or_1(t.v_scale, kv_head, v.has_value_scale) *
        scale_or_1(t.v_channel_scale, kv_head * p.v_head_size + d, v.has_value_scale);
    store(t.output, row * t.output->strides[0] + head * t.output->strides[1] + d,
          num_keys > 0 ? o * value_scale / sum : 0);
  }
  if (t.lse == nullptr) return;
  static_cast<float*>(t.lse->data)[head * t.lse->strides[0] + row * t.lse->strides[1]] =
      num_keys > 0 ? highest + std::log(sum) : -std::numeric_limits<float>::infinity();
}

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  const bool is_call_of_rank = (problem->features & ATTNBENCH_DCP) != 0;
  if (is_call_of_rank && (problem->causal || tensors->output->dtype.bits != 32)) {
    return "the context of a rank is neither causal nor of 16 bits";
  }
  *state = new Work{static_cast<const Variant*>(self->user), problem, tensors, {}};
  return nullptr;
}

const char* run(void* state, void*) {
  Work& work = *static_cast<Work*>(state);
  const AttnbenchTensor& output = *work.tensors->output;
  const std::size_t bytes =
      static_cast<std::size_t>(output.shape[0] * output.strides[0]) * output.dtype.bits / 8;
  if (!work.output.empty()) {
    std::memcpy(output.data, work.output.data(), bytes);
    return nullptr;
  }
  for (int64_t b = 0; b < work.problem->num_requests; ++b) {
    for (int64_t i = 0; i < work.problem->query_lens[b]; ++i) {
      for (int64_t head = 0; head < work.problem->num_heads; ++head) attend_row(work, b, i, head);
    }
  }
  if (!work.variant->remembers) return nullptr;
  const char* const first = static_cast<const char*>(output.data);
  work.output.assign(first, first + bytes);
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
  b.attention_types = ATTNBENCH_DECODER | ATTNBENCH_MM_ENCODER;
  b.dtypes = ATTNBENCH_BFLOAT16;
  b.kv = variant.kv;
  b.lse = variant.lse;
  b.features = (ATTNBENCH_CAUSAL | ATTNBENCH_NON_CAUSAL | ATTNBENCH_GQA | ATTNBENCH_FP8_KV |
                ATTNBENCH_FP8_QUERY | ATTNBENCH_INT8_CODES | ATTNBENCH_DCP) &
               variant.features;
  b.prepare = prepare;
  b.run = run;
  b.destroy = destroy;
  return &b;
}
