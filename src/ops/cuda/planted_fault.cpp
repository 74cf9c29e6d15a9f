// One thread each. The write is of the word 1, which no guard zone and no poison contains.
#include "ops/cuda/planted_fault.h"

#include "kernels/params_measure.h"

namespace attnbench::cuda {
namespace {

/// Inside the first page, which no process has.
constexpr std::uintptr_t kNoMemory = 16;

}  // namespace

std::span<const EnumRow<Fault>> enum_rows(Fault) {
  using enum Fault;
  static constexpr auto kRows = every_value<EnumRow<Fault>>({
      {kHang, "hang", "a kernel that never ends"},
      {kCrash, "crash", "a write to an address without memory: a sticky device error"},
      {kOverrun, "overrun", "a write behind the end of a buffer"},
      {kExit, "exit", "the process ends with exit status 3"},
  });
  return kRows;
}

KernelSpec fault_spec(Fault fault) {
  KernelSpec spec;
  spec.source = "measure/planted_fault.cuh";
  spec.function = fault == Fault::kHang ? "attn::planted_hang" : "attn::planted_write";
  spec.constants = {{"unsigned kValue", "1u"}};
  spec.name = std::string("planted ") + to_string(fault);
  return spec;
}

void launch_fault(Launcher& launcher, Fault fault, Buffer& buffer) {
  attn::PlantedFaultParams params{};
  params.target = buffer.as<unsigned int>();
  if (fault == Fault::kCrash) params.target = reinterpret_cast<unsigned int*>(kNoMemory);
  if (fault == Fault::kOverrun) params.target += buffer.size_bytes() / sizeof(unsigned int);
  LaunchShape shape;
  shape.grid_x = 1;
  shape.threads = 1;
  launch(launcher, fault_spec(fault), shape, params);
}

}  // namespace attnbench::cuda
