// Attention over the latents of MLA on one CPU thread, for tests: right ones with every convention,
// and faulty ones.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attnbench_backend.h"
#include "variant_tables.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kDsLatent = 512, kDsGroup = 128;
constexpr uint64_t kAll = ATTNBENCH_CAUSAL | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_QUERY |
                          ATTNBENCH_FP8_PROBABILITY | ATTNBENCH_MLA_TOPK | ATTNBENCH_MLA_DS_KV;

enum class Kind {
  kRight,
  kBase2,
  kPlusInf,
  kE4m3Probability,  // rounded to e4m3
  kNoRope,           // scores of the latent part only
  kReadsPastEnd,     // one more key than a row sees
  kNoQueryScale,     // codes of the query as they are
  kNoKeyScale,       // codes of the cache as they are
  kRepeatsOnce,      // a slot that is listed twice counts once
  kRemembers,        // gives the output of its first run
  kRemembersLater,   // the same from the sixth run on
  kRemembersCache,   // attends to the entries of its first run
  kRemembersLists,   // attends to the slots of its first run
  kIgnoresStrides,   // writes LSEs of a head side by side, whatever it declares
  kWritesQuery,
  kWritesSlots,
  kWritesCache,
  kOverrunOutput,
  kOverrunLse,
  kOverrunWorkspace,
  kOnlyDecodes,  // refuses more than one query token
};

struct Variant {
  const char* name;
  Kind kind = Kind::kRight;
  uint64_t features = kAll;
  uint32_t lse = ATTNBENCH_LSE_NATURAL;
  uint32_t empty_rows = ATTNBENCH_EMPTY_MINUS_INF;
  uint32_t lse_axes = ATTNBENCH_LSE_HT;
};

constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"BASE_2", Kind::kBase2, kAll, ATTNBENCH_LSE_BASE_2},
    {"PLUS_INF", Kind::kPlusInf, kAll, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_PLUS_INF},
    {"TURNED", Kind::kBase2, kAll, ATTNBENCH_LSE_BASE_2, ATTNBENCH_EMPTY_MINUS_INF,
     ATTNBENCH_LSE_TH},
    {"SAYS_TURNED", Kind::kIgnoresStrides, kAll, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF,
     ATTNBENCH_LSE_TH},
    {"NO_LSE", Kind::kRight, kAll, ATTNBENCH_LSE_NONE},
    {"PLAIN", Kind::kRight, ATTNBENCH_CAUSAL},
    {"FP8", Kind::kRight, ATTNBENCH_CAUSAL | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_QUERY},
    {"E4M3_PROBABILITY", Kind::kE4m3Probability},
    {"WIDE_QUERY", Kind::kRight, ATTNBENCH_CAUSAL | ATTNBENCH_FP8_KV},
    {"ONLY_DS_MLA", Kind::kRight, ATTNBENCH_CAUSAL | ATTNBENCH_MLA_TOPK | ATTNBENCH_MLA_DS_KV},
    {"SAYS_NATURAL", Kind::kBase2},
    {"SAYS_BASE_2", Kind::kRight, kAll, ATTNBENCH_LSE_BASE_2},
    {"SAYS_MINUS_INF", Kind::kPlusInf},
    {"NO_ROPE", Kind::kNoRope},
    {"READS_PAST_END", Kind::kReadsPastEnd},
    {"NO_QUERY_SCALE", Kind::kNoQueryScale},
    {"NO_KEY_SCALE", Kind::kNoKeyScale},
    {"REPEATS_ONCE", Kind::kRepeatsOnce},
    {"REMEMBERS", Kind::kRemembers},
    {"REMEMBERS_LATER", Kind::kRemembersLater},
    {"REMEMBERS_CACHE", Kind::kRemembersCache},
    {"REMEMBERS_LISTS", Kind::kRemembersLists},
    {"WRITES_QUERY", Kind::kWritesQuery},
    {"WRITES_SLOTS", Kind::kWritesSlots},
    {"WRITES_CACHE", Kind::kWritesCache},
    {"OVERRUN_OUTPUT", Kind::kOverrunOutput},
    {"OVERRUN_LSE", Kind::kOverrunLse},
    {"OVERRUN_WORKSPACE", Kind::kOverrunWorkspace},
    {"ONLY_DECODES", Kind::kOnlyDecodes},
};

constexpr int64_t kWorkspaceBytes = 100;

struct State {
  Kind kind;
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
  std::vector<unsigned char> cache;   // of the first run
  std::vector<unsigned char> output;  // of an earlier run
  std::vector<unsigned char> lists;   // of the first run
  char* workspace;
  int runs;
};

unsigned char* bytes_of(const AttnbenchTensor* tensor) {
  return static_cast<unsigned char*>(tensor->data);
}

int64_t size_of(const AttnbenchTensor* tensor) {
  int64_t bytes = tensor->dtype.bits / 8;
  for (int axis = 0; axis < tensor->ndim; ++axis) bytes *= tensor->shape[axis];
  return bytes;
}

template <typename T>
T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float from_bfloat16(uint16_t code) {
  const uint32_t bits = uint32_t{code} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float from_e4m3(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -size : size;
}

/// The nearest of the values up to 1 that e4m3 has.
float rounded_to_e4m3(float value) {
  const float step = std::ldexp(1.0f, std::max(-6, std::ilogb(value)) - 3);
  return std::nearbyint(value / step) * step;
}

/// bfloat16 or fp8_e4m3.
float load(const AttnbenchTensor* tensor, const unsigned char* data, int64_t index) {
  return tensor->dtype.bits == 8 ? from_e4m3(data[index])
                                 : from_bfloat16(read<uint16_t>(data + 2 * index));
}

void store(const AttnbenchTensor* tensor, int64_t index, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7FFF + (bits >> 16 & 1);  // to nearest even
  static_cast<uint16_t*>(tensor->data)[index] = static_cast<uint16_t>(bits >> 16);
}

/// The entry of a slot as values, without the scale of the whole cache.
void load_entry(const State& s, int64_t slot, std::vector<float>& entry) {
  const AttnbenchTensor* cache = s.tensors->kv_cache;
  const unsigned char* data = s.cache.empty() ? bytes_of(cache) : s.cache.data();
  const int64_t stride = cache->strides[1];
  if ((s.problem->features & ATTNBENCH_MLA_DS_KV) == 0) {
    for (int64_t d = 0; d < s.problem->head_size; ++d) {
      entry[static_cast<std::size_t>(d)] = load(cache, data, slot * stride + d);
    }
    return;
  }
  const unsigned char* at = data + slot * stride;
  const unsigned char* rope = at + kDsLatent + kDsLatent / kDsGroup * 4;
  for (int d = 0; d < s.problem->head_size; ++d) {
    entry[static_cast<std::size_t>(d)] =
        d < kDsLatent ? from_e4m3(at[d]) * read<float>(at + kDsLatent + d / kDsGroup * 4)
                      : from_bfloat16(read<uint16_t>(rope + 2 * (d - kDsLatent)));
  }
}

/// The slots of the keys that row `i` of request `b` sees.
std::vector<int64_t> slots_of(const State& s, int64_t b, int64_t i, int64_t row) {
  const AttnbenchProblem& p = *s.problem;
  const AttnbenchTensors& t = *s.tensors;
  std::vector<int64_t> slots;
  if (p.topk > 0) {
    const unsigned char* lists = s.lists.empty() ? bytes_of(t.topk_slots) : s.lists.data();
    for (int64_t k = 0; k < p.topk; ++k) {
      const auto slot = read<int32_t>(lists + 4 * (row * p.topk + k));
      bool is_known = false;
      for (const int64_t other : slots) is_known |= other == slot;
      if (slot >= 0 && !(is_known && s.kind == Kind::kRepeatsOnce)) slots.push_back(slot);
    }
    return slots;
  }
  int64_t end = p.seq_lens[b] - p.query_lens[b] + i + 1;
  if (s.kind == Kind::kReadsPastEnd) ++end;
  const auto* table =
      static_cast<const int32_t*>(t.block_table->data) + b * t.block_table->strides[0];
  for (int64_t j = 0; j < end; ++j) {
    slots.push_back(int64_t{table[j / p.block_size]} * p.block_size + j % p.block_size);
  }
  return slots;
}

float scale_of(const AttnbenchTensor* tensor) {
  return tensor == nullptr ? 1.0f : *static_cast<const float*>(tensor->data);
}

void attend_row(const State& s, int64_t b, int64_t i, int64_t row) {
  const AttnbenchProblem& p = *s.problem;
  const AttnbenchTensors& t = *s.tensors;
  const float k_scale = s.kind == Kind::kNoKeyScale ? 1.0f : scale_of(t.k_scale);
  const float q_scale = s.kind == Kind::kNoQueryScale ? 1.0f : scale_of(t.q_scale);
  const int64_t width = s.kind == Kind::kNoRope ? p.v_head_size : p.head_size;
  std::vector<std::vector<float>> entries;
  for (const int64_t slot : slots_of(s, b, i, row)) {
    load_entry(s, slot, entries.emplace_back(static_cast<std::size_t>(p.head_size)));
  }
  for (int64_t head = 0; head < p.num_heads; ++head) {
    const int64_t query = row * t.query->strides[0] + head * t.query->strides[1];
    std::vector<float> scores;
    float highest = -kInfinity, sum = 0;
    for (const std::vector<float>& entry : entries) {
      float score = 0;
      for (int64_t d = 0; d < width; ++d) {
        score += load(t.query, bytes_of(t.query), query + d) * entry[static_cast<std::size_t>(d)];
      }
      scores.push_back(score * static_cast<float>(p.scale) * q_scale * k_scale);
      highest = std::fmax(highest, scores.back());
    }
    for (float& score : scores) {
      sum += score = std::exp(score - highest);
      if (s.kind == Kind::kE4m3Probability) score = rounded_to_e4m3(score);
    }
    const int64_t output = row * t.output->strides[0] + head * t.output->strides[1];
    for (int64_t d = 0; d < p.v_head_size; ++d) {
      float o = 0;
      for (std::size_t j = 0; j < entries.size(); ++j) {
        o += scores[j] * entries[j][static_cast<std::size_t>(d)];
      }
      store(t.output, output + d, entries.empty() ? 0 : o * k_scale / sum);
    }
    if (t.lse == nullptr) continue;
    float lse = entries.empty() ? -kInfinity : highest + std::log(sum);
    if (s.kind == Kind::kBase2) lse /= std::log(2.0f);
    if (s.kind == Kind::kPlusInf && entries.empty()) lse = kInfinity;
    const int64_t at = s.kind == Kind::kIgnoresStrides
                           ? head * p.num_tokens + row
                           : head * t.lse->strides[0] + row * t.lse->strides[1];
    static_cast<float*>(t.lse->data)[at] = lse;
  }
}

const Variant& variant_of(const AttnbenchBackend* self) {
  return *static_cast<const Variant*>(self->user);
}

const char* supports(const AttnbenchBackend* self, const AttnbenchProblem* problem) {
  const bool is_long = problem->max_query_len > 1;
  return variant_of(self).kind == Kind::kOnlyDecodes && is_long ? "more than one query token"
                                                                : nullptr;
}

bool is_poison(const AttnbenchTensor* tensor) {
  if (tensor == nullptr) return true;
  for (int64_t i = 0; i < size_of(tensor); ++i) {
    if (bytes_of(tensor)[i] != 0xFF) return false;
  }
  return true;
}

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost* host, void** state) {
  if (!is_poison(tensors->query) || !is_poison(tensors->kv_cache) ||
      !is_poison(tensors->topk_slots)) {
    return "the values are there already";
  }
  auto* workspace = static_cast<char*>(host->allocate(host, kWorkspaceBytes, "MLA workspace"));
  *state = new State{variant_of(self).kind, problem, tensors, {}, {}, {}, workspace, 0};
  return nullptr;
}

const char* run(void* state, void*) {
  State& s = *static_cast<State*>(state);
  const AttnbenchProblem& p = *s.problem;
  const AttnbenchTensors& t = *s.tensors;
  const int run = s.runs++;
  const int first = s.kind == Kind::kRemembersLater ? 5 : 0;
  if (!s.output.empty() && run > first) {
    std::memcpy(t.output->data, s.output.data(), s.output.size());
    return nullptr;
  }
  int64_t row = 0;
  for (int64_t b = 0; b < p.num_requests; ++b) {
    for (int64_t i = 0; i < p.query_lens[b]; ++i) attend_row(s, b, i, row++);
  }
  const auto copy = [](const AttnbenchTensor* tensor) {
    return std::vector<unsigned char>(bytes_of(tensor), bytes_of(tensor) + size_of(tensor));
  };
  switch (s.kind) {
    case Kind::kRemembers:
    case Kind::kRemembersLater:
      if (run == first) s.output = copy(t.output);
      break;
    case Kind::kRemembersCache:
      if (run == 0) s.cache = copy(t.kv_cache);
      break;
    case Kind::kRemembersLists:
      if (run == 0) s.lists = copy(t.topk_slots);
      break;
    case Kind::kWritesQuery:
      bytes_of(t.query)[2 * p.head_size] ^= 1;
      break;
    case Kind::kWritesSlots:
      static_cast<int32_t*>(t.topk_slots->data)[1] = 0;
      break;
    case Kind::kWritesCache:
      if (run == 0) bytes_of(t.kv_cache)[0] ^= 1;
      break;
    case Kind::kOverrunOutput:
      bytes_of(t.output)[size_of(t.output)] = 0;
      break;
    case Kind::kOverrunLse:
      static_cast<float*>(t.lse->data)[p.num_heads * t.lse->strides[0]] = 0;
      break;
    case Kind::kOverrunWorkspace:
      s.workspace[kWorkspaceBytes] = 0;
      break;
    default:
      break;
  }
  return nullptr;
}

void destroy(void* state) { delete static_cast<State*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  AttnbenchBackend* const of_variant = variant_table(kVariants, index);
  if (of_variant == nullptr) return nullptr;
  const Variant& variant = kVariants[index];
  AttnbenchBackend& table = *of_variant;
  table.attention_types = ATTNBENCH_MLA;
  table.dtypes = ATTNBENCH_BFLOAT16;
  table.lse = variant.lse;
  table.empty_rows = variant.empty_rows;
  table.lse_axes = variant.lse_axes;
  table.features = variant.features;
  table.supports = supports;
  table.prepare = prepare;
  table.run = run;
  table.destroy = destroy;
  return &table;
}
