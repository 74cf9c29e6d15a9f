// The tiled attention kernels on emulated threads, where scores, scales and sinks lie far apart.
#include <doctest/doctest.h>

#include "ops/cuda/testing/emulated_attention_testing.h"

#include "kernels/attention/prefill.cuh"

namespace attnbench::cuda {
namespace {

void check_rows(const Rows& actual, const Rows& expected) {
  CHECK(rows_fault(actual, expected) == "");
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

template <class Config>
void check_decode(const Request& request, bool with_scales) {
  check_rows(decode<Config>(request), whole_reference(request, with_scales));
  Request few = request;
  few.query_len = 7;
  check_rows(decode<Transposed<Config>>(few), whole_reference(few, with_scales));
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

/// Rows of kRowBytes in a tile of kPitch, copied by a warp, of which `valid_rows` are there.
template <int kRowBytes, int kPitch>
void check_run(int valid_rows) {
  constexpr int kRows = 16;
  constexpr int kStride = kRowBytes + 48;
  CAPTURE(kPitch);
  CAPTURE(valid_rows);
  AlignedBytes rows(kRows * kStride, 0);
  for (int i = 0; i < kRows * kStride; ++i)
    rows.data()[i] = static_cast<unsigned char>(1 + i % 251);
  EmulatedCta cta(32, kRows * kPitch);
  cta.run([&] {
    attn::copy_run<kRows, kRowBytes, 16, kPitch, 32>(rows.data(), kStride, valid_rows,
                                                     attn::shared_address(cta.shared()),
                                                     static_cast<int>(threadIdx.x));
  });
  const std::vector<unsigned char> zeros(16, 0);
  int wrong = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kRowBytes; column += 16) {
      const unsigned char* const expected =
          row < valid_rows ? rows.data() + row * kStride + column : zeros.data();
      const auto at =
          attn::tile_offset<kPitch>(static_cast<unsigned>(row), static_cast<unsigned>(column));
      wrong += std::memcmp(cta.shared() + at, expected, 16) == 0 ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("a run of keys lies where its tile's offsets say, with zeros behind its end") {
  for (const int valid : {16, 9, 1}) {
    check_run<256, 256>(valid);  // lines, two rows at a time
    check_run<128, 128>(valid);  // lines, four rows at a time
    check_run<512, 512>(valid);  // lines, a row at a time
    check_run<256, 288>(valid);
    check_run<96, 96>(valid);  // pieces that do not divide a warp
  }
}

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
