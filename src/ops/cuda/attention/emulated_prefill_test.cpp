// Where prefill's tiles lie in shared memory: attention of dense keys by emulated threads, for head
// sizes whose rows are whole lines of shared memory and for others.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "ops/cuda/testing/emulated_cta_testing.h"

#include "kernels/attention/prefill.cuh"

namespace attnbench::cuda {
namespace {

constexpr int kQueryLen = 40;
constexpr int kSeqLen = 75;

template <int kSize, int kVSize, int kBlock, int kCopy = 16,
          attn::Element kElement = attn::Element::kF16>
struct Config {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = kElement;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr int kHeadSize = kSize;
  static constexpr int kVHeadSize = kVSize;
  static constexpr int kBlockSize = kBlock;
  static constexpr int kCopyBytes = kCopy;
  static constexpr int kQueryCopyBytes = 16;
  static constexpr attn::Alibi kAlibi = attn::Alibi::kNone;
  static constexpr bool kSoftCap = false;
  static constexpr bool kScaleFirst = false;
  static constexpr bool kTokenHeadScales = false;
  static constexpr bool kRoundDequantized = false;
  static constexpr int kWarps = 2;
  static constexpr int kRowBlocks = 2;
  static constexpr int kTileN = 32;
  static constexpr int kMinCtas = 1;
};

/// Rows of f16 or e4m3 numbers, `stride` apart and NaN between.
template <attn::Element kElement>
struct Plane {
  static constexpr bool kIsF16 = kElement == attn::Element::kF16;
  using Code = attn::Choose<kIsF16, attn::u16, attn::u8>;
  int columns;
  int stride;
  std::vector<Code> codes;

  Plane(int rows, int row_columns, int row_stride)
      : columns(row_columns),
        stride(row_stride),
        codes(static_cast<std::size_t>(rows * stride), static_cast<Code>(0x7E7F)) {}
  Code& at(int row, int column) { return codes[static_cast<std::size_t>(row * stride + column)]; }
  double number(int row, int column) {
    const Code code = at(row, column);
    if constexpr (kIsF16) return double{attn::f16_to_float(code)};
    return double{attn::e4m3_to_float(static_cast<attn::u8>(code))};
  }
  void draw(int row, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int d = 0; d < columns; ++d) {
      const float x = normal(random);
      if constexpr (kIsF16) {
        at(row, d) = attn::f16_from_float(x);
      } else {
        at(row, d) = attn::e4m3_from_float(x);
      }
    }
  }
};

/// One request of one head; keys and values in blocks of shuffled order, or one after another. What
/// lies past the request's keys is NaN.
template <class Kernel>
struct Device {
  static constexpr int kPage = Kernel::kBlockSize == 0 ? 16 : Kernel::kBlockSize;
  static constexpr int kPages = (kSeqLen + kPage - 1) / kPage;
  // Keys and values of pages share their strides.
  static constexpr int kStride = std::max(Kernel::kHeadSize, Kernel::kVHeadSize) + 16;
  Plane<Kernel::kQuery> query{kQueryLen, Kernel::kHeadSize, kStride};
  Plane<Kernel::kKeyValue> key{kPages * kPage, Kernel::kHeadSize, kStride};
  Plane<Kernel::kKeyValue> value{kPages * kPage, Kernel::kVHeadSize, kStride};
  std::vector<float> output = std::vector<float>(std::size_t{kQueryLen} * Kernel::kVHeadSize);
  std::vector<float> lse = std::vector<float>(kQueryLen);
  std::array<int, 2> query_start_loc{0, kQueryLen};
  std::array<int, 1> seq_lens{kSeqLen};
  std::array<attn::i64, 2> kv_start_loc{0, kSeqLen};
  std::vector<int> table;
  attn::AttendParams params{};

  Device() {
    std::mt19937 random(5);
    for (int i = 0; i < kQueryLen; ++i) query.draw(i, random);
    for (int page = 0; page < kPages; ++page) {
      table.push_back(Kernel::kBlockSize == 0 ? page : (page * 3 + 1) % kPages);
    }
    for (int j = 0; j < kSeqLen; ++j) {
      key.draw(slot(j), random);
      value.draw(slot(j), random);
    }
    params.query = query.codes.data();
    params.query_token_stride = params.query_head_stride = kStride;
    params.output = output.data();
    params.output_token_stride = params.output_head_stride = Kernel::kVHeadSize;
    params.lse = lse.data();
    params.lse_stride = kQueryLen;
    params.query_start_loc = query_start_loc.data();
    params.seq_lens = seq_lens.data();
    params.num_requests = params.num_heads = params.num_kv_heads = 1;
    params.head_size = Kernel::kHeadSize;
    params.v_head_size = Kernel::kVHeadSize;
    params.score.softmax_scale = scale();
    params.score.window_left = -1;
    attn::KvParams& kv = params.kv;
    kv.key = key.codes.data();
    kv.value = value.codes.data();
    kv.token_stride_key = kv.token_stride_value = kStride;
    kv.kv_start_loc = kv_start_loc.data();
    if (Kernel::kBlockSize == 0) return;
    kv.block_stride = attn::i64{kPage} * kStride;
    kv.block_table = table.data();
    kv.block_size = kPage;
  }
  static float scale() { return 1.0f / std::sqrt(static_cast<float>(Kernel::kHeadSize)); }
  int slot(int token) const {
    return table[static_cast<std::size_t>(token / kPage)] * kPage + token % kPage;
  }

  /// semantics §3.1 in f64, causal.
  std::vector<double> expected_row(int row) {
    const int visible = kSeqLen - kQueryLen + row + 1;
    std::vector<double> scores;
    for (int j = 0; j < visible; ++j) {
      double sum = 0.0;
      for (int d = 0; d < Kernel::kHeadSize; ++d) {
        sum += query.number(row, d) * key.number(slot(j), d);
      }
      scores.push_back(sum * double{scale()});
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    std::vector<double> result(Kernel::kVHeadSize, 0.0);
    double total = 0.0;
    for (int j = 0; j < visible; ++j) {
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - most);
      total += weight;
      for (int d = 0; d < Kernel::kVHeadSize; ++d) {
        result[static_cast<std::size_t>(d)] += weight * value.number(slot(j), d);
      }
    }
    for (double& x : result) x /= total;
    return result;
  }
};

template <class Kernel>
void check_prefill() {
  CAPTURE(Kernel::kHeadSize);
  CAPTURE(Kernel::kVHeadSize);
  CAPTURE(Kernel::kBlockSize);
  using Work = attn::Prefill<Kernel>;
  Device<Kernel> device;
  const attn::RowTile tile = attn::row_tile(device.params, 0, 0, 0, Work::kTileM);
  const attn::Side key = attn::key_side<Kernel>(device.params, tile);
  const attn::Side value = attn::value_side<Kernel>(device.params, tile);
  EmulatedCta cta(Work::kThreads, static_cast<std::size_t>(Work::kLayout.total));
  cta.run([&] {
    Work work{device.params, cta.shared(), tile, key, value, static_cast<int>(threadIdx.x)};
    work.run();
  });
  double worst = 0.0;
  for (int row = 0; row < kQueryLen; ++row) {
    const std::vector<double> expected = device.expected_row(row);
    for (int d = 0; d < Kernel::kVHeadSize; ++d) {
      const auto at = static_cast<std::size_t>(row * Kernel::kVHeadSize + d);
      const double error =
          std::fabs(double{device.output[at]} - expected[static_cast<std::size_t>(d)]);
      // Not fmax: NaN must count.
      if (!(error <= worst)) worst = error;
    }
  }
  CHECK(worst < 2e-3);  // P has 11 bits
}

}  // namespace

TEST_CASE("prefill on emulated threads finds every column of every key and value") {
  check_prefill<Config<64, 64, 0>>();
  check_prefill<Config<64, 64, 16>>();
  check_prefill<Config<64, 64, 16, 4>>();
  check_prefill<Config<128, 64, 0>>();
  check_prefill<Config<128, 128, 32>>();
  check_prefill<Config<256, 128, 16>>();
  check_prefill<Config<40, 72, 16, 8>>();
  check_prefill<Config<96, 96, 0>>();
  check_prefill<Config<64, 64, 16, 16, attn::Element::kE4M3>>();
  check_prefill<Config<128, 128, 0, 16, attn::Element::kE4M3>>();
  check_prefill<Config<256, 128, 32, 8, attn::Element::kE4M3>>();
}

}  // namespace attnbench::cuda
