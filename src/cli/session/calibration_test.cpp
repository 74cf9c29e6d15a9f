#include "cli/session/calibration.h"

#include <doctest/doctest.h>

#include "cli/cases/device.h"

namespace attnbench {

TEST_CASE("the largest values by operations are those of the tensor, in every type they take") {
  const std::shared_ptr<Ops> ops = open_ops(choose_device("cpu", ""), 2, "");
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    Tensor tensor(dtype, {5, 3, 24});
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.set(i, static_cast<float>(i % 17) - 8);
    }
    tensor.set(100, -12.5f);
    tensor.set(tensor.num_elements() - 1, 9.25f);
    CHECK(amax_on(ops, AmaxKind::kAbs)(tensor) == 12.5f);
    CHECK(amax_on(ops, AmaxKind::kSigned)(tensor) == 9.25f);
  }
  CHECK_FALSE(amax_on(ops, AmaxKind::kAbs)(Tensor(Dtype::kF64, {1, 1, 1})).has_value());
  CHECK_FALSE(amax_on(ops, AmaxKind::kAbs)(Tensor(Dtype::kF32, {4, 4})).has_value());
}

}  // namespace attnbench
