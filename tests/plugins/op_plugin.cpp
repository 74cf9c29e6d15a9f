// Single operations on one CPU thread as a plugin: right ones by every convention that the
// interface has, and ones with a fault on purpose, a backend each.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <vector>

#include "attnbench_backend.h"
#include "variant_tables.h"

namespace {

enum class Kind {
  kRight,
  // reshape_and_cache
  kSlotOffByOne,
  kWritesNegativeSlots,  // in front of the cache
  kWrapsNegativeSlots,   // from the end of the cache, as an index of Python
  kSwapsKeyAndValue,
  kForgetsScale,
  kSkipsLastHead,
  kOverrunsCache,
  kUnderrunsCache,
  kWritesKey,
  kWritesSlots,
  // merge
  kIgnoresEmpty,      // (-inf) - (-inf)
  kMergesEverything,  // rows without a prefix too
  kWritesSuffixLse,
  kWritesBase2Lse,  // and reads natural ones
  kForgetsOutputScale,
  kOverrunsOutput,
  // both
  kSilent,
  kRemembers,       // the values of its first run
  kRemembersLater,  // the same of its sixth
  kRemembersLse,    // merges with the LSEs of its third run
  kUnsteady,
  kCrashes,
  kHangs,
};

struct Variant {
  const char* name;
  Kind kind = Kind::kRight;
  uint32_t kv = ATTNBENCH_KV_PAGED;
  uint32_t lse = ATTNBENCH_LSE_NATURAL;
  bool base_2 = false;  // what it computes with, whatever it declares
  uint32_t empty_rows = ATTNBENCH_EMPTY_MINUS_INF;
  bool plus_inf = false;
  uint32_t lse_axes = ATTNBENCH_LSE_HT;
  uint32_t operations = ATTNBENCH_OP_RESHAPE_AND_CACHE | ATTNBENCH_OP_MERGE;
  uint64_t features = ~0ull;
};

constexpr uint32_t kPaged = ATTNBENCH_KV_PAGED, kNatural = ATTNBENCH_LSE_NATURAL,
                   kBase2 = ATTNBENCH_LSE_BASE_2, kMinusInf = ATTNBENCH_EMPTY_MINUS_INF,
                   kPlusInf = ATTNBENCH_EMPTY_PLUS_INF, kHt = ATTNBENCH_LSE_HT;
constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"INTERLEAVED", Kind::kRight, ATTNBENCH_KV_PAGED_INTERLEAVED},
    {"RAGGED", Kind::kRight, ATTNBENCH_KV_RAGGED},
    {"BASE_2", Kind::kRight, kPaged, kBase2, true},
    {"PLUS_INF", Kind::kRight, kPaged, kNatural, false, kPlusInf, true},
    {"BASE_2_TURNED", Kind::kRight, kPaged, kBase2, true, kPlusInf, true, ATTNBENCH_LSE_TH},
    {"NO_LSE", Kind::kRight, kPaged, ATTNBENCH_LSE_NONE},
    {"SAYS_NATURAL", Kind::kRight, kPaged, kNatural, true},
    {"SAYS_BASE_2", Kind::kRight, kPaged, kBase2, false},
    {"SAYS_PLUS_INF", Kind::kRight, kPaged, kNatural, false, kPlusInf, false},
    {"ONLY_MERGE", Kind::kRight, kPaged, kNatural, false, kMinusInf, false, kHt,
     ATTNBENCH_OP_MERGE},
    {"PLAIN", Kind::kRight, kPaged, kNatural, false, kMinusInf, false, kHt,
     ATTNBENCH_OP_RESHAPE_AND_CACHE | ATTNBENCH_OP_MERGE, 0},
    {"SLOT_OFF_BY_ONE", Kind::kSlotOffByOne},
    {"WRITES_NEGATIVE_SLOTS", Kind::kWritesNegativeSlots},
    {"WRAPS_NEGATIVE_SLOTS", Kind::kWrapsNegativeSlots},
    {"SWAPS_KEY_AND_VALUE", Kind::kSwapsKeyAndValue},
    {"FORGETS_SCALE", Kind::kForgetsScale},
    {"SKIPS_LAST_HEAD", Kind::kSkipsLastHead},
    {"OVERRUNS_CACHE", Kind::kOverrunsCache},
    {"UNDERRUNS_CACHE", Kind::kUnderrunsCache},
    {"WRITES_KEY", Kind::kWritesKey},
    {"WRITES_SLOTS", Kind::kWritesSlots},
    {"IGNORES_EMPTY", Kind::kIgnoresEmpty},
    {"MERGES_EVERYTHING", Kind::kMergesEverything},
    {"WRITES_SUFFIX_LSE", Kind::kWritesSuffixLse},
    {"WRITES_BASE_2_LSE", Kind::kWritesBase2Lse},
    {"FORGETS_OUTPUT_SCALE", Kind::kForgetsOutputScale},
    {"OVERRUNS_OUTPUT", Kind::kOverrunsOutput},
    {"SILENT", Kind::kSilent},
    {"REMEMBERS", Kind::kRemembers},
    {"REMEMBERS_LATER", Kind::kRemembersLater},
    {"REMEMBERS_LSE", Kind::kRemembersLse},
    {"UNSTEADY", Kind::kUnsteady},
    {"CRASHES", Kind::kCrashes},
    {"HANGS", Kind::kHangs},
};

struct Work {
  Variant variant;
  const AttnbenchProblem* problem;
  AttnbenchTensors tensors;
  std::vector<AttnbenchTensor> remembered;  // instead of tensors of the case
  std::vector<std::vector<char>> memory;
  int runs = 0;
};

// ---- Elements ---------------------------------------------------------------------------------

constexpr uint8_t kBFloat = 4, kE4M3 = 10;

float bfloat(uint16_t code) {
  const uint32_t bits = uint32_t{code} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t to_bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// Magnitude of a code of 1-4-3 or 1-5-2 bits.
float float8(int code, bool e4m3) {
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = code >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - mantissa_bits);
}

/// To nearest, ties to even, the largest code for what is larger.
uint8_t to_float8(float value, bool e4m3) {
  const int largest = e4m3 ? 0x7E : 0x7B;
  const float size = std::fabs(value);
  int code = 0;
  while (code < largest && float8(code + 1, e4m3) <= size) ++code;
  if (code < largest) {
    const float below = size - float8(code, e4m3), above = float8(code + 1, e4m3) - size;
    if (above < below || (above == below && code % 2 == 1)) ++code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

float load(const AttnbenchTensor* tensor, int64_t index) {
  if (tensor->dtype.bits == 32) return static_cast<const float*>(tensor->data)[index];
  return bfloat(static_cast<const uint16_t*>(tensor->data)[index]);
}

void store(const AttnbenchTensor* tensor, int64_t index, float value) {
  if (tensor->dtype.bits == 32) {
    static_cast<float*>(tensor->data)[index] = value;
  } else if (tensor->dtype.code == kBFloat) {
    static_cast<uint16_t*>(tensor->data)[index] = to_bfloat(value);
  } else {
    static_cast<uint8_t*>(tensor->data)[index] = to_float8(value, tensor->dtype.code == kE4M3);
  }
}

char* bytes_of(const AttnbenchTensor* tensor) { return static_cast<char*>(tensor->data); }

/// Bytes up to the last element that the strides reach.
int64_t reach(const AttnbenchTensor* tensor) {
  int64_t last = 0;
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    last += (tensor->shape[axis] - 1) * tensor->strides[axis];
  }
  return (last + 1) * tensor->dtype.bits / 8;
}

// ---- The operations ---------------------------------------------------------------------------

void write_row(const Work& work, const AttnbenchTensor* rows, int64_t row,
               const AttnbenchTensor* cache, int64_t slot, const AttnbenchTensor* scale) {
  const int64_t block_size = cache->shape[1];
  const int64_t block = slot >= 0 ? slot / block_size : -1;
  const int64_t cell = block * cache->strides[0] + (slot - block * block_size) * cache->strides[1];
  const int64_t heads = rows->shape[1] - (work.variant.kind == Kind::kSkipsLastHead ? 1 : 0);
  for (int64_t h = 0; h < heads; ++h) {
    const bool divides = scale != nullptr && work.variant.kind != Kind::kForgetsScale;
    const float divisor = divides ? load(scale, h) : 1.0f;
    for (int64_t d = 0; d < rows->shape[2]; ++d) {
      const float value = load(rows, row * rows->strides[0] + h * rows->strides[1] + d);
      store(cache, cell + h * cache->strides[2] + d, value / divisor);
    }
  }
}

void write_cache(const Work& work) {
  const AttnbenchTensors& t = work.tensors;
  const Kind kind = work.variant.kind;
  const auto* slots = static_cast<const int64_t*>(t.slot_mapping->data);
  const int64_t num_slots = t.key_cache->shape[0] * t.key_cache->shape[1];
  for (int64_t n = 0; n < t.slot_mapping->shape[0]; ++n) {
    int64_t slot = slots[n];
    if (slot < 0 && kind == Kind::kWrapsNegativeSlots) slot += num_slots;
    if (slot < 0 && kind != Kind::kWritesNegativeSlots) continue;
    if (kind == Kind::kSlotOffByOne) slot = (slot + 1) % num_slots;
    const bool swaps = kind == Kind::kSwapsKeyAndValue;
    write_row(work, swaps ? t.value : t.key, n, t.key_cache, slot, t.k_scale);
    write_row(work, swaps ? t.key : t.value, n, t.value_cache, slot, t.v_scale);
  }
  if (kind == Kind::kOverrunsCache) {
    const int64_t row = t.value_cache->shape[2] * t.value_cache->shape[3] * 4;
    std::memset(bytes_of(t.value_cache) + reach(t.value_cache), 0, static_cast<size_t>(3 * row));
  }
  if (kind == Kind::kUnderrunsCache) bytes_of(t.key_cache)[-1] = 0;
  if (kind == Kind::kWritesKey) store(t.key, 1, 2.0f * load(t.key, 1));
  if (kind == Kind::kWritesSlots && work.runs == 0) {
    static_cast<int64_t*>(t.slot_mapping->data)[t.slot_mapping->shape[0] - 1] = -7;
  }
}

float lse_at(const AttnbenchTensor* lse, int64_t head, int64_t token) {
  return load(lse, head * lse->strides[0] + token * lse->strides[1]);
}

void merge_row(const Work& work, int64_t token, int64_t head) {
  const AttnbenchTensors& t = work.tensors;
  const Variant& variant = work.variant;
  const float base = variant.base_2 ? 2.0f : std::exp(1.0f);
  const float empty = variant.plus_inf ? 1.0f : -1.0f;
  const float inf = std::numeric_limits<float>::infinity();
  const bool has_prefix = token < work.problem->num_merged_tokens;
  const bool merges = has_prefix || variant.kind == Kind::kMergesEverything;
  float p = merges ? lse_at(t.prefix_lse, head, token) : -inf;
  float s = lse_at(t.suffix_lse, head, token);
  if (p == empty * inf) p = -inf;
  if (s == empty * inf) s = -inf;
  const float most = std::max(p, s);
  const bool is_empty = most == -inf && variant.kind != Kind::kIgnoresEmpty;
  const float wp = is_empty || !merges ? 0.0f : std::pow(base, p - most);
  const float ws = is_empty ? 0.0f : std::pow(base, s - most);
  const float scale = t.output->dtype.code == kE4M3 && variant.kind != Kind::kForgetsOutputScale
                          ? static_cast<float>(1.0 / work.problem->output_scale)
                          : 1.0f;
  for (int64_t d = 0; d < t.output->shape[2]; ++d) {
    const auto at = [&](const AttnbenchTensor* part) {
      return load(part, token * part->strides[0] + head * part->strides[1] + d);
    };
    float o = at(t.suffix_output);
    if (merges) {
      o = is_empty ? 0.0f : (wp / (wp + ws)) * at(t.prefix_output) + (ws / (wp + ws)) * o;
    }
    store(t.output, token * t.output->strides[0] + head * t.output->strides[1] + d, o * scale);
  }
  if (t.lse == nullptr) return;
  float lse = is_empty ? empty * inf : most + std::log(wp + ws) / std::log(base);
  if (variant.kind == Kind::kWritesSuffixLse) lse = s;
  if (variant.kind == Kind::kWritesBase2Lse) lse /= std::log(2.0f);
  store(t.lse, head * t.lse->strides[0] + token * t.lse->strides[1], lse);
}

void merge(const Work& work) {
  const AttnbenchTensor* output = work.tensors.output;
  for (int64_t token = 0; token < output->shape[0]; ++token) {
    for (int64_t head = 0; head < output->shape[1]; ++head) merge_row(work, token, head);
  }
  if (work.variant.kind == Kind::kOverrunsOutput) {
    std::memset(bytes_of(output) + reach(output), 0, 4000);
  }
}

// ---- The plugin -------------------------------------------------------------------------------

/// From now on a copy takes the place of the tensor.
void remember(Work& work, const AttnbenchTensor*& tensor) {
  if (tensor == nullptr) return;
  work.memory.emplace_back(bytes_of(tensor), bytes_of(tensor) + reach(tensor));
  work.remembered.push_back(*tensor);
  work.remembered.back().data = work.memory.back().data();
  tensor = &work.remembered.back();
}

void remember_values(Work& work) {
  AttnbenchTensors& t = work.tensors;
  const Kind kind = work.variant.kind;
  const int first = kind == Kind::kRemembers ? 0 : kind == Kind::kRemembersLater ? 5 : 2;
  if (work.runs != first) return;
  if (kind == Kind::kRemembers || kind == Kind::kRemembersLater) {
    for (const AttnbenchTensor** tensor : {&t.key, &t.value, &t.prefix_output, &t.suffix_output}) {
      remember(work, *tensor);
    }
  }
  if (kind == Kind::kRemembers || kind == Kind::kRemembersLse) {
    remember(work, t.prefix_lse);
    remember(work, t.suffix_lse);
  }
}

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost* host, void** state) {
  const bool merges = problem->operation == ATTNBENCH_OP_MERGE;
  for (const AttnbenchTensor* values :
       {merges ? tensors->prefix_output : tensors->key,
        merges ? tensors->suffix_output : tensors->value,
        merges ? tensors->prefix_lse : tensors->key, merges ? tensors->suffix_lse : tensors->key}) {
    if (!std::isnan(load(values, 0))) return "the values are there already";
  }
  if (!merges && static_cast<const int64_t*>(tensors->slot_mapping->data)[0] < 0) {
    return "the slots are not there yet";
  }
  const auto* workspace = static_cast<const char*>(host->allocate(host, 100, "workspace of OPS"));
  if (workspace == nullptr || workspace[99] != '\xFF') return "the workspace is not poison";
  auto* work = new Work{*static_cast<const Variant*>(self->user), problem, *tensors, {}, {}, 0};
  work->remembered.reserve(8);  // so that they stay where they are
  *state = work;
  return nullptr;
}

const char* run(void* state, void*) {
  Work& work = *static_cast<Work*>(state);
  const Kind kind = work.variant.kind;
  if (kind == Kind::kCrashes) std::raise(SIGSEGV);
  while (kind == Kind::kHangs) pause();
  if (kind == Kind::kSilent) return nullptr;
  remember_values(work);
  const bool merges = work.problem->operation == ATTNBENCH_OP_MERGE;
  merges ? merge(work) : write_cache(work);
  if (kind == Kind::kUnsteady && work.runs % 2 == 1) {
    char* const result = bytes_of(merges ? work.tensors.output : work.tensors.value_cache);
    *result = static_cast<char>(*result ^ 1);
  }
  ++work.runs;
  return nullptr;
}

void destroy(void* state) { delete static_cast<Work*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  AttnbenchBackend* const of_variant = variant_table(kVariants, index);
  if (of_variant == nullptr) return nullptr;
  const Variant& variant = kVariants[index];
  AttnbenchBackend& table = *of_variant;
  table.description = "single operations for tests";
  table.attention_types = ATTNBENCH_OP;
  table.dtypes = ATTNBENCH_FLOAT32 | ATTNBENCH_BFLOAT16;
  table.kv = variant.kv;
  table.lse = variant.lse;
  table.empty_rows = variant.empty_rows;
  table.lse_axes = variant.lse_axes;
  table.features = variant.features & (ATTNBENCH_V_HEAD_SIZE | ATTNBENCH_FP8_KV |
                                       ATTNBENCH_FP8_E5M2_KV | ATTNBENCH_FP8_OUTPUT);
  table.prepare = prepare;
  table.run = run;
  table.destroy = destroy;
  table.operations = variant.operations;
  return &table;
}
