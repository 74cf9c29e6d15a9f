// Writes of 4-bit caches, the rotation and the loads of such caches, and NVFP4 outputs, on emulated
// threads: the kernels' own code, whose bytes must be those of the CPU operations.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }

// Device code comes behind what stands in for CUDA's keywords.
#include "kernels/attention/general_slots.cuh"
#include "kernels/attention/general_tiles.cuh"
#include "kernels/cache/write_cache_packed.cuh"
#include "kernels/cache/write_cache_slots.cuh"
#include "kernels/quantise/nvfp4.cuh"
#include "kernels/quantise/rotate_heads.cuh"
#include "ops/cuda/cache/packed_cache_cases_testing.h"
#include "ops/cuda/cache/slot_cache_cases_testing.h"
#include "ops/cuda/quantise/quantise_cases_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

template <typename Kernel>
void run_grid(unsigned grid_x, unsigned grid_y, int threads, Kernel kernel) {
  for (unsigned y = 0; y < grid_y; ++y) {
    for (unsigned x = 0; x < grid_x; ++x) {
      EmulatedCta cta(threads, 16);
      cta.run([&] {
        blockIdx.x = x;
        blockIdx.y = y;
        kernel();
      });
    }
  }
}

template <int kHead>
struct Int4Config {
  static constexpr attn::Element kSource = attn::Element::kF32;
  static constexpr int kWidth = kHead;
  static constexpr int kLanes = kHead / 8 < 32 ? kHead / 8 : 32;
  static constexpr int kVector = kHead / kLanes;
  static constexpr int kLoad = 4;
  static constexpr int kThreads = 64;
};
template <int kHead>
struct Nvfp4Config {
  static constexpr attn::Element kSource = attn::Element::kF32;
  static constexpr int kWidth = kHead;
  static constexpr int kLoad = 1;
  static constexpr int kThreads = 64;
};
template <int kHead, bool kBack>
struct RotateConfig : Int4Config<kHead> {
  static constexpr attn::Element kElement = attn::Element::kF32;
  static constexpr bool kInverse = kBack;
};

/// The operations of these kernels by emulated CTAs, everything else by the CPU.
template <int kHead>
class EmulatedPackedOps : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void write_cache(const attn::CacheWriteParams& p) override {
    const bool is_int4 = p.quantise == 3;
    const int lanes = is_int4 ? Int4Config<kHead>::kLanes : kHead / 16;
    const auto threads = static_cast<unsigned>(p.num_slots * p.num_kv_heads * lanes);
    run_grid((threads + 63) / 64, 2, 64, [&] {
      if (is_int4) {
        attn::write_cache_int4<Int4Config<kHead>>(p, 0);
      } else {
        attn::write_cache_nvfp4<Nvfp4Config<kHead>>(p, 0);
      }
    });
  }
  void rotate_heads(const attn::RotateHeadsParams& p) override {
    const auto threads =
        static_cast<unsigned>(p.num_tokens * p.num_heads * Int4Config<kHead>::kLanes);
    run_grid((threads + 63) / 64, 1, 64, [&] {
      if (p.inverse != 0) {
        attn::rotate_heads<RotateConfig<kHead, true>>(p);
      } else {
        attn::rotate_heads<RotateConfig<kHead, false>>(p);
      }
    });
  }
};

template <attn::Element kFrom, int kColumns>
struct OutputConfig {
  static constexpr attn::Element kSource = kFrom;
  static constexpr int kVector = 1;
  static constexpr int kStoreBytes = 4;
  static constexpr int kRowBlocks = kColumns / 16;
  static constexpr int kThreads = 64;
};
/// NVFP4 quantisation by emulated CTAs.
template <attn::Element kFrom, int kColumns>
class EmulatedQuantiser : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void quantise_nvfp4(const attn::Nvfp4QuantiseParams& p) override {
    const auto threads = static_cast<unsigned>(p.num_rows * p.num_columns / 16);
    run_grid((threads + 63) / 64, 1, 64,
             [&] { attn::quantise_nvfp4<OutputConfig<kFrom, kColumns>>(p); });
  }
};

void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CHECK(std::memcmp(actual[i].bytes(), expected[i].bytes(), expected[i].size_bytes()) == 0);
  }
}

template <int kHead>
void check_writes(attn::KvCoding coding, bool hnd) {
  CAPTURE(kHead);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedPackedOps<kHead> emulated(*cpu);
  const PackedCase c{coding, Dtype::kF32, kHead, hnd};
  check_same(run_packed_write(emulated, c), run_packed_write(*cpu, c));
}

template <attn::KvCoding kCoding, int kHead>
struct SlotConfig {
  static constexpr attn::Element kSource = attn::Element::kF32;
  static constexpr int kWidth = kHead;
  static constexpr int kKeyBits = attn::slot_key_bits(kCoding);
  static constexpr int kValueBits = attn::slot_value_bits(kCoding);
  static constexpr int kThreads = 64;
};

/// Writes of slots by emulated CTAs.
template <attn::KvCoding kCoding, int kHead>
class EmulatedSlotOps : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void write_cache(const attn::CacheWriteParams& p) override {
    const auto rows = static_cast<unsigned>(p.num_slots * p.num_kv_heads);
    run_grid((rows + 1) / 2, 1, 64,
             [&] { attn::write_cache_slots<SlotConfig<kCoding, kHead>>(p); });
  }
};

template <attn::KvCoding kCoding, int kHead>
void check_slot_writes(bool hnd) {
  CAPTURE(kHead);
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedSlotOps<kCoding, kHead> emulated(*cpu);
  const SlotCase c{kCoding, Dtype::kF32, kHead, hnd};
  check_same(run_slot_write(emulated, c), run_slot_write(*cpu, c));
}

/// A row of a tile of f32 that kernels/attention/general.cuh stages.
struct StagedSlots {
  static constexpr int kRows = 4;
  static constexpr int kHead = 64;
  static constexpr int kPitch = kHead * 4 + 16;
  std::vector<unsigned char> keys = std::vector<unsigned char>(kRows * kPitch, 0xFF);
  std::vector<unsigned char> values = keys;
  float scales[kRows] = {};

  static std::vector<float> row(const std::vector<unsigned char>& tile, int index) {
    std::vector<float> numbers(kHead);
    std::memcpy(numbers.data(), tile.data() + index * kPitch, kHead * sizeof(float));
    return numbers;
  }
};

}  // namespace

TEST_CASE("writes of shared slots by emulated threads leave the bytes of the CPU operation") {
  using enum attn::KvCoding;
  check_slot_writes<kSlotK8V4, 128>(false);
  check_slot_writes<kSlotK8V4, 80>(true);
  check_slot_writes<kSlotK4V4, 64>(true);
  check_slot_writes<kSlotK3V4, 32>(false);
  check_slot_writes<kSlotK3V3, 128>(false);
  check_slot_writes<kSlotK3V3, 512>(true);
}

TEST_CASE(
    "the general kernel stages shared slots as what they mean, products with rotated queries") {
  constexpr attn::KvCoding kCoding = attn::KvCoding::kSlotK3V4;
  constexpr int kHead = StagedSlots::kHead;
  constexpr int kKeyBytes = attn::slot_key_bytes(3, kHead);
  constexpr int kSlot = attn::slot_bytes(3, 4, kHead);
  const std::vector<float> centroids = key_centroids(SlotCodes{3, 4}, kHead);
  std::mt19937 random(21);
  std::vector<attn::u8> slots(2 * kSlot);
  for (attn::u8& byte : slots) byte = static_cast<attn::u8>(random());
  for (int i = 0; i < 2; ++i) {
    attn::u8* const slot = slots.data() + i * kSlot;
    attn::store_f16_bytes(2.5f, slot + kKeyBytes - 2);
    attn::store_f16_bytes(0.25f, slot + kKeyBytes + kHead / 2);
    attn::store_f16_bytes(-1.5f, slot + kKeyBytes + kHead / 2 + 2);
  }
  const attn::i64 offsets[StagedSlots::kRows] = {kSlot, -1, 0, -1};
  StagedSlots staged;
  std::vector<float> query(kHead);
  for (float& x : query) x = static_cast<float>(random() % 33) / 16.0f - 1.0f;
  std::vector<unsigned char> rotated(StagedSlots::kPitch);
  std::memcpy(rotated.data(), query.data(), kHead * sizeof(float));
  EmulatedCta cta(attn::kGeneralThreads, 16);
  cta.run([&] {
    attn::stage_slot_keys<kCoding, StagedSlots::kRows, kHead>(
        slots.data(), offsets, centroids.data(), staged.scales, staged.keys.data(),
        StagedSlots::kPitch);
    attn::stage_slot_values<kCoding, StagedSlots::kRows, kHead>(
        slots.data() + kKeyBytes, offsets, staged.values.data(), StagedSlots::kPitch);
    attn::rotate_rows<1, kHead>(rotated.data(), StagedSlots::kPitch);
  });
  std::vector<float> turned(kHead);
  std::memcpy(turned.data(), rotated.data(), kHead * sizeof(float));
  for (const int row : {0, 2}) {
    const attn::u8* const slot = slots.data() + offsets[row];
    const std::vector<float> value = StagedSlots::row(staged.values, row);
    const std::vector<float> of_tile = StagedSlots::row(staged.keys, row);
    // The key by its definition: the centroids, of length 1, times the matrix of Hadamard.
    double squares = 0;
    double expected = 0;
    double product = 0;
    for (unsigned d = 0; d < kHead; ++d) {
      const double centroid =
          centroids[static_cast<std::size_t>(attn::packed_code(slot, 3, static_cast<int>(d)))];
      squares += centroid * centroid;
      for (unsigned column = 0; column < kHead; ++column) {
        const bool is_negative = std::popcount(d & column) % 2 == 1;
        expected += centroid * (is_negative ? -query[column] : query[column]);
      }
      product += static_cast<double>(turned[d]) * of_tile[d];
      const int code = attn::packed_code(slot + kKeyBytes, 4, static_cast<int>(d));
      CHECK(value[d] == static_cast<float>(code) * 0.25f - 1.5f);
    }
    expected *= 2.5 / std::sqrt(squares) / std::sqrt(static_cast<double>(kHead));
    CHECK(product * staged.scales[row] == doctest::Approx(expected).epsilon(1e-5));
  }
  CHECK(StagedSlots::row(staged.keys, 1) == std::vector<float>(kHead, 0.0f));
  CHECK(StagedSlots::row(staged.values, 3) == std::vector<float>(kHead, 0.0f));
  CHECK(staged.scales[1] == 0.0f);
}

TEST_CASE("4-bit cache writes by emulated threads leave the bytes of the CPU operation") {
  check_writes<32>(attn::KvCoding::kInt4, false);
  check_writes<128>(attn::KvCoding::kInt4, true);
  check_writes<512>(attn::KvCoding::kInt4, false);
  check_writes<64>(attn::KvCoding::kNvfp4, true);
  check_writes<128>(attn::KvCoding::kNvfp4, false);
}

TEST_CASE("NVFP4 outputs by emulated threads have the bytes of the CPU operation") {
  using enum attn::Element;
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedQuantiser<kBF16, 256> wide(*cpu);
  EmulatedQuantiser<kF16, 48> odd(*cpu);
  EmulatedQuantiser<kF32, 32> floats(*cpu);
  const auto check = [&](Ops& emulated, const QuantiseCase& c) {
    check_same(run_quantise(emulated, c), run_quantise(*cpu, c));
  };
  check(wide, {"nvfp4", Dtype::kBF16, 256, 0, 128, true});
  check(odd, {"nvfp4", Dtype::kF16, 48, 0, 128, false});
  check(floats, {"nvfp4", Dtype::kF32, 32, 3, 128, true});
}

TEST_CASE("codes of e2m1 by minima are those of the conversion, at ties too") {
  std::mt19937 random(17);
  for (int round = 0; round < 4096; ++round) {
    float magnitudes[8];
    for (float& x : magnitudes) {
      // Around multiples of an eighth, which all ties are, below 7.
      const auto eighths = static_cast<float>(random() % 55) * 0.125f;
      const float steps[3] = {eighths, std::nextafter(eighths, 7.0f),
                              std::nextafter(eighths, 0.0f)};
      x = steps[random() % 3];
    }
    const attn::u32 codes = attn::e2m1_magnitudes(magnitudes);
    for (int i = 0; i < 8; ++i) {
      CHECK((codes >> 4 * i & 15u) == attn::e2m1_from_float(magnitudes[i]));
    }
  }
}

TEST_CASE("rotations by emulated threads have the bits of the CPU operation") {
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  EmulatedPackedOps<64> emulated(*cpu);
  EmulatedPackedOps<512> wide(*cpu);
  for (const bool inverse : {false, true}) {
    check_same(run_rotation(emulated, Dtype::kF32, 64, 4, inverse),
               run_rotation(*cpu, Dtype::kF32, 64, 4, inverse));
    check_same(run_rotation(wide, Dtype::kF32, 512, 0, inverse),
               run_rotation(*cpu, Dtype::kF32, 512, 0, inverse));
  }
}

TEST_CASE("the general kernel stages 4-bit rows as the numbers that their codes mean") {
  constexpr int kRows = 4;
  constexpr int kHead = 64;
  constexpr int kPitch = kHead * 4 + 16;
  std::mt19937 random(9);
  std::vector<attn::u8> codes(kRows * kHead / 2);
  for (attn::u8& code : codes) code = static_cast<attn::u8>(random());
  const attn::i64 offsets[kRows] = {32, -1, 0, 96};
  std::vector<unsigned char> tile(kRows * kPitch, 0xFF);
  const auto staged = [&](int row, int d) {
    float value = 0;
    std::memcpy(&value, tile.data() + row * kPitch + d * 4, sizeof value);
    return value;
  };
  const auto nibble = [&](int row, int d) {
    if (offsets[row] < 0) return 0;
    const int byte = codes[static_cast<std::size_t>(offsets[row] + d / 2)];
    return d % 2 == 0 ? byte & 15 : byte >> 4;
  };
  const float scales[kRows] = {attn::int4_stored_scale(0.5f, 7), 1.0f,
                               attn::int4_stored_scale(2.0f, 0), attn::int4_stored_scale(1.0f, 15)};
  EmulatedCta cta(attn::kGeneralThreads, 16);
  cta.run([&] {
    attn::stage_int4_rows<attn::Element::kF32, kRows, kHead>(codes.data(), offsets, scales,
                                                             tile.data(), kPitch);
  });
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < kHead; ++d) {
      const int zero_point = row == 0 ? 7 : row == 3 ? 15 : 0;
      CHECK(staged(row, d) == (row == 1 ? 0.0f : static_cast<float>(nibble(row, d) - zero_point)));
    }
  }
  // Values: scale of (slot, block) where the swizzle of four slots puts it.
  constexpr int kBlocks = kHead / attn::kKvScaleBlock;
  std::vector<attn::u8> block_scales(4 * kBlocks);
  for (attn::u8& scale : block_scales) scale = static_cast<attn::u8>(0x30 + random() % 24);
  const attn::i64 places[kRows] = {0, 1, 2, 3};  // slots 0 to 3 of one head
  EmulatedCta second(attn::kGeneralThreads, 16);
  second.run([&] {
    attn::stage_nvfp4_rows<attn::Element::kF32, kRows, kHead, true>(
        codes.data(), offsets, block_scales.data(), places, kBlocks, tile.data(), kPitch);
  });
  for (int row = 0; row < kRows; ++row) {
    for (int d = 0; d < kHead; ++d) {
      const attn::SwizzledScale place =
          attn::swizzled_value_scale(row, d / attn::kKvScaleBlock, kBlocks);
      const auto at = static_cast<std::size_t>(place.slot * kBlocks + place.block);
      const float expected = attn::e2m1_to_float(static_cast<attn::u8>(nibble(row, d))) *
                             attn::e4m3_to_float(block_scales[at]);
      CHECK(staged(row, d) == (row == 1 ? 0.0f : expected));
    }
  }
}

}  // namespace attnbench::cuda
