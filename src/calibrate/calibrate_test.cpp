#include "calibrate/calibrate.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

/// Forwards of one layer "l": queries, keys and values [4, 1, 16], the largest of each given.
class FakeObservations final : public Observations {
 public:
  explicit FakeObservations(std::vector<float> largest) : largest_(std::move(largest)) {}

  const std::vector<std::string>& layers() const override { return layers_; }
  std::int64_t count(std::size_t) const override {
    return static_cast<std::int64_t>(largest_.size());
  }
  Observation read(std::size_t, std::int64_t index) override {
    ++num_reads;
    Observation observation;
    observation.where = "fake";
    for (auto& tensor : observation.tensors) {
      tensor.emplace(Dtype::kF32, std::vector<std::int64_t>{4, 1, 16});
      for (std::int64_t i = 0; i < tensor->num_elements(); ++i) {
        tensor->set(i, std::sin(static_cast<float>(i)));
      }
      tensor->set(7, -largest_[static_cast<std::size_t>(index)]);
    }
    AttentionSpec& a = observation.problem.attention;
    a.num_heads = a.num_kv_heads = 1;
    a.head_size = a.v_head_size = 16;
    a.scale = 0.25;
    observation.problem.batch = {{4, 4}};
    return observation;
  }

  int num_reads = 0;

 private:
  std::vector<std::string> layers_{"l"};
  std::vector<float> largest_;
};

double q_scale(const CalibrationReport& report) { return report.layers[0].roles[0].scale[0]; }

double expected(float amax) { return double{amax / 448.0f} * 1.5; }

}  // namespace

TEST_CASE("a history forgets, everything as one observation does not") {
  FakeObservations forwards({90, 3, 5, 4});
  CalibrationOptions options;
  CHECK(q_scale(calibrate(forwards, options)) == expected(90));
  for (const auto& [length, amax] : {std::pair{1, 4.0f}, {2, 5.0f}, {3, 5.0f}, {4, 90.0f}}) {
    options.history = length;
    CHECK(q_scale(calibrate(forwards, options)) == expected(amax));
  }
}

TEST_CASE("a layer that is observed once is read once") {
  FakeObservations forwards({3});
  const CalibrationReport report = calibrate(forwards, {});
  CHECK(forwards.num_reads == 1);
  CHECK(report.layers[0].error->rms_rel() > 0);
}

TEST_CASE("a device that finds another largest value is an error, 1 ulp is not") {
  FakeObservations forwards({3});
  CalibrationOptions options;
  options.device_amax = [](const Tensor&) { return std::optional(std::nextafter(3.0f, 4.0f)); };
  CHECK(q_scale(calibrate(forwards, options)) == expected(std::nextafter(3.0f, 4.0f)));
  options.device_amax = [](const Tensor&) { return std::optional<float>(); };
  CHECK(q_scale(calibrate(forwards, options)) == expected(3));
  options.device_amax = [](const Tensor&) { return std::optional(3.001f); };
  CHECK_THROWS_WITH_AS(calibrate(forwards, options), doctest::Contains("layer 'l': tensor q"),
                       Error);
}

TEST_CASE("the best method and the loss to it are by the attention error") {
  LayerReport layer;
  CHECK_FALSE(layer.best().has_value());
  CHECK_FALSE(layer.loss().has_value());
  layer.method_error[0] = OutputError{4, 100, 0};
  layer.method_error[2] = OutputError{1, 100, 0};
  layer.error = OutputError{9, 100, 0};
  CHECK(layer.best() == ScaleMethod::kMse);
  CHECK(*layer.loss() == doctest::Approx(3));
}

TEST_CASE("names of layers are kept in natural order, templates are filled in") {
  CHECK(expand_layers({"b.10", "b.9"}) == std::vector<std::string>{"b.9", "b.10"});
  CHECK(expand_layers({"a.{}.b:3"}) == std::vector<std::string>{"a.0.b", "a.1.b", "a.2.b"});
  for (const char* text : {"a.{}.b", "a.{}:0", "a.{}:x", "a.{}:3x", "a.{}:99999999"}) {
    CHECK_THROWS_AS(expand_layers({text}), Error);
  }
  CHECK_THROWS_AS(expand_layers({"a", "a"}), Error);
}

}  // namespace attnbench
