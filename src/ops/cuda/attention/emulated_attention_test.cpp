// The tiled attention kernels on emulated threads, where scores, scales and sinks lie far apart.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "ops/cuda/testing/emulated_cta_testing.h"

#include "kernels/attention/decode.cuh"
#include "kernels/attention/prefill.cuh"

namespace attnbench::cuda {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kSize = 32;  // of a head
constexpr int kBlock = 16;

/// One warp, bf16 queries over e4m3 codes with one scale.
struct CodesConfig {
  static constexpr attn::Element kQuery = attn::Element::kBF16;
  static constexpr attn::Element kKeyValue = attn::Element::kE4M3;
  static constexpr attn::Element kOutput = attn::Element::kF32;
  static constexpr int kHeadSize = kSize;
  static constexpr int kVHeadSize = kSize;
  static constexpr int kBlockSize = kBlock;
  static constexpr int kCopyBytes = 16;
  static constexpr int kQueryCopyBytes = 16;
  static constexpr attn::Alibi kAlibi = attn::Alibi::kNone;
  static constexpr bool kSoftCap = false;
  static constexpr bool kScaleFirst = false;
  static constexpr bool kTokenHeadScales = false;
  static constexpr bool kRoundDequantized = false;
  static constexpr bool kCells = false;
  static constexpr bool kTransposed = false;
  static constexpr int kWarps = 1;
  static constexpr int kRowBlocks = 1;
  static constexpr int kStages = 2;
  static constexpr int kTileN = 16;
  static constexpr int kMinCtas = 1;
};
struct TokenHeadConfig : CodesConfig {
  static constexpr bool kTokenHeadScales = true;
};
struct TwoWarpsConfig : TokenHeadConfig {
  static constexpr int kWarps = 2;
};
/// Codes and scales in cells that start anywhere in a sector of 32 bytes.
struct CellsConfig : TwoWarpsConfig {
  static constexpr bool kCells = true;
};
struct SoftCapConfig : CodesConfig {
  static constexpr bool kSoftCap = true;
  static constexpr bool kScaleFirst = true;
};
struct F16Config : CodesConfig {
  static constexpr attn::Element kQuery = attn::Element::kF16;
  static constexpr attn::Element kKeyValue = attn::Element::kF16;
};

/// The products of decode transposed.
template <class Config>
struct Transposed : Config {
  static constexpr bool kTransposed = true;
};

/// One request of one head: row i stands at seq_len - query_len + i and sees what is not behind it.
struct Request {
  int query_len = 12;
  int seq_len = 40;
  float first_query = 1.0f;   // q = (first_query, 0, ...), so that the score of a key is its k[0]
  std::vector<float> scores;  // k[0] of every key
  float k_scale = 1.0f;
  float soft_cap = 0.0f;            // with SoftCapConfig
  std::vector<float> value_scales;  // of every key; with TokenHeadConfig
  float sink = -std::numeric_limits<float>::infinity();
  int nan_key = -1;  // has NaN as its value of column 5

  Request() : scores(40, 0.0f), value_scales(40, 1.0f) {}
  /// Numbers that every format holds.
  float value(int key, int column) const {
    if (key == nan_key && column == 5) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>((key * 7 + column * 3) % 9 - 3) / 4.0f;
  }
};

/// [query_len, kSize] and the LSE of each row.
struct Rows {
  std::vector<double> output;
  std::vector<double> lse;
};

/// semantics §3.1 in f64 over keys [begin, end).
Rows reference(const Request& request, bool with_scales, int begin, int end, double sink) {
  Rows rows;
  for (int i = 0; i < request.query_len; ++i) {
    const int last = std::min(end - 1, request.seq_len - request.query_len + i);
    const auto score = [&](int j) {
      const double raw = double{request.first_query} *
                         double{request.scores[static_cast<std::size_t>(j)]} *
                         double{request.k_scale};
      const double cap = double{request.soft_cap};
      return cap > 0 ? cap * std::tanh(raw / cap) : raw;
    };
    double most = sink;
    for (int j = begin; j <= last; ++j) most = std::max(most, score(j));
    double sum = std::exp(sink - most);
    if (sink == most) sum = sink == -kInf ? 0.0 : 1.0;
    std::vector<double> output(kSize, 0.0);
    for (int j = begin; j <= last; ++j) {
      const double weight = std::exp(score(j) - most);
      sum += weight;
      const double scale =
          with_scales ? double{request.value_scales[static_cast<std::size_t>(j)]} : 1.0;
      for (int d = 0; d < kSize; ++d) {
        output[static_cast<std::size_t>(d)] += weight * (double{request.value(j, d)} * scale);
      }
    }
    for (const double o : output) rows.output.push_back(sum == 0 ? 0.0 : o / sum);
    rows.lse.push_back(sum == 0 ? -kInf : most + std::log(sum));
  }
  return rows;
}

template <attn::Element kElement>
void put(unsigned char* bytes, int at, float x) {
  if constexpr (kElement == attn::Element::kE4M3) {
    bytes[at] = attn::e4m3_from_float(x);
  } else {
    const attn::u16 code =
        kElement == attn::Element::kF16 ? attn::f16_from_float(x) : attn::bf16_from_float(x);
    std::memcpy(bytes + at * 2, &code, 2);
  }
}

/// Bytes that start on a multiple of 32, as allocations of a device do.
class AlignedBytes {
 public:
  AlignedBytes(std::size_t size, unsigned char fill) : sectors_((size + 31) / 32) {
    std::memset(data(), fill, sectors_.size() * 32);
  }
  unsigned char* data() { return reinterpret_cast<unsigned char*>(sectors_.data()); }

 private:
  struct alignas(32) Sector {
    unsigned char bytes[32];
  };
  std::vector<Sector> sectors_;
};

/// A request in the memory of a device, and what the kernels are told of it.
template <class Config>
struct Device {
  static constexpr int kBlocks = 3;
  // Cells are the second of three heads each; NaN lies around them.
  static constexpr int kFirst = Config::kCells ? kSize + 4 : 0;
  static constexpr int kStride = Config::kCells ? 3 * (kSize + 4) : kSize;
  static constexpr float kKeyScale = Config::kCells ? 0.5f : 1.0f;  // codes are scores / kKeyScale
  std::vector<unsigned char> query;
  AlignedBytes key, value;
  std::vector<float> output, lse;
  std::array<int, 2> query_start_loc{};
  std::array<int, 1> seq_lens{};
  std::array<int, kBlocks> table{2, 0, 1};
  std::vector<float> key_scales, value_scales;
  float k_scale, v_scale = 1.0f, sink;
  attn::AttendParams params{};

  explicit Device(const Request& request)
      : query(static_cast<std::size_t>(request.query_len * kSize * 2)),
        key(kBlocks * kBlock * kStride * 2, 0),
        value(kBlocks * kBlock * kStride * 2, 0xFF),
        output(static_cast<std::size_t>(request.query_len * kSize), -1.0f),
        lse(static_cast<std::size_t>(request.query_len), -1.0f),
        query_start_loc{0, request.query_len},
        seq_lens{request.seq_len},
        key_scales(kBlocks * kBlock, 1.0f),
        value_scales(key_scales),
        k_scale(request.k_scale),
        sink(request.sink) {
    for (int i = 0; i < request.query_len; ++i) {
      put<Config::kQuery>(query.data(), i * kSize, request.first_query);
    }
    for (int j = 0; j < request.seq_len; ++j) {
      const auto from = static_cast<std::size_t>(j);
      const int slot = table[from / kBlock] * kBlock + j % kBlock;
      const int cell = slot * kStride + kFirst;
      put<Config::kKeyValue>(key.data(), cell, request.scores[from] / kKeyScale);
      for (int d = 0; d < kSize; ++d) {
        put<Config::kKeyValue>(value.data(), cell + d, request.value(j, d));
      }
      value_scales[static_cast<std::size_t>(slot)] = request.value_scales[from];
      if constexpr (Config::kCells) {
        std::memcpy(key.data() + cell + kSize, &kKeyScale, 4);
        std::memcpy(value.data() + cell + kSize, &request.value_scales[from], 4);
      }
    }
    params.query = query.data();
    params.query_token_stride = params.query_head_stride = kSize;
    params.output = output.data();
    params.output_token_stride = params.output_head_stride = kSize;
    params.lse = lse.data();
    params.query_start_loc = query_start_loc.data();
    params.seq_lens = seq_lens.data();
    params.num_requests = params.num_heads = params.num_kv_heads = 1;
    params.head_size = params.v_head_size = kSize;
    params.score.softmax_scale = 1.0f;
    params.score.soft_cap = request.soft_cap;
    params.score.window_left = -1;
    params.score.sinks = &sink;
    attn::KvParams& kv = params.kv;
    kv.key = key.data() + kFirst;
    kv.value = value.data() + kFirst;
    kv.block_stride = kBlock * kStride;
    kv.token_stride_key = kv.token_stride_value = kStride;
    kv.block_table = table.data();
    kv.block_size = kBlock;
    if (Config::kTokenHeadScales) {
      kv.key_scales = key_scales.data();
      kv.value_scales = value_scales.data();
      kv.scale_block_stride = kBlock;
      kv.scale_slot_stride = 1;
    } else {
      kv.k_scale = &k_scale;
      kv.v_scale = &v_scale;
    }
  }
  Rows rows() const { return {{output.begin(), output.end()}, {lse.begin(), lse.end()}}; }
};

template <class Config, class Part>
void run_decode(const attn::AttendParams& params, const Part& part) {
  using Work = attn::Decode<Config, Part>;
  const attn::RowTile tile = attn::row_tile(params, 0, 0, 0, Work::kTileM);
  std::array<float2, Config::kWarps * Work::kTileM> states{};
  EmulatedCta cta(Work::kThreads, static_cast<std::size_t>(Work::kLayout.total));
  cta.run([&] {
    const int thread = static_cast<int>(threadIdx.x);
    Work work{params,
              part,
              cta.shared(),
              tile,
              attn::key_side<Config>(params, tile),
              attn::value_side<Config>(params, tile),
              thread,
              thread % 32,
              thread / 32,
              attn::key_scale<Config>(params, 0),
              attn::value_scale<Config>(params, 0)};
    work.run(states.data());
  });
}

template <class Config>
Rows decode(const Request& request) {
  Device<Config> device(request);
  run_decode<Config>(device.params, attn::WholeRequest{});
  return device.rows();
}

template <class Config>
Rows prefill(const Request& request) {
  using Work = attn::Prefill<Config>;
  Device<Config> device(request);
  const attn::RowTile tile = attn::row_tile(device.params, 0, 0, 0, Work::kTileM);
  const attn::Side key = attn::key_side<Config>(device.params, tile);
  const attn::Side value = attn::value_side<Config>(device.params, tile);
  EmulatedCta cta(Work::kThreads, static_cast<std::size_t>(Work::kLayout.total));
  cta.run([&] {
    Work work{device.params, cta.shared(), tile, key, value, static_cast<int>(threadIdx.x)};
    work.run();
  });
  return device.rows();
}

/// Relative to the largest output of the row: P has 11 bits at least.
void check_row(const Rows& actual, const Rows& expected, int row) {
  CAPTURE(row);
  double most = 0.0;
  for (int d = 0; d < kSize; ++d) {
    most = std::max(most, std::fabs(expected.output[static_cast<std::size_t>(row * kSize + d)]));
  }
  for (int d = 0; d < kSize; ++d) {
    CAPTURE(d);
    const auto at = static_cast<std::size_t>(row * kSize + d);
    const double a = actual.output[at];
    const double b = expected.output[at];
    CAPTURE(a);
    CAPTURE(b);
    if (std::isnan(b)) {
      CHECK(std::isnan(a));
    } else if (std::isinf(b)) {
      CHECK(a == b);
    } else {
      CHECK(std::fabs(a - b) <= 2e-3 * most);
    }
  }
  const auto at = static_cast<std::size_t>(row);
  if (std::isinf(expected.lse[at])) {
    CHECK(actual.lse[at] == expected.lse[at]);
  } else {
    CHECK(actual.lse[at] == doctest::Approx(expected.lse[at]).epsilon(1e-5));
  }
}
void check_rows(const Rows& actual, const Rows& expected) {
  for (int row = 0; row < static_cast<int>(expected.lse.size()); ++row) {
    check_row(actual, expected, row);
  }
}

Rows whole_reference(const Request& request, bool with_scales) {
  return reference(request, with_scales, 0, request.seq_len, double{request.sink});
}

template <class Config>
void check_decode(const Request& request, bool with_scales) {
  check_rows(decode<Config>(request), whole_reference(request, with_scales));
  Request few = request;
  few.query_len = 7;
  check_rows(decode<Transposed<Config>>(few), whole_reference(few, with_scales));
}

/// Scores that rise and fall by some units.
Request uneven_request() {
  Request request;
  for (int j = 0; j < request.seq_len; ++j) {
    request.scores[static_cast<std::size_t>(j)] = static_cast<float>(j * 5 % 7 - 3) / 2.0f;
  }
  return request;
}

void check_every_kernel(const Request& request) {
  check_decode<CodesConfig>(request, false);
  check_rows(prefill<CodesConfig>(request), whole_reference(request, false));
  check_decode<F16Config>(request, false);
  check_rows(prefill<F16Config>(request), whole_reference(request, false));
  check_decode<TokenHeadConfig>(request, true);
  check_rows(prefill<TokenHeadConfig>(request), whole_reference(request, true));
  check_decode<TwoWarpsConfig>(request, true);
  check_decode<CellsConfig>(request, true);
}

}  // namespace

TEST_CASE("an emulated CTA computes what the definition says") {
  check_every_kernel(uneven_request());
}

TEST_CASE("NaN in a value shows in the rows that see its key, and in no other") {
  for (const int key : {3, 33, 39}) {
    Request request = uneven_request();
    request.nan_key = key;
    CAPTURE(key);
    check_every_kernel(request);
  }
}

TEST_CASE("the scale of a key that a row may not see does not touch the row") {
  for (const float scale : {0x1p40f, 0x1p127f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    Request request = uneven_request();
    request.value_scales.back() = scale;  // only the last row sees it
    CAPTURE(scale);
    check_decode<TokenHeadConfig>(request, true);
    check_decode<CellsConfig>(request, true);
    check_rows(prefill<TokenHeadConfig>(request), whole_reference(request, true));
    check_decode<TwoWarpsConfig>(request, true);
  }
}

TEST_CASE("values whose weight is next to nothing do not set the unit of a row, however large") {
  Request request = uneven_request();
  // e^-120 is 0 in f32, e^-60 is none of f16.
  for (const float score : {-120.0f, -60.0f, -10.0f}) {
    request.scores[5] = score;
    request.value_scales[5] = 0x1p20f;
    CAPTURE(score);
    check_decode<TokenHeadConfig>(request, true);
    check_decode<CellsConfig>(request, true);
    check_rows(prefill<TokenHeadConfig>(request), whole_reference(request, true));
  }
}

TEST_CASE("a unit that large values have set sinks again when later scores outweigh them") {
  Request request = uneven_request();
  request.value_scales[3] = 0x1p30f;
  request.scores[30] = 28.0f;
  check_decode<TokenHeadConfig>(request, true);
  check_rows(prefill<TokenHeadConfig>(request), whole_reference(request, true));
}

TEST_CASE("scales of values may be as small or large as f32 holds") {
  for (const float scale : {0x1p-120f, 0x1p-60f, 0x1p60f, 0x1p115f}) {
    Request request = uneven_request();
    for (int j = 0; j < request.seq_len; ++j) {
      request.value_scales[static_cast<std::size_t>(j)] = scale * static_cast<float>(1 + j % 5);
    }
    CAPTURE(scale);
    check_decode<TokenHeadConfig>(request, true);
    check_decode<CellsConfig>(request, true);
    check_rows(prefill<TokenHeadConfig>(request), whole_reference(request, true));
  }
}

TEST_CASE("outputs keep their digits under a sink far above all scores") {
  for (const double sink : {-kInf, -30.0, 2.0, 12.0, 20.0, 40.0, 80.0, kInf}) {
    Request request = uneven_request();
    request.sink = static_cast<float>(sink);
    CAPTURE(sink);
    check_every_kernel(request);
  }
}

TEST_CASE("the sink of a row counts in the first split and segment alone") {
  Request request = uneven_request();
  request.sink = 20.0f;
  constexpr int kParts = 2;
  for (int part = 0; part < kParts; ++part) {
    CAPTURE(part);
    Device<F16Config> device(request);
    const double sink = part == 0 ? double{request.sink} : -kInf;
    const auto rows = static_cast<std::size_t>(kParts * request.query_len);
    std::vector<float> values(rows * kSize, -1.0f);
    std::vector<float> first(rows, -1.0f);
    std::vector<float> second(rows, -1.0f);
    const attn::SegmentParams segments{kParts, 16, values.data(), first.data(), second.data()};
    run_decode<F16Config>(device.params, attn::OneSegment{segments, part});
    const attn::KeyInterval keys = attn::keys_of_segment(request.seq_len, kParts, 16, part);
    const Rows expected = reference(request, false, keys.begin, keys.end, sink);
    Rows actual;
    for (std::size_t i = 0; i < expected.lse.size(); ++i) {
      const std::size_t at = i * kParts + static_cast<std::size_t>(part);
      const double sum = double{second[at]};
      for (std::size_t d = 0; d < kSize; ++d) {
        actual.output.push_back(sum == 0 ? 0.0 : double{values[at * kSize + d]} / sum);
      }
      actual.lse.push_back(sum == 0 ? -kInf : double{first[at]} + std::log(sum));
    }
    check_rows(actual, expected);
  }
}

TEST_CASE("a query of zeros weighs all keys alike, however small the scale of the keys") {
  for (const float first_query : {0.0f, 0x1p-120f, 1.0f}) {
    for (const float k_scale : {0x1p-20f, 0x1p-26f, 0x1p-60f, 0x1p-140f}) {
      Request request = uneven_request();
      request.first_query = first_query;
      request.k_scale = k_scale;
      CAPTURE(first_query);
      CAPTURE(k_scale);
      check_decode<CodesConfig>(request, false);
      check_rows(prefill<CodesConfig>(request), whole_reference(request, false));
      request.soft_cap = 2.0f;
      check_decode<SoftCapConfig>(request, false);
      check_rows(prefill<SoftCapConfig>(request), whole_reference(request, false));
    }
  }
}

TEST_CASE("e4m3 codes have the fields of f16 numbers 2^8 smaller") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    const unsigned other = (code * 37 + 11) % 256;
    for (const unsigned spread : {code << 8 | other << 24, other << 8 | code << 24}) {
      const unsigned fields = attn::e4m3_fields_in_f16(spread);
      const unsigned nan = attn::e4m3_nan_in_f16(spread);
      for (const int shift : {0, 16}) {
        const float expected = attn::e4m3_to_float(static_cast<attn::u8>(spread >> (shift + 8)));
        const float number = attn::f16_to_float(static_cast<attn::u16>(fields >> shift)) * 256.0f;
        const auto as_f16 = static_cast<attn::u16>(attn::f16_from_float(number) |
                                                   static_cast<attn::u16>(nan >> shift));
        if (std::isnan(expected)) {
          CHECK(std::isnan(attn::f16_to_float(as_f16)));
        } else {
          CHECK(attn::f16_to_float(as_f16) == expected);
          CHECK(std::signbit(attn::f16_to_float(as_f16)) == std::signbit(expected));
        }
      }
    }
  }
}

}  // namespace attnbench::cuda
