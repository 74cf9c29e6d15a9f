#include "reference/quantise/kv_scales.h"

#include "reference/ops/test_support.h"

namespace attnbench {

using ops_test::error_of;
using ops_test::kInf;
using ops_test::kNan;
using ops_test::tensor_of;

TEST_CASE("each cache scale is the largest magnitude over its range constant") {
  const CalculatedKvScales scales = calculate_kv_scales(
      tensor_of({1.0f, -3.0f}, {2}), tensor_of({7.0f, 0.0f}, {2}), tensor_of({-0.5f, 0.25f}, {2}));
  CHECK(scales.query == 3.0f / 200.0f);
  CHECK(scales.key == 7.0f / 200.0f);
  CHECK(scales.value == 0.5f / 100.0f);
  CHECK(scales.warnings.empty());
}

TEST_CASE("range constants can be changed, and a missing one divides by 1") {
  const Tensor x = tensor_of({6.0f}, {1});
  const CalculatedKvScales scales = calculate_kv_scales(x, x, x, {std::nullopt, 3, 7});
  CHECK(scales.query == 6.0f);
  CHECK(scales.key == 2.0f);
  CHECK(scales.value == 6.0f / 7.0f);
  CHECK(error_of([&] { calculate_kv_scales(x, x, x, {0, 1, 1}); }) == ErrorKind::kConfig);
}

TEST_CASE("MLA takes key and value scale from the latent") {
  const CalculatedKvScales scales =
      calculate_mla_kv_scales(tensor_of({2.0f}, {1}), tensor_of({-5.0f, 1.0f}, {2}));
  CHECK(scales.query == 2.0f / 200.0f);
  CHECK(scales.key == 5.0f / 200.0f);
  CHECK(scales.value == 5.0f / 100.0f);
}

TEST_CASE("an all-zero or empty tensor has scale 1.0 and a warning") {
  const Tensor x = tensor_of({2.0f}, {1});
  const CalculatedKvScales scales =
      calculate_kv_scales(x, Tensor(Dtype::kBF16, {4, 2, 8}), Tensor(Dtype::kBF16, {0, 2, 8}));
  CHECK(scales.key == 1.0f);
  CHECK(scales.value == 1.0f);
  CHECK(scales.warnings.size() == 2);
}

TEST_CASE("NaN and infinity make no scale") {
  const Tensor x = tensor_of({2.0f}, {1});
  for (float bad : {kNan, kInf, -kInf}) {
    CHECK(error_of([&] {
            calculate_kv_scales(x, tensor_of({1.0f, bad}, {2}), x);
          }) == ErrorKind::kValue);
  }
}

}  // namespace attnbench
