// Tensors that a run returned, of any strides, in the places of those that are judged.
#include "backends/plugin/returned.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

namespace attnbench::returned_test {
namespace {

using Kind = ReturnedTensor::Kind;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 6, kHeads = 2, kWidth = 4;

/// A case of 6 tokens, 2 heads and 4 columns of float32, whose LSE has rows of 8.
struct SmallCase {
  explicit SmallCase(bool lse_by_token = false) {
    if (lse_by_token) lse_strides = {1, kHeads};
    tensors.output = describe(output_tensor, output, output_shape, output_strides);
    tensors.lse = describe(lse_tensor, lse, lse_shape, lse_strides);
  }
  static const AttnbenchTensor* describe(AttnbenchTensor& tensor, std::vector<float>& values,
                                         Shape& shape, Shape& strides) {
    tensor.data = values.data();
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype.bits = 32;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    return &tensor;
  }
  float output_at(std::int64_t token, std::int64_t head, std::int64_t column) const {
    return output[static_cast<std::size_t>((token * kHeads + head) * kWidth + column)];
  }
  float lse_at(std::int64_t head, std::int64_t token) const {
    return lse[static_cast<std::size_t>(head * lse_strides[0] + token * lse_strides[1])];
  }

  std::unique_ptr<Ops> ops = make_cpu_ops(2);
  DeviceBuffers memory{*ops};
  std::vector<float> output = std::vector<float>(kTokens * kHeads * kWidth, -1.0f);
  std::vector<float> lse = std::vector<float>(kHeads * 8, -1.0f);
  Shape output_shape{kTokens, kHeads, kWidth}, output_strides{kHeads * kWidth, kWidth, 1};
  Shape lse_shape{kHeads, kTokens}, lse_strides{8, 1};
  AttnbenchTensor output_tensor{}, lse_tensor{};
  AttnbenchTensors tensors{};
  ReturnedTensors returned{memory, tensors};
};

std::vector<float> counting(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

bool all_nan(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
}

}  // namespace

TEST_CASE("a tensor with other strides comes to the output, and its own memory becomes NaN") {
  SmallCase c;
  std::vector<float> own = counting(kTokens * kHeads * kWidth);  // [H, Dv, T] in memory
  c.returned.bring(
      {{Kind::kOutput, own.data(), 0, {kTokens, kHeads, kWidth}, {1, kTokens * kWidth, kTokens}}});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t d = 0; d < kWidth; ++d) {
        CHECK(c.output_at(t, h, d) == static_cast<float>((h * kWidth + d) * kTokens + t));
      }
    }
  }
  CHECK(all_nan(own));
}

TEST_CASE("a list of tensors of several requests each follows the tokens") {
  SmallCase c;
  // [B, H, Q, Dv] in memory, returned as [B, Q, H, Dv]: two requests of two rows, then one of two.
  std::vector<float> first = counting(4 * kHeads * kWidth);
  std::vector<float> second = counting(2 * kHeads * kWidth);
  const Shape strides{2 * kHeads * kWidth, kWidth, 2 * kWidth, 1};
  c.returned.bring({{Kind::kOutput, first.data(), 0, {2, 2, kHeads, kWidth}, strides},
                    {Kind::kOutput, second.data(), 4, {1, 2, kHeads, kWidth}, strides}});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const std::int64_t request = t < 4 ? t / 2 : 0, row = t % 2;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const auto expected = static_cast<float>(((request * kHeads + h) * 2 + row) * kWidth);
      CHECK(c.output_at(t, h, 0) == expected);
      CHECK(c.output_at(t, h, kWidth - 1) == expected + kWidth - 1);
    }
  }
  CHECK(all_nan(first));
  CHECK(all_nan(second));
}

TEST_CASE("five axes without a contiguous one are copied as well") {
  SmallCase c;
  // [Dv, H, 1, 3, 2] in memory, as [2, 3, 1, H, Dv].
  std::vector<float> own = counting(kTokens * kHeads * kWidth);
  c.returned.bring({{Kind::kOutput,
                     own.data(),
                     0,
                     {2, 3, 1, kHeads, kWidth},
                     {1, 2, 6, kTokens, kHeads * kTokens}}});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t d = 0; d < kWidth; ++d) {
      const std::int64_t place = t / 3 + t % 3 * 2 + kTokens + d * kHeads * kTokens;
      CHECK(c.output_at(t, 1, d) == static_cast<float>(place));
    }
  }
}

TEST_CASE("an LSE comes by heads or by tokens, into either order") {
  for (const bool by_token : {false, true}) {
    CAPTURE(by_token);
    SmallCase c(by_token);
    std::vector<float> by_heads = counting(kHeads * kTokens);
    // [H, B, Q]
    c.returned.bring({{Kind::kLse, by_heads.data(), 0, {kHeads, 3, 2}, {kTokens, 2, 1}}});
    CHECK(c.lse_at(1, 3) == kTokens + 3.0f);
    std::vector<float> by_tokens = counting(kHeads * kTokens);
    c.returned.bring({{Kind::kLseByToken, by_tokens.data(), 0, {kTokens, kHeads}, {kHeads, 1}}});
    CHECK(c.lse_at(1, 3) == 3.0f * kHeads + 1);
    CHECK(all_nan(by_tokens));
  }
}

TEST_CASE("a tensor of the case stays, and one without elements brings nothing") {
  SmallCase c;
  std::iota(c.output.begin(), c.output.end(), 0.0f);
  c.returned.bring({{Kind::kOutput, c.output.data(), 0, c.output_shape, c.output_strides},
                    {Kind::kOutput, nullptr, kTokens, {0, kHeads, kWidth}, {8, 4, 1}}});
  CHECK(c.output_at(5, 1, 3) == kTokens * kHeads * kWidth - 1);
}

TEST_CASE("parts that share memory are all copied before it becomes NaN") {
  SmallCase c;
  std::vector<float> own = counting(2 * kHeads * kWidth);
  const Shape strides{kHeads * kWidth, kWidth, 1};
  const Shape shape{3, kHeads, kWidth};
  // The same row three times, as of an expanded tensor; then again.
  c.returned.bring({{Kind::kOutput, own.data(), 0, shape, {0, kWidth, 1}},
                    {Kind::kOutput, own.data(), 3, shape, {0, kWidth, 1}}});
  for (std::int64_t t = 0; t < kTokens; ++t) CHECK(c.output_at(t, 1, 2) == kWidth + 2);
}

}  // namespace attnbench::returned_test
