// Attention as it is written on paper, on one CPU thread: a plugin to start from.
//
//   c++ -std=c++17 -O2 -shared -fPIC -I DIR/include naive_attention.cpp -o libnaive_attention.so
//   DIR/bin/attnbench run smoke --device cpu --plugin ./libnaive_attention.so --backend NAIVE
//
// DIR is where `cmake --install build --prefix DIR` put attnbench.
#include "attnbench_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

/// What prepare() leaves for run(); attnbench owns what it points to.
struct Naive {
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
  std::vector<float> scores;  // of one row, [max_seq_len]
};

template <typename T>
const T* data_of(const AttnbenchTensor* tensor) {
  return static_cast<const T*>(tensor->data);
}

float load(const AttnbenchTensor* tensor, int64_t index) {
  if (tensor->dtype.bits == 32) return data_of<float>(tensor)[index];
  const uint32_t bits = uint32_t{data_of<uint16_t>(tensor)[index]} << 16;  // bfloat16
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
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

/// First element of key (or value) `j` of request `b`: by the block table where there are pages.
int64_t offset_of(const AttnbenchTensors& t, const AttnbenchTensor* keys, int64_t b, int64_t j,
                  int64_t kv_head) {
  const int64_t* stride = keys->strides;
  if (t.block_table == nullptr) {
    const int64_t row = data_of<int64_t>(t.key_start_loc)[b] + j;
    return row * stride[0] + kv_head * stride[1];
  }
  const int64_t block_size = keys->shape[1];
  const int64_t block =
      data_of<int32_t>(t.block_table)[b * t.block_table->strides[0] + j / block_size];
  return block * stride[0] + j % block_size * stride[1] + kv_head * stride[2];
}

/// Row `i` of request `b`, one head.
void attend_row(Naive& naive, int64_t b, int64_t i, int64_t head) {
  const AttnbenchProblem& p = *naive.problem;
  const AttnbenchTensors& t = *naive.tensors;
  const AttnbenchTensor* keys = t.block_table ? t.key_cache : t.key;
  const AttnbenchTensor* values = t.block_table ? t.value_cache : t.value;
  const int64_t kv_head = head / (p.num_heads / p.num_kv_heads);
  const int64_t row = data_of<int32_t>(t.query_start_loc)[b] + i;
  const int64_t position = p.seq_lens[b] - p.query_lens[b] + i;
  const int64_t begin = p.window_left < 0 ? 0 : std::max<int64_t>(0, position - p.window_left);
  const int64_t end =
      p.window_right < 0 ? p.seq_lens[b] : std::min(p.seq_lens[b], position + p.window_right + 1);

  // s_j = scale * (q . k_j)
  const int64_t query = row * t.query->strides[0] + head * t.query->strides[1];
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t j = begin; j < end; ++j) {
    const int64_t key = offset_of(t, keys, b, j, kv_head);
    float score = 0;
    for (int64_t d = 0; d < p.head_size; ++d) {
      score += load(t.query, query + d) * load(keys, key + d);
    }
    score *= static_cast<float>(p.scale);
    naive.scores[static_cast<std::size_t>(j)] = score;
    highest = std::max(highest, score);
  }
  float sum = 0;
  for (int64_t j = begin; j < end; ++j) {
    float& score = naive.scores[static_cast<std::size_t>(j)];
    score = std::exp(score - highest);
    sum += score;
  }
  // o = sum of softmax(s)_j * v_j; 0 for a row that sees no key
  const int64_t output = row * t.output->strides[0] + head * t.output->strides[1];
  for (int64_t d = 0; d < p.v_head_size; ++d) {
    float o = 0;
    for (int64_t j = begin; j < end; ++j) {
      o += naive.scores[static_cast<std::size_t>(j)] *
           load(values, offset_of(t, values, b, j, kv_head) + d);
    }
    store(t.output, output + d, sum > 0 ? o / sum : 0);
  }
  store(t.lse, head * t.lse->strides[0] + row, highest + std::log(sum));
}

const char* supports(const AttnbenchBackend*, const AttnbenchProblem* problem) {
  return problem->head_size > 512 ? "head_size above 512" : nullptr;
}

const char* prepare(const AttnbenchBackend*, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  *state = new Naive{problem, tensors,
                     std::vector<float>(static_cast<std::size_t>(problem->max_seq_len))};
  return nullptr;
}

const char* run(void* state, void*) {
  Naive& naive = *static_cast<Naive*>(state);
  const AttnbenchProblem& p = *naive.problem;
  for (int64_t b = 0; b < p.num_requests; ++b) {
    for (int64_t i = 0; i < p.query_lens[b]; ++i) {
      for (int64_t head = 0; head < p.num_heads; ++head) attend_row(naive, b, i, head);
    }
  }
  return nullptr;
}

void destroy(void* state) { delete static_cast<Naive*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  static AttnbenchBackend b;
  b.struct_size = sizeof b;
  b.abi_version = ATTNBENCH_ABI_VERSION;
  b.name = "NAIVE";
  b.version = "1.0";
  b.devices = ATTNBENCH_CPU;
  b.attention_types = ATTNBENCH_DECODER | ATTNBENCH_ENCODER | ATTNBENCH_ENCODER_ONLY |
                      ATTNBENCH_ENCODER_DECODER | ATTNBENCH_MM_ENCODER;
  b.dtypes = ATTNBENCH_FLOAT32 | ATTNBENCH_BFLOAT16;
  b.kv = ATTNBENCH_KV_PAGED;
  b.lse = ATTNBENCH_LSE_NATURAL;
  b.features = ATTNBENCH_CAUSAL | ATTNBENCH_NON_CAUSAL | ATTNBENCH_GQA | ATTNBENCH_SLIDING_WINDOW;
  b.supports = supports;
  b.prepare = prepare;
  b.run = run;
  b.destroy = destroy;
  return index == 0 ? &b : nullptr;
}
