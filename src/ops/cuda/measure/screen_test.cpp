// Screening on a GPU against the same device code on emulated threads, which the tests of the judge
// hold against the reference.
#include "ops/cuda/measure/screen.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/testing/emulated_screen_testing.h"

namespace attnbench::cuda {
namespace {

/// A causal batch of requests of one query length and one number of keys, with some output.
struct Example {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc{0};
  std::vector<std::int32_t> visible_begin;
  std::vector<std::int32_t> visible_end;
  Tensor query, key, value, output;
  ScreenInputs inputs;

  Example(int requests, int query_len, int seq_len, int heads, int kv_heads, int size, int v_size) {
    for (int b = 0; b < requests; ++b) {
      query_start_loc.push_back(query_start_loc.back() + query_len);
      seq_lens.push_back(seq_len);
      key_start_loc.push_back(key_start_loc.back() + seq_len);
      for (int i = 0; i < query_len; ++i) {
        visible_begin.push_back(0);
        visible_end.push_back(seq_len - query_len + i + 1);
      }
    }
    query = numbers({query_start_loc.back(), heads, size});
    key = numbers({key_start_loc.back(), kv_heads, size});
    value = numbers({key_start_loc.back(), kv_heads, v_size});
    output = numbers({query_start_loc.back(), heads, v_size});
    inputs.query = &query;
    inputs.key = &key;
    inputs.value = &value;
    inputs.query_start_loc = query_start_loc;
    inputs.seq_lens = seq_lens;
    inputs.key_start_loc = key_start_loc;
    inputs.visible_begin = visible_begin;
    inputs.visible_end = visible_end;
    inputs.softmax_scale = 1 / std::sqrt(static_cast<double>(size));
  }
  ScreenOutput screened() const { return {&output, 1, 3e38, false}; }

 private:
  /// bfloat16 between -2 and 2, all magnitudes; enough for sums that depend on every element.
  static Tensor numbers(std::vector<std::int64_t> shape) {
    static unsigned state = 1;
    Tensor tensor(Dtype::kBF16, std::move(shape));
    auto* const codes = tensor.data<std::uint16_t>();
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      state = state * 1664525u + 1013904223u;
      codes[i] =
          static_cast<std::uint16_t>((state >> 16 & 0x807Fu) | 0x3F00u | (state >> 24 & 0x80u));
    }
    return tensor;
  }
};

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
  const Example examples[] = {{2, 9, 70, 4, 2, 32, 32},
                              {3, 1, 200, 8, 1, 64, 128},
                              {1, 1, 3000, 2, 1, 64, 64},
                              {1, 20, 150, 8, 2, 72, 300},
                              {1, 70, 70, 2, 2, 128, 128}};
  for (const Example& example : examples) {
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
  const auto seconds_of = [&](const char* name, const Example& example) {
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
  seconds_of("q16k, 32 heads over 8, D 128", Example(1, 16384, 16384, 32, 8, 128, 128));
  seconds_of("q16k, 32 heads over 8, D 256", Example(1, 16384, 16384, 32, 8, 256, 256));
  seconds_of("64q1s8k, 32 heads over 8, D 128", Example(64, 1, 8192, 32, 8, 128, 128));
  seconds_of("1q1s128k, 32 heads over 8, D 128", Example(1, 1, 131072, 32, 8, 128, 128));
}

}  // namespace attnbench::cuda
