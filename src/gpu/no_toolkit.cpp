// The runtime of a program that was built without the CUDA toolkit: there is none. Such a program
// runs everything on the CPU, plans and explains kernels, and says kReason wherever a device is
// wanted. toolkit/runtime.cpp and toolkit/cublas_lt.cpp have the same functions with the toolkit;
// the build takes one or the other.
#include <fmt/format.h>

#include "gpu/cublas_lt.h"
#include "gpu/runtime.h"

namespace attnbench {
namespace {

constexpr const char* kReason =
    "CUDA runtime not found: attnbench was built without the CUDA toolkit";

}  // namespace

DeviceList list_devices() { return {{}, kReason}; }

std::unique_ptr<Runtime> open_runtime(int index) {
  throw DeviceError(fmt::format("cuda:{}: {}", index, kReason), false);
}

KeepDevice::KeepDevice(bool) {}
KeepDevice::~KeepDevice() = default;

CublasLtChoice open_cublas_lt(Runtime&, const Stream&) { return {nullptr, kReason}; }

}  // namespace attnbench
