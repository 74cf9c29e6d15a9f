#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "inputs/make_inputs.h"
#include "inputs/random.h"
#include "inputs/test_problem.h"

namespace attnbench {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0;
}

ErrorKind kind_of_error(const Problem& problem) {
  try {
    make_inputs(problem);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("no error");
  return ErrorKind::kInternal;
}

double std_of(const Tensor& tensor) {
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    sum += double{tensor.at(i)} * tensor.at(i);
  }
  return std::sqrt(sum / static_cast<double>(tensor.num_elements()));
}

TEST_CASE("shapes and cumulative lengths follow the batch") {
  const AttentionInputs inputs = make_inputs(small_problem());
  CHECK(inputs.query_start_loc == std::vector<std::int32_t>{0, 1, 6, 6, 26});
  CHECK(inputs.seq_lens == std::vector<std::int32_t>{33, 48, 0, 20});
  CHECK(inputs.key_start_loc == std::vector<std::int64_t>{0, 33, 81, 81, 101});
  CHECK(inputs.num_tokens() == 26);
  CHECK(inputs.query.dim(0) > 26);
  CHECK(inputs.query.dim(1) == 4);
  CHECK(inputs.key.shape() == std::vector<std::int64_t>{101, 2, 8});
  CHECK(inputs.value.shape() == std::vector<std::int64_t>{101, 2, 8});
  CHECK(inputs.sinks.empty());
  CHECK(inputs.alibi_slopes.empty());
}

TEST_CASE("every query row after the tokens is NaN and no other number is") {
  const AttentionInputs inputs = make_inputs(small_problem());
  const std::int64_t live = 26 * 4 * 8;
  for (std::int64_t i = 0; i < inputs.query.num_elements(); ++i) {
    CHECK(std::isnan(inputs.query.at(i)) == (i >= live));
  }
  for (const Tensor* tensor : {&inputs.key, &inputs.value}) {
    for (std::int64_t i = 0; i < tensor->num_elements(); ++i) CHECK(std::isfinite(tensor->at(i)));
  }
}

TEST_CASE("an empty batch has padding rows only") {
  Problem problem = small_problem();
  problem.batch = {};
  const AttentionInputs inputs = make_inputs(problem);
  CHECK(inputs.num_tokens() == 0);
  CHECK(inputs.query.dim(0) > 0);
  CHECK(std::isnan(inputs.query.at(0)));
  CHECK(inputs.key.empty());
}

TEST_CASE("a mean is added to values and to nothing else") {
  Problem problem = small_problem();
  problem.attention.dtype = Dtype::kF32;
  const AttentionInputs plain = make_inputs(problem);
  problem.inputs.mean = -0.75;
  const AttentionInputs moved = make_inputs(problem);
  for (std::int64_t i = 0; i < plain.value.num_elements(); ++i) {
    CHECK(moved.value.at(i) == plain.value.at(i) - 0.75f);
  }
  CHECK(std::memcmp(moved.key.bytes(), plain.key.bytes(), plain.key.size_bytes()) == 0);
  CHECK(std::memcmp(moved.query.bytes(), plain.query.bytes(), plain.query.size_bytes()) == 0);
}

TEST_CASE("needles turn queries of a normal draw, as in the probe") {
  Problem problem = small_problem();
  const AttentionInputs plain = make_inputs(problem);
  problem.inputs.needles = true;
  const AttentionInputs turned = make_inputs(problem);
  CHECK(std::memcmp(turned.query.bytes(), plain.query.bytes(), plain.query.size_bytes()) != 0);
  CHECK(std::memcmp(turned.value.bytes(), plain.value.bytes(), plain.value.size_bytes()) == 0);
  problem.inputs.needles = false;
  problem.inputs.distribution = Distribution::kProbe;
  const AttentionInputs probe = make_inputs(problem);
  CHECK(std::memcmp(turned.query.bytes(), probe.query.bytes(), probe.query.size_bytes()) == 0);
}

TEST_CASE("elements are the draws of their stream rounded to the dtype") {
  Problem problem = small_problem();
  problem.inputs.std = 2.5;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    problem.attention.dtype = dtype;
    const AttentionInputs inputs = make_inputs(problem);
    std::vector<float> expected(static_cast<std::size_t>(inputs.value.num_elements()));
    draw({11, StreamId::kValue}, Distribution::kNormal, 2.5, 0, expected);
    for (std::int64_t i = 0; i < inputs.value.num_elements(); ++i) {
      CHECK(inputs.value.at(i) == round_to(dtype, expected[static_cast<std::size_t>(i)]));
    }
  }
}

TEST_CASE("the bytes do not depend on the number of threads") {
  Problem problem = small_problem();
  problem.batch = {{3000, 5000}, {1, 9000}};
  problem.inputs.distribution = Distribution::kOutlier;
  const AttentionInputs many = make_inputs(problem);
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  const AttentionInputs single = make_inputs(problem);
  sched_setaffinity(0, sizeof(all), &all);
  CHECK(same_bytes(many.query, single.query));
  CHECK(same_bytes(many.key, single.key));
  CHECK(same_bytes(many.value, single.value));
}

TEST_CASE("a tensor does not depend on the shapes of the others, and the seed changes all") {
  const Problem problem = small_problem();
  Problem wider = problem;
  wider.attention.num_heads = 8;
  CHECK(same_bytes(make_inputs(problem).key, make_inputs(wider).key));
  Problem reseeded = problem;
  reseeded.inputs.seed = 12;
  CHECK_FALSE(same_bytes(make_inputs(problem).key, make_inputs(reseeded).key));
  CHECK_FALSE(same_bytes(make_inputs(problem).key, make_inputs(problem).value));
}

TEST_CASE("all requests have the same keys and values below the common prefix and none above") {
  Problem problem = small_problem();
  problem.batch = {{1, 40}, {1, 50}, {4, 36}};
  problem.cascade.common_prefix_len = 32;
  const AttentionInputs inputs = make_inputs(problem);
  const std::int64_t width = 2 * 8;
  for (const Tensor* tensor : {&inputs.key, &inputs.value}) {
    for (std::size_t b = 1; b < 3; ++b) {
      for (std::int64_t p = 0; p < 36; ++p) {
        const auto* first = tensor->data<std::uint16_t>() + p * width;
        const auto* other = tensor->data<std::uint16_t>() + (inputs.key_start_loc[b] + p) * width;
        CHECK((std::memcmp(first, other, static_cast<std::size_t>(width) * 2) == 0) == (p < 32));
      }
    }
  }
}

TEST_CASE("distributions keep the standard deviation asked for, outliers stick out") {
  Problem problem = small_problem();
  problem.attention.head_size = problem.attention.v_head_size = 128;
  problem.batch = {{200, 3000}};
  problem.inputs.std = 0.5;
  CHECK(std_of(make_inputs(problem).key) == doctest::Approx(0.5).epsilon(0.01));
  problem.inputs.distribution = Distribution::kUniform;
  const AttentionInputs uniform = make_inputs(problem);
  CHECK(std_of(uniform.key) == doctest::Approx(0.5).epsilon(0.01));
  for (std::int64_t i = 0; i < uniform.key.num_elements(); ++i) {
    CHECK_MESSAGE(std::fabs(uniform.key.at(i)) <= 0.87f, i);
  }
  problem.inputs.distribution = Distribution::kOutlier;
  const AttentionInputs outlier = make_inputs(problem);
  const std::int64_t channels = 2 * 128;
  int large_channels = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (std::int64_t row = 0; row < 3000; ++row) {
      sum += std::fabs(outlier.key.at(row * channels + c)) / 3000;
    }
    large_channels += sum > 10 * 0.5 * 0.798;  // mean |x| of a normal is 0.798 std
  }
  CHECK(large_channels >= 1);
  CHECK(large_channels <= 10);  // 1 % of 256 expected
}

TEST_CASE("even a single channel tensor has an outlier channel") {
  Problem problem = small_problem();
  problem.attention.num_kv_heads = problem.attention.head_size = problem.attention.v_head_size = 1;
  problem.batch = {{1, 500}};
  problem.inputs.distribution = Distribution::kOutlier;
  CHECK(std_of(make_inputs(problem).key) > 15);
}

TEST_CASE("drawn sinks are bfloat16 numbers and given sinks are taken as they are") {
  Problem problem = small_problem();
  problem.attention.sinks = SinksKind::kNormal;
  const std::vector<float> drawn = make_inputs(problem).sinks;
  CHECK(drawn.size() == 4);
  for (float sink : drawn) CHECK(sink == round_to(Dtype::kBF16, sink));
  CHECK(std::adjacent_find(drawn.begin(), drawn.end()) == drawn.end());
  problem.attention.sinks = SinksKind::kValues;
  problem.attention.sink_values = {0.1, -INFINITY, INFINITY, 2};
  CHECK(make_inputs(problem).sinks == std::vector<float>{0.1f, -INFINITY, INFINITY, 2});
  problem.attention.sink_values.pop_back();
  CHECK(kind_of_error(problem) == ErrorKind::kShape);
}

TEST_CASE("slopes are resolved when ALiBi is on and must number the heads") {
  Problem problem = small_problem();
  problem.attention.alibi = AlibiKind::kLinear;
  CHECK(make_inputs(problem).alibi_slopes ==
        std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f});
  problem.attention.alibi_slopes = std::vector<double>{1, 2};
  CHECK(kind_of_error(problem) == ErrorKind::kShape);
}

TEST_CASE("a case beyond the machine's memory or 64 bits is E-CAPACITY before anything is drawn") {
  Problem problem = small_problem();
  problem.batch = {{1, 2'000'000'000}};
  problem.attention.head_size = problem.attention.v_head_size = 65536;
  CHECK(kind_of_error(problem) == ErrorKind::kCapacity);
  problem.batch = {{3'000'000'000, 3'000'000'000}};
  CHECK(kind_of_error(problem) == ErrorKind::kCapacity);
  problem = small_problem();
  problem.kv_cache.num_blocks = std::int64_t{1} << 60;
  CHECK(kind_of_error(problem) == ErrorKind::kCapacity);
}

TEST_CASE("negative lengths and too long queries are E-VALUE") {
  Problem problem = small_problem();
  problem.batch = {{1, -1}};
  CHECK(kind_of_error(problem) == ErrorKind::kValue);
  problem.batch = {{5, 4}};
  CHECK_THROWS_AS(new_key_ranges(problem), Error);
}

TEST_CASE("decoders write the new tokens' keys, cross attention those of fresh encoder outputs") {
  Problem problem = small_problem();
  const auto decoder = new_key_ranges(problem);
  CHECK(decoder[0].begin == 32);
  CHECK(decoder[0].end == 33);
  CHECK(decoder[1].begin == 43);
  CHECK(decoder[2].begin == decoder[2].end);
  CHECK(decoder[3].begin == 0);
  problem.attention.type = AttentionType::kEncoderDecoder;
  problem.batch = {{1, 100}, {4, 3}};
  const auto cross = new_key_ranges(problem);
  CHECK(cross[0].begin == cross[0].end);
  CHECK(cross[1].begin == 0);
  CHECK(cross[1].end == 3);
  problem.attention.type = AttentionType::kEncoder;
  for (const PositionRange& range : new_key_ranges(problem)) CHECK(range.begin == range.end);
}

TEST_CASE("a layer that shares the cache of another one writes no keys") {
  Problem problem = small_problem();
  problem.attention.kv_sharing = true;
  for (const PositionRange& range : new_key_ranges(problem)) CHECK(range.begin == range.end);
}

}  // namespace
}  // namespace attnbench
