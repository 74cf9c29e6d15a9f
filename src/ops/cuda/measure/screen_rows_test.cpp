// Rows that screening keeps: found again for the same attention and no other, and compared to the
// same records as rows that are compared where they are made. The device code is on emulated
// threads.
#include "ops/cuda/measure/screen_rows.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/cuda/measure/screen.h"
#include "ops/cuda/measure/screen_example_testing.h"
#include "ops/cuda/testing/emulated_screen_testing.h"
#include "ops/forwarding_ops.h"
#include "ops/ops.h"

namespace attnbench::cuda {
namespace {

/// Has no memory for the next buffer of a name.
class ScarceOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  std::string missing;

  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    if (name == missing) {
      missing.clear();
      fail(ErrorKind::kCapacity, "no memory for {}", name);
    }
    return ForwardingOps::allocate(size_bytes, name);
  }
};

struct Device {
  std::unique_ptr<Ops> memory = make_cpu_ops(1);
  ScarceOps ops{*memory};
  EmulatedScreenLauncher launcher;
  Screen screen{ops, launcher};

  std::vector<attn::ScreenRecord> compare(const ScreenInputs& inputs, const ScreenOutput& output) {
    launcher.launched.clear();
    return screen.compare(inputs, output);
  }
  /// Whether the last comparison had to attend, and whether it compared rows that were written.
  bool has_attended() const { return has_launched("attn::screen_attention"); }
  bool has_compared_rows() const { return has_launched("attn::screen_compare_rows"); }

 private:
  bool has_launched(const std::string& function) const {
    for (const KernelSpec& spec : launcher.launched) {
      if (spec.function == function) return true;
    }
    return false;
  }
};

/// By a screening that keeps nothing.
std::vector<attn::ScreenRecord> compared_where_made(const ScreenInputs& inputs,
                                                    const ScreenOutput& output) {
  Device device;
  device.screen.limit_kept(0);
  std::vector<attn::ScreenRecord> records = device.compare(inputs, output);
  CHECK(device.has_attended());
  CHECK_FALSE(device.has_compared_rows());
  return records;
}

bool same_bits(const std::vector<attn::ScreenRecord>& a, const std::vector<attn::ScreenRecord>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(attn::ScreenRecord)) == 0;
}

/// Of each type, with numbers that differ, one NaN and one infinity.
std::vector<Tensor> outputs_of(const ScreenExample& example) {
  std::vector<Tensor> outputs;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kE4M3}) {
    Tensor output(dtype, example.output.shape());
    for (std::int64_t i = 0; i < output.num_elements(); ++i) {
      output.set(i, 0.25f * example.output.at(i) + 0.01f * static_cast<float>(dtype));
    }
    output.set(7, std::numeric_limits<float>::quiet_NaN());
    if (dtype != Dtype::kE4M3) output.set(11, std::numeric_limits<float>::infinity());
    outputs.push_back(std::move(output));
  }
  return outputs;
}

ScreenOutput screened(const Tensor& output) {
  if (output.dtype() == Dtype::kE4M3) return {&output, 0.5, 224, true};
  return {&output, 1, 3e38, false};
}

/// Two requests of five tokens with all that attention may have.
struct FullExample : ScreenExample {
  std::vector<std::int32_t> key_index;
  std::vector<float> slopes{0.5f, 0.25f};
  std::vector<float> sinks{0.1f, -0.5f};
  Tensor other_query, other_key, other_value;

  FullExample() : ScreenExample(2, 5, 40, 2, 1, 16, 24) {
    for (int i = 0; i < 80; ++i) key_index.push_back(79 - i);
    ScreenExample other(2, 5, 40, 2, 1, 16, 24);
    other_query = std::move(other.query);
    other_key = std::move(other.key);
    other_value = std::move(other.value);
    inputs.key_index = key_index;
    inputs.alibi = attn::Alibi::kSqrt;
    inputs.alibi_slopes = slopes;
    inputs.sinks = sinks;
    inputs.soft_cap = 3;
  }
};

}  // namespace

TEST_CASE("rows are attended to once, and give the records of rows compared where they are made") {
  // Few and many rows, several chunks of columns, keys that several CTAs share, a NaN.
  ScreenExample examples[] = {{2, 9, 70, 4, 2, 32, 32},
                              {3, 1, 200, 8, 1, 64, 128},
                              {1, 1, 1700, 2, 1, 16, 16},
                              {1, 20, 50, 8, 2, 24, 300}};
  examples[1].value.set(5, std::numeric_limits<float>::quiet_NaN());
  for (const ScreenExample& example : examples) {
    CAPTURE(example.value.dim(2));
    Device device;
    bool is_first = true;
    for (const Tensor& output : outputs_of(example)) {
      CAPTURE(dtype_name(output.dtype()));
      const auto records = device.compare(example.inputs, screened(output));
      CHECK(same_bits(records, compared_where_made(example.inputs, screened(output))));
      CHECK(device.has_compared_rows());
      CHECK(device.has_attended() == is_first);
      is_first = false;
    }
  }
}

TEST_CASE("rows are those of an attention that differs in nothing") {
  struct Variant {
    const char* name;
    std::function<void(FullExample&)> change;
  };
  // Lists are changed where they are, so that what was known of them must have been a copy.
  const Variant variants[] = {
      {"query", [](FullExample& e) { e.inputs.query = &e.other_query; }},
      {"key", [](FullExample& e) { e.inputs.key = &e.other_key; }},
      {"value", [](FullExample& e) { e.inputs.value = &e.other_value; }},
      {"listed keys", [](FullExample& e) { std::swap(e.key_index[1], e.key_index[30]); }},
      {"no listed keys", [](FullExample& e) { e.inputs.key_index = {}; }},
      {"tokens of requests", [](FullExample& e) { e.query_start_loc[1] = 4; }},
      {"keys of requests", [](FullExample& e) { e.seq_lens[1] = 39; }},
      {"first keys of requests", [](FullExample& e) { e.key_start_loc[1] = 38; }},
      {"first visible key", [](FullExample& e) { e.visible_begin[3] = 2; }},
      {"last visible key", [](FullExample& e) { e.visible_end[3] -= 2; }},
      {"scale", [](FullExample& e) { e.inputs.softmax_scale *= 1.5; }},
      {"soft cap", [](FullExample& e) { e.inputs.soft_cap = 2; }},
      {"form of ALiBi", [](FullExample& e) { e.inputs.alibi = attn::Alibi::kKeyIndex; }},
      {"slopes", [](FullExample& e) { e.slopes[1] = 0.125f; }},
      {"sinks", [](FullExample& e) { e.sinks[0] = 0.2f; }},
      {"no sinks", [](FullExample& e) { e.inputs.sinks = {}; }},
  };
  for (const Variant& variant : variants) {
    CAPTURE(variant.name);
    FullExample example;
    const ScreenOutput output = example.screened();
    Device device;
    const auto before = device.compare(example.inputs, output);
    CHECK(same_bits(device.compare(example.inputs, output), before));
    CHECK_FALSE(device.has_attended());
    variant.change(example);
    const auto after = device.compare(example.inputs, output);
    CHECK(device.has_attended());
    CHECK_FALSE(same_bits(after, before));
    CHECK(same_bits(after, compared_where_made(example.inputs, output)));
  }
}

TEST_CASE("tensors are known by type and shape as well as by place") {
  ScreenExample example(1, 2, 8, 2, 1, 16, 16);
  const ScreenKey key(example.inputs);
  CHECK(key == ScreenKey(example.inputs));
  // Memory that was freed is mostly given again at once.
  SUBCASE("type") {
    example.query = Tensor();
    example.query = Tensor(Dtype::kF16, {2, 2, 16});
  }
  SUBCASE("shape") {
    example.query = Tensor();
    example.query = Tensor(Dtype::kBF16, {4, 1, 16});
  }
  CHECK_FALSE(key == ScreenKey(example.inputs));
}

TEST_CASE("kept rows are found again while others of the same tensors are kept too") {
  FullExample example;
  const ScreenOutput output = example.screened();
  Device device;
  const auto first = device.compare(example.inputs, output);
  example.inputs.soft_cap = 0;
  const auto second = device.compare(example.inputs, output);
  CHECK(device.has_attended());
  const std::size_t both =
      2 * screen_rows_bytes(example.inputs.num_rows(), example.inputs.value->dim(2));

  SUBCASE("with room for both") {
    CHECK(same_bits(device.compare(example.inputs, output), second));
    CHECK_FALSE(device.has_attended());
    example.inputs.soft_cap = 3;
    CHECK(same_bits(device.compare(example.inputs, output), first));
    CHECK_FALSE(device.has_attended());
  }
  SUBCASE("the oldest ones make room") {
    device.screen.limit_kept(both - 1);
    device.compare(example.inputs, output);
    CHECK(device.has_attended());
    example.inputs.soft_cap = 3;
    CHECK(same_bits(device.compare(example.inputs, output), first));
    CHECK(device.has_attended());
    CHECK(same_bits(device.compare(example.inputs, output), first));
    CHECK_FALSE(device.has_attended());
    example.inputs.soft_cap = 0;
    CHECK(same_bits(device.compare(example.inputs, output), second));
    CHECK(device.has_attended());
  }
  SUBCASE("those that came later stay") {
    device.screen.limit_kept(both);
    for (const double soft_cap : {3.0, 0.0, 1.0}) {
      example.inputs.soft_cap = soft_cap;
      device.compare(example.inputs, output);
      CHECK(device.has_attended());
    }
    example.inputs.soft_cap = 0;
    CHECK(same_bits(device.compare(example.inputs, output), second));
    CHECK_FALSE(device.has_attended());
  }
  SUBCASE("those that are too large are compared where they are made, and nothing else is kept") {
    device.screen.limit_kept(both / 2 - 1);
    for (int i = 0; i < 2; ++i) {
      CHECK(same_bits(device.compare(example.inputs, output), second));
      CHECK(device.has_attended());
      CHECK_FALSE(device.has_compared_rows());
    }
  }
}

TEST_CASE("rows are compared where they are made where memory for more is missing") {
  FullExample example;
  const ScreenOutput output = example.screened();
  const auto expected = compared_where_made(example.inputs, output);
  Device device;
  SUBCASE("for them") { device.ops.missing = "screening: rows"; }
  SUBCASE("for what is made beside them") { device.ops.missing = "screening: partial sums"; }
  SUBCASE("for the output, once they are kept") {
    device.compare(example.inputs, output);
    device.ops.missing = "screening: output";
  }
  for (int i = 0; i < 2; ++i) {
    CHECK(same_bits(device.compare(example.inputs, output), expected));
    CHECK(device.has_attended());
    CHECK(device.ops.missing.empty());
    CHECK(device.launcher.launched.back().function != "attn::screen_compare_rows");
  }
}

}  // namespace attnbench::cuda
