// libFuzzer target: any bytes are either a sound safetensors file or E-FORMAT, and a sound file
// holds tensors whose sizes agree with their shapes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "inputs/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const attnbench::SafetensorsFile file =
        attnbench::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
    std::size_t total = 0;
    for (const auto& [name, tensor] : file.tensors) {
      std::size_t elements = 1;
      for (std::int64_t extent : tensor.shape()) elements *= static_cast<std::size_t>(extent);
      if (elements * attnbench::dtype_size(tensor.dtype()) != tensor.size_bytes()) std::abort();
      total += tensor.size_bytes();
    }
    if (total > size) std::abort();
  } catch (const attnbench::Error& error) {
    if (error.kind() != attnbench::ErrorKind::kFormat) std::abort();
  }
  return 0;
}
