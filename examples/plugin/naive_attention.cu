// The same on a GPU: one warp a row and head, one pass over paged keys. A plugin to start from.
//
//   nvcc -O2 -arch=sm_90 -shared -Xcompiler -fPIC -I DIR/include naive_attention.cu -o libnaive.so
//   DIR/bin/attnbench run smoke --device cuda --plugin ./libnaive.so --backend NAIVE_CUDA
//
// DIR is where `cmake --install build --prefix DIR` put attnbench.
#include <cuda_bf16.h>

#include "attnbench_backend.h"

namespace {

constexpr int kWarp = 32;
constexpr int kMaxHeadSize = 256;
constexpr int kPerLane = kMaxHeadSize / kWarp;

struct Arguments {
  const void* query;  // [T, H, D]
  void* output;       // [T, H, D]
  float* lse;         // [H, T], rows lse_stride apart
  const void* key;    // [NB, bs, Hk, D] with the strides below
  const void* value;
  const int* block_table;      // [B, table_stride]
  const int* query_start_loc;  // [B+1]
  const int* seq_lens;         // [B]
  int64_t block_stride, slot_stride, head_stride, lse_stride, table_stride;
  int64_t window_left, window_right;
  int num_heads, num_kv_heads, head_size, block_size;
  float scale;
  int64_t num_tokens;
  bool is_float;
};

template <typename T>
__global__ void attend(Arguments a) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, lane = threadIdx.x;
  int b = 0;
  while (a.query_start_loc[b + 1] <= row) ++b;
  const int64_t seq_len = a.seq_lens[b];
  const int64_t query_len = a.query_start_loc[b + 1] - a.query_start_loc[b];
  const int64_t position = seq_len - query_len + row - a.query_start_loc[b];
  const int64_t begin = a.window_left < 0 ? 0 : max(int64_t{0}, position - a.window_left);
  const int64_t end = a.window_right < 0 ? seq_len : min(seq_len, position + a.window_right + 1);
  const int64_t kv_offset = head / (a.num_heads / a.num_kv_heads) * a.head_stride;
  const int64_t row_offset = (row * a.num_heads + head) * a.head_size;

  float query[kPerLane], output[kPerLane] = {};
  for (int i = 0; i < kPerLane; ++i) {
    const int d = i * kWarp + lane;
    query[i] = d < a.head_size ? float(static_cast<const T*>(a.query)[row_offset + d]) : 0.0f;
  }
  float highest = -INFINITY, sum = 0;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t block = a.block_table[b * a.table_stride + j / a.block_size];
    const int64_t place = block * a.block_stride + j % a.block_size * a.slot_stride + kv_offset;
    const T* key = static_cast<const T*>(a.key) + place;
    const T* value = static_cast<const T*>(a.value) + place;
    float score = 0;
    for (int i = 0; i < kPerLane; ++i) {
      const int d = i * kWarp + lane;
      if (d < a.head_size) score += query[i] * float(key[d]);
    }
    for (int i = kWarp / 2; i > 0; i /= 2) score += __shfl_xor_sync(~0u, score, i);
    score *= a.scale;
    const float next = fmaxf(highest, score);
    const float rescale = __expf(highest - next), weight = __expf(score - next);
    sum = sum * rescale + weight;
    for (int i = 0; i < kPerLane; ++i) {
      const int d = i * kWarp + lane;
      if (d < a.head_size) output[i] = output[i] * rescale + weight * float(value[d]);
    }
    highest = next;
  }
  for (int i = 0; i < kPerLane; ++i) {
    const int d = i * kWarp + lane;
    const float o = sum > 0 ? output[i] / sum : 0.0f;
    if (d < a.head_size) static_cast<T*>(a.output)[row_offset + d] = T(o);
  }
  if (lane == 0) a.lse[head * a.lse_stride + row] = highest + logf(sum);
}

const char* prepare(const AttnbenchBackend*, const AttnbenchProblem* p, const AttnbenchTensors* t,
                    const AttnbenchHost*, void** state) {
  const cudaError_t error = cudaSetDevice(p->device_id);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  Arguments a{};
  a.query = t->query->data;
  a.output = t->output->data;
  a.lse = static_cast<float*>(t->lse->data);
  a.key = t->key_cache->data;
  a.value = t->value_cache->data;
  a.block_table = static_cast<const int*>(t->block_table->data);
  a.query_start_loc = static_cast<const int*>(t->query_start_loc->data);
  a.seq_lens = static_cast<const int*>(t->seq_lens->data);
  a.table_stride = t->block_table->strides[0];
  a.block_stride = t->key_cache->strides[0];
  a.slot_stride = t->key_cache->strides[1];
  a.head_stride = t->key_cache->strides[2];
  a.block_size = p->block_size;
  a.lse_stride = t->lse->strides[0];
  a.window_left = p->window_left;
  a.window_right = p->window_right;
  a.num_heads = p->num_heads;
  a.num_kv_heads = p->num_kv_heads;
  a.head_size = p->head_size;
  a.scale = static_cast<float>(p->scale);
  a.num_tokens = p->num_tokens;
  a.is_float = p->dtype == ATTNBENCH_FLOAT32;
  *state = new Arguments(a);
  return nullptr;
}

const char* run(void* state, void* stream) {
  const Arguments& a = *static_cast<Arguments*>(state);
  const dim3 grid(unsigned(a.num_tokens), unsigned(a.num_heads));
  if (a.num_tokens == 0) return nullptr;
  const auto kernel = a.is_float ? attend<float> : attend<__nv_bfloat16>;
  kernel<<<grid, kWarp, 0, static_cast<cudaStream_t>(stream)>>>(a);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* supports(const AttnbenchBackend*, const AttnbenchProblem* p) {
  return p->head_size > kMaxHeadSize ? "head_size above 256" : nullptr;
}

void destroy(void* state) { delete static_cast<Arguments*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  static AttnbenchBackend b{};
  b.struct_size = sizeof b;
  b.abi_version = ATTNBENCH_ABI_VERSION;
  b.name = "NAIVE_CUDA";
  b.version = "1.0";
  b.devices = ATTNBENCH_CUDA;
  b.attention_types =
      ATTNBENCH_DECODER | ATTNBENCH_ENCODER | ATTNBENCH_ENCODER_ONLY | ATTNBENCH_ENCODER_DECODER;
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
