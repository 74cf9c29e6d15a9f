// Rate of the float64 reference beside that of Eigen's double matrix product on the same cores.
// Usage: bench_reference [threads] [repeats]
#define EIGEN_DONT_PARALLELIZE
#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/system/parallel.h"
#include "core/tensor.h"
#include "reference/attention.h"

namespace attnbench {
namespace {

constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kHeadSize = 128;

double time_s(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

/// The products of one head of attention, S = Q K^T and O = P V, each thread on its own operands.
class MatrixProducts {
 public:
  explicit MatrixProducts(int num_threads)
      : pool_(num_threads), operands_(static_cast<std::size_t>(num_threads)) {}

  void run() {
    pool_.parallel_for(pool_.num_threads() * kHeadsPerThread, [&](std::int64_t, int thread) {
      Operands& own = operands_[static_cast<std::size_t>(thread)];
      own.scores.noalias() = own.query * own.key.transpose();
      own.output.noalias() = own.scores * own.value;
    });
  }
  double flops() const {
    return 4.0 * kTokens * kTokens * kHeadSize * pool_.num_threads() * kHeadsPerThread;
  }

 private:
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  struct Operands {
    Matrix query = Matrix::Random(kTokens, kHeadSize);
    Matrix key = Matrix::Random(kTokens, kHeadSize);
    Matrix value = Matrix::Random(kTokens, kHeadSize);
    Matrix scores = Matrix::Zero(kTokens, kTokens);
    Matrix output = Matrix::Zero(kTokens, kHeadSize);
  };
  static constexpr int kHeadsPerThread = 2;
  ThreadPool pool_;
  std::vector<Operands> operands_;
};

struct Shape {
  const char* name;
  bool causal;
  int num_heads;
  int num_kv_heads;
  std::int64_t query_len;
  std::int64_t seq_len;
};

Tensor random_tensor(std::vector<std::int64_t> shape, std::uint64_t seed) {
  Tensor tensor(Dtype::kBF16, std::move(shape));
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, normal(generator));
  return tensor;
}

/// One request of `shape` with its tensors.
class AttentionRun {
 public:
  AttentionRun(const Shape& shape, int num_threads)
      : query_(random_tensor({shape.query_len, shape.num_heads, kHeadSize}, 1)),
        key_(random_tensor({shape.seq_len, shape.num_kv_heads, kHeadSize}, 2)),
        value_(random_tensor({shape.seq_len, shape.num_kv_heads, kHeadSize}, 3)),
        query_start_loc_{0, static_cast<std::int32_t>(shape.query_len)},
        seq_lens_{static_cast<std::int32_t>(shape.seq_len)},
        key_start_loc_{0, shape.seq_len},
        rows_(static_cast<std::size_t>(shape.query_len)) {
    std::iota(rows_.begin(), rows_.end(), 0);
    math_.softmax_scale = 1 / std::sqrt(static_cast<double>(kHeadSize));
    math_.causal = shape.causal;
    math_.window_right = shape.causal ? 0 : -1;
    options_.num_threads = num_threads;
    for (std::int64_t i = 0; i < shape.query_len; ++i) {
      const std::int64_t position = i + shape.seq_len - shape.query_len;
      const KeyRange keys = visible_range(math_, position, shape.seq_len);
      flops_ += 4.0 * kHeadSize * shape.num_heads * static_cast<double>(keys.end - keys.begin);
    }
  }

  void reference() const { reference_attention(math_, inputs(), rows_, options_); }
  void emulation() const { emulate_attention(math_, inputs(), {}, rows_, options_); }
  /// Of the visible pairs.
  double flops() const { return flops_; }

 private:
  ReferenceInputs inputs() const {
    ReferenceInputs inputs;
    inputs.query = &query_;
    inputs.key = &key_;
    inputs.value = &value_;
    inputs.query_start_loc = query_start_loc_;
    inputs.seq_lens = seq_lens_;
    inputs.key_start_loc = key_start_loc_;
    return inputs;
  }

  Tensor query_;
  Tensor key_;
  Tensor value_;
  std::vector<std::int32_t> query_start_loc_;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int64_t> key_start_loc_;
  std::vector<std::int32_t> rows_;
  AttentionMath math_;
  ReferenceOptions options_;
  double flops_ = 0;
};

/// Prints the best rates. Product and attention take turns, so that other work on the machine
/// slows both.
void compare(const Shape& shape, MatrixProducts& products, int num_threads, int repeats) {
  const AttentionRun attention(shape, num_threads);
  double product = 0;
  double reference = 0;
  double emulation = 0;
  for (int i = 0; i < repeats; ++i) {
    product = std::max(product, products.flops() / time_s([&] { products.run(); }));
    reference = std::max(reference, attention.flops() / time_s([&] { attention.reference(); }));
    emulation = std::max(emulation, attention.flops() / time_s([&] { attention.emulation(); }));
  }
  fmt::print("{:36} {:10.1f} {:10.1f} {:7.2f} {:14.1f}\n", shape.name, product * 1e-9,
             reference * 1e-9, reference / product, emulation * 1e-9);
}

void run(int num_threads, int repeats) {
  const std::vector<Shape> shapes{
      {"non-causal 2048, 8 heads", false, 8, 8, kTokens, kTokens},
      {"causal 2048, 8 heads", true, 8, 8, kTokens, kTokens},
      {"causal 2048, 32 heads on 8", true, 32, 8, kTokens, kTokens},
      {"1 row, 16384 keys, 8 heads", true, 8, 8, 1, 16384},
      {"1 row, 16384 keys, 32 heads on 8", true, 32, 8, 1, 16384},
      {"1 row, 16384 keys, 64 heads on 8", true, 64, 8, 1, 16384},
  };
  fmt::print("head size {}, {} threads, best of {}, GFLOP/s\n", kHeadSize, num_threads, repeats);
  fmt::print("{:36} {:>10} {:>10} {:>7} {:>14}\n", "", "product", "reference", "ratio",
             "bf16 emulation");
  MatrixProducts products(num_threads);
  for (const Shape& shape : shapes) compare(shape, products, num_threads, repeats);
}

}  // namespace
}  // namespace attnbench

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : attnbench::available_cores();
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 7;
  attnbench::run(std::max(1, num_threads), std::max(1, repeats));
}
