// The CUDA example with a fault behind its kernel, a backend each.
#include "attnbench_backend.h"

#define attnbench_backend naive_backend
#include "naive_attention.cu"
#undef attnbench_backend

namespace {

enum class Kind {
  kWrong,
  kOverrun,
  kFarOverrun,
  kOverread,
  kCrash,
  kHang,
  kDefaultStream,
  kWaits,
  // What only a timed sample can show: right in the first runs, which are not timed.
  kLaterDefaultStream,
  kLaterOwnStream,  // waits for a stream of its own, and copies on the given one
  kLaterUnjoined,   // a stream of its own, for which nobody waits
  kNotRecorded,     // nothing while a graph is captured
};

struct Variant {
  const char* name;
  Kind kind;
};

constexpr Variant kVariants[] = {{"CUDA_WRONG", Kind::kWrong},
                                 {"CUDA_OVERRUN", Kind::kOverrun},
                                 {"CUDA_FAR_OVERRUN", Kind::kFarOverrun},
                                 {"CUDA_OVERREAD", Kind::kOverread},
                                 {"CUDA_CRASHES", Kind::kCrash},
                                 {"CUDA_HANGS", Kind::kHang},
                                 {"CUDA_DEFAULT_STREAM", Kind::kDefaultStream},
                                 {"CUDA_WAITS", Kind::kWaits},
                                 {"CUDA_LATER_DEFAULT_STREAM", Kind::kLaterDefaultStream},
                                 {"CUDA_LATER_OWN_STREAM", Kind::kLaterOwnStream},
                                 {"CUDA_LATER_UNJOINED", Kind::kLaterUnjoined},
                                 {"CUDA_NOT_RECORDED", Kind::kNotRecorded}};

/// Runs before the cheats begin: more than those that close the edges of one buffer after another.
constexpr int kLater = 20;

struct Faulty {
  Kind kind;
  void* naive;
  char* output;
  int64_t row_bytes, size_bytes;
  const volatile int* past_seq_lens;  // where the next vector of any width begins
  cudaStream_t own = nullptr;
  char* kept = nullptr;  // [size_bytes]
  int runs = 0;
};

__global__ void write_byte(char* place, char value) { *place = value; }

/// The value is used, so that it is read, and changes nothing.
__global__ void read_word(const volatile int* place, char* output) {
  if (*place == 0x12345678) *output = 0;
}

__global__ void never_end() {
  for (volatile int i = 0;; i = 1 - i) {
  }
}

const char* faulty_prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                           const AttnbenchTensors* tensors, const AttnbenchHost* host,
                           void** state) {
  const AttnbenchTensor& output = *tensors->output;
  const int64_t row_bytes = output.shape[1] * output.shape[2] * output.dtype.bits / 8;
  auto* faulty = new Faulty{static_cast<const Variant*>(self->user)->kind,
                            nullptr,
                            static_cast<char*>(output.data),
                            row_bytes,
                            output.shape[0] * row_bytes,
                            static_cast<const volatile int*>(tensors->seq_lens->data) + 64};
  *state = faulty;
  cudaStreamCreateWithFlags(&faulty->own, cudaStreamNonBlocking);
  faulty->kept = static_cast<char*>(
      host->allocate(host, static_cast<size_t>(faulty->size_bytes), "kept output"));
  return prepare(self, problem, tensors, host, &faulty->naive);
}

/// What a variant does in place of its run; false: nothing.
bool cheats(Faulty& faulty, cudaStream_t queue) {
  if (faulty.kind == Kind::kNotRecorded) {
    cudaStreamCaptureStatus status{};
    cudaStreamIsCapturing(queue, &status);
    return status == cudaStreamCaptureStatusActive;
  }
  if (faulty.runs++ < kLater) return false;
  switch (faulty.kind) {
    case Kind::kLaterDefaultStream:
      run(faulty.naive, nullptr);
      return true;
    case Kind::kLaterUnjoined:
      run(faulty.naive, faulty.own);
      return true;
    case Kind::kLaterOwnStream:
      run(faulty.naive, faulty.own);
      cudaMemcpyAsync(faulty.kept, faulty.output, static_cast<size_t>(faulty.size_bytes),
                      cudaMemcpyDeviceToDevice, faulty.own);
      cudaStreamSynchronize(faulty.own);
      cudaMemcpyAsync(faulty.output, faulty.kept, static_cast<size_t>(faulty.size_bytes),
                      cudaMemcpyDeviceToDevice, queue);
      return true;
    default:
      return false;
  }
}

const char* faulty_run(void* state, void* stream) {
  Faulty& faulty = *static_cast<Faulty*>(state);
  if (cheats(faulty, static_cast<cudaStream_t>(stream))) return nullptr;
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
    case Kind::kFarOverrun:
      write_byte<<<1, 1, 0, queue>>>(
          faulty.output + faulty.size_bytes + 3 * faulty.row_bytes + 65536, 0);
      break;
    case Kind::kOverread:
      read_word<<<1, 1, 0, queue>>>(faulty.past_seq_lens, faulty.output);
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
    default:  // above
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

void faulty_destroy(void* state) {
  auto* faulty = static_cast<Faulty*>(state);
  destroy(faulty->naive);
  cudaStreamDestroy(faulty->own);
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
