// The covering cases of the operations on the CPU, which takes long: every one of them can be run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "ops/cuda/testing/all_cases_testing.h"

namespace attnbench::cuda {

TEST_CASE("every covering case can be run, and writes something, on the CPU") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  for (const OperationCase& c : all_operation_cases()) {
    CAPTURE(c.name);
    bool has_written = false;
    for (const Tensor& tensor : c.run(*cpu)) {
      const std::byte* bytes = tensor.bytes();
      has_written |= std::any_of(bytes, bytes + tensor.size_bytes(),
                                 [](std::byte b) { return b != std::byte{0xFF}; });
    }
    CHECK(has_written);
  }
}

}  // namespace attnbench::cuda
