#include "measure/cuda_ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/numbers/dtype.h"
#include "gpu/cublas_lt.h"
#include "measure/measure.h"
#include "measure/memory_reader.h"

namespace attnbench {
namespace {

constexpr int kWarmUps = 3;
constexpr int kRepeats = 15;
/// Before each product. Why: back to back they meet the power limit, and are up to a tenth slower
/// than a kernel that is timed after a rest.
constexpr std::chrono::milliseconds kRest{5};
constexpr std::size_t kBufferBytes = std::size_t{2} << 30;
constexpr std::int64_t kMatrixSize = 8192;
/// Random values are drawn once and repeated: drawing all of them would take longer than measuring.
constexpr std::size_t kDrawnBytes = std::size_t{8} << 20;

/// Device memory without guard zones: nothing here writes by index.
class Memory {
 public:
  Memory(Runtime& runtime, std::size_t size_bytes)
      : runtime_(runtime), size_bytes_(size_bytes), data_(runtime.allocate(size_bytes)) {}
  ~Memory() { runtime_.release_memory(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

  /// Repeats `bytes` over the whole buffer.
  void fill(const std::vector<unsigned char>& bytes, const Stream& stream) {
    for (std::size_t at = 0; at < size_bytes_; at += bytes.size()) {
      runtime_.copy_to_device(static_cast<char*>(data_) + at, bytes.data(),
                              std::min(bytes.size(), size_bytes_ - at), stream.handle());
    }
  }

 private:
  Runtime& runtime_;
  std::size_t size_bytes_;
  void* data_;
};

Dtype dtype_of(MatrixType type) {
  switch (type) {
    case MatrixType::kF32:
      return Dtype::kF32;
    case MatrixType::kBF16:
      return Dtype::kBF16;
    case MatrixType::kF16:
      return Dtype::kF16;
    case MatrixType::kE4M3:
      return Dtype::kE4M3;
    case MatrixType::kI8:
      return Dtype::kI8;
    case MatrixType::kI32:
      return Dtype::kI32;
  }
  return Dtype::kBF16;
}

/// C = A @ B^T of square row-major matrices. The library counts by columns, so that it is
/// C^T = B @ A^T with rows of B first.
LtProduct square_product(MatrixType type) {
  MatrixType result = type;
  if (type == MatrixType::kE4M3) result = MatrixType::kBF16;
  if (type == MatrixType::kI8) result = MatrixType::kI32;
  LtProduct product;
  product.a = product.b = {type, kMatrixSize, kMatrixSize, kMatrixSize};
  product.d = {result, kMatrixSize, kMatrixSize, kMatrixSize};
  product.transpose_a = true;
  return product;
}

/// Why random: matrix units run faster on zeros than on the data of any user.
std::vector<unsigned char> random_elements(Dtype dtype) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, dtype == Dtype::kI8 ? 32.0f : 1.0f);
  std::vector<float> values(kDrawnBytes / dtype_size(dtype));
  for (float& value : values) value = normal(generator);
  std::vector<unsigned char> bytes(kDrawnBytes);
  store_floats(dtype, values.data(), static_cast<std::int64_t>(values.size()), bytes.data());
  return bytes;
}

class CeilingRun {
 public:
  CeilingRun(Runtime& runtime, const Stream& stream, KernelStore& kernels)
      : runtime_(runtime), stream_(stream), kernels_(kernels), first_(runtime), last_(runtime) {}

  CudaCeilings run(const WantedCeilings& wanted) {
    CudaCeilings ceilings;
    if (wanted.memory) memory_rates(ceilings);
    if (!wanted.products.empty()) matrix_rates(ceilings, wanted.products);
    return ceilings;
  }

 private:
  double median_us(const std::function<void()>& work,
                   std::chrono::milliseconds rest = std::chrono::milliseconds::zero()) {
    for (int i = 0; i < kWarmUps; ++i) work();
    std::vector<double> samples;
    for (int i = 0; i < kRepeats; ++i) {
      if (rest.count() > 0) {
        runtime_.synchronize(stream_.handle());
        std::this_thread::sleep_for(rest);
      }
      first_.record(stream_);
      work();
      last_.record(stream_);
      samples.push_back(Event::elapsed_us(first_, last_));
    }
    return summarize_samples(std::move(samples)).median_us;
  }

  void memory_rates(CudaCeilings& ceilings) {
    const Memory source(runtime_, kBufferBytes);
    const Memory target(runtime_, kBufferBytes);
    runtime_.fill(source.data(), MemoryReader::kByte, kBufferBytes, stream_.handle());
    constexpr double kBytes = static_cast<double>(kBufferBytes);
    const double copy_us = median_us([&] {
      runtime_.copy_on_device(target.data(), source.data(), kBufferBytes, stream_.handle());
    });
    ceilings.copy_gbps = 2e-3 * kBytes / copy_us;
    ceilings.read_gbps = 1e-3 * kBytes / read_us(source, /*streaming=*/false);
    ceilings.streaming_read_gbps = 1e-3 * kBytes / read_us(source, /*streaming=*/true);
  }

  double read_us(const Memory& source, bool streaming) {
    MemoryReader reader(runtime_, stream_, kernels_, streaming);
    return median_us([&] { reader.read(source.data(), kBufferBytes); });
  }

  void matrix_rates(CudaCeilings& ceilings, const std::set<MatrixType>& wanted) {
    const CublasLtChoice choice = open_cublas_lt(runtime_, stream_);
    if (!choice.library) {
      ceilings.missing.push_back("matrix rates: " + choice.missing);
      return;
    }
    struct Rate {
      const char* name;
      MatrixType type;
      double& rate;
    };
    const Rate rates[] = {{"float32", MatrixType::kF32, ceilings.fp32_tflops},
                          {"bfloat16", MatrixType::kBF16, ceilings.bf16_tflops},
                          {"float16", MatrixType::kF16, ceilings.fp16_tflops},
                          {"fp8", MatrixType::kE4M3, ceilings.fp8_tflops},
                          {"int8", MatrixType::kI8, ceilings.int8_tops}};
    for (const Rate& rate : rates) {
      if (!wanted.contains(rate.type)) continue;
      try {
        rate.rate = matrix_rate(*choice.library, rate.type);
      } catch (const DeviceError& error) {
        if (error.is_sticky()) throw;
        ceilings.missing.push_back(std::string(rate.name) + ": " + error.what());
      }
    }
  }

  double matrix_rate(CublasLt& library, MatrixType type) {
    constexpr std::size_t kElements = std::size_t{kMatrixSize} * kMatrixSize;
    Memory a(runtime_, kElements * dtype_size(dtype_of(type)));
    Memory b(runtime_, kElements * dtype_size(dtype_of(type)));
    const Memory c(runtime_, kElements * sizeof(float));
    const std::vector<unsigned char> values = random_elements(dtype_of(type));
    a.fill(values, stream_);
    b.fill(values, stream_);
    const std::unique_ptr<LtPlan> plan = library.plan(square_product(type));
    if (!plan) throw DeviceError("cuBLASLt has no algorithm for this product", false);
    const Memory workspace(runtime_, std::max<std::size_t>(plan->workspace_bytes(), 1));
    constexpr double kOperations = 2.0 * kMatrixSize * kMatrixSize * kMatrixSize;
    return 1e-6 * kOperations /
           median_us([&] { plan->run(b.data(), a.data(), c.data(), workspace.data()); }, kRest);
  }

  Runtime& runtime_;
  const Stream& stream_;
  KernelStore& kernels_;
  Event first_;
  Event last_;
};

}  // namespace

double CudaCeilings::memory_gbps() const {
  return std::max({copy_gbps, read_gbps, streaming_read_gbps});
}

CudaCeilings best_of(const CudaCeilings& a, const CudaCeilings& b) {
  CudaCeilings best = a;
  for (double CudaCeilings::*rate :
       {&CudaCeilings::copy_gbps, &CudaCeilings::read_gbps, &CudaCeilings::streaming_read_gbps,
        &CudaCeilings::fp32_tflops, &CudaCeilings::bf16_tflops, &CudaCeilings::fp16_tflops,
        &CudaCeilings::fp8_tflops, &CudaCeilings::int8_tops}) {
    best.*rate = std::max(a.*rate, b.*rate);
  }
  for (const std::string& missing : b.missing) {
    if (std::ranges::find(best.missing, missing) == best.missing.end()) {
      best.missing.push_back(missing);
    }
  }
  return best;
}

CudaCeilings measure_cuda_ceilings(Runtime& runtime, const Stream& stream, KernelStore& kernels,
                                   const WantedCeilings& wanted) {
  return CeilingRun(runtime, stream, kernels).run(wanted);
}

std::vector<KernelSpec> ceiling_specs() {
  return {MemoryReader::spec(false), MemoryReader::spec(true)};
}

std::vector<CudaDevice> list_cuda_devices(std::string& missing) {
  const DeviceList list = list_devices();
  missing = list.missing;
  std::vector<CudaDevice> devices;
  for (const DeviceInfo& info : list.devices) devices.push_back({info, {}});
  return devices;
}

void measure_ceilings(CudaDevice& device, const std::string& cache_dir) {
  const std::unique_ptr<Runtime> runtime = open_runtime(device.info.index);
  const std::unique_ptr<KernelStore> kernels = make_kernel_store(cache_dir);
  Stream stream(*runtime);
  device.ceilings = measure_cuda_ceilings(*runtime, stream, *kernels);
}

}  // namespace attnbench
