// Screening on a GPU against the same device code on emulated threads, which the tests of the judge
// hold against the reference.
#include "ops/cuda/measure/screen.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/measure/screen_example_testing.h"
#include "ops/cuda/testing/emulated_screen_testing.h"

namespace attnbench::cuda {
namespace {

/// Null, after a message, where there is no device.
std::unique_ptr<CudaOps> open_gpu() {
  try {
    return make_cuda_ops(0, (std::filesystem::temp_directory_path() /
                             ("attnbench-screen-test-" + std::to_string(getpid())))
                                .string());
  } catch (const Error& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return nullptr;
  }
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-11 * (1 + std::abs(b)); }

}  // namespace

TEST_CASE("screening on the GPU gives the records of emulated threads") {
  const std::unique_ptr<CudaOps> gpu = open_gpu();
  if (!gpu) return;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const ScreenExample examples[] = {{2, 9, 70, 4, 2, 32, 32},
                                    {3, 1, 200, 8, 1, 64, 128},
                                    {1, 1, 3000, 2, 1, 64, 64},
                                    {1, 20, 150, 8, 2, 72, 300},
                                    {1, 70, 70, 2, 2, 128, 128}};
  for (const ScreenExample& example : examples) {
    EmulatedScreenLauncher launcher;
    Screen emulated(*cpu, launcher);
    Screen screen(*gpu, gpu->launcher());
    const auto expected = emulated.compare(example.inputs, example.screened());
    const auto actual = screen.compare(example.inputs, example.screened());
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      CAPTURE(i);
      CHECK(near(actual[i].error_squares, expected[i].error_squares));
      CHECK(near(actual[i].reference_squares, expected[i].reference_squares));
      CHECK(near(actual[i].spread_squares, expected[i].spread_squares));
      CHECK(near(actual[i].largest_error, expected[i].largest_error));
      CHECK(near(actual[i].lse, expected[i].lse));
      CHECK(actual[i].misplaced == expected[i].misplaced);
    }
  }
}

TEST_CASE("what screening costs on the GPU" * doctest::skip()) {
  const std::unique_ptr<CudaOps> gpu = open_gpu();
  if (!gpu) return;
  const auto seconds_of = [&](const char* name, const ScreenExample& example) {
    Screen screen(*gpu, gpu->launcher());
    double least = INFINITY;
    for (int i = 0; i < 3; ++i) {  // the first compiles and uploads
      const auto start = std::chrono::steady_clock::now();
      const auto records = screen.compare(example.inputs, example.screened());
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      if (i > 0) least = std::min(least, time.count());
      CHECK(records.size() == example.visible_begin.size() * 32);
    }
    double pairs = 0;
    for (const std::int32_t end : example.visible_end) pairs += end;
    const double flops = pairs * 32 * 2 * static_cast<double>(example.query.dim(2) * 2);
    MESSAGE(name << ": " << least << " s, " << 1e-12 * flops / least
                 << " TFLOP/s, upload of the output and records included");
  };
  seconds_of("q16k, 32 heads over 8, D 128", ScreenExample(1, 16384, 16384, 32, 8, 128, 128));
  seconds_of("q16k, 32 heads over 8, D 256", ScreenExample(1, 16384, 16384, 32, 8, 256, 256));
  seconds_of("64q1s8k, 32 heads over 8, D 128", ScreenExample(64, 1, 8192, 32, 8, 128, 128));
  seconds_of("1q1s128k, 32 heads over 8, D 128", ScreenExample(1, 1, 131072, 32, 8, 128, 128));
}

}  // namespace attnbench::cuda
