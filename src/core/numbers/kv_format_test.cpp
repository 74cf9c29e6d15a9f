#include "core/numbers/kv_format.h"

#include <doctest/doctest.h>

#include <string>

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
    Dtype element;  // of a float32 model
    int latent_bytes, scale_bytes;
  };
  using enum KvCacheDtype;
  const Expected table[] = {
      {kAuto, Dtype::kF32, 4 * 576, 0},          {kFloat16, Dtype::kF16, 2 * 576, 0},
      {kBFloat16, Dtype::kBF16, 2 * 576, 0},     {kFp8, Dtype::kE4M3, 576, 0},
      {kFp8E4M3, Dtype::kE4M3, 576, 0},          {kFp8E5M2, Dtype::kE5M2, 576, 0},
      {kInt8PerTokenHead, Dtype::kI8, 576, 4},   {kFp8PerTokenHead, Dtype::kE4M3, 576, 4},
      {kFp8DsMla, Dtype::kU8, 512 + 16 + 128, 0}};
  for (const Expected& expected : table) {
    CAPTURE(to_string(expected.dtype));
    CHECK(kv_element_dtype(expected.dtype, Dtype::kF32) == expected.element);
    CHECK(latent_entry_bytes(expected.dtype, Dtype::kF32, 512, 64) == expected.latent_bytes);
    CHECK(inner_scale_bytes(expected.dtype) == expected.scale_bytes);
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
  for (const KvCacheDtype dtype : {kInt8PerTokenHead, kFp8PerTokenHead, kFp8DsMla}) {
    CAPTURE(to_string(dtype));
    CHECK_FALSE(has_tensor_scales(dtype));
    CHECK(has_inner_scales(dtype));
    CHECK_FALSE(is_e4m3_cache(dtype));
    CHECK(is_packed(dtype) == (dtype == kFp8DsMla));
  }
  for (const KvCacheDtype dtype : {kAuto, kFloat16, kBFloat16}) {
    CAPTURE(to_string(dtype));
    CHECK_FALSE(is_quantised(dtype));
    CHECK_FALSE(has_tensor_scales(dtype));
    CHECK_FALSE(has_inner_scales(dtype));
  }
}

}  // namespace attnbench
