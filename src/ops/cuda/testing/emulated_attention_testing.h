// One request of one head in emulated memory, for the tiled attention kernels on emulated threads:
// what they are given, what the definition makes of it, and the two compared.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "ops/cuda/testing/emulated_cta_testing.h"

#include "kernels/attention/decode/decode.cuh"

namespace attnbench::cuda {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr int kSize = 32;  // of a head
inline constexpr int kBlock = 16;

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
  static constexpr int kRowWarps = 1;
  static constexpr int kHeads = 1;
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

  explicit Request(int keys = 40)
      : seq_len(keys),
        scores(static_cast<std::size_t>(keys), 0.0f),
        value_scales(static_cast<std::size_t>(keys), 1.0f) {}
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
inline Rows reference(const Request& request, bool with_scales, int begin, int end, double sink) {
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
  int blocks;  // of the cache
  // Cells are the second of three heads each, or of three pairs; NaN lies around them.
  static constexpr int kCell = kSize + 4;
  static constexpr int kFirst = Config::kCells ? Config::kHeads * kCell : 0;
  static constexpr int kStride = Config::kCells ? 3 * Config::kHeads * kCell : kSize;
  static constexpr float kKeyScale = Config::kCells ? 0.5f : 1.0f;  // codes are scores / kKeyScale
  std::vector<unsigned char> query;
  AlignedBytes key, value;
  std::vector<float> output, lse;
  std::array<int, 2> query_start_loc{};
  std::array<int, 1> seq_lens{};
  std::vector<int> table;  // the first block last, then the others in order
  std::vector<float> key_scales, value_scales;
  float k_scale, v_scale = 1.0f, sink;
  attn::AttendParams params{};

  explicit Device(const Request& request)
      : blocks(request.seq_len / kBlock + 1),
        query(static_cast<std::size_t>(request.query_len * kSize * 2)),
        key(static_cast<std::size_t>(blocks * kBlock * kStride * 2), 0),
        value(static_cast<std::size_t>(blocks * kBlock * kStride * 2), 0xFF),
        output(static_cast<std::size_t>(request.query_len * kSize), -1.0f),
        lse(static_cast<std::size_t>(request.query_len), -1.0f),
        query_start_loc{0, request.query_len},
        seq_lens{request.seq_len},
        key_scales(static_cast<std::size_t>(blocks * kBlock), 1.0f),
        value_scales(key_scales),
        k_scale(request.k_scale),
        sink(request.sink) {
    for (int i = 0; i < blocks; ++i) table.push_back(i == 0 ? blocks - 1 : i - 1);
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
    kv.block_table_stride = blocks;
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

/// One CTA of decode.cuh.
template <class Config, class Part>
void run_decode(const attn::AttendParams& params, const Part& part) {
  using Work = attn::Decode<Config, Part>;
  const attn::RowTile tile = attn::row_tile(params, 0, 0, 0, Work::kTileM);
  std::array<float2, Work::kStreams * Work::kAllRows> states{};
  EmulatedCta cta(Work::kThreads, static_cast<std::size_t>(Work::kLayout.total));
  cta.run([&] {
    attn::decode_work<Config>(params, part, cta.shared(), tile, tile).run(states.data());
  });
}

template <class Config>
Rows decode(const Request& request) {
  Device<Config> device(request);
  run_decode<Config>(device.params, attn::WholeRequest{});
  return device.rows();
}

/// What is wrong with a row, "row 3, column 5: 0.25 instead of 0.5"; empty where it is as expected.
/// Outputs are relative to the largest one of the row: P has 11 bits at least.
inline std::string row_fault(const Rows& actual, const Rows& expected, int row) {
  const auto fault = [&](const std::string& what, double a, double b) {
    return "row " + std::to_string(row) + ", " + what + ": " + std::to_string(a) + " instead of " +
           std::to_string(b);
  };
  double most = 0.0;
  for (int d = 0; d < kSize; ++d) {
    most = std::max(most, std::fabs(expected.output[static_cast<std::size_t>(row * kSize + d)]));
  }
  for (int d = 0; d < kSize; ++d) {
    const auto at = static_cast<std::size_t>(row * kSize + d);
    const double a = actual.output[at];
    const double b = expected.output[at];
    bool is_right = std::fabs(a - b) <= 2e-3 * most;
    if (std::isnan(b)) is_right = std::isnan(a);
    if (std::isinf(b)) is_right = a == b;
    if (!is_right) return fault("column " + std::to_string(d), a, b);
  }
  const double a = actual.lse[static_cast<std::size_t>(row)];
  const double b = expected.lse[static_cast<std::size_t>(row)];
  const bool is_right = std::isinf(b) ? a == b : std::fabs(a - b) <= 1e-5 * (1 + std::fabs(b));
  return is_right ? "" : fault("LSE", a, b);
}
/// That of the first row with one.
inline std::string rows_fault(const Rows& actual, const Rows& expected) {
  for (int row = 0; row < static_cast<int>(expected.lse.size()); ++row) {
    if (std::string fault = row_fault(actual, expected, row); !fault.empty()) return fault;
  }
  return "";
}

inline Rows whole_reference(const Request& request, bool with_scales) {
  return reference(request, with_scales, 0, request.seq_len, double{request.sink});
}

/// Scores that rise and fall by some units.
inline Request uneven_request(int keys = 40) {
  Request request(keys);
  for (int j = 0; j < request.seq_len; ++j) {
    request.scores[static_cast<std::size_t>(j)] = static_cast<float>(j * 5 % 7 - 3) / 2.0f;
  }
  return request;
}

}  // namespace attnbench::cuda
