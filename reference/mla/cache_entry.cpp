// One function for each kind of entry: bits as they are, e4m3 with one scale for the tensor, and
// the packed entries of DeepSeek's sparse MLA and FlashMLA's MODEL1 with a scale for each tile.
#include "reference/mla/cache_entry.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr int kNumTiles = kDsMlaLatent / kDsMlaTile;
constexpr int kScalesAt = kDsMlaLatent;
constexpr int kRopeAt = kScalesAt + kNumTiles * 4;
constexpr int kDsMlaValues = kDsMlaLatent + kDsMlaRope;
static_assert(kRopeAt + kDsMlaRope * 2 == kDsMlaEntryBytes);

void require_bf16(const Tensor& x, std::string_view name) {
  if (x.dtype() != Dtype::kBF16) {
    fail(ErrorKind::kDtype, "{} must be bfloat16 for fp8_ds_mla, got {}", name,
         dtype_name(x.dtype()));
  }
}

void check_ds_mla_cache(const Tensor& cache) {
  if (dtype_size(cache.dtype()) != 1) {
    fail(ErrorKind::kDtype, "an fp8_ds_mla cache must have 1-byte elements, got {}",
         dtype_name(cache.dtype()));
  }
  require_rank(cache, 3, "fp8_ds_mla cache");
  if (cache.dim(2) != kDsMlaEntryBytes) {
    fail(ErrorKind::kShape, "an fp8_ds_mla cache must have 656 bytes per entry, got {}",
         cache.dim(2));
  }
}

void check_new_entries(const Tensor& kv_c, const Tensor& k_pe, std::size_t num_tokens) {
  require_bf16(kv_c, "kv_c");
  require_bf16(k_pe, "k_pe");
  require_rank(kv_c, 2, "kv_c");
  if (kv_c.dim(1) != kDsMlaLatent) {
    fail(ErrorKind::kShape, "fp8_ds_mla needs kv_lora_rank 512, got {}", kv_c.dim(1));
  }
  const bool has_head = k_pe.shape().size() == 3 && k_pe.dim(1) == 1;
  if (!has_head) require_rank(k_pe, 2, "k_pe");
  if (k_pe.shape().back() != kDsMlaRope) {
    fail(ErrorKind::kShape, "fp8_ds_mla needs qk_rope_head_dim 64, got {}", k_pe.shape().back());
  }
  const auto rows = static_cast<std::size_t>(std::min(kv_c.dim(0), k_pe.dim(0)));
  if (rows < num_tokens) {
    fail(ErrorKind::kShape, "kv_c and k_pe must have a row for each of {} slots, got {}",
         num_tokens, rows);
  }
}

void check_gather(const DsMlaGather& gather, const Tensor& destination) {
  check_ds_mla_cache(*gather.cache);
  require_bf16(destination, "destination");
  require_rank(destination, 2, "destination");
  if (destination.dim(1) != kDsMlaValues) {
    fail(ErrorKind::kShape, "destination must have 576 columns, got {}", destination.dim(1));
  }
  if (gather.workspace_starts.size() != gather.seq_lens.size()) {
    fail(ErrorKind::kShape, "workspace_starts must have {} entries, got {}", gather.seq_lens.size(),
         gather.workspace_starts.size());
  }
  std::int64_t previous_end = 0;
  for (std::size_t b = 0; b < gather.seq_lens.size(); ++b) {
    const std::int64_t start = gather.workspace_starts[b];
    const std::int64_t end = start + gather.seq_lens[b];
    if (start < previous_end || end < start || end > destination.dim(0)) {
      fail(ErrorKind::kValue,
           "workspace_starts[{}] must be ascending without overlap and end by row {}, got rows "
           "[{}, {}) after {}",
           b, destination.dim(0), start, end, previous_end);
    }
    previous_end = end;
  }
  check_block_table(gather.block_table, gather.block_table_columns, gather.seq_lens,
                    gather.cache->dim(1), gather.cache->dim(0));
}

constexpr std::int64_t kCacheEntriesPerTask = 256;

void check_latents(const Tensor& kv_c, const Tensor& k_pe) {
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
  for_each_chunk(kv_c.dim(0), kCacheEntriesPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
      std::byte* const entry = stored.codes.bytes() + row * (latent_bytes + rope_bytes);
      std::memcpy(entry, kv_c.bytes() + row * latent_bytes, latent_bytes);
      std::memcpy(entry + latent_bytes, k_pe.bytes() + row * rope_bytes, rope_bytes);
    }
  });
  stored.kv_c_dequantized = Tensor::view(kv_c);
  stored.k_pe_dequantized = Tensor::view(k_pe);
  return stored;
}

/// Of what codes of e4m3 read as. All of them are bf16 and f16 numbers, unless a scale makes
/// others. Why not always f32: the memory of a case is mostly such tensors.
Dtype dequantised_dtype(Dtype source, float k_scale) {
  const bool is_half = source == Dtype::kBF16 || source == Dtype::kF16;
  return is_half && k_scale == 1.0f ? source : Dtype::kF32;
}

/// Codes of x [S, width] into columns of the entries and what they read back as.
Tensor quantise_part(const Tensor& x, float k_scale, std::int64_t column, Tensor& codes) {
  const Dtype dtype = dequantised_dtype(x.dtype(), k_scale);
  Tensor dequantized = Tensor::for_overwriting(dtype, x.shape());
  const std::int64_t width = x.dim(1);
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(x.dtype()));
  const auto dequantized_bytes = width * static_cast<std::int64_t>(dtype_size(dtype));
  for_each_chunk(x.dim(0), kCacheEntriesPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    for (std::int64_t row = begin; row < end; ++row) {
      std::uint8_t* const entry = codes.data<std::uint8_t>() + row * codes.dim(1) + column;
      load_floats(x.dtype(), x.bytes() + row * row_bytes, width, values.data());
      for (float& value : values) value /= k_scale;
      round_row_to_e4m3(values, entry);
      load_floats(Dtype::kE4M3, entry, width, values.data());
      for (float& value : values) value *= k_scale;
      store_floats(dtype, values.data(), width, dequantized.bytes() + row * dequantized_bytes);
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

/// A packed entry: its sizes, and what writes and reads one of bf16 codes.
struct PackedForm {
  int latent, rope, bytes;
  void (*write)(const std::uint16_t* kv_c, const std::uint16_t* k_pe, std::byte* entry);
  void (*read)(const std::byte* entry, std::uint16_t* latent_and_rope);
};
constexpr PackedForm kDsMlaForm{kDsMlaLatent, kDsMlaRope, kDsMlaEntryBytes, write_ds_mla_entry,
                                read_ds_mla_entry};
constexpr PackedForm kModel1Form{kModel1Latent, kModel1Rope, kModel1EntryBytes, write_model1_entry,
                                 read_model1_entry};

StoredMlaCache store_packed(const Tensor& kv_c, const Tensor& k_pe, KvCacheDtype dtype,
                            const PackedForm& form) {
  if (kv_c.dtype() != Dtype::kBF16) {
    fail(ErrorKind::kDtype, "kv_c: {} expects bfloat16, got {}", to_string(dtype),
         dtype_name(kv_c.dtype()));
  }
  if (kv_c.dim(1) != form.latent || k_pe.dim(1) != form.rope) {
    fail(ErrorKind::kShape, "{}: expected kv_lora_rank {} and qk_rope_head_dim {}, got {} and {}",
         to_string(dtype), form.latent, form.rope, kv_c.dim(1), k_pe.dim(1));
  }
  const std::int64_t num_entries = kv_c.dim(0);
  StoredMlaCache stored;
  stored.codes = Tensor(Dtype::kU8, {num_entries, form.bytes});
  stored.kv_c_dequantized = Tensor::for_overwriting(Dtype::kBF16, kv_c.shape());
  stored.k_pe_dequantized = Tensor::for_overwriting(Dtype::kBF16, k_pe.shape());
  for_each_chunk(num_entries, kCacheEntriesPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(form.latent + form.rope));
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* const entry = stored.codes.bytes() + row * form.bytes;
      form.write(kv_c.data<std::uint16_t>() + row * form.latent,
                 k_pe.data<std::uint16_t>() + row * form.rope, entry);
      form.read(entry, values.data());
      std::copy_n(values.data(), form.latent,
                  stored.kv_c_dequantized.data<std::uint16_t>() + row * form.latent);
      std::copy_n(values.data() + form.latent, form.rope,
                  stored.k_pe_dequantized.data<std::uint16_t>() + row * form.rope);
    }
  });
  return stored;
}

}  // namespace

StoredMlaCache store_mla_cache(const Tensor& kv_c, const Tensor& k_pe, KvCacheDtype dtype,
                               float k_scale) {
  check_latents(kv_c, k_pe);
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
      return store_packed(kv_c, k_pe, dtype, footer_bytes(dtype) > 0 ? kModel1Form : kDsMlaForm);
    case KvScales::kTokenHead:
    case KvScales::kTokenHeadZero:
    case KvScales::kBlocks:
    case KvScales::kSlot:
      break;
  }
  fail(ErrorKind::kInternal, "latents have no scale for each head");
}

void write_ds_mla_entry(const std::uint16_t* kv_c, const std::uint16_t* k_pe, std::byte* entry) {
  std::vector<float> tile(kDsMlaTile);
  for (int t = 0; t < kNumTiles; ++t) {
    load_floats(Dtype::kBF16, kv_c + t * kDsMlaTile, kDsMlaTile, tile.data());
    const float scale = std::max(max_abs(tile) / kE4m3Max, std::numeric_limits<float>::min());
    for (float& value : tile) value /= scale;
    round_row_to_e4m3(tile, reinterpret_cast<std::uint8_t*>(entry + t * kDsMlaTile));
    std::memcpy(entry + kScalesAt + t * 4, &scale, sizeof scale);
  }
  std::memcpy(entry + kRopeAt, k_pe, kDsMlaRope * 2);
}

void read_ds_mla_entry(const std::byte* entry, std::uint16_t* latent_and_rope) {
  std::array<float, kDsMlaLatent> latent;
  load_floats(Dtype::kE4M3, entry, kDsMlaLatent, latent.data());
  for (int t = 0; t < kNumTiles; ++t) {
    const float scale = load_float(Dtype::kF32, entry + kScalesAt, t);
    for (int i = t * kDsMlaTile; i < (t + 1) * kDsMlaTile; ++i) {
      latent[static_cast<std::size_t>(i)] *= scale;
    }
  }
  store_floats(Dtype::kBF16, latent.data(), kDsMlaLatent, latent_and_rope);
  std::memcpy(latent_and_rope + kDsMlaLatent, entry + kRopeAt, kDsMlaRope * 2);
}

void concat_and_cache_ds_mla(const Tensor& kv_c, const Tensor& k_pe,
                             std::span<const std::int64_t> slot_mapping, Tensor& cache) {
  if (cache.empty()) return;
  check_ds_mla_cache(cache);
  check_new_entries(kv_c, k_pe, slot_mapping.size());
  check_slot_mapping(slot_mapping, cache.dim(0), cache.dim(1));
  for (std::size_t token = 0; token < slot_mapping.size(); ++token) {
    if (slot_mapping[token] < 0) continue;
    write_ds_mla_entry(kv_c.data<std::uint16_t>() + token * kDsMlaLatent,
                       k_pe.data<std::uint16_t>() + token * kDsMlaRope,
                       cache.bytes() + slot_mapping[token] * kDsMlaEntryBytes);
  }
}

void gather_and_upconvert_ds_mla(const DsMlaGather& gather, Tensor& destination) {
  check_gather(gather, destination);
  const std::int64_t block_size = gather.cache->dim(1);
  for (std::size_t b = 0; b < gather.seq_lens.size(); ++b) {
    const std::int64_t first_column = static_cast<std::int64_t>(b) * gather.block_table_columns;
    for (std::int64_t position = 0; position < gather.seq_lens[b]; ++position) {
      const auto column = static_cast<std::size_t>(first_column + position / block_size);
      const std::int64_t slot = gather.block_table[column] * block_size + position % block_size;
      read_ds_mla_entry(gather.cache->bytes() + slot * kDsMlaEntryBytes,
                        destination.data<std::uint16_t>() +
                            (gather.workspace_starts[b] + position) * kDsMlaValues);
    }
  }
}

void write_model1_entry(const std::uint16_t* kv_c, const std::uint16_t* k_pe, std::byte* entry) {
  constexpr int kTiles = kModel1Latent / kModel1Tile;
  std::byte* const scales = entry + kModel1Latent + kModel1Rope * 2;
  std::vector<float> tile(kModel1Tile);
  for (int t = 0; t < kTiles; ++t) {
    load_floats(Dtype::kBF16, kv_c + t * kModel1Tile, kModel1Tile, tile.data());
    const float scale = ue8m0_scale(std::max(max_abs(tile), 1e-4f) / kE4m3Max);
    for (float& value : tile) value /= scale;
    round_row_to_e4m3(tile, reinterpret_cast<std::uint8_t*>(entry + t * kModel1Tile));
    scales[t] = static_cast<std::byte>(std::ilogb(scale) + 127);
  }
  scales[kTiles] = std::byte{0};
  std::memcpy(entry + kModel1Latent, k_pe, kModel1Rope * 2);
}

void read_model1_entry(const std::byte* entry, std::uint16_t* latent_and_rope) {
  const std::byte* const scales = entry + kModel1Latent + kModel1Rope * 2;
  std::array<float, kModel1Latent> latent;
  load_floats(Dtype::kE4M3, entry, kModel1Latent, latent.data());
  for (std::size_t i = 0; i < latent.size(); ++i) {
    latent[i] = std::ldexp(latent[i], std::to_integer<int>(scales[i / kModel1Tile]) - 127);
  }
  store_floats(Dtype::kBF16, latent.data(), kModel1Latent, latent_and_rope);
  std::memcpy(latent_and_rope + kModel1Latent, entry + kModel1Latent, kModel1Rope * 2);
}

IndexKey quantise_index_key(std::span<const float, kIndexKeySize> key, bool ue8m0) {
  IndexKey result;
  const float scale = std::max(max_abs(key), 1e-4f) / kE4m3Max;
  result.scale = ue8m0 ? ue8m0_scale(scale) : scale;
  for (std::size_t i = 0; i < key.size(); ++i) result.codes[i] = rn_e4m3(key[i] / result.scale);
  return result;
}

}  // namespace attnbench
