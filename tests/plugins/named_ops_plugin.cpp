// Operations whose operands come by name, on one CPU thread, for tests: right ones, and ones with a
// fault on purpose. Float32 and bfloat16.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attnbench_backend.h"
#include "kernels/common/numeric.cuh"
#include "variant_tables.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kIndexKey = 128;

enum class Kind {
  kRight,
  kSkipsLastToken,
  kRemembers,       // the results of its first run
  kRemembersLater,  // the same of its sixth
  kWritesOperand,
  kLastOfEquals,    // of equal logits those that lie last: right as well
  kSmallestLogits,  // the smallest instead of the largest
  kTwice,           // the first chosen key in two places
};

struct Variant {
  const char* name;
  Kind kind = Kind::kRight;
  uint32_t operations = 0xFFFFFFFFu;
  uint64_t features = ~0ull;
};

constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"ONLY_ROPE", Kind::kRight, ATTNBENCH_OP_ROPE},
    {"PLAIN", Kind::kRight, 0xFFFFFFFFu, 0},
    {"SKIPS_LAST_TOKEN", Kind::kSkipsLastToken},
    {"REMEMBERS", Kind::kRemembers},
    {"REMEMBERS_LATER", Kind::kRemembersLater},
    {"WRITES_OPERAND", Kind::kWritesOperand},
    {"LAST_OF_EQUALS", Kind::kLastOfEquals},
    {"SMALLEST_LOGITS", Kind::kSmallestLogits},
    {"TWICE", Kind::kTwice},
};

constexpr uint32_t kOperations =
    ATTNBENCH_OP_RESHAPE_AND_CACHE | ATTNBENCH_OP_GATHER | ATTNBENCH_OP_ROPE |
    ATTNBENCH_OP_ROPE_AND_CACHE | ATTNBENCH_OP_QUANTIZE | ATTNBENCH_OP_DCP_CORRECT |
    ATTNBENCH_OP_OUTPUT_QUANT | ATTNBENCH_OP_MM_QUANT | ATTNBENCH_OP_INDEX_KEY_CACHE |
    ATTNBENCH_OP_INDEX_LOGITS | ATTNBENCH_OP_INDEX_TOPK;

struct Work {
  Variant variant;
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
  std::vector<std::vector<char>> remembered;  // of every output
  int runs = 0;

  const AttnbenchTensor* find(const char* name) const {
    for (int64_t i = 0; i < tensors->num_operands; ++i) {
      if (std::strcmp(tensors->operands[i].name, name) == 0) return tensors->operands[i].tensor;
    }
    return nullptr;
  }
  template <typename T>
  T* data(const char* name) const {
    return static_cast<T*>(find(name)->data);
  }
  /// Rows that are worked on.
  int64_t rows(int64_t count) const {
    return variant.kind == Kind::kSkipsLastToken ? std::max<int64_t>(0, count - 1) : count;
  }
};

int64_t elements(const AttnbenchTensor* tensor) {
  int64_t count = 1;
  for (int axis = 0; axis < tensor->ndim; ++axis) count *= tensor->shape[axis];
  return count;
}
size_t bytes_of(const AttnbenchTensor* tensor) {
  return static_cast<size_t>(elements(tensor) * tensor->dtype.bits / 8);
}

float load(const AttnbenchTensor* tensor, int64_t index) {
  if (tensor->dtype.bits == 32) return static_cast<const float*>(tensor->data)[index];
  if (tensor->dtype.bits == 8) {
    return attn::e4m3_to_float(static_cast<const uint8_t*>(tensor->data)[index]);
  }
  return attn::bf16_to_float(static_cast<const uint16_t*>(tensor->data)[index]);
}

void store(const AttnbenchTensor* tensor, int64_t index, float value) {
  if (tensor->dtype.bits == 32) {
    static_cast<float*>(tensor->data)[index] = value;
  } else if (tensor->dtype.bits == 8) {
    static_cast<uint8_t*>(tensor->data)[index] = attn::e4m3_from_float(value);
  } else {
    static_cast<uint16_t*>(tensor->data)[index] = attn::bf16_from_float(value);
  }
}

// ---- Caches -----------------------------------------------------------------------------------

/// Bytes of the elements of a row.
void copy_row(const AttnbenchTensor* from, int64_t first, const AttnbenchTensor* to, int64_t at,
              int64_t count) {
  const int64_t size = from->dtype.bits / 8;
  std::memcpy(static_cast<char*>(to->data) + at * size,
              static_cast<const char*>(from->data) + first * size,
              static_cast<size_t>(count * size));
}

/// Entries that are copied: kv_c, then k_pe.
void write_latents(const Work& work, const AttnbenchTensor* k_pe) {
  const AttnbenchTensor* kv_c = work.find("new_kv_c");
  const AttnbenchTensor* cache = work.find("kv_cache");
  const AttnbenchTensor* slots = work.find("slot_mapping");
  const int64_t latent = work.problem->kv_lora_rank, rope = work.problem->qk_rope_head_dim;
  for (int64_t n = 0; n < work.rows(slots->shape[0]); ++n) {
    const int64_t slot = static_cast<const int64_t*>(slots->data)[n];
    if (slot < 0) continue;
    copy_row(kv_c, n * latent, cache, slot * (latent + rope), latent);
    copy_row(k_pe, n * rope, cache, slot * (latent + rope) + latent, rope);
  }
}

/// Codes and key scales of int8 level 1 and 2, as they are.
void write_int8(const Work& work) {
  const AttnbenchTensors& t = *work.tensors;
  const AttnbenchTensor *key = work.find("new_key_codes"), *value = work.find("new_value_codes");
  const AttnbenchTensor* scales = work.find("key_scale_cache");  // [NB, Hk, bs]
  const float* new_scales = work.data<float>("new_key_scales");
  const int64_t heads = key->shape[1], width = key->shape[2], block_size = t.key_cache->shape[1];
  const AttnbenchTensor* slots = work.find("slot_mapping");
  for (int64_t n = 0; n < work.rows(slots->shape[0]); ++n) {
    const int64_t slot = static_cast<const int64_t*>(slots->data)[n];
    if (slot < 0) continue;
    const int64_t block = slot / block_size, offset = slot % block_size;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t cell = block * t.key_cache->strides[0] + offset * t.key_cache->strides[1] +
                           h * t.key_cache->strides[2];
      copy_row(key, (n * heads + h) * width, t.key_cache, cell, width);
      copy_row(value, (n * heads + h) * width, t.value_cache, cell, width);
      static_cast<float*>(scales->data)[(block * heads + h) * block_size + offset] =
          new_scales[n * heads + h];
    }
  }
}

/// A scale for each token and head of K and V: amax / 448 with e4m3 codes.
void write_token_heads(const Work& work) {
  const AttnbenchTensors& t = *work.tensors;
  const AttnbenchTensor* slots = work.find("slot_mapping");
  const int64_t block_size = t.key_cache->shape[1];
  const auto write = [&](const AttnbenchTensor* rows, const AttnbenchTensor* cache,
                         const AttnbenchTensor* scales, int64_t n, int64_t slot) {
    const int64_t heads = rows->shape[1], width = rows->shape[2];
    for (int64_t h = 0; h < heads; ++h) {
      float largest = 0;
      for (int64_t d = 0; d < width; ++d) {
        largest = std::max(largest, std::fabs(load(rows, (n * heads + h) * width + d)));
      }
      const float scale = std::max(largest * (1.0f / 448.0f), 1e-6f);
      const int64_t block = slot / block_size, offset = slot % block_size;
      const auto at = [&](const AttnbenchTensor* tensor) {
        return block * tensor->strides[0] + offset * tensor->strides[1] + h * tensor->strides[2];
      };
      const float inverse = 1.0f / scale;
      for (int64_t d = 0; d < width; ++d) {
        store(cache, at(cache) + d, load(rows, (n * heads + h) * width + d) * inverse);
      }
      store(scales, at(scales), scale);
    }
  };
  for (int64_t n = 0; n < work.rows(slots->shape[0]); ++n) {
    const int64_t slot = static_cast<const int64_t*>(slots->data)[n];
    if (slot < 0) continue;
    write(work.find("new_key"), t.key_cache, t.k_scale_cache, n, slot);
    write(work.find("new_value"), t.value_cache, t.v_scale_cache, n, slot);
  }
}

void reshape_and_cache(const Work& work) {
  if (work.problem->kv_lora_rank > 0) return write_latents(work, work.find("new_k_pe"));
  work.problem->int8_level > 0 ? write_int8(work) : write_token_heads(work);
}

/// Entries of 16 or 32 bits, raw or not: the same.
void gather(const Work& work) {
  const AttnbenchTensor* cache = work.find("kv_cache");
  const AttnbenchTensor* table = work.find("block_table");
  const AttnbenchTensor* output = work.find("output");
  const int* starts = work.data<int>("seq_starts");
  const int* first_rows = work.data<int>("cu_seq_lens");
  const int64_t entry = cache->shape[2], block_size = cache->shape[1];
  for (int64_t b = 0; b < table->shape[0]; ++b) {
    const int64_t count = first_rows[b + 1] - first_rows[b];
    for (int64_t i = 0; i < work.rows(count); ++i) {
      const int64_t position = starts[b] + i;
      const int block =
          static_cast<const int*>(table->data)[b * table->shape[1] + position / block_size];
      copy_row(cache, (block * block_size + position % block_size) * entry, output,
               (first_rows[b] + i) * entry, entry);
    }
  }
}

// ---- Rotation ---------------------------------------------------------------------------------

/// The columns from `first` on of heads [0, heads) of rows [T, all heads, D], in place.
void rotate(const Work& work, const AttnbenchTensor* rows, int64_t heads, int64_t first) {
  const AttnbenchTensor* table = work.find("cos_sin_cache");
  const int64_t* positions = work.data<int64_t>("positions");
  const int64_t half = work.problem->rotary_dim / 2;
  for (int64_t t = 0; t < work.rows(rows->shape[0]); ++t) {
    const int64_t angles = positions[t] * 2 * half;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t head = (t * rows->shape[1] + h) * rows->shape[2] + first;
      for (int64_t k = 0; k < half; ++k) {
        const int64_t a = head + (work.problem->is_neox ? k : 2 * k);
        const int64_t b = head + (work.problem->is_neox ? k + half : 2 * k + 1);
        const float cosine = load(table, angles + k), sine = load(table, angles + half + k);
        const float x = load(rows, a), y = load(rows, b);
        store(rows, a, x * cosine - y * sine);
        store(rows, b, y * cosine + x * sine);
      }
    }
  }
}

void rope(const Work& work) {
  const AttnbenchProblem& p = *work.problem;
  const AttnbenchTensor* rows = work.find("output");
  if (p.kv_lora_rank == 0) return rotate(work, rows, p.num_heads + p.num_kv_heads, 0);
  rotate(work, rows, p.num_heads, p.qk_nope_head_dim);
  rotate(work, work.find("key_output"), 1, 0);
}

void rope_and_cache(const Work& work) {
  rope(work);
  const AttnbenchProblem& p = *work.problem;
  if (p.kv_lora_rank > 0) return write_latents(work, work.find("key_output"));
  const AttnbenchTensors& t = *work.tensors;
  const AttnbenchTensor* rows = work.find("output");
  const AttnbenchTensor* slots = work.find("slot_mapping");
  const int64_t width = rows->shape[2];
  for (int64_t n = 0; n < work.rows(slots->shape[0]); ++n) {
    const int64_t slot = static_cast<const int64_t*>(slots->data)[n];
    if (slot < 0) continue;
    const int64_t block = slot / t.key_cache->shape[1], offset = slot % t.key_cache->shape[1];
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      const int64_t cell = block * t.key_cache->strides[0] + offset * t.key_cache->strides[1] +
                           h * t.key_cache->strides[2];
      const int64_t head = n * rows->shape[1] + p.num_heads + h;
      copy_row(rows, head * width, t.key_cache, cell, width);
      copy_row(rows, (head + p.num_kv_heads) * width, t.value_cache, cell, width);
    }
  }
}

// ---- Quantisation -----------------------------------------------------------------------------

/// Codes of heads of rows, which begin at `first` of `stride` elements each.
void quantise(const Work& work, const AttnbenchTensor* rows, int64_t first, int64_t stride,
              const AttnbenchTensor* codes, float factor) {
  const int64_t count = codes->shape[1] * codes->shape[2];
  int64_t saturated = 0;
  for (int64_t t = 0; t < work.rows(codes->shape[0]); ++t) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = load(rows, t * stride + first + i) * factor;
      saturated += std::fabs(value) > 464.0f ? 1 : 0;
      store(codes, t * count + i, value);
    }
  }
  const AttnbenchTensor* counter = work.find("num_saturated");
  if (counter != nullptr) *static_cast<int64_t*>(counter->data) += saturated;
}

void quantize(const Work& work) {
  const AttnbenchTensor* rows = work.find("projection");
  quantise(work, rows, 0, rows->shape[1] * rows->shape[2], work.find("output"),
           1.0f / work.data<float>("q_scale")[0]);
}

void output_quant(const Work& work) {
  const AttnbenchTensor* rows = work.find("input");
  quantise(work, rows, 0, rows->shape[1] * rows->shape[2], work.find("output"),
           1.0f / work.data<float>("output_scale")[0]);
}

/// Scales from the largest magnitudes; heads that need no padding.
void mm_quant(const Work& work) {
  const AttnbenchTensor* rows = work.find("projection");
  const int64_t stride = rows->shape[1] * rows->shape[2];
  float* scales = work.data<float>("fp8_scales");
  int64_t first = 0;
  int index = 0;
  for (const char* name : {"query_codes", "key_codes", "value_codes"}) {
    const AttnbenchTensor* codes = work.find(name);
    const int64_t count = codes->shape[1] * codes->shape[2];
    float largest = 0;
    for (int64_t t = 0; t < rows->shape[0]; ++t) {
      for (int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::fabs(load(rows, t * stride + first + i)));
      }
    }
    scales[index] = std::max(largest, 1.1920929e-7f) / 448.0f;
    quantise(work, rows, first, stride, codes, 1.0f / scales[index]);
    first += count;
    ++index;
  }
}

// ---- Ranks ------------------------------------------------------------------------------------

/// All ranks' partial results in one sum, as after an exchange of heads (a2a).
void dcp_correct(const Work& work) {
  const AttnbenchTensor* partial = work.find("partial_output");  // [W, T, H, D]
  const AttnbenchTensor* output = work.find("output");
  const float* lses = work.data<float>("partial_lse");  // [W, H, T]
  float* lse = work.data<float>("lse");
  const int64_t ranks = partial->shape[0], tokens = partial->shape[1], heads = partial->shape[2],
                width = partial->shape[3];
  const float base = work.problem->lse_is_base_2 ? 2.0f : std::exp(1.0f);
  for (int64_t t = 0; t < work.rows(tokens); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> of_rank;
      float most = -kInfinity, sum = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        const float found = lses[(r * heads + h) * tokens + t];
        of_rank.push_back(found < kInfinity ? found : -kInfinity);
        most = std::max(most, of_rank.back());
      }
      for (float& weight : of_rank) {
        weight = weight == -kInfinity ? 0.0f : std::pow(base, weight - most);
        sum += weight;
      }
      lse[h * tokens + t] = sum == 0 ? -kInfinity : most + std::log(sum) / std::log(base);
      for (int64_t d = 0; d < width; ++d) {
        float value = 0;
        for (int64_t r = 0; r < ranks; ++r) {
          const float weight = of_rank[static_cast<size_t>(r)];
          if (weight == 0) continue;
          value += weight / sum * load(partial, ((r * tokens + t) * heads + h) * width + d);
        }
        store(output, (t * heads + h) * width + d, value);
      }
    }
  }
}

// ---- The indexer ------------------------------------------------------------------------------

void index_key_cache(const Work& work) {
  const AttnbenchTensor* keys = work.find("new_index_key");
  const AttnbenchTensor* cache = work.find("index_cache");
  const AttnbenchTensor* slots = work.find("slot_mapping");
  const int64_t block_size = work.problem->block_size;
  for (int64_t n = 0; n < work.rows(slots->shape[0]); ++n) {
    const int64_t slot = static_cast<const int64_t*>(slots->data)[n];
    if (slot < 0) continue;
    float largest = 1e-4f;
    for (int64_t d = 0; d < kIndexKey; ++d) {
      largest = std::max(largest, std::fabs(load(keys, n * kIndexKey + d)));
    }
    float scale = largest / 448.0f;
    if (work.problem->index_ue8m0) scale = std::exp2(std::ceil(std::log2(scale)));
    uint8_t* block = static_cast<uint8_t*>(cache->data) + slot / block_size * cache->shape[1];
    const int64_t offset = slot % block_size;
    for (int64_t d = 0; d < kIndexKey; ++d) {
      block[offset * kIndexKey + d] = attn::e4m3_from_float(load(keys, n * kIndexKey + d) / scale);
    }
    std::memcpy(block + block_size * kIndexKey + offset * 4, &scale, sizeof scale);
  }
}

/// Calls body(token, request, keys that it sees).
template <typename Body>
void for_each_token(const Work& work, const Body& body) {
  const int* first = work.data<int>("query_start_loc");
  const int* seq_lens = work.data<int>("seq_lens");
  for (int64_t b = 0; b < work.problem->num_requests; ++b) {
    for (int64_t t = first[b]; t < first[b + 1]; ++t) {
      if (t < work.rows(work.problem->num_tokens)) {
        body(t, b, seq_lens[b] - (first[b + 1] - t) + 1);
      }
    }
  }
}

void index_logits(const Work& work) {
  const AttnbenchTensor* query = work.find("index_query");
  const AttnbenchTensor* cache = work.find("index_cache");
  const AttnbenchTensor* table = work.find("block_table");
  const AttnbenchTensor* logits = work.find("logits");
  const float* weights = work.data<float>("index_weights");
  const int64_t heads = query->shape[1], block_size = work.problem->block_size;
  for_each_token(work, [&](int64_t t, int64_t b, int64_t seen) {
    float* row = static_cast<float*>(logits->data) + t * logits->shape[1];
    std::fill(row, row + logits->shape[1], -kInfinity);
    for (int64_t j = 0; j < seen; ++j) {
      const int block = static_cast<const int*>(table->data)[b * table->shape[1] + j / block_size];
      const uint8_t* keys = static_cast<const uint8_t*>(cache->data) + block * cache->shape[1];
      float scale;
      std::memcpy(&scale, keys + block_size * kIndexKey + j % block_size * 4, sizeof scale);
      float sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        float product = 0;
        for (int64_t d = 0; d < kIndexKey; ++d) {
          product += load(query, (t * heads + h) * kIndexKey + d) *
                     attn::e4m3_to_float(keys[j % block_size * kIndexKey + d]);
        }
        sum += weights[t * heads + h] * std::max(product, 0.0f);
      }
      row[j] = sum * scale;
    }
  });
}

/// In the order of the logits, which is as good as any.
void index_topk(const Work& work) {
  const AttnbenchTensor* logits = work.find("logits");
  const AttnbenchTensor* table = work.find("block_table");
  const AttnbenchTensor* slots = work.find("topk_slots");
  const int64_t topk = work.problem->topk, block_size = work.problem->block_size;
  const Kind kind = work.variant.kind;
  for_each_token(work, [&](int64_t t, int64_t b, int64_t seen) {
    const float* row = static_cast<const float*>(logits->data) + t * logits->shape[1];
    std::vector<int> order(static_cast<size_t>(seen));
    std::iota(order.begin(), order.end(), 0);
    if (kind == Kind::kLastOfEquals) std::reverse(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&](int a, int c) {
      return kind == Kind::kSmallestLogits ? row[a] < row[c] : row[a] > row[c];
    });
    if (kind == Kind::kTwice && seen > 1) order[1] = order[0];
    for (int64_t k = 0; k < topk; ++k) {
      int slot = -1;
      if (k < seen) {
        const int position = order[static_cast<size_t>(k)];
        const int block =
            static_cast<const int*>(table->data)[b * table->shape[1] + position / block_size];
        slot = static_cast<int>(block * block_size + position % block_size);
      }
      static_cast<int*>(slots->data)[t * topk + k] = slot;
    }
  });
}

// ---- The plugin -------------------------------------------------------------------------------

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  if (tensors->num_operands == 0) return "there are no operands";
  *state = new Work{*static_cast<const Variant*>(self->user), problem, tensors, {}, 0};
  return nullptr;
}

void compute(const Work& work) {
  switch (work.problem->operation) {
    case ATTNBENCH_OP_RESHAPE_AND_CACHE:
      return reshape_and_cache(work);
    case ATTNBENCH_OP_GATHER:
      return gather(work);
    case ATTNBENCH_OP_ROPE:
      return rope(work);
    case ATTNBENCH_OP_ROPE_AND_CACHE:
      return rope_and_cache(work);
    case ATTNBENCH_OP_QUANTIZE:
      return quantize(work);
    case ATTNBENCH_OP_DCP_CORRECT:
      return dcp_correct(work);
    case ATTNBENCH_OP_OUTPUT_QUANT:
      return output_quant(work);
    case ATTNBENCH_OP_MM_QUANT:
      return mm_quant(work);
    case ATTNBENCH_OP_INDEX_KEY_CACHE:
      return index_key_cache(work);
    case ATTNBENCH_OP_INDEX_LOGITS:
      return index_logits(work);
    default:
      return index_topk(work);
  }
}

const char* run(void* state, void*) {
  Work& work = *static_cast<Work*>(state);
  const AttnbenchTensors& t = *work.tensors;
  const Kind kind = work.variant.kind;
  const bool remembers = kind == Kind::kRemembers || kind == Kind::kRemembersLater;
  if (work.remembered.empty()) {
    compute(work);
  } else {
    size_t next = 0;
    for (int64_t i = 0; i < t.num_operands; ++i) {
      if (!t.operands[i].is_output) continue;
      std::memcpy(t.operands[i].tensor->data, work.remembered[next].data(),
                  work.remembered[next].size());
      ++next;
    }
  }
  if (remembers && work.runs == (kind == Kind::kRemembers ? 0 : 5)) {
    for (int64_t i = 0; i < t.num_operands; ++i) {
      if (!t.operands[i].is_output) continue;
      const char* data = static_cast<const char*>(t.operands[i].tensor->data);
      work.remembered.emplace_back(data, data + bytes_of(t.operands[i].tensor));
    }
  }
  for (int64_t i = 0; kind == Kind::kWritesOperand && i < t.num_operands; ++i) {
    if (t.operands[i].is_output) continue;
    static_cast<char*>(t.operands[i].tensor->data)[1] ^= 1;
    break;
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
  table.description = "operations by name for tests";
  table.attention_types = ATTNBENCH_OP;
  table.dtypes = ATTNBENCH_FLOAT32 | ATTNBENCH_BFLOAT16;
  table.kv = ATTNBENCH_KV_PAGED_INTERLEAVED;
  table.features =
      variant.features & (ATTNBENCH_V_HEAD_SIZE | ATTNBENCH_FP8_KV | ATTNBENCH_FP8_OUTPUT |
                          ATTNBENCH_LATENTS | ATTNBENCH_INT8_CODES | ATTNBENCH_TOKEN_HEAD_KV);
  table.prepare = prepare;
  table.run = run;
  table.destroy = destroy;
  table.operations = variant.operations & kOperations;
  return &table;
}
