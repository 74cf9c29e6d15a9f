#include "bench/studies/composition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backends/forwarding_backend.h"

namespace attnbench {
namespace {

Problem small_decoder() {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "2q1s37";
  problem.attention.num_heads = 4;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 32;
  problem.attention.scale = 1 / std::sqrt(32.0);
  problem.kv_cache.block_size = 16;
  problem.batch = {{1, 37}, {5, 64}, {1, 3}};
  problem.kv_cache.num_blocks = 16;
  return problem;
}

/// Changes what a backend's pipelines leave.
class Changing final : public ForwardingBackend {
 public:
  using Change = std::function<void(PipelineOutput&)>;
  Changing(const Backend& inner, Change change)
      : ForwardingBackend(inner), change_(std::move(change)) {}
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return std::make_unique<Changed>(ForwardingBackend::prepare(problem, inputs, ops), change_);
  }

 private:
  class Changed final : public Pipeline {
   public:
    Changed(std::unique_ptr<Pipeline> inner, const Change& change)
        : inner_(std::move(inner)), change_(change) {}
    const std::vector<Step>& steps() const override { return inner_->steps(); }
    void poison_outputs() override { inner_->poison_outputs(); }
    PipelineOutput read_output(bool with_cache) override {
      PipelineOutput output = inner_->read_output(with_cache);
      change_(output);
      return output;
    }

   private:
    std::unique_ptr<Pipeline> inner_;
    const Change& change_;
  };
  Change change_;
};

void to_base_two(PipelineOutput& output) {
  for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
    output.lse->set(i, output.lse->at(i) * std::numbers::log2e_v<float>);
  }
}

void to_token_order(PipelineOutput& output) {
  const Tensor lse = *output.lse;
  const std::int64_t heads = lse.dim(0);
  const std::int64_t tokens = lse.dim(1);
  for (std::int64_t i = 0; i < heads * tokens; ++i) {
    output.lse->set(i % tokens * heads + i / tokens, lse.at(i));
  }
}

std::vector<CompositionRow> compose(const Backend& attention, const Backend& merge) {
  const auto ops = make_cpu_ops(2);
  return study_composition(small_decoder(), {{&attention}, {&merge}, {find_backend("OPS")}}, *ops,
                           {}, {});
}

TEST_CASE("parts of every backend with an LSE, merged and combined, are the whole") {
  for (const char* name : {"FLASH_ATTN", "TRITON_ATTN", "REFERENCE"}) {
    CAPTURE(name);
    const auto rows = compose(*find_backend(name), *find_backend("OPS"));
    REQUIRE(rows.size() == 2);
    for (const CompositionRow& row : rows) {
      CAPTURE(row.combine);
      CHECK(row.refusal == "");
      CHECK(row.mismatches.empty());
      CHECK(row.fits);
      CHECK(row.row_error > 0);
    }
  }
}

TEST_CASE("an LSE in base 2 that is not declared is named, and the whole is wrong") {
  const Changing base_two(*find_backend("FLASH_ATTN"), to_base_two);
  for (const CompositionRow& row : compose(base_two, *find_backend("OPS"))) {
    CHECK_FALSE(row.fits);
    REQUIRE(row.mismatches.size() == 1);
    CHECK(row.mismatches.front() == "FLASH_ATTN writes its LSE in base 2, declared base e");
  }
}

TEST_CASE("an LSE with its axes the other way round is named") {
  const Changing by_token(*find_backend("FLASH_ATTN"), to_token_order);
  for (const CompositionRow& row : compose(by_token, *find_backend("OPS"))) {
    CHECK_FALSE(row.fits);
    REQUIRE(row.mismatches.size() == 1);
    CHECK(row.mismatches.front() == "FLASH_ATTN writes its LSE as [T, H], declared [H, T]");
  }
}

TEST_CASE("a merge that writes another base is named, not the attention before it") {
  const Changing merge(*find_backend("OPS"), to_base_two);
  for (const CompositionRow& row : compose(*find_backend("FLASH_ATTN"), merge)) {
    CHECK_FALSE(row.fits);
    REQUIRE(row.mismatches.size() == 1);
    CHECK(row.mismatches.front() == "OPS writes its LSE in base 2, declared base e");
  }
}

TEST_CASE("candidates take part where they do not refuse") {
  const CompositionMembers members =
      members_of(small_decoder(), {find_backend("FLASH_ATTN"), find_backend("OPS")}, {});
  REQUIRE(members.attentions.size() == 1);
  CHECK(members.attentions.front()->name() == "FLASH_ATTN");
  REQUIRE(members.merges.size() == 1);
  CHECK(members.merges.front()->name() == "OPS");
  REQUIRE(members.combines.size() == 1);
}

TEST_CASE("numbers that are no LSE fit no convention") {
  const Tensor lse = Tensor::from_f32(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(find_lse_convention(lse, std::vector<double>{1, 2, 3, 4, 5, 6}, 0.01));
  CHECK_FALSE(find_lse_convention(lse, std::vector<double>{1, 2, 3, 4, 5, 7}, 0.01));
  const auto by_token = find_lse_convention(lse, std::vector<double>{1, 3, 5, 2, 4, 6}, 0.01);
  REQUIRE(by_token);
  CHECK(by_token->by_token);
  CHECK_FALSE(by_token->base_two);
}

TEST_CASE("what goes by positions is not composed") {
  Problem problem = small_decoder();
  CHECK(why_no_composition(problem).empty());
  problem.attention.sliding_window = 16;
  CHECK_FALSE(why_no_composition(problem).empty());
  problem = small_decoder();
  problem.attention.sinks = SinksKind::kNormal;
  CHECK_FALSE(why_no_composition(problem).empty());
}

}  // namespace
}  // namespace attnbench
