#include "cli/session/calibration.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "calibrate/magnitudes.h"
#include "calibrate/scale_search.h"
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

TEST_CASE("scales of tensors that a device counts are those of the host to the bit") {
  const std::shared_ptr<Ops> ops = open_ops(choose_device("cpu", ""), 2, "");
  const auto counts = counts_on(ops);
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    Tensor tensor(dtype, {37, 3, 24});
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.set(i, std::sin(static_cast<float>(i)) * static_cast<float>(i % 3 == 0 ? 0 : i % 97));
    }
    for (const bool by_head : {false, true}) {
      const ScaleGroups groups = by_head ? ScaleGroups::kHead : ScaleGroups::kTensor;
      std::vector<Magnitudes> here(static_cast<std::size_t>(num_groups(tensor, groups)));
      add_magnitudes(tensor, groups, 1, here);
      const std::optional<std::vector<std::int64_t>> found = counts(tensor, by_head);
      REQUIRE(found);
      REQUIRE(found->size() == here.size() << 16);
      for (std::size_t i = 0; i < here.size(); ++i) {
        Magnitudes there;
        there.add_counts(dtype, std::span(*found).subspan(i << 16, std::size_t{1} << 16));
        CHECK(there.num_elements() == here[i].num_elements());
        CHECK(there.num_zeros() == here[i].num_zeros());
        CHECK(there.amax() == here[i].amax());
        CHECK(there.signed_max() == here[i].signed_max());
        CHECK(there.percentile(99) == here[i].percentile(99));
        CHECK(best_scale(there, CodeGrid::kE4M3) == best_scale(here[i], CodeGrid::kE4M3));
      }
    }
  }
  CHECK_FALSE(counts(Tensor(Dtype::kF32, {4, 4, 4}), false).has_value());
  CHECK_FALSE(counts(Tensor(Dtype::kBF16, {16}), true).has_value());
}

}  // namespace attnbench
