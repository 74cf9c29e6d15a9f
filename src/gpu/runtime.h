// The CUDA runtime as the program uses it: one device, behind an interface, so that what is built
// on it (guard zones, launches, errors) is tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "gpu/launch_shape.h"

namespace attnbench {

/// A call of CUDA that failed. Out of device memory is an Error of kind kCapacity instead.
class DeviceError : public Error {
 public:
  DeviceError(const std::string& message, bool is_sticky)
      : Error(ErrorKind::kCuda, message), is_sticky_(is_sticky) {}
  /// The device is lost to this process: every later call fails too.
  bool is_sticky() const { return is_sticky_; }

 private:
  bool is_sticky_;
};

struct DeviceInfo {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  int sm = 0;        // 10 * major + minor
  int num_sms = 0;   // multiprocessors
  std::size_t memory_bytes = 0;
  std::size_t l2_bytes = 0;
  int max_shared_bytes = 0;  // dynamic shared memory that one CTA may opt in to
  std::string pci_bus_id;    // "0000:1b:00.0"
  std::string driver;        // newest CUDA version that the driver serves, "13.0"
  std::string runtime;       // version of the runtime that is linked in, "13.0"
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string missing;  // why there are none, for people; empty when there are some
};

/// Every CUDA device that this process may use.
DeviceList list_devices();

/// Names of things that the runtime made; null = none.
using StreamHandle = struct OpaqueStream*;
using EventHandle = struct OpaqueEvent*;
using LibraryHandle = struct OpaqueLibrary*;
using KernelHandle = struct OpaqueKernel*;
using GraphHandle = struct OpaqueGraph*;

/// A limit of the device, or its flags: "persisting L2 bytes", 0.
struct DeviceSetting {
  std::string name;
  std::size_t value = 0;

  bool operator==(const DeviceSetting&) const = default;
};

/// One device. All calls throw DeviceError, or Error kCapacity where memory is short; release_*
/// never throw. Work on one stream is done in order; copies and fills are queued on the stream too.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const DeviceInfo& device() const = 0;

  virtual void* allocate(std::size_t size_bytes) = 0;  // aligned to 256 bytes
  virtual void release_memory(void* memory) = 0;
  /// Memory with a mapping of its own has this size, or a multiple of it; 0 = the driver has none.
  virtual std::size_t map_granule() = 0;
  /// `size_bytes`, a multiple of map_granule(), between two granules of addresses without memory.
  virtual void* map(std::size_t size_bytes) = 0;
  virtual void unmap(void* memory) = 0;  // of map(); null is nothing
  /// Open: memory that nobody needs is mapped in the granules on both sides, so that an access
  /// there is none to an illegal address. The device must be idle.
  virtual void set_fences(void* memory, bool closed) = 0;
  /// The source may be reused when these return.
  virtual void copy_to_device(void* destination, const void* source, std::size_t size_bytes,
                              StreamHandle stream) = 0;
  /// The destination holds the bytes when this returns.
  virtual void copy_to_host(void* destination, const void* source, std::size_t size_bytes,
                            StreamHandle stream) = 0;
  /// From device memory to device memory.
  virtual void copy_on_device(void* destination, const void* source, std::size_t size_bytes,
                              StreamHandle stream) = 0;
  virtual void fill(void* destination, unsigned char byte, std::size_t size_bytes,
                    StreamHandle stream) = 0;

  virtual StreamHandle create_stream() = 0;
  virtual void release_stream(StreamHandle stream) = 0;
  virtual void synchronize(StreamHandle stream) = 0;

  virtual EventHandle create_event() = 0;
  virtual void release_event(EventHandle event) = 0;
  virtual void record(EventHandle event, StreamHandle stream) = 0;
  /// What is queued on the stream from now on waits for what the event was recorded behind.
  virtual void wait_for(EventHandle event, StreamHandle stream) = 0;
  /// Waits until `last` has happened.
  virtual double elapsed_us(EventHandle first, EventHandle last) = 0;

  /// `cubin` is machine code of this device's architecture.
  virtual LibraryHandle load_library(const std::string& cubin) = 0;
  virtual void release_library(LibraryHandle library) = 0;
  /// `name` as in the object file (lowered). Lives as long as the library.
  virtual KernelHandle find_kernel(LibraryHandle library, const std::string& name) = 0;
  /// Must be called before a launch with more than 48 KiB of dynamic shared memory.
  virtual void allow_shared_memory(KernelHandle kernel, int shared_bytes) = 0;
  /// `arguments` point to the parameters, which are copied.
  virtual void launch(KernelHandle kernel, const LaunchShape& shape, const void* const* arguments,
                      StreamHandle stream) = 0;

  /// Host memory that the device reads and writes at the same address.
  virtual void* allocate_pinned(std::size_t size_bytes) = 0;
  virtual void release_pinned(void* memory) = 0;
  /// What is queued on the stream from now on waits until the pinned `word` is at least `value`.
  /// False, and nothing is queued, where the driver cannot do that.
  virtual bool hold(StreamHandle stream, std::uint32_t* word, std::uint32_t value) = 0;

  /// What is queued on the stream between the two is recorded and does not run. The graph can be
  /// launched any number of times.
  virtual void begin_capture(StreamHandle stream) = 0;
  virtual GraphHandle end_capture(StreamHandle stream) = 0;
  virtual void launch_graph(GraphHandle graph, StreamHandle stream) = 0;
  virtual void release_graph(GraphHandle graph) = 0;  // null is nothing

  /// Lines of the second-level cache that were asked to persist become ordinary ones, and no more
  /// of it is set aside for such.
  virtual void forget_persisting_l2() = 0;
  /// The settings of the device in this process, by name, in a fixed order.
  virtual std::vector<DeviceSetting> settings() = 0;
  /// Sets them again to what settings() said; those that cannot be set any more stay.
  virtual void restore(const std::vector<DeviceSetting>& settings) = 0;

  /// Entry point of the driver for this version of CUDA, e.g. "cuTensorMapEncodeTiled"; null when
  /// the driver does not have it.
  virtual void* driver_function(const std::string& name) = 0;
};

/// Errors: kCuda naming what is missing (driver, device `index`, the CUDA toolkit when building).
std::unique_ptr<Runtime> open_runtime(int index);

/// Makes the CUDA device of the calling thread current again that was so at its construction: the
/// code of a plugin or of a library may leave another one current. Where `is_cuda` is false it
/// touches nothing.
class KeepDevice {
 public:
  explicit KeepDevice(bool is_cuda);
  ~KeepDevice();
  KeepDevice(const KeepDevice&) = delete;
  KeepDevice& operator=(const KeepDevice&) = delete;

 private:
  int index_ = -1;  // none
};

}  // namespace attnbench
