// The runtime of the CUDA toolkit, linked statically; the driver is found when it is first called.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "gpu/runtime.h"
#include "gpu/staged_copies.h"
#include "gpu/tensor_map.h"
#include "gpu/toolkit/memory_map.h"

namespace attnbench {
namespace {

static_assert(sizeof(EncodedTensorMap) == sizeof(CUtensorMap));
static_assert(alignof(EncodedTensorMap) >= alignof(CUtensorMap));
static_assert(tensor_data_type(Dtype::kU8) == CU_TENSOR_MAP_DATA_TYPE_UINT8);
static_assert(tensor_data_type(Dtype::kI32) == CU_TENSOR_MAP_DATA_TYPE_INT32);
static_assert(tensor_data_type(Dtype::kI64) == CU_TENSOR_MAP_DATA_TYPE_INT64);
static_assert(tensor_data_type(Dtype::kF16) == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
static_assert(tensor_data_type(Dtype::kF32) == CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
static_assert(tensor_data_type(Dtype::kF64) == CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
static_assert(tensor_data_type(Dtype::kBF16) == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
static_assert(static_cast<int>(TensorSwizzle::k128Bytes) == CU_TENSOR_MAP_SWIZZLE_128B);
static_assert(static_cast<int>(TensorSwizzle::k64Bytes) == CU_TENSOR_MAP_SWIZZLE_64B);
static_assert(static_cast<int>(TensorSwizzle::k32Bytes) == CU_TENSOR_MAP_SWIZZLE_32B);
static_assert(static_cast<int>(TensorPromotion::k256Bytes) == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
static_assert(static_cast<int>(TensorPromotion::k128Bytes) == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
static_assert(static_cast<int>(TensorPromotion::k64Bytes) == CU_TENSOR_MAP_L2_PROMOTION_L2_64B);

/// What a launch needs beside its extents. `attributes` has room for all of them.
unsigned set_attributes(const LaunchShape& shape, int sm,
                        std::array<cudaLaunchAttribute, 2>& attributes) {
  unsigned count = 0;
  if (shape.overlaps_previous && sm >= 90) {
    cudaLaunchAttribute& overlap = attributes[count++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.has_clusters()) {
    cudaLaunchAttribute& cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster_x);
    cluster.val.clusterDim.y = static_cast<unsigned>(shape.cluster_y);
    cluster.val.clusterDim.z = static_cast<unsigned>(shape.cluster_z);
  }
  return count;
}

/// Errors that leave the context unusable; every later call repeats them.
bool is_sticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

/// Throws for anything but success; `call` is what was being done.
void check(cudaError_t code, std::string_view call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // a plain error is reported once
  const std::string message =
      fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code));
  if (code == cudaErrorMemoryAllocation) throw Error(ErrorKind::kCapacity, message);
  throw DeviceError(message, is_sticky(code));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

DeviceInfo describe(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  DeviceInfo info;
  info.index = index;
  info.name = properties.name;
  info.sm = 10 * properties.major + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  info.l2_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize, index));
  info.max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  info.pci_bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                properties.pciBusID, properties.pciDeviceID);
  info.driver = version_text(driver);
  info.runtime = version_text(runtime);
  return info;
}

/// Handles of the runtime pass through the opaque types of runtime.h.
cudaStream_t native(StreamHandle stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t native(EventHandle event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaLibrary_t native(LibraryHandle library) { return reinterpret_cast<cudaLibrary_t>(library); }
cudaKernel_t native(KernelHandle kernel) { return reinterpret_cast<cudaKernel_t>(kernel); }

constexpr const char* kFlags = "device flags";
constexpr std::pair<const char*, cudaLimit> kLimits[] = {
    {"persisting L2 bytes", cudaLimitPersistingL2CacheSize},
    {"L2 fetch granularity", cudaLimitMaxL2FetchGranularity},
    {"stack bytes", cudaLimitStackSize},
    {"printf buffer bytes", cudaLimitPrintfFifoSize},
    {"malloc heap bytes", cudaLimitMallocHeapSize}};

/// A stream as StagedCopies uses it. Its events live as long as it does.
class StreamCopies final : public CopyQueue {
 public:
  StreamCopies(cudaStream_t stream, std::array<cudaEvent_t, 2>& events)
      : stream_(stream), events_(events) {
    for (cudaEvent_t& event : events_) {
      if (event != nullptr) continue;
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  void* allocate_pinned(std::size_t size_bytes) override {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return memory;
  }
  void release_pinned(void* memory) override { cudaFreeHost(memory); }
  void copy(void* destination, const void* source, std::size_t size_bytes) override {
    check(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDefault, stream_),
          "cudaMemcpyAsync of pinned memory");
  }
  void mark(int half) override { check(cudaEventRecord(event(half), stream_), "cudaEventRecord"); }
  void wait(int half) override { check(cudaEventSynchronize(event(half)), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event(int half) const { return events_[static_cast<std::size_t>(half)]; }

  cudaStream_t stream_;
  std::array<cudaEvent_t, 2>& events_;
};

class CudaRuntime final : public Runtime {
 public:
  explicit CudaRuntime(DeviceInfo device) : device_(std::move(device)) {
    check(cudaSetDevice(device_.index), "cudaSetDevice");
  }
  ~CudaRuntime() override {
    if (copy_events_[0] == nullptr) return;
    StreamCopies queue(nullptr, copy_events_);
    copies_.release(queue);
    for (const cudaEvent_t event : copy_events_) cudaEventDestroy(event);
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;
  const DeviceInfo& device() const override { return device_; }

  void* allocate(std::size_t size_bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, size_bytes), "cudaMalloc");
    return memory;
  }
  void release_memory(void* memory) override { cudaFree(memory); }
  std::size_t map_granule() override { return mappings_.granule(); }
  void* map(std::size_t size_bytes) override { return mappings_.map(size_bytes); }
  void unmap(void* memory) override { mappings_.unmap(memory); }
  void set_fences(void* memory, bool closed) override { mappings_.set_fences(memory, closed); }

  void copy_to_device(void* destination, const void* source, std::size_t size_bytes,
                      StreamHandle stream) override {
    if (size_bytes >= StagedCopies::kWorthwhile) {
      StreamCopies queue(native(stream), copy_events_);
      copies_.to_device(queue, destination, source, size_bytes);
      return synchronize(stream);
    }
    check(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyHostToDevice, native(stream)),
          "cudaMemcpyAsync to the device");
    // Why: the source may be pageable memory of a moment, or pinned and read later.
    synchronize(stream);
  }
  void copy_to_host(void* destination, const void* source, std::size_t size_bytes,
                    StreamHandle stream) override {
    if (size_bytes >= StagedCopies::kWorthwhile) {
      StreamCopies queue(native(stream), copy_events_);
      return copies_.to_host(queue, destination, source, size_bytes);
    }
    check(cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDeviceToHost, native(stream)),
          "cudaMemcpyAsync to the host");
    synchronize(stream);
  }
  void copy_on_device(void* destination, const void* source, std::size_t size_bytes,
                      StreamHandle stream) override {
    check(
        cudaMemcpyAsync(destination, source, size_bytes, cudaMemcpyDeviceToDevice, native(stream)),
        "cudaMemcpyAsync on the device");
  }
  void fill(void* destination, unsigned char byte, std::size_t size_bytes,
            StreamHandle stream) override {
    check(cudaMemsetAsync(destination, byte, size_bytes, native(stream)), "cudaMemsetAsync");
  }

  StreamHandle create_stream() override {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return reinterpret_cast<StreamHandle>(stream);
  }
  void release_stream(StreamHandle stream) override { cudaStreamDestroy(native(stream)); }
  void synchronize(StreamHandle stream) override {
    check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
  }

  EventHandle create_event() override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return reinterpret_cast<EventHandle>(event);
  }
  void release_event(EventHandle event) override { cudaEventDestroy(native(event)); }
  void record(EventHandle event, StreamHandle stream) override {
    check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord");
  }
  void wait_for(EventHandle event, StreamHandle stream) override {
    check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
  }
  double elapsed_us(EventHandle first, EventHandle last) override {
    float milliseconds = 0;
    check(cudaEventSynchronize(native(last)), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, native(first), native(last)), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

  LibraryHandle load_library(const std::string& cubin) override {
    cudaLibrary_t library = nullptr;
    check(cudaLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          "cudaLibraryLoadData");
    return reinterpret_cast<LibraryHandle>(library);
  }
  void release_library(LibraryHandle library) override { cudaLibraryUnload(native(library)); }
  KernelHandle find_kernel(LibraryHandle library, const std::string& name) override {
    cudaKernel_t kernel = nullptr;
    check(cudaLibraryGetKernel(&kernel, native(library), name.c_str()), "cudaLibraryGetKernel");
    return reinterpret_cast<KernelHandle>(kernel);
  }
  void allow_shared_memory(KernelHandle kernel, int shared_bytes) override {
    check(cudaFuncSetAttribute(native(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes),
          "cudaFuncSetAttribute");
  }
  void launch(KernelHandle kernel, const LaunchShape& shape, const void* const* arguments,
              StreamHandle stream) override {
    cudaLaunchConfig_t config{};
    config.gridDim = {static_cast<unsigned>(shape.grid_x), static_cast<unsigned>(shape.grid_y),
                      static_cast<unsigned>(shape.grid_z)};
    config.blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
    config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
    config.stream = native(stream);
    std::array<cudaLaunchAttribute, 2> attributes{};
    config.attrs = attributes.data();
    config.numAttrs = set_attributes(shape, device_.sm, attributes);
    // Why the cast: the parameters are read, whatever the type says.
    check(cudaLaunchKernelExC(&config, native(kernel), const_cast<void**>(arguments)),
          "cudaLaunchKernelExC");
  }

  void* allocate_pinned(std::size_t size_bytes) override {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, size_bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return memory;
  }
  void release_pinned(void* memory) override { cudaFreeHost(memory); }
  bool hold(StreamHandle stream, std::uint32_t* word, std::uint32_t value) override {
    // Why by hand: the type is the driver's, whose header the runtime does not include.
    using Wait = decltype(wait_);
    constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    if (!asked_for_wait_) {
      wait_ = reinterpret_cast<Wait>(driver_function("cuStreamWaitValue32"));
      asked_for_wait_ = true;
    }
    if (wait_ == nullptr) return false;
    const auto address = reinterpret_cast<unsigned long long>(word);
    return wait_(native(stream), address, value, kAtLeast) == 0;
  }

  void begin_capture(StreamHandle stream) override {
    check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
  }
  GraphHandle end_capture(StreamHandle stream) override {
    cudaGraph_t recorded = nullptr;
    check(cudaStreamEndCapture(native(stream), &recorded), "cudaStreamEndCapture");
    cudaGraphExec_t graph = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&graph, recorded, 0);
    cudaGraphDestroy(recorded);
    check(code, "cudaGraphInstantiate");
    return reinterpret_cast<GraphHandle>(graph);
  }
  void launch_graph(GraphHandle graph, StreamHandle stream) override {
    check(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), native(stream)),
          "cudaGraphLaunch");
  }
  void release_graph(GraphHandle graph) override {
    if (graph != nullptr) cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph));
  }

  void forget_persisting_l2() override {
    std::size_t set_aside = 0;
    // A device without such lines has no such limit.
    if (cudaDeviceGetLimit(&set_aside, cudaLimitPersistingL2CacheSize) != cudaSuccess) {
      cudaGetLastError();
      return;
    }
    // Why always: lines that persist already do so whatever the limit is by now.
    if (cudaCtxResetPersistingL2Cache() != cudaSuccess) cudaGetLastError();
    if (set_aside == 0) return;
    check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0), "cudaDeviceSetLimit");
  }
  std::vector<DeviceSetting> settings() override {
    std::vector<DeviceSetting> found;
    for (const auto& [name, limit] : kLimits) {
      std::size_t value = 0;
      if (cudaDeviceGetLimit(&value, limit) == cudaSuccess) found.push_back({name, value});
    }
    unsigned flags = 0;
    if (cudaGetDeviceFlags(&flags) == cudaSuccess) found.push_back({kFlags, flags});
    cudaGetLastError();  // a limit that this device does not know
    return found;
  }
  void restore(const std::vector<DeviceSetting>& settings) override {
    const std::vector<DeviceSetting> now = this->settings();
    for (const DeviceSetting& setting : settings) {
      // Why: some may be set only before anything runs, and are refused also as they are.
      if (std::find(now.begin(), now.end(), setting) != now.end()) continue;
      for (const auto& [name, limit] : kLimits) {
        if (setting.name == name) cudaDeviceSetLimit(limit, setting.value);
      }
      if (setting.name == kFlags) cudaSetDeviceFlags(static_cast<unsigned>(setting.value));
    }
    cudaGetLastError();
  }

  void* driver_function(const std::string& name) override {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion(name.c_str(), &function, CUDART_VERSION,
                                           cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    return found == cudaDriverEntryPointSuccess ? function : nullptr;
  }

 private:
  DeviceInfo device_;
  StagedCopies copies_;
  std::array<cudaEvent_t, 2> copy_events_{};
  MemoryMap mappings_{device_.index,
                      [this](const std::string& name) { return driver_function(name); }};
  bool asked_for_wait_ = false;
  int (*wait_)(cudaStream_t, unsigned long long, std::uint32_t, unsigned) = nullptr;
};

/// Why cudaGetDeviceCount failed or found nothing.
std::string why_no_device(cudaError_t code) {
  int driver = 0;
  // The runtime answers 0 where libcuda.so.1 is not there.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no CUDA device: the NVIDIA driver (libcuda.so.1) was not found";
  }
  if (code == cudaErrorInsufficientDriver) {
    return fmt::format("no CUDA device: the NVIDIA driver serves CUDA {}, which is too old for {}",
                       version_text(driver), version_text(CUDART_VERSION));
  }
  if (code == cudaSuccess || code == cudaErrorNoDevice) {
    return "no CUDA device: the NVIDIA driver lists none";
  }
  return fmt::format("no CUDA device: {} ({})", cudaGetErrorString(code), cudaGetErrorName(code));
}

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();
    list.missing = why_no_device(code);
    return list;
  }
  for (int index = 0; index < count; ++index) list.devices.push_back(describe(index));
  return list;
}

std::unique_ptr<Runtime> open_runtime(int index) {
  const DeviceList list = list_devices();
  if (list.devices.empty()) throw DeviceError(list.missing, false);
  if (index < 0 || index >= static_cast<int>(list.devices.size())) {
    throw DeviceError(fmt::format("cuda:{}: there are {} CUDA devices", index, list.devices.size()),
                      false);
  }
  return std::make_unique<CudaRuntime>(list.devices[static_cast<std::size_t>(index)]);
}

KeepDevice::KeepDevice(bool is_cuda) {
  if (is_cuda && cudaGetDevice(&index_) != cudaSuccess) index_ = -1;
}

KeepDevice::~KeepDevice() {
  int now = index_;
  if (index_ >= 0 && cudaGetDevice(&now) == cudaSuccess && now != index_) cudaSetDevice(index_);
}

}  // namespace attnbench
