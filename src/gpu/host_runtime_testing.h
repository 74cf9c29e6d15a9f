// A runtime whose device is host memory, for tests: it records launches and fails when told to.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/runtime.h"

namespace attnbench {

/// Plays cuTensorMapEncodeTiled: the address becomes the first word of the map.
inline int play_tensor_map_encode(void* map, int, std::uint32_t, void* address,
                                  const std::uint64_t*, const std::uint64_t*, const std::uint32_t*,
                                  const std::uint32_t*, int, int, int, int) {
  std::memcpy(map, &address, sizeof address);
  return 0;
}

class HostRuntime : public Runtime {
 public:
  struct Launch {
    std::string kernel;
    LaunchShape shape;
  };

  HostRuntime() {
    device_.name = "host memory";
    device_.sm = 90;
    device_.num_sms = 132;
    device_.max_shared_bytes = 232448;
  }
  ~HostRuntime() override {
    for (auto& [memory, size] : allocations) std::free(memory);
    for (auto& [memory, mapping] : mappings) std::free(memory);
  }
  HostRuntime(const HostRuntime&) = delete;
  HostRuntime& operator=(const HostRuntime&) = delete;

  const DeviceInfo& device() const override { return device_; }
  void* allocate(std::size_t size_bytes) override {
    if (size_bytes > memory_limit) fail(ErrorKind::kCapacity, "out of memory");
    constexpr std::size_t kAlignment = 256;
    void* memory =
        std::aligned_alloc(kAlignment, (size_bytes + kAlignment - 1) / kAlignment * kAlignment);
    allocations[memory] = size_bytes;
    return memory;
  }
  void release_memory(void* memory) override {
    allocations.erase(memory);
    std::free(memory);
  }
  std::size_t map_granule() override { return granule; }
  /// As allocate(), on a granule.
  void* map(std::size_t size_bytes) override {
    if (size_bytes > memory_limit) fail(ErrorKind::kCapacity, "out of memory");
    void* memory = std::aligned_alloc(granule, size_bytes);
    mappings[memory] = {size_bytes, true};
    return memory;
  }
  void unmap(void* memory) override {
    mappings.erase(memory);
    std::free(memory);
  }
  void set_fences(void* memory, bool closed) override { mappings.at(memory).closed = closed; }
  void copy_to_device(void* destination, const void* source, std::size_t size_bytes,
                      StreamHandle) override {
    std::memcpy(destination, source, size_bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t size_bytes,
                    StreamHandle) override {
    std::memcpy(destination, source, size_bytes);
  }
  void copy_on_device(void* destination, const void* source, std::size_t size_bytes,
                      StreamHandle) override {
    std::memcpy(destination, source, size_bytes);
  }
  void fill(void* destination, unsigned char byte, std::size_t size_bytes, StreamHandle) override {
    std::memset(destination, byte, size_bytes);
  }
  StreamHandle create_stream() override { return nullptr; }
  void release_stream(StreamHandle) override {}
  void synchronize(StreamHandle) override {
    if (!sticky_error.empty()) throw DeviceError(sticky_error, true);
  }
  EventHandle create_event() override { return nullptr; }
  void release_event(EventHandle) override {}
  void record(EventHandle, StreamHandle) override {}
  void wait_for(EventHandle, StreamHandle) override {}
  double elapsed_us(EventHandle, EventHandle) override { return 0; }
  LibraryHandle load_library(const std::string& cubin) override {
    loaded.push_back(cubin);
    return nullptr;
  }
  void release_library(LibraryHandle) override {}
  KernelHandle find_kernel(LibraryHandle, const std::string& name) override {
    names.push_back(name);
    return reinterpret_cast<KernelHandle>(names.size());
  }
  void allow_shared_memory(KernelHandle, int shared_bytes) override {
    allowed_shared.push_back(shared_bytes);
  }
  void launch(KernelHandle kernel, const LaunchShape& shape, const void* const* arguments,
              StreamHandle) override {
    if (!launch_error.empty()) throw DeviceError(launch_error, false);
    launches.push_back({names[reinterpret_cast<std::size_t>(kernel) - 1], shape});
    if (on_launch) on_launch(arguments);
  }
  void* allocate_pinned(std::size_t size_bytes) override { return allocate(size_bytes); }
  void release_pinned(void* memory) override { release_memory(memory); }
  bool hold(StreamHandle, std::uint32_t*, std::uint32_t) override { return false; }
  void begin_capture(StreamHandle) override {}
  GraphHandle end_capture(StreamHandle) override { return nullptr; }
  void launch_graph(GraphHandle, StreamHandle) override {}
  void release_graph(GraphHandle) override {}
  void forget_persisting_l2() override { device_settings[0].value = 0; }
  std::vector<DeviceSetting> settings() override { return device_settings; }
  void restore(const std::vector<DeviceSetting>& settings) override { device_settings = settings; }
  void* driver_function(const std::string& name) override {
    const auto found = driver_functions.find(name);
    return found == driver_functions.end() ? nullptr : found->second;
  }

  struct Mapping {
    std::size_t size_bytes = 0;
    bool closed = true;  // what is beyond it
  };

  std::map<void*, std::size_t> allocations;
  std::map<void*, Mapping> mappings;
  std::size_t granule = 65536;
  std::size_t memory_limit = std::size_t{1} << 30;
  std::vector<std::string> loaded;  // cubins
  std::vector<std::string> names;   // of kernels
  std::vector<int> allowed_shared;
  std::vector<Launch> launches;
  std::function<void(const void* const*)> on_launch;  // plays the kernel
  std::map<std::string, void*> driver_functions;      // by name; others are not in the driver
  std::vector<DeviceSetting> device_settings{{"persisting L2 bytes", 0}, {"stack bytes", 1024}};
  std::string launch_error;
  std::string sticky_error;

 private:
  DeviceInfo device_;
};

}  // namespace attnbench
