// Device memory with a mapping of its own, by the driver's virtual memory management.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace attnbench {

/// Runtime's map(), unmap() and set_fences() for device `index`, whose primary context is current.
/// Errors: those of Runtime.
class MemoryMap {
 public:
  /// `find` gives functions of the driver by name, null where it has none of that name.
  MemoryMap(int index, std::function<void*(const std::string& name)> find)
      : index_(index), find_(std::move(find)) {}
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  std::size_t granule();
  void* map(std::size_t size_bytes);
  void unmap(void* memory);
  void set_fences(void* memory, bool closed);

 private:
  struct Mapping {
    CUmemGenericAllocationHandle memory = 0;
    std::size_t size_bytes = 0;  // without the fences
    bool closed = true;
  };
  struct Driver {
    decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&cuMemAddressReserve) reserve = nullptr;
    decltype(&cuMemAddressFree) free = nullptr;
    decltype(&cuMemCreate) create = nullptr;
    decltype(&cuMemRelease) release = nullptr;
    decltype(&cuMemMap) map = nullptr;
    decltype(&cuMemUnmap) unmap = nullptr;
    decltype(&cuMemSetAccess) set_access = nullptr;
  };

  CUmemAllocationProp properties() const;
  bool find_driver();
  void map_at(CUdeviceptr address, std::size_t size_bytes, CUmemGenericAllocationHandle memory);

  int index_;
  std::function<void*(const std::string& name)> find_;
  Driver driver_;
  std::size_t granule_ = 0;
  bool has_looked_ = false;
  CUmemGenericAllocationHandle spare_ = 0;   // one granule, behind every open fence
  std::map<CUdeviceptr, Mapping> mappings_;  // by the address of the memory
};

}  // namespace attnbench
