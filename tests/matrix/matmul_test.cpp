// What the pipelines of MLA give with every product done as cuBLASLt would, and how they call
// Ops before the first of them.
#include <doctest/doctest.h>

#include <set>
#include <utility>

#include "core/error.h"
#include "mla_products_testing.h"
#include "ops/cuda/matmul/library_matmul.h"
#include "ops/cuda/testing/column_major_testing.h"
#include "ops/forwarding_ops.h"
#include "run_case.h"

namespace attnbench::matrix {
namespace {

/// Products by columns, from the description that the library gets.
class ByColumns final : public ForwardingOps {
 public:
  explicit ByColumns(Ops& inner) : ForwardingOps(inner) {}

  void prepare_matmul(const attn::MatmulParams& params) override {
    if (const auto product = cuda::lt_product(params)) prepared_.insert(*product);
  }
  void matmul(const attn::MatmulParams& params) override {
    const auto product = cuda::lt_product(params);
    if (!product) {
      ++own;
      ForwardingOps::matmul(params);
      return;
    }
    if (!prepared_.contains(*product)) fail(ErrorKind::kInternal, "a product was not prepared");
    cuda::multiply_by_columns(*product, params.b, params.a, params.c);
    ++by_columns;
  }

  int own = 0;
  int by_columns = 0;

 private:
  std::set<LtProduct> prepared_;
};

}  // namespace

TEST_CASE("MLA with every product by columns gives what the reference does") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  using Settings = std::vector<Setting>;
  for (const Settings& settings : std::vector<Settings>{
           {},
           {{"attention.dtype", "float16"}},
           {{"mla.workspace_tokens", "512"}},
           {{"attention.dtype", "float16"}, {"kv_cache.dtype", "fp8"}},
           {{"mla.q_pad_num_heads", "16"}},
           {{"mla.v_pad", "on"}},
           {{"dcp.world_size", "2"}},
       }) {
    CAPTURE(settings.size());
    if (!settings.empty()) CAPTURE(settings.front().first);
    ByColumns ops(*cpu);
    const CaseResult result =
        run_case(make_problem(kMlaScenario, settings), *find_backend("MLA"), ops);
    INFO(result.text());
    CHECK(result.outcome == Outcome::kPassed);
    CHECK(ops.own == 0);
    CHECK(ops.by_columns > 0);
  }
}

TEST_CASE("MLA that promises the same bytes in every batch has all products by the own kernel") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  ByColumns ops(*cpu);
  const CaseResult result =
      run_case(make_problem(kMlaScenario, {{"attention.batch_invariant", "true"}}),
               *find_backend("MLA"), ops);
  INFO(result.text());
  CHECK(result.outcome == Outcome::kPassed);
  CHECK(ops.own > 0);
  CHECK(ops.by_columns == 0);
}

}  // namespace attnbench::matrix
