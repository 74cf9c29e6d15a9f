#include "bench/judge/judge.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

/// One token, one head, two elements.
struct Example {
  Problem problem;
  Numerics numerics;
  PipelineOutput output;
  ReferenceOutput reference{{0}, 1, 2, {1.0, 2.0}, {0.5}, {std::sqrt(5.0)}};
  ReferenceOutput emulation{{0}, 1, 2, {1.0, 2.0078125}, {0.5}};

  Example() {
    problem.attention.num_heads = problem.attention.num_kv_heads = 1;
    problem.attention.head_size = problem.attention.v_head_size = 2;
    problem.batch = {{1, 1}};
    output.output = Tensor(Dtype::kBF16, {1, 1, 2});
    output.output.set(0, 1);
    output.output.set(1, 2);
    output.lse = Tensor(Dtype::kF32, {1, 1});
    output.lse->set(0, 0.5f);
  }
  Judgement run(const ReferenceOutput* unquantised = nullptr) const {
    return judge(problem, numerics, output, {&reference, &emulation, unquantised});
  }
};

}  // namespace

TEST_CASE("the rule follows from dtypes and quantisation") {
  Example example;
  CHECK(example.run().error.rule == "semantics 14.2 rows, output bfloat16, P bfloat16");
  example.numerics.quantised_kv = true;
  CHECK(example.run().error.rule ==
        "semantics 14.2 rows, output bfloat16, P bfloat16, quantised K and V");
  example.numerics.quantised_query = true;
  CHECK(example.run().error.rule == "semantics 14.2 rows, output bfloat16, P bfloat16, fp8 Q K V");
  example.numerics.probability = Dtype::kE4M3;
  CHECK(example.run().error.rule == "semantics 14.2 rows, output bfloat16, P fp8_e4m3, fp8 Q K V");
}

TEST_CASE("a row may err by twice its emulation, with a soft-cap too") {
  Example example;
  example.output.output.set(1, 2.03125f);      // an error of 1/32 ...
  example.emulation.output[1] = 2 + 1.0 / 80;  // ... is 2.5 times that of the emulation
  CHECK(example.run().reasons ==
        std::vector<std::string>{"output of request 0, row 0 (position 0), head 0: error 0.014 of "
                                 "the row's size, limit 0.011; 1 row of 1 request is outside; "
                                 "output[0, 0, 1] is 2.03125, reference 2"});
  example.problem.attention.logits_soft_cap = 30;
  CHECK_FALSE(example.run().reasons.empty());
  example.emulation.output[1] = 2 + 1.0 / 60;
  const Judgement judgement = example.run();
  CHECK(judgement.reasons.empty());
  CHECK(judgement.error.err_ratio == doctest::Approx(60.0 / 32));  // for reading
  CHECK(judgement.error.row_error < judgement.error.row_limit);
  CHECK(judgement.error.worst_row == RowPlace{0, 0, 0, 0});
}

TEST_CASE("what passes by the floors of the limits needs no emulation; what does not may still") {
  Example example;
  const auto strict = [&] {
    return judge_by_floors(example.problem, example.numerics, example.output, example.reference);
  };
  CHECK(strict().reasons.empty());
  CHECK(strict().error.row_limit <= example.run().error.row_limit);
  example.output.output.set(1, 2.03125f);
  example.emulation.output[1] = 2 + 1.0 / 60;
  CHECK(example.run().reasons.empty());
  CHECK_FALSE(strict().reasons.empty());
  example.output.output.set(1, 2);
  example.output.lse->set(0, 0.52f);
  CHECK_FALSE(strict().reasons.empty());
}

TEST_CASE("quantisation error is reported and never judged") {
  Example example;
  const ReferenceOutput far{{0}, 1, 2, {5.0, 2.0}, {0.5}};
  const Judgement judgement = example.run(&far);
  CHECK(judgement.reasons.empty());
  REQUIRE(judgement.quantization_error);
  CHECK(judgement.quantization_error->max_abs == 4);
}

TEST_CASE("validation.max_quantization_error limits what quantising may cost") {
  Example example;
  const ReferenceOutput near{{0}, 1, 2, {1.0, 2.02}, {0.5}};
  const auto objection = [&](const ReferenceOutput& unquantised) {
    return object_to_quantization(example.problem, example.run(&unquantised).quantization_error);
  };
  CHECK(objection(near).empty());
  example.problem.validation.max_quantization_error = 0.005;
  CHECK(objection(near) ==
        "quantization error 0.00887 (relative RMS against unquantised attention) is above "
        "validation.max_quantization_error 0.005");
  const Judgement judgement = example.run(&near);
  CHECK(judgement.reasons.empty());
  CHECK(judgement.quantization_error->limit == "rms_rel <= 0.005");
  example.problem.validation.max_quantization_error = 0.009;
  CHECK(objection(near).empty());
  CHECK(object_to_quantization(example.problem, std::nullopt).empty());
  const ReferenceOutput zero{{0}, 1, 2, {0.0, 0.0}, {0.5}};
  CHECK(objection(zero).find("cannot be taken") != std::string::npos);
}

TEST_CASE("shares of clipped values stand beside the quantization error, where there is one") {
  Example example;
  const ReferenceOutput far{{0}, 1, 2, {5.0, 2.0}, {0.5}};
  Judgement judgement = example.run(&far);
  note_saturation({0.25, 0, 0.5}, judgement);
  const NamedNumbers expected{{"saturated_query", 0.25}, {"saturated_value", 0.5}};
  CHECK(judgement.quantization_error->by_name == expected);
  Judgement without = example.run();
  note_saturation({0.25, 0, 0.5}, without);
  CHECK_FALSE(without.quantization_error);
}

TEST_CASE("a wrong LSE alone is a reason") {
  Example example;
  example.output.lse->set(0, 0.75f);
  const Judgement judgement = example.run();
  CHECK(judgement.reasons.size() == 1);
  CHECK(judgement.lse_error->max_abs == 0.25);
  example.output.lse.reset();
  CHECK(example.run().reasons.empty());
  CHECK_FALSE(example.run().lse_error);
}

TEST_CASE("fused static fp8 output is judged by its codes") {
  Example example;
  example.problem.output_quant.type = OutputQuantType::kFp8Static;
  example.problem.output_quant.scale = 0.5;
  example.numerics.output = Dtype::kE4M3;
  example.output.output = Tensor(Dtype::kE4M3, {1, 1, 2});
  example.output.output.set(0, 2);  // 1 / 0.5
  example.output.output.set(1, 4);
  CHECK(example.run().reasons.empty());
  CHECK(emulation_rule(example.problem, example.numerics).storage == Dtype::kBF16);
  example.output.output.set(1, 5);
  CHECK_FALSE(example.run().reasons.empty());
}

TEST_CASE("an output of the wrong shape is a defect of the program") {
  Example example;
  example.output.output = Tensor(Dtype::kBF16, {2, 1, 2});
  CHECK_THROWS_AS(example.run(), Error);
}

TEST_CASE("differences of two runs name the first element") {
  const Example first;
  Example second;
  CHECK(describe_difference(first.output, second.output).empty());
  second.output.output.set(1, 3);
  CHECK(describe_difference(first.output, second.output) == "output[0, 0, 1] is 2, then 3");
  second = Example();
  second.output.lse.reset();
  CHECK_FALSE(describe_difference(first.output, second.output).empty());
}

}  // namespace attnbench
