// Attention of the CPU operations against Eigen's float32 matrix product at the same shape: prints
// both rates and their ratio. Usage: bench_cpu_attend [num_threads]
#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/system/clock.h"
#include "core/system/parallel.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

constexpr int kHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kHeadSize = 128;
constexpr int kSeqLen = 2048;
constexpr int kBlockSize = 16;
constexpr int kRepeats = 7;

double best_seconds(const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = steady_clock().now_s();
    work();
    best = std::min(best, steady_clock().now_s() - start);
  }
  return best;
}

/// GFLOP/s of S = Q K^T and O = P V over whole matrices, each head on one thread.
double eigen_rate(ThreadPool& pool) {
  using Matrix = Eigen::MatrixXf;
  const Matrix query = Matrix::Random(kSeqLen, kHeadSize);
  const Matrix key = Matrix::Random(kHeadSize, kSeqLen);
  std::vector<Matrix> scores(static_cast<std::size_t>(pool.num_threads()),
                             Matrix(kSeqLen, kSeqLen));
  std::vector<Matrix> output(scores.size(), Matrix(kSeqLen, kHeadSize));
  const double seconds = best_seconds([&] {
    pool.parallel_for(kHeads, [&](std::int64_t, int thread) {
      const auto t = static_cast<std::size_t>(thread);
      scores[t].noalias() = query * key;
      output[t].noalias() = scores[t] * key.transpose();
    });
  });
  return 4.0 * kHeads * kHeadSize * double{kSeqLen} * kSeqLen / seconds * 1e-9;
}

struct Case {
  std::string name;
  Dtype dtype;
  int query_len;
  int num_requests;
  bool causal;
};

/// Paged K and V of `dtype`; requests of kSeqLen keys each.
struct Setup {
  Tensor query, cache, output;
  std::vector<int> query_start_loc, seq_lens, block_table;
  attn::AttendParams params{};

  explicit Setup(const Case& c) {
    const int blocks_per_request = kSeqLen / kBlockSize;
    const int num_blocks = blocks_per_request * c.num_requests;
    const int tokens = c.query_len * c.num_requests;
    query = Tensor(c.dtype, {tokens, kHeads, kHeadSize});
    output = Tensor(c.dtype, {tokens, kHeads, kHeadSize});
    cache = Tensor(c.dtype, {2, num_blocks, kBlockSize, kKvHeads, kHeadSize});
    for (Tensor* tensor : {&query, &cache}) {
      for (std::int64_t i = 0; i < tensor->num_elements(); ++i) {
        tensor->set(i, static_cast<float>(i * 7919 % 2001 - 1000) / 577.0f);
      }
    }
    for (int b = 0; b <= c.num_requests; ++b) query_start_loc.push_back(b * c.query_len);
    seq_lens.assign(static_cast<std::size_t>(c.num_requests), kSeqLen);
    block_table.resize(static_cast<std::size_t>(num_blocks));
    std::iota(block_table.begin(), block_table.end(), 0);
    const auto element = static_cast<attn::Element>(c.dtype);
    params.query_element = params.output_element = params.kv.element = element;
    params.query = query.bytes();
    params.output = output.bytes();
    params.query_token_stride = params.output_token_stride = kHeads * kHeadSize;
    params.query_head_stride = params.output_head_stride = kHeadSize;
    params.query_start_loc = query_start_loc.data();
    params.seq_lens = seq_lens.data();
    params.num_requests = c.num_requests;
    params.num_heads = kHeads;
    params.num_kv_heads = kKvHeads;
    params.head_size = params.v_head_size = kHeadSize;
    params.score.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kHeadSize));
    params.score.window_left = -1;
    params.score.window_right = c.causal ? 0 : -1;
    attn::KvParams& kv = params.kv;
    kv.key = cache.bytes();
    kv.value = cache.bytes() + cache.size_bytes() / 2;
    kv.token_stride_key = kv.token_stride_value = kKvHeads * kHeadSize;
    kv.head_stride_key = kv.head_stride_value = kHeadSize;
    kv.block_stride = std::int64_t{kBlockSize} * kKvHeads * kHeadSize;
    kv.block_table = block_table.data();
    kv.block_table_stride = blocks_per_request;
    kv.block_size = kBlockSize;
  }
};

double visible_pairs(const Case& c) {
  const double rows = c.query_len;
  const double per_request =
      c.causal ? rows * (kSeqLen - rows) + rows * (rows + 1) / 2 : rows * kSeqLen;
  return per_request * c.num_requests;
}

int run(int num_threads) {
  ThreadPool pool(num_threads);
  const auto ops = make_cpu_ops(num_threads);
  const double eigen = eigen_rate(pool);
  fmt::print("Eigen float32 product, S {} D {}, {} threads: {:.1f} GFLOP/s\n", kSeqLen, kHeadSize,
             pool.num_threads(), eigen);
  const std::vector<Case> cases{{"prefill full bfloat16", Dtype::kBF16, kSeqLen, 1, false},
                                {"prefill causal bfloat16", Dtype::kBF16, kSeqLen, 1, true},
                                {"prefill full float32", Dtype::kF32, kSeqLen, 1, false},
                                {"prefill causal float32", Dtype::kF32, kSeqLen, 1, true},
                                {"decode 16q1s2k bfloat16", Dtype::kBF16, 1, 16, true}};
  for (const Case& c : cases) {
    Setup problem(c);
    const double seconds = best_seconds([&] { ops->attend(problem.params); });
    const double rate = 4.0 * kHeads * kHeadSize * visible_pairs(c) / seconds * 1e-9;
    const double kv_bytes = static_cast<double>(problem.cache.size_bytes());
    fmt::print("{:26} {:8.1f} us {:8.1f} GFLOP/s  ratio {:.2f}  K/V {:.1f} GB/s\n", c.name,
               seconds * 1e6, rate, rate / eigen, kv_bytes / seconds * 1e-9);
  }
  return 0;
}

}  // namespace
}  // namespace attnbench

int main(int argc, char** argv) { return attnbench::run(argc > 1 ? std::atoi(argv[1]) : 0); }
