#include "reference/mla/cache_entry.h"

#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/validation.h"
#include "reference/ops/ds_mla_entry.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kRowsPerTask = 256;

void check_inputs(const Tensor& kv_c, const Tensor& k_pe) {
  require_rank(kv_c, 2, "kv_c");
  require_rank(k_pe, 2, "k_pe");
  require_activation(kv_c.dtype(), "kv_c");
  if (k_pe.dtype() != kv_c.dtype()) {
    fail(ErrorKind::kDtype, "k_pe: expected {} like kv_c, got {}", dtype_name(kv_c.dtype()),
         dtype_name(k_pe.dtype()));
  }
  if (k_pe.dim(0) != kv_c.dim(0)) {
    fail(ErrorKind::kShape, "k_pe: expected {} rows like kv_c, got {}", kv_c.dim(0), k_pe.dim(0));
  }
}

void check_copied_dtype(KvCacheDtype cache, Dtype expected, Dtype actual) {
  if (actual != expected) {
    fail(ErrorKind::kDtype, "kv_c: a cache of {} copies, expected {}, got {}", to_string(cache),
         dtype_name(expected), dtype_name(actual));
  }
}

StoredMlaCache copy_entries(const Tensor& kv_c, const Tensor& k_pe) {
  StoredMlaCache stored;
  const std::size_t size = dtype_size(kv_c.dtype());
  const auto latent_bytes = static_cast<std::size_t>(kv_c.dim(1)) * size;
  const auto rope_bytes = static_cast<std::size_t>(k_pe.dim(1)) * size;
  stored.codes = Tensor(kv_c.dtype(), {kv_c.dim(0), kv_c.dim(1) + k_pe.dim(1)});
  for_each_chunk(kv_c.dim(0), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
      std::byte* const entry = stored.codes.bytes() + row * (latent_bytes + rope_bytes);
      std::memcpy(entry, kv_c.bytes() + row * latent_bytes, latent_bytes);
      std::memcpy(entry + latent_bytes, k_pe.bytes() + row * rope_bytes, rope_bytes);
    }
  });
  stored.kv_c_dequantized = convert(kv_c, Dtype::kF32);
  stored.k_pe_dequantized = convert(k_pe, Dtype::kF32);
  return stored;
}

/// Codes of x [S, width] into columns of the entries and what they read back as.
Tensor quantise_part(const Tensor& x, float k_scale, std::int64_t column, Tensor& codes) {
  Tensor dequantized(Dtype::kF32, x.shape());
  const std::int64_t width = x.dim(1);
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(x.dtype()));
  for_each_chunk(x.dim(0), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::uint8_t* const entry = codes.data<std::uint8_t>() + row * codes.dim(1) + column;
      float* const values = dequantized.data<float>() + row * width;
      const std::span<float> in_row(values, static_cast<std::size_t>(width));
      load_floats(x.dtype(), x.bytes() + row * row_bytes, width, values);
      for (float& value : in_row) value /= k_scale;
      round_row_to_e4m3(in_row, entry);
      load_floats(Dtype::kE4M3, entry, width, values);
      for (float& value : in_row) value *= k_scale;
    }
  });
  return dequantized;
}

StoredMlaCache quantise_entries(const Tensor& kv_c, const Tensor& k_pe, float k_scale) {
  check_scale(k_scale, "k_scale");
  StoredMlaCache stored;
  stored.codes = Tensor(Dtype::kE4M3, {kv_c.dim(0), kv_c.dim(1) + k_pe.dim(1)});
  stored.kv_c_dequantized = quantise_part(kv_c, k_scale, 0, stored.codes);
  stored.k_pe_dequantized = quantise_part(k_pe, k_scale, kv_c.dim(1), stored.codes);
  return stored;
}

StoredMlaCache store_ds_mla(const Tensor& kv_c, const Tensor& k_pe) {
  if (kv_c.dtype() != Dtype::kBF16) {
    fail(ErrorKind::kDtype, "kv_c: fp8_ds_mla expects bfloat16, got {}", dtype_name(kv_c.dtype()));
  }
  if (kv_c.dim(1) != kDsMlaLatent || k_pe.dim(1) != kDsMlaRope) {
    fail(ErrorKind::kShape,
         "fp8_ds_mla: expected kv_lora_rank {} and qk_rope_head_dim {}, got {} and {}",
         kDsMlaLatent, kDsMlaRope, kv_c.dim(1), k_pe.dim(1));
  }
  const std::int64_t num_entries = kv_c.dim(0);
  StoredMlaCache stored;
  stored.codes = Tensor(Dtype::kU8, {num_entries, kDsMlaEntryBytes});
  stored.kv_c_dequantized = Tensor(Dtype::kF32, kv_c.shape());
  stored.k_pe_dequantized = Tensor(Dtype::kF32, k_pe.shape());
  for_each_chunk(num_entries, kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint16_t> values(kDsMlaLatent + kDsMlaRope);
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* const entry = stored.codes.bytes() + row * kDsMlaEntryBytes;
      write_ds_mla_entry(kv_c.data<std::uint16_t>() + row * kDsMlaLatent,
                         k_pe.data<std::uint16_t>() + row * kDsMlaRope, entry);
      read_ds_mla_entry(entry, values.data());
      load_floats(Dtype::kBF16, values.data(), kDsMlaLatent,
                  stored.kv_c_dequantized.data<float>() + row * kDsMlaLatent);
      load_floats(Dtype::kBF16, values.data() + kDsMlaLatent, kDsMlaRope,
                  stored.k_pe_dequantized.data<float>() + row * kDsMlaRope);
    }
  });
  return stored;
}

}  // namespace

StoredMlaCache store_mla_cache(const Tensor& kv_c, const Tensor& k_pe, KvCacheDtype dtype,
                               float k_scale) {
  check_inputs(kv_c, k_pe);
  const KvFormat& format = kv_format(dtype);
  if (!format.of_latents) {
    fail(ErrorKind::kConfig, "kv_cache dtype: MLA expects {}, got {}",
         kv_format_names([](const KvFormat& of) { return of.of_latents; }), to_string(dtype));
  }
  switch (format.scales) {
    case KvScales::kNone:
      if (format.codes) check_copied_dtype(dtype, *format.codes, kv_c.dtype());
      return copy_entries(kv_c, k_pe);
    case KvScales::kTensor:
      return quantise_entries(kv_c, k_pe, k_scale);
    case KvScales::kEntry:
      return store_ds_mla(kv_c, k_pe);
    case KvScales::kTokenHead:
      break;
  }
  fail(ErrorKind::kInternal, "latents have no scale for each head");
}

}  // namespace attnbench
