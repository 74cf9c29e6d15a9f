// The CUDA example with a fault behind its kernel, a backend each.
#include "attnbench_backend.h"

#define attnbench_backend naive_backend
#include "naive_attention.cu"
#undef attnbench_backend

namespace {

enum class Kind { kWrong, kOverrun, kCrash, kHang, kDefaultStream };

struct Variant {
  const char* name;
  Kind kind;
};

constexpr Variant kVariants[] = {{"CUDA_WRONG", Kind::kWrong},
                                 {"CUDA_OVERRUN", Kind::kOverrun},
                                 {"CUDA_CRASHES", Kind::kCrash},
                                 {"CUDA_HANGS", Kind::kHang},
                                 {"CUDA_DEFAULT_STREAM", Kind::kDefaultStream},
                                 {"CUDA_WAITS", Kind::kWaits}};

struct Faulty {
  Kind kind;
  void* naive;
  char* output;
  int64_t row_bytes, size_bytes;
};

__global__ void write_byte(char* place, char value) { *place = value; }

__global__ void never_end() {
  for (volatile int i = 0;; i = 1 - i) {
  }
}

const char* faulty_prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                           const AttnbenchTensors* tensors, const AttnbenchHost* host,
                           void** state) {
  const AttnbenchTensor& output = *tensors->output;
  const int64_t row_bytes = output.shape[1] * output.shape[2] * output.dtype.bits / 8;
  auto* faulty =
      new Faulty{static_cast<const Variant*>(self->user)->kind, nullptr,
                 static_cast<char*>(output.data), row_bytes, output.shape[0] * row_bytes};
  *state = faulty;
  return prepare(self, problem, tensors, host, &faulty->naive);
}

const char* faulty_run(void* state, void* stream) {
  const Faulty& faulty = *static_cast<Faulty*>(state);
  if (faulty.kind == Kind::kDefaultStream) return run(faulty.naive, nullptr);
  if (const char* error = run(faulty.naive, stream)) return error;
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (faulty.kind) {
    case Kind::kWrong:  // the high byte of the last number
      write_byte<<<1, 1, 0, queue>>>(faulty.output + faulty.size_bytes - 1, 0x42);
      break;
    case Kind::kOverrun:  // behind the three rows of padding
      write_byte<<<1, 1, 0, queue>>>(faulty.output + faulty.size_bytes + 3 * faulty.row_bytes, 0);
      break;
    case Kind::kCrash:
      write_byte<<<1, 1, 0, queue>>>(nullptr, 0);
      break;
    case Kind::kHang:
      never_end<<<1, 1, 0, queue>>>();
      break;
    case Kind::kWaits:
      cudaStreamSynchronize(queue);
      break;
    case Kind::kDefaultStream:  // above
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

void faulty_destroy(void* state) {
  auto* faulty = static_cast<Faulty*>(state);
  destroy(faulty->naive);
  delete faulty;
}

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  constexpr uint32_t kCount = sizeof kVariants / sizeof kVariants[0];
  static AttnbenchBackend tables[kCount];
  if (index >= kCount) return nullptr;
  AttnbenchBackend& table = tables[index];
  table = *naive_backend(0);
  table.name = kVariants[index].name;
  table.user = &kVariants[index];
  table.prepare = faulty_prepare;
  table.run = faulty_run;
  table.destroy = faulty_destroy;
  return &table;
}
