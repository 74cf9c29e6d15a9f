#include "bench/studies/fingerprint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "backends/forwarding_backend.h"
#include "core/numbers/dtype.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

/// What a kernel of the tests does to its numbers.
struct Arithmetic {
  Dtype probability = Dtype::kF32;
  int sum_bits = 24;
  bool truncates_output = false;
};

/// Cut off after so many bits.
double cut(double value, int bits) {
  if (value == 0) return 0;
  const int exponent = std::ilogb(value) + 1 - bits;
  return std::ldexp(std::trunc(std::ldexp(value, -exponent)), exponent);
}

/// Attention of one request from its definition, with the arithmetic of the test.
class ArithmeticPipeline final : public Pipeline {
 public:
  ArithmeticPipeline(const Problem& problem, const BackendInputs& inputs, const Arithmetic& how)
      : problem_(problem), inputs_(*inputs.inputs), how_(how) {
    steps_ = {{"attend", true, 1, 1, [this] { attend(); }}};
  }
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { output_ = {}; }
  PipelineOutput read_output(bool) override { return {output_, {}, {}, {}, {}, {}, {}}; }

 private:
  void attend() {
    const AttentionSpec& a = problem_.attention;
    output_ = Tensor(a.dtype, {problem_.num_tokens(), a.num_heads, a.v_head_size});
    for (std::int64_t row = 0; row < problem_.num_tokens(); ++row) {
      for (std::int64_t head = 0; head < a.num_heads; ++head) attend_row(row, head);
    }
  }

  float at(const Tensor& tensor, std::int64_t row, std::int64_t head, std::int64_t d) const {
    return tensor.at((row * tensor.dim(1) + head) * tensor.dim(2) + d);
  }

  void attend_row(std::int64_t row, std::int64_t head) {
    const AttentionSpec& a = problem_.attention;
    const Request& request = problem_.batch.front();
    const std::int64_t keys =
        a.causal ? request.seq_len - request.query_len + row + 1 : request.seq_len;
    std::vector<double> scores;
    for (std::int64_t key = 0; key < keys; ++key) {
      double score = 0;
      for (std::int64_t d = 0; d < a.head_size; ++d) {
        score += static_cast<double>(at(inputs_.query, row, head, d)) *
                 static_cast<double>(at(inputs_.key, key, head, d));
      }
      scores.push_back(score * a.scale);
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    std::vector<double> weights;
    double sum = 0;
    for (const double score : scores) {
      const double weight = std::exp(score - largest);
      sum += weight;
      weights.push_back(
          static_cast<double>(round_to(how_.probability, static_cast<float>(weight))));
    }
    for (std::int64_t d = 0; d < a.v_head_size; ++d) {
      double total = 0;
      for (std::int64_t key = 0; key < keys; ++key) {
        const double term = weights[static_cast<std::size_t>(key)] *
                            static_cast<double>(at(inputs_.value, key, head, d));
        total = cut(total + term, how_.sum_bits);
      }
      const double value = total / sum;
      output_.set((row * a.num_heads + head) * a.v_head_size + d,
                  static_cast<float>(how_.truncates_output ? cut(value, 8) : value));
    }
  }

  const Problem& problem_;
  const AttentionInputs& inputs_;
  const Arithmetic& how_;
  std::vector<Step> steps_;
  Tensor output_;
};

class ArithmeticBackend final : public ForwardingBackend {
 public:
  explicit ArithmeticBackend(const Arithmetic& how)
      : ForwardingBackend(*find_backend("TRITON_ATTN")), how_(how) {}
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops&) const override {
    return std::make_unique<ArithmeticPipeline>(problem, inputs, how_);
  }

 private:
  Arithmetic how_;
};

/// One decode, so that a plain loop over the keys is quick.
Problem decode_problem(Dtype dtype = Dtype::kBF16) {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "q1";
  problem.attention.dtype = dtype;
  problem.attention.num_heads = problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 64;
  problem.kv_cache.block_size = 16;
  problem.batch = {{1, 64}};
  return problem;
}

Fingerprint print_of(const Problem& problem, const Backend& backend, std::int64_t longest = 0) {
  const auto ops = make_cpu_ops(2);
  return take_fingerprint(problem, backend, *ops, {}, {}, longest);
}

TEST_CASE("the bits that sums keep are told from the output") {
  for (const int bits : {11, 13, 16, 24}) {
    CAPTURE(bits);
    const Fingerprint print = print_of(decode_problem(), ArithmeticBackend({.sum_bits = bits}));
    REQUIRE(print.sum_bits);
    CHECK(std::abs(*print.sum_bits - bits) <= 1);
    CHECK_FALSE(print.sum_bits_at_least);
  }
}

TEST_CASE("values of fp8 show short sums, and of long ones that they are longer than that") {
  Problem problem = decode_problem();
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  const Fingerprint print = print_of(problem, *find_backend("TRITON_ATTN"));
  REQUIRE(print.sum_bits);
  CHECK(print.sum_bits_at_least);
  CHECK(*print.sum_bits >= 20);
}

TEST_CASE("the type that P is rounded to is told from the output") {
  for (const Dtype type : {Dtype::kE4M3, Dtype::kE5M2, Dtype::kBF16, Dtype::kF16}) {
    for (const Dtype values : {Dtype::kBF16, Dtype::kF16}) {
      CAPTURE(dtype_name(type));
      CAPTURE(dtype_name(values));
      const Fingerprint print =
          print_of(decode_problem(values), ArithmeticBackend({.probability = type}));
      CHECK(print.probability == dtype_name(type));
    }
  }
  CHECK(print_of(decode_problem(), ArithmeticBackend({})).probability == "float32");
}

TEST_CASE("rounding of the output is told from its values") {
  CHECK(print_of(decode_problem(), ArithmeticBackend({})).output_rounding == "nearest");
  CHECK(print_of(decode_problem(), ArithmeticBackend({.truncates_output = true})).output_rounding ==
        "toward zero");
  CHECK(print_of(decode_problem(Dtype::kF32), ArithmeticBackend({})).output_rounding.empty());
}

TEST_CASE("short sums show as an error over biased values that grows with the keys") {
  const Fingerprint good = print_of(decode_problem(), ArithmeticBackend({}), 32768);
  const Fingerprint poor = print_of(decode_problem(), ArithmeticBackend({.sum_bits = 13}), 32768);
  REQUIRE(good.biased.size() == 2);
  REQUIRE(poor.biased.size() == 2);
  CHECK(good.biased[0].keys == 8192);
  CHECK(good.biased[1].keys == 32768);
  CHECK(poor.biased[1].rms_rel > 2 * poor.biased[0].rms_rel);
  CHECK(poor.biased[1].rms_rel > 20 * good.biased[1].rms_rel);
}

TEST_CASE("kernels of this program on the CPU sum in float32, prompts and decodes alike") {
  Problem problem = decode_problem();
  for (const Request& request : {Request{1, 64}, Request{64, 64}}) {
    problem.batch = {request};
    for (const char* name : {"FLASH_ATTN", "TRITON_ATTN"}) {
      CAPTURE(name);
      const Fingerprint print = print_of(problem, *find_backend(name));
      REQUIRE(print.sum_bits);
      CHECK(*print.sum_bits >= 23);
      CHECK(print.output_rounding == "nearest");
    }
  }
}

TEST_CASE("no fingerprint is taken of latents, images, operations and int8 codes") {
  Problem problem = decode_problem();
  CHECK(why_no_fingerprint(problem).empty());
  problem.kv_cache.int8_level = 1;
  CHECK_FALSE(why_no_fingerprint(problem).empty());
  problem = decode_problem();
  problem.attention.type = AttentionType::kMla;
  CHECK_FALSE(why_no_fingerprint(problem).empty());
}

}  // namespace
}  // namespace attnbench
