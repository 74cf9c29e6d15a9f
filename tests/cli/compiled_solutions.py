"""Solutions in Triton, CUDA and C++ for decode_definition(16) of trace_sets, in both bindings that FlashInfer-Bench
has: torch and tvm-ffi. `wrong` ones write the natural LSE."""

from trace_sets import KV_HEADS, decode_definition, solution

PAGE = 16
ARGUMENTS = "q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, return_lse, output, lse"

TRITON = '''\
import triton
import triton.language as tl


@triton.jit
def decode(q, k_cache, v_cache, kv_indptr, kv_indices, output, lse, scale, q_token, q_head, k_page, k_slot, k_head,
           v_page, v_slot, v_head, o_token, o_head, l_token, l_head, to_base,
           PAGE: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr):
    request = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    columns = tl.arange(0, SIZE)
    slots = tl.arange(0, PAGE)
    query = tl.load(q + request * q_token + head * q_head + columns).to(tl.float32) * scale
    largest = tl.full([], -1e30, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    sums = tl.zeros([SIZE], tl.float32)
    for entry in range(tl.load(kv_indptr + request), tl.load(kv_indptr + request + 1)):
        page = tl.load(kv_indices + entry).to(tl.int64)
        keys = tl.load(k_cache + page * k_page + slots[:, None] * k_slot + kv_head * k_head + columns[None, :])
        scores = tl.sum(keys.to(tl.float32) * query[None, :], 1)
        larger = tl.maximum(largest, tl.max(scores, 0))
        weights = tl.exp(scores - larger)
        shrink = tl.exp(largest - larger)
        values = tl.load(v_cache + page * v_page + slots[:, None] * v_slot + kv_head * v_head + columns[None, :])
        sums = sums * shrink + tl.sum(values.to(tl.float32) * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        largest = larger
    tl.store(output + request * o_token + head * o_head + columns, (sums / total).to(output.dtype.element_ty))
    tl.store(lse + request * l_token + head * l_head, (largest + tl.log(total)) * to_base)


def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, return_lse, output, lse):
    tokens, heads, size = q.shape
    assert q.stride(2) == 1 and k_cache.stride(3) == 1 and v_cache.stride(3) == 1 and output.stride(2) == 1
    decode[(tokens, heads)](
        q, k_cache, v_cache, kv_indptr, kv_indices, output, lse, float(sm_scale), q.stride(0), q.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), v_cache.stride(0), v_cache.stride(1),
        v_cache.stride(2), output.stride(0), output.stride(1), lse.stride(0), lse.stride(1), TO_BASE,
        PAGE=k_cache.shape[1], SIZE=size, GROUP=heads // k_cache.shape[2])
'''
TO_BASE_2 = "1.4426950408889634"

# What C++ and CUDA share: pointers, and strides in elements. A call for one request and head.
HEADER = """\
#pragma once
#include <cstdint>

struct Decode {
  const void *q, *k_cache, *v_cache;
  const int32_t *kv_indptr, *kv_indices;
  void* output;
  float* lse;
  float scale;
  int64_t tokens, heads, kv_heads, size, page;
  int64_t q_token, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, o_token, o_head, l_token, l_head;
};
void launch(const Decode& decode, void* stream);
"""
# T is the element; each thread has a column, and scores are summed in shared memory.
CUDA = """\
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "decode.h"

using T = __nv_bfloat16;

__global__ void decode_kernel(Decode d) {
  extern __shared__ float products[];
  const int64_t request = blockIdx.x, head = blockIdx.y, column = threadIdx.x;
  const int64_t kv_head = head / (d.heads / d.kv_heads);
  const float query = __bfloat162float(
      static_cast<const T*>(d.q)[request * d.q_token + head * d.q_head + column]) * d.scale;
  float largest = -1e30f, total = 0, sum = 0;
  for (int32_t entry = d.kv_indptr[request]; entry < d.kv_indptr[request + 1]; ++entry) {
    const int64_t page = d.kv_indices[entry];
    for (int64_t slot = 0; slot < d.page; ++slot) {
      products[column] = query * __bfloat162float(static_cast<const T*>(
          d.k_cache)[page * d.k_page + slot * d.k_slot + kv_head * d.k_head + column]);
      __syncthreads();
      float score = 0;
      for (int64_t i = 0; i < d.size; ++i) score += products[i];
      __syncthreads();
      const float larger = fmaxf(largest, score);
      const float weight = expf(score - larger), shrink = expf(largest - larger);
      sum = sum * shrink + weight * __bfloat162float(static_cast<const T*>(
          d.v_cache)[page * d.v_page + slot * d.v_slot + kv_head * d.v_head + column]);
      total = total * shrink + weight;
      largest = larger;
    }
  }
  static_cast<T*>(d.output)[request * d.o_token + head * d.o_head + column] = __float2bfloat16(sum / total);
  if (column == 0) d.lse[request * d.l_token + head * d.l_head] = (largest + logf(total)) * TO_BASEf;
}

void launch(const Decode& d, void* stream) {
  const dim3 grid(static_cast<unsigned>(d.tokens), static_cast<unsigned>(d.heads));
  decode_kernel<<<grid, static_cast<unsigned>(d.size), d.size * sizeof(float),
                  static_cast<cudaStream_t>(stream)>>>(d);
}
"""
CPP = """\
#include <cmath>
#include <vector>
#include "decode.h"

void launch(const Decode& d, void*) {
  for (int64_t at = 0; at < d.tokens * d.heads; ++at) {
    const int64_t request = at / d.heads, head = at % d.heads, kv_head = head / (d.heads / d.kv_heads);
    const float* query = static_cast<const float*>(d.q) + request * d.q_token + head * d.q_head;
    std::vector<float> sums(d.size);
    float largest = -1e30f, total = 0;
    for (int32_t entry = d.kv_indptr[request]; entry < d.kv_indptr[request + 1]; ++entry) {
      for (int64_t slot = 0; slot < d.page; ++slot) {
        const int64_t page = d.kv_indices[entry];
        const float* key =
            static_cast<const float*>(d.k_cache) + page * d.k_page + slot * d.k_slot + kv_head * d.k_head;
        const float* value =
            static_cast<const float*>(d.v_cache) + page * d.v_page + slot * d.v_slot + kv_head * d.v_head;
        float score = 0;
        for (int64_t i = 0; i < d.size; ++i) score += query[i] * key[i];
        score *= d.scale;
        const float larger = std::fmax(largest, score);
        const float weight = std::exp(score - larger), shrink = std::exp(largest - larger);
        for (int64_t i = 0; i < d.size; ++i) sums[i] = sums[i] * shrink + weight * value[i];
        total = total * shrink + weight;
        largest = larger;
      }
    }
    float* output = static_cast<float*>(d.output) + request * d.o_token + head * d.o_head;
    for (int64_t i = 0; i < d.size; ++i) output[i] = sums[i] / total;
    d.lse[request * d.l_token + head * d.l_head] = (largest + std::log(total)) * TO_BASEf;
  }
}
"""
FILL = """\
  decode.scale = static_cast<float>(sm_scale);
  decode.tokens = q.size(0), decode.heads = q.size(1), decode.size = q.size(2);
  decode.page = k_cache.size(1), decode.kv_heads = k_cache.size(2);
  decode.q_token = q.stride(0), decode.q_head = q.stride(1);
  decode.k_page = k_cache.stride(0), decode.k_slot = k_cache.stride(1), decode.k_head = k_cache.stride(2);
  decode.v_page = v_cache.stride(0), decode.v_slot = v_cache.stride(1), decode.v_head = v_cache.stride(2);
  decode.o_token = output.stride(0), decode.o_head = output.stride(1);
  decode.l_token = lse.stride(0), decode.l_head = lse.stride(1);
"""
TORCH_BINDING = """\
#include <torch/extension.h>
INCLUDE_STREAM
#include "decode.h"

void run(torch::Tensor q, torch::Tensor k_cache, torch::Tensor v_cache, torch::Tensor kv_indptr,
         torch::Tensor kv_indices, double sm_scale, bool return_lse, torch::Tensor output, torch::Tensor lse) {
  TORCH_CHECK(return_lse && lse.dtype() == torch::kFloat && kv_indptr.dtype() == torch::kInt);
  Decode decode{q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), kv_indptr.data_ptr<int32_t>(),
                kv_indices.data_ptr<int32_t>(), output.data_ptr(), lse.data_ptr<float>()};
FILL
  launch(decode, STREAM);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("run", &run); }
"""
TVM_BINDING = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include "decode.h"

using tvm::ffi::TensorView;

void run(TensorView q, TensorView k_cache, TensorView v_cache, TensorView kv_indptr, TensorView kv_indices,
         double sm_scale, bool return_lse, TensorView output, TensorView lse) {
  Decode decode{q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(),
                static_cast<const int32_t*>(kv_indptr.data_ptr()),
                static_cast<const int32_t*>(kv_indices.data_ptr()), output.data_ptr(),
                static_cast<float*>(lse.data_ptr())};
FILL
  const DLDevice device = q.device();
  launch(decode, TVMFFIEnvGetStream(device.device_type, device.device_id));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""


def definition(dtype):
    """Of decodes over pages of 16, in the element type of the kernels: bfloat16 of those for a GPU, else float32."""
    of = decode_definition(PAGE)
    for tensor in (*of["inputs"].values(), *of["outputs"].values()):
        tensor["dtype"] = tensor["dtype"].replace("float32", dtype)
    of["outputs"]["lse"]["dtype"] = "float32"
    of["inputs"]["sm_scale"]["dtype"] = "float32"
    of["name"] = f"gqa_paged_decode_h4_kv{KV_HEADS}_d64_ps{PAGE}_{dtype}"
    return of


def triton(name, of, to_base=TO_BASE_2):
    return solution(name, of, TRITON.replace("TO_BASE", to_base), language="triton")


def compiled(name, of, language, binding, to_base=TO_BASE_2):
    """`language` is cuda or cpp, `binding` torch or tvm-ffi."""
    on_gpu = language == "cuda"
    text = (TORCH_BINDING if binding == "torch" else TVM_BINDING).replace("FILL\n", FILL)
    include = "#include <c10/cuda/CUDAStream.h>" if on_gpu else ""
    stream = "c10::cuda::getCurrentCUDAStream().stream()" if on_gpu else "nullptr"
    text = text.replace("INCLUDE_STREAM", include).replace("STREAM", stream)
    kernel = (CUDA if on_gpu else CPP).replace("TO_BASE", to_base)
    made = solution(name, of, "", language=language, binding=binding, entry_point="main.cpp::run")
    made["sources"] = [{"path": path, "content": content} for path, content in
                       (("main.cpp", text), ("decode.h", HEADER),
                        ("kernel.cu" if on_gpu else "kernel.cpp", kernel))]  # fmt: skip
    return made
