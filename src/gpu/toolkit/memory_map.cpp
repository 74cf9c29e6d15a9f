// Addresses are reserved with a granule more on either side. An open fence is the same spare
// granule of memory everywhere: nobody relies on what it holds, it only keeps an access from being
// a fault.
#include "gpu/toolkit/memory_map.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "gpu/runtime.h"

namespace attnbench {
namespace {

void check(CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  const std::string message =
      fmt::format("{}: error {} of the driver", call, static_cast<int>(code));
  if (code == CUDA_ERROR_OUT_OF_MEMORY) throw Error(ErrorKind::kCapacity, message);
  throw DeviceError(message, code == CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace

MemoryMap::~MemoryMap() {
  while (!mappings_.empty()) unmap(reinterpret_cast<void*>(mappings_.begin()->first));
  if (spare_ != 0) driver_.release(spare_);
}

CUmemAllocationProp MemoryMap::properties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = index_;
  return properties;
}

bool MemoryMap::find_driver() {
  const auto bind = [this](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find_(name));
    return function != nullptr;
  };
  return bind(driver_.granularity, "cuMemGetAllocationGranularity") &&
         bind(driver_.reserve, "cuMemAddressReserve") && bind(driver_.free, "cuMemAddressFree") &&
         bind(driver_.create, "cuMemCreate") && bind(driver_.release, "cuMemRelease") &&
         bind(driver_.map, "cuMemMap") && bind(driver_.unmap, "cuMemUnmap") &&
         bind(driver_.set_access, "cuMemSetAccess");
}

std::size_t MemoryMap::granule() {
  if (std::exchange(has_looked_, true) || !find_driver()) return granule_;
  const CUmemAllocationProp wanted = properties();
  std::size_t granule = 0;
  if (driver_.granularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS) {
    granule_ = granule;
  }
  return granule_;
}

void MemoryMap::map_at(CUdeviceptr address, std::size_t size_bytes,
                       CUmemGenericAllocationHandle memory) {
  check(driver_.map(address, size_bytes, 0, memory, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location = properties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult code = driver_.set_access(address, size_bytes, &access, 1);
  if (code != CUDA_SUCCESS) driver_.unmap(address, size_bytes);
  check(code, "cuMemSetAccess");
}

void* MemoryMap::map(std::size_t size_bytes) {
  const std::size_t fence = granule();
  const CUmemAllocationProp wanted = properties();
  Mapping mapping;
  mapping.size_bytes = size_bytes;
  check(driver_.create(&mapping.memory, size_bytes, &wanted, 0), "cuMemCreate");
  CUdeviceptr reserved = 0;
  const CUresult code = driver_.reserve(&reserved, size_bytes + 2 * fence, 0, 0, 0);
  if (code != CUDA_SUCCESS) driver_.release(mapping.memory);
  check(code, "cuMemAddressReserve");
  try {
    map_at(reserved + fence, size_bytes, mapping.memory);
  } catch (...) {
    driver_.free(reserved, size_bytes + 2 * fence);
    driver_.release(mapping.memory);
    throw;
  }
  mappings_[reserved + fence] = mapping;
  return reinterpret_cast<void*>(reserved + fence);
}

void MemoryMap::unmap(void* memory) {
  const auto found = mappings_.find(reinterpret_cast<CUdeviceptr>(memory));
  if (found == mappings_.end()) return;
  const auto [address, mapping] = *found;
  // As cudaFree() does: whatever still runs may use it.
  cudaDeviceSynchronize();
  if (!mapping.closed) {
    driver_.unmap(address - granule_, granule_);
    driver_.unmap(address + mapping.size_bytes, granule_);
  }
  driver_.unmap(address, mapping.size_bytes);
  driver_.release(mapping.memory);
  driver_.free(address - granule_, mapping.size_bytes + 2 * granule_);
  mappings_.erase(found);
}

void MemoryMap::set_fences(void* memory, bool closed) {
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  Mapping& mapping = mappings_.at(address);
  if (mapping.closed == closed) return;
  const CUdeviceptr fences[] = {address - granule_, address + mapping.size_bytes};
  if (spare_ == 0 && !closed) {
    const CUmemAllocationProp wanted = properties();
    check(driver_.create(&spare_, granule_, &wanted, 0), "cuMemCreate");
  }
  for (const CUdeviceptr fence : fences) {
    if (closed) {
      check(driver_.unmap(fence, granule_), "cuMemUnmap");
    } else {
      map_at(fence, granule_, spare_);
    }
  }
  mapping.closed = closed;
}

}  // namespace attnbench
