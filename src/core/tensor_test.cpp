#include "core/tensor.h"

#include <doctest/doctest.h>
#include <algorithm>

#include <array>
#include <limits>

#include "core/error.h"

namespace attnbench {
namespace {

ErrorKind kind_of_shape_error(std::vector<std::int64_t> shape) {
  try {
    Tensor(Dtype::kF32, std::move(shape));
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

TEST_CASE("a new tensor is zero-filled and knows its size") {
  const Tensor tensor(Dtype::kBF16, {2, 3, 4});
  CHECK(tensor.num_elements() == 24);
  CHECK(tensor.size_bytes() == 48);
  CHECK(tensor.dim(1) == 3);
  for (std::int64_t i = 0; i < 24; ++i) CHECK(tensor.at(i) == 0.0f);
}

TEST_CASE("a tensor without dimensions holds one element and one with an extent 0 holds none") {
  CHECK(Tensor(Dtype::kF32, {}).num_elements() == 1);
  CHECK(Tensor(Dtype::kF32, {3, 0, 5}).empty());
  CHECK(Tensor().empty());
}

TEST_CASE("the elements begin on a 64-byte boundary") {
  for (std::int64_t count : {1, 7, 100}) {
    const Tensor tensor(Dtype::kU8, {count});
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.bytes()) % 64 == 0);
  }
}

TEST_CASE("impossible shapes are errors, not allocations") {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  CHECK(kind_of_shape_error({2, -1}) == ErrorKind::kShape);
  CHECK(kind_of_shape_error({kHuge, 2}) == ErrorKind::kCapacity);
  CHECK(kind_of_shape_error({kHuge}) == ErrorKind::kCapacity);  // elements fit, bytes do not
}

TEST_CASE("values set are read back in the tensor's dtype") {
  Tensor tensor(Dtype::kE4M3, {2});
  tensor.set(1, 1000.0f);
  CHECK(tensor.at(1) == 448.0f);
  CHECK(tensor.at(0) == 0.0f);
  CHECK(tensor.data<std::uint8_t>()[1] == 0x7E);
}

TEST_CASE("tensors from values take the shape given, or one dimension") {
  const std::array<std::int32_t, 4> ints{1, 2, 3, 4};
  CHECK(Tensor::from_i32(ints).shape() == std::vector<std::int64_t>{4});
  const Tensor square = Tensor::from_i32(ints, {2, 2});
  CHECK(square.dim(0) == 2);
  CHECK(square.data<std::int32_t>()[3] == 4);
  CHECK_THROWS_AS(Tensor::from_i32(ints, {3}), Error);
  const std::array<double, 1> one{0.1};
  CHECK(Tensor::from_f64(one).data<double>()[0] == 0.1);
}

TEST_CASE("conversion rounds every element and keeps the shape") {
  const std::array<float, 3> values{0.1f, -300.0f, 1e-9f};
  const Tensor source = Tensor::from_f32(values, {3, 1});
  const Tensor half = convert(source, Dtype::kF16);
  CHECK(half.shape() == source.shape());
  for (std::int64_t i = 0; i < 3; ++i) CHECK(half.at(i) == round_to(Dtype::kF16, source.at(i)));
}

}  // namespace
TEST_CASE("a double is rounded to 16 bits once, not by way of float") {
  // Just above the tie between 1 and the next bfloat16; float alone would drop the last term.
  const double above_tie = 1.0 + 0x1p-8 + 0x1p-40;
  const Tensor source = Tensor::from_f64(std::vector<double>{above_tie, -above_tie, 1.0 + 0x1p-8});
  const Tensor rounded = convert(source, Dtype::kBF16);
  CHECK(rounded.at(0) == 1.0078125f);
  CHECK(rounded.at(1) == -1.0078125f);
  CHECK(rounded.at(2) == 1.0f);
}

TEST_CASE("a view has the rows where they stand, and its copy has them for itself") {
  const Tensor whole = Tensor::from_f32(std::array{1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {3, 2});
  Tensor copy;
  {
    const Tensor view = Tensor::view_rows(whole, 1, 2);
    CHECK(view.shape() == std::vector<std::int64_t>{2, 2});
    CHECK(view.bytes() == whole.bytes() + 2 * sizeof(float));
    CHECK(view.at(0) == 3.0f);
    copy = view;
    CHECK(copy.bytes() != view.bytes());
    const Tensor all = Tensor::view(whole);
    CHECK(all.bytes() == whole.bytes());
    CHECK(all.shape() == whole.shape());
  }
  CHECK(whole.at(5) == 6.0f);  // is still there
  CHECK(copy.at(3) == 6.0f);
  CHECK(Tensor::view(Tensor()).empty());
  CHECK_THROWS_AS(Tensor::view_rows(whole, 2, 2), Error);
  CHECK_THROWS_AS(Tensor::view_rows(whole, -1, 1), Error);
}

TEST_CASE("a copy has the bytes of its source, and nothing is copied as nothing") {
  Tensor large(Dtype::kU8, {3, 5'000'001});
  for (std::int64_t i = 0; i < large.num_elements(); ++i) {
    large.bytes()[i] = static_cast<std::byte>(i * 7 % 251);
  }
  Tensor copy = large;
  CHECK(copy.shape() == large.shape());
  CHECK(copy.bytes() != large.bytes());
  CHECK(std::equal(copy.bytes(), copy.bytes() + copy.size_bytes(), large.bytes()));
  const Tensor none;
  const Tensor copy_of_none = none;
  CHECK(copy_of_none.empty());
  copy = none;
  CHECK(copy.empty());
  CHECK(copy.shape().empty());
}

}  // namespace attnbench
