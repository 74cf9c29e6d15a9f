#include "cli/session/calibration.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "calibrate/attention_error.h"
#include "calibrate/magnitudes.h"
#include "calibrate/scale_search.h"
#include "cli/cases/device.h"

namespace attnbench {
namespace {

/// The reference in place of a device's kernel.
class HostScreen final : public RowScreen {
 public:
  ScreenTable compare(const AttentionMath& math, const ReferenceInputs& inputs,
                      const ScreenedOutput& output) override {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(inputs.query_start_loc.back()));
    std::iota(rows.begin(), rows.end(), 0);
    ++num_calls;
    return screen_by(*reference_attention(math, inputs, rows), output);
  }
  ScreenTable compare_latent(const MlaReferenceInputs&, const ScreenedOutput&) override {
    return {};
  }
  ScreenTable compare_listed(const AttentionMath&, const ReferenceInputs&,
                             std::span<const std::int32_t>, const ScreenedOutput&) override {
    return {};
  }
  ScreenTable compare_latent_rank(const MlaReferenceInputs&, const DcpGroup&, int,
                                  const ScreenedOutput&) override {
    return {};
  }
  ScreenTable compare_part(const AttentionMath&, const ReferenceInputs&, const ScreenedPart&,
                           const ScreenedOutput&) override {
    return {};
  }
  ScreenTable compare_latent_part(const MlaReferenceInputs&, const ScreenedPart&,
                                  const ScreenedOutput&) override {
    return {};
  }
  void release() override {}
  int num_calls = 0;
};

/// Three sequences of 16 bits, one of them with more keys than queries.
Observation drawn_observation() {
  Observation observation;
  Problem& problem = observation.problem;
  AttentionSpec& a = problem.attention;
  a.num_heads = 4;
  a.num_kv_heads = 2;
  a.head_size = a.v_head_size = 16;
  a.scale = 0.25;
  problem.batch = {{20, 20}, {7, 60}, {33, 33}};
  std::int64_t element = 0;
  for (const auto& [role, tokens, heads] :
       {std::tuple{kQueryRole, 60, 4}, {kKeyRole, 113, 2}, {kValueRole, 113, 2}}) {
    Tensor& tensor = observation.tensors[role].emplace(
        Dtype::kBF16, std::vector<std::int64_t>{tokens, heads, 16});
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.set(i, 2 * std::sin(0.7f * static_cast<float>(element++ % 9973)));
    }
  }
  return observation;
}

}  // namespace

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

TEST_CASE("attention errors of a device are those of the reference, of every mask that it takes") {
  const std::shared_ptr<Ops> ops = open_ops(choose_device("cpu", ""), 2, "");
  const std::array<std::vector<double>, kNumRoles> scales{{{0.01}, {0.01}, {0.01}}};
  struct MaskCase {
    bool causal;
    std::optional<std::int64_t> window;
    AlibiKind alibi;
    bool is_served;
  };
  for (const MaskCase& c : {MaskCase{true, std::nullopt, AlibiKind::kNone, true},
                            MaskCase{false, std::nullopt, AlibiKind::kNone, true},
                            MaskCase{true, 9, AlibiKind::kNone, true},
                            MaskCase{true, std::nullopt, AlibiKind::kLinear, true},
                            MaskCase{true, std::nullopt, AlibiKind::kSqrt, true},
                            MaskCase{false, std::nullopt, AlibiKind::kLinear, false}}) {
    CAPTURE(c.causal);
    CAPTURE(to_string(c.alibi));
    Observation observation = drawn_observation();
    AttentionSpec& a = observation.problem.attention;
    a.causal = c.causal;
    a.sliding_window = c.window;
    a.alibi = c.alibi;
    if (c.alibi != AlibiKind::kNone) observation.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
    SampleOptions options;
    options.max_rows = 25;
    AttentionSample on_host(observation, options);
    const auto screen = std::make_shared<HostScreen>();
    options.device_error = error_on(ops, screen);
    AttentionSample on_device(observation, options);
    for (const ScaleFormat format : {ScaleFormat::kKvCache, ScaleFormat::kKvCacheLegacy}) {
      const OutputError expected = on_host.error(format, scales);
      const OutputError found = on_device.error(format, scales);
      CHECK(expected.rms_rel() > 1e-3);
      CHECK(found.rms_rel() == doctest::Approx(expected.rms_rel()).epsilon(1e-4));
      CHECK(found.squared_reference == doctest::Approx(expected.squared_reference).epsilon(1e-9));
      CHECK(found.max_abs == doctest::Approx(expected.max_abs).epsilon(1e-3));
    }
    CHECK(screen->num_calls == (c.is_served ? 2 : 0));
  }
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
