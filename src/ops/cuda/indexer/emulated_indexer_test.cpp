// The indexer's kernels on emulated threads: their own code, held against the CPU operations over
// all covering cases. What is shared between the threads of a CTA is static here, since one CTA
// runs at a time.
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

inline float __fdiv_rn(float a, float b) { return a / b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int atomicAdd(int* target, int value) { return std::exchange(*target, *target + value); }
namespace attn {
template <int kCount>
void divide_for_codes(float (&values)[kCount], float divisor) {
  for (float& value : values) value /= divisor;
}
}  // namespace attn

#undef __shared__
#define __shared__ static
// Device code comes behind what stands in for CUDA's keywords.
#include "kernels/indexer/index_cache.cuh"
#include "kernels/indexer/index_logits.cuh"
#include "kernels/indexer/index_topk.cuh"
#include "ops/cuda/indexer/indexer_cases_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda::emulated_indexer_test {
namespace {

template <typename Kernel>
void run_grid(attn::i64 grid_x, attn::i64 grid_y, int threads, Kernel kernel) {
  for (unsigned y = 0; y < static_cast<unsigned>(grid_y); ++y) {
    for (unsigned x = 0; x < static_cast<unsigned>(grid_x); ++x) {
      EmulatedCta cta(threads, 16);
      cta.run([&] {
        blockIdx.x = x;
        blockIdx.y = y;
        kernel();
      });
    }
  }
}

template <attn::Element kElement, int kElements>
struct CacheConfig {
  static constexpr attn::Element kSource = kElement;
  static constexpr int kVector = kElements;
  static constexpr int kThreads = 64;
};
struct LogitsConfig {
  static constexpr int kHeads = 8;
  static constexpr int kThreads = 32;
};
struct TopkConfig {
  static constexpr int kThreads = 64;
};

class EmulatedIndexerOps : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void write_index_cache(const attn::IndexCacheWriteParams& p) override {
    using attn::Element;
    run_grid((p.num_slots + 1) / 2, 1, 64, [&] {
      if (p.source_element == Element::kF32) {
        attn::write_index_cache<CacheConfig<Element::kF32, 4>>(p);
      } else if (p.source_element == Element::kBF16) {
        attn::write_index_cache<CacheConfig<Element::kBF16, 4>>(p);
      }
    });
  }
  void index_logits(const attn::IndexLogitsParams& p) override {
    run_grid(p.num_tokens, (p.num_columns + 31) / 32, 32,
             [&] { attn::index_logits<LogitsConfig>(p); });
  }
  void index_topk(const attn::IndexTopkParams& p) override {
    run_grid(p.num_tokens, 1, 64, [&] { attn::index_topk<TopkConfig>(p); });
  }
};

}  // namespace

TEST_CASE("the indexer's kernels by emulated threads give what the CPU operations give") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedIndexerOps emulated(*cpu);
  std::vector<OperationCase> cases;
  add_indexer_cases(cases);
  for (const OperationCase& c : cases) {
    if (c.name.find(" float16") != std::string::npos) continue;  // its loads are inline PTX
    CAPTURE(c.name);
    const std::vector<Tensor> actual = c.run(emulated), expected = c.run(*cpu);
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (c.tolerance == 0) {
        CHECK(std::memcmp(actual[i].bytes(), expected[i].bytes(), expected[i].size_bytes()) == 0);
        continue;
      }
      for (std::int64_t k = 0; k < expected[i].num_elements(); ++k) {
        const float a = actual[i].at(k), e = expected[i].at(k);
        if (std::isfinite(e)) {
          CHECK(std::fabs(a - e) <= 1e-2 + 1e-5 * std::fabs(e));
        } else {
          CHECK(std::memcmp(&a, &e, sizeof a) == 0);
        }
      }
    }
  }
}

}  // namespace attnbench::cuda::emulated_indexer_test
