#include "core/numbers/kv_format.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace attnbench {

TEST_CASE("what a row of the KV cache types says fits together") {
  for (const KvFormat& format : enum_rows(KvCacheDtype{})) {
    CAPTURE(format.name);
    CHECK(&kv_format(format.value) == &format);
    CHECK((format.of_heads || format.of_latents));
    const bool copies = format.scales == KvScales::kNone;
    CHECK(is_quantised(format.value) == !copies);
    // Codes have one byte; copies are of the model's type, which a row may name.
    if (format.codes) CHECK((dtype_size(*format.codes) == 1) == !copies);
    if (!copies) CHECK(format.codes.has_value());
    CHECK(format.packed.has_value() == (format.scales == KvScales::kEntry));
    CHECK(format.slot.has_value() == (format.scales == KvScales::kSlot));
    CHECK(shares_slots(format.value) == format.slot.has_value());
    if (format.scales == KvScales::kTokenHead) CHECK_FALSE(format.of_latents);
    if (format.packed) CHECK_FALSE(format.of_heads);
    if (format.usual) {
      const KvFormat& usual = kv_format(*format.usual);
      CHECK_FALSE(usual.usual.has_value());
      CHECK(usual.codes == format.codes);
      CHECK(usual.scales == format.scales);
    }
  }
}

TEST_CASE("a KV cache type has the element and the bytes of its definition") {
  struct Expected {
    KvCacheDtype dtype;
    Dtype element;                   // of a float32 model
    int latent_bytes, vector_bytes;  // of heads of 64
  };
  using enum KvCacheDtype;
  const Expected table[] = {
      {kAuto, Dtype::kF32, 4 * 576, 256},          {kFloat16, Dtype::kF16, 2 * 576, 128},
      {kBFloat16, Dtype::kBF16, 2 * 576, 128},     {kFp8, Dtype::kE4M3, 576, 64},
      {kFp8E4M3, Dtype::kE4M3, 576, 64},           {kFp8E5M2, Dtype::kE5M2, 576, 64},
      {kInt8PerTokenHead, Dtype::kI8, 576, 68},    {kFp8PerTokenHead, Dtype::kE4M3, 576, 68},
      {kInt4PerTokenHead, Dtype::kU8, 576, 36},    {kNvfp4, Dtype::kU8, 576, 36},
      {kFp8DsMla, Dtype::kU8, 512 + 16 + 128, 64}, {kFp8Model1Mla, Dtype::kU8, 448 + 128 + 8, 64},
      {kTurboK8V4, Dtype::kU8, 576, 50},           {kTurbo4Bit, Dtype::kU8, 576, 35},
      {kTurboK3V4, Dtype::kU8, 576, 31},           {kTurbo3Bit, Dtype::kU8, 576, 27}};
  for (const Expected& expected : table) {
    CAPTURE(to_string(expected.dtype));
    CHECK(kv_element_dtype(expected.dtype, Dtype::kF32) == expected.element);
    CHECK(latent_entry_bytes(expected.dtype, Dtype::kF32, 512, 64) == expected.latent_bytes);
    CHECK(stored_vector_bytes(expected.dtype, Dtype::kF32, 64) == expected.vector_bytes);
  }
}

TEST_CASE("some KV cache types are listed by name, in the order of the table") {
  using enum KvCacheDtype;
  CHECK(kv_format_names([](const KvFormat& of) {
          return of.value == kFp8E5M2 || of.value == kFp8 || of.value == kFp8DsMla;
        }) == "fp8, fp8_e5m2 or fp8_ds_mla");
  CHECK(kv_format_names([](const KvFormat&) { return false; }).empty());
}

TEST_CASE("types of 8-bit floats with scales of the problem are told from those with their own") {
  using enum KvCacheDtype;
  for (const KvCacheDtype dtype : {kFp8, kFp8E4M3, kFp8E5M2}) {
    CAPTURE(to_string(dtype));
    CHECK(has_tensor_scales(dtype));
    CHECK_FALSE(has_inner_scales(dtype));
    CHECK(is_e4m3_cache(dtype) == (dtype != kFp8E5M2));
  }
  for (const KvCacheDtype dtype : {kInt8PerTokenHead, kFp8PerTokenHead, kInt4PerTokenHead, kNvfp4,
                                   kFp8DsMla, kFp8Model1Mla, kTurboK8V4, kTurbo3Bit}) {
    CAPTURE(to_string(dtype));
    CHECK_FALSE(has_tensor_scales(dtype));
    CHECK(has_inner_scales(dtype));
    CHECK_FALSE(is_e4m3_cache(dtype));
    CHECK(is_packed(dtype) == (dtype == kFp8DsMla || dtype == kFp8Model1Mla));
    CHECK(reads_tensor_scales(dtype) == (dtype == kNvfp4));
    CHECK(is_rotated(dtype) == (dtype == kInt4PerTokenHead));
  }
  for (const KvCacheDtype dtype : {kAuto, kFloat16, kBFloat16}) {
    CAPTURE(to_string(dtype));
    CHECK_FALSE(is_quantised(dtype));
    CHECK_FALSE(has_tensor_scales(dtype));
    CHECK_FALSE(has_inner_scales(dtype));
  }
}

TEST_CASE("head sizes that a type cannot store are told by its name") {
  using enum KvCacheDtype;
  CHECK(stored_size_misfit(kFp8, 35).empty());
  CHECK(stored_size_misfit(kInt8PerTokenHead, 36).empty());
  CHECK(stored_size_misfit(kInt8PerTokenHead, 34) ==
        "per-token-head KV cache requires head_size % 4 == 0");
  CHECK(stored_size_misfit(kInt4PerTokenHead, 128).empty());
  CHECK(stored_size_misfit(kInt4PerTokenHead, 96) ==
        "int4_per_token_head KV cache requires a head_size that is a power of two from 8 to 512");
  CHECK(stored_size_misfit(kNvfp4, 192).empty());
  CHECK(stored_size_misfit(kNvfp4, 96) == "nvfp4 KV cache requires head_size % 64 == 0");
  CHECK(stored_size_misfit(kTurboK8V4, 80).empty());
  CHECK(stored_size_misfit(kTurboK8V4, 84) ==
        "turboquant_k8v4 KV cache requires head_size % 8 == 0, at most 512");
  CHECK(stored_size_misfit(kTurbo3Bit, 32).empty());
  CHECK(stored_size_misfit(kTurbo3Bit, 96) ==
        "turboquant_3bit_nc KV cache requires a head_size that is a power of two from 32 to 512");
}

TEST_CASE("slots hold the key's and the value's part, and a byte that makes them even") {
  using enum KvCacheDtype;
  // Upstream's sizes of heads of 128; D = 8 has 8 + 4 + 4 and 4 + 2 + 4 + 4 bytes.
  CHECK(slot_key_bytes(kTurboK8V4, 128) == 128);
  CHECK(slot_value_bytes(kTurboK8V4, 128) == 68);
  CHECK(slot_key_bytes(kTurbo4Bit, 128) == 66);
  CHECK(slot_key_bytes(kTurboK3V4, 256) == 98);
  CHECK(slot_value_bytes(kTurbo3Bit, 128) == 52);
  CHECK(2 * stored_width(kTurboK8V4, 128) == 196);
  CHECK(2 * stored_width(kTurbo4Bit, 128) == 134);
  CHECK(2 * stored_width(kTurbo3Bit, 128) == 102);
  CHECK(2 * stored_width(kTurboK3V4, 8) == 14);  // 5 + 8 bytes
  CHECK(slot_key_bytes(kFp8, 128) == 0);
}

TEST_CASE("centroids are the bits that upstream's iteration ends at") {
  // By its formulas in Python floats, rounded to float32.
  const std::vector<float> eight = {-0x1.133ea8p-2f, -0x1.57daa6p-3f, -0x1.82e3f8p-4f,
                                    -0x1.f5b9f6p-6f, 0x1.f5b9f6p-6f,  0x1.82e3f8p-4f,
                                    0x1.57daa6p-3f,  0x1.133ea8p-2f};
  CHECK(key_centroids(SlotCodes{3, 3}, 64) == eight);
  const std::vector<float> sixteen = key_centroids(SlotCodes{4, 4}, 128);
  REQUIRE(sixteen.size() == 16);
  CHECK(sixteen[8] == 0x1.73f75cp-7f);
  CHECK(sixteen[11] == 0x1.5533e4p-4f);
  CHECK(sixteen[15] == 0x1.ee5988p-3f);
  CHECK(sixteen[0] == -sixteen[15]);
  CHECK(key_centroids(SlotCodes{8, 4}, 128).empty());
}

}  // namespace attnbench
