// The table of cache types. The predicates of the header are read off a row, never off a single
// type, so that a new type behaves right wherever its row says the same as an old one's.
#include "core/numbers/kv_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "core/system/printable.h"
#include "kernels/common/slot_codes.cuh"
#include "kernels/params_mla.h"
#include "kernels/params_rope.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;
using enum KvScales;

constexpr bool kNoHeads = false;
constexpr bool kHeads = true;
constexpr bool kNoLatents = false;
constexpr bool kLatents = true;

constexpr KvFormat turbo(KvCacheDtype value, const char* name, const char* doc, SlotCodes slot) {
  return {.value = value,
          .name = name,
          .doc = doc,
          .codes = Dtype::kU8,
          .scales = kSlot,
          .of_heads = kHeads,
          .of_latents = kNoLatents,
          .slot = slot};
}

constexpr auto kFormats = every_value<KvFormat>({
    {kAuto, "auto", "bit copies in the type of the keys", std::nullopt, kNone, kHeads, kLatents},
    {kFloat16, "float16", "bit copies of float16", Dtype::kF16, kNone, kHeads, kLatents},
    {kBFloat16, "bfloat16", "bit copies of bfloat16", Dtype::kBF16, kNone, kHeads, kLatents},
    {.value = kFp8,
     .name = "fp8",
     .doc = "fp8_e4m3; fp8_ds_mla of backends that store no other 8-bit latents",
     .codes = Dtype::kE4M3,
     .scales = kTensor,
     .of_heads = kHeads,
     .of_latents = kLatents,
     .usual = kFp8E4M3},
    {kFp8E4M3, "fp8_e4m3", "e4m3 of x / scale", Dtype::kE4M3, kTensor, kHeads, kLatents},
    {kFp8E5M2, "fp8_e5m2", "e5m2 of x / scale", Dtype::kE5M2, kTensor, kHeads, kNoLatents},
    {kInt8PerTokenHead, "int8_per_token_head", "int8 with a scale for each position and head",
     Dtype::kI8, kTokenHead, kHeads, kNoLatents},
    {kFp8PerTokenHead, "fp8_per_token_head", "e4m3 with a scale for each position and head",
     Dtype::kE4M3, kTokenHead, kHeads, kNoLatents},
    {.value = kInt4PerTokenHead,
     .name = "int4_per_token_head",
     .doc = "rotated vectors in 4 bits with a scale and a zero point for each position and head",
     .codes = Dtype::kU8,
     .scales = kTokenHeadZero,
     .of_heads = kHeads,
     .of_latents = kNoLatents,
     .columns_of_code = 2},
    {.value = kNvfp4,
     .name = "nvfp4",
     .doc = "e2m1 with an e4m3 scale for each 16 columns, times k_scale or v_scale",
     .codes = Dtype::kU8,
     .scales = kBlocks,
     .of_heads = kHeads,
     .of_latents = kNoLatents,
     .columns_of_code = 2},
    {.value = kFp8DsMla,
     .name = "fp8_ds_mla",
     .doc = "latents of DeepSeek's sparse MLA: 512 e4m3, a float32 scale for each 128, 64 bfloat16",
     .codes = Dtype::kE4M3,
     .scales = kEntry,
     .of_heads = kNoHeads,
     .of_latents = kLatents,
     .packed =
         PackedEntry{attn::kDsMlaEntryBytes, attn::kDsMlaLatent, attn::kDsMlaRope, Dtype::kBF16}},
    {.value = kFp8Model1Mla,
     .name = "fp8_model1_mla",
     .doc =
         "latents of FlashMLA's MODEL1: 448 e4m3, 64 bfloat16, a power of two for each 64 behind "
         "the block",
     .codes = Dtype::kE4M3,
     .scales = kEntry,
     .of_heads = kNoHeads,
     .of_latents = kLatents,
     .packed = PackedEntry{attn::kModel1EntryBytes, attn::kModel1Latent, attn::kModel1Rope,
                           Dtype::kBF16, attn::kModel1ScaleBytes}},
    turbo(kTurboK8V4, "turboquant_k8v4", "e4m3 keys, values in 4 bits with scale and least value",
          {8, 4}),
    turbo(kTurbo4Bit, "turboquant_4bit_nc",
          "rotated keys as centroids in 4 bits with a norm, values in 4 bits as turboquant_k8v4",
          {4, 4}),
    turbo(kTurboK3V4, "turboquant_k3v4_nc", "the same with keys in 3 bits", {3, 4}),
    turbo(kTurbo3Bit, "turboquant_3bit_nc", "the same with keys and values in 3 bits", {3, 3}),
});

// ---- The centroids of vLLM's TurboQuant: the quantiser of Lloyd (1957) and Max (1960) for a
// normal distribution, found by iteration. The numbers where it ends depend on its steps, which are
// therefore part of the definition: in float64 and operation by operation as upstream has them
// (model_executor/layers/quantization/turboquant/centroids.py), so that the results are the same
// bits.

constexpr int kMostIterations = 200;
constexpr double kTolerance = 1e-10;  // no centroid moves further: the iteration has ended
constexpr int kIntervals = 200;       // of an integral by trapezoids
constexpr double kReach = 3.5;        // standard deviations over which the first centroids spread
constexpr double kTail = 3.0;         // times kReach is where the outermost cells end

struct Normal {
  double variance;

  double density(double x) const {
    const double height = 1.0 / std::sqrt(2 * std::numbers::pi * variance);
    return height * std::exp(-x * x / (2 * variance));
  }
};

/// Integral of f from `begin` to `end` by trapezoids of one width.
template <typename Function>
double integral(double begin, double end, Function f) {
  const double width = (end - begin) / kIntervals;
  double sum = 0.5 * (f(begin) + f(end));
  for (int i = 1; i < kIntervals; ++i) sum += f(begin + i * width);
  return sum * width;
}

/// Mean of the distribution inside of a cell; `fallback` where the cell has next to no mass.
double mean_of_cell(const Normal& normal, double begin, double end, double fallback) {
  const double moment = integral(begin, end, [&](double x) { return x * normal.density(x); });
  const double mass = integral(begin, end, [&](double x) { return normal.density(x); });
  return mass > 1e-15 ? moment / mass : fallback;
}

/// Every centroid as the mean of its cell, which ends midway to its neighbours.
std::vector<double> next_centroids(const Normal& normal, const std::vector<double>& centroids,
                                   double most) {
  std::vector<double> next(centroids.size());
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const bool is_last = i + 1 == centroids.size();
    const double begin = i == 0 ? -most * kTail : (centroids[i - 1] + centroids[i]) / 2.0;
    const double end = is_last ? most * kTail : (centroids[i] + centroids[i + 1]) / 2.0;
    next[i] = mean_of_cell(normal, begin, end, centroids[i]);
  }
  return next;
}

}  // namespace

std::span<const KvFormat> enum_rows(KvCacheDtype) { return kFormats; }

const KvFormat& kv_format(KvCacheDtype dtype) { return kFormats[static_cast<std::size_t>(dtype)]; }

bool is_quantised(KvCacheDtype dtype) { return kv_format(dtype).scales != KvScales::kNone; }

bool is_per_token_head(KvCacheDtype dtype) {
  const KvScales scales = kv_format(dtype).scales;
  return scales == kTokenHead || scales == kTokenHeadZero;
}

bool has_tensor_scales(KvCacheDtype dtype) { return kv_format(dtype).scales == kTensor; }

bool is_e4m3_cache(KvCacheDtype dtype) {
  return has_tensor_scales(dtype) && kv_format(dtype).codes == Dtype::kE4M3;
}

bool reads_tensor_scales(KvCacheDtype dtype) {
  return has_tensor_scales(dtype) || kv_format(dtype).scales == kBlocks;
}

bool is_rotated(KvCacheDtype dtype) { return kv_format(dtype).scales == kTokenHeadZero; }

bool shares_slots(KvCacheDtype dtype) { return kv_format(dtype).scales == kSlot; }

int slot_key_bytes(KvCacheDtype dtype, int head_size) {
  const std::optional<SlotCodes>& slot = kv_format(dtype).slot;
  return slot ? attn::slot_key_bytes(slot->key_bits, head_size) : 0;
}

int slot_value_bytes(KvCacheDtype dtype, int head_size) {
  const std::optional<SlotCodes>& slot = kv_format(dtype).slot;
  return slot ? attn::slot_value_bytes(slot->value_bits, head_size) : 0;
}

bool has_inner_scales(KvCacheDtype dtype) {
  return is_per_token_head(dtype) || kv_format(dtype).scales == kBlocks || is_packed(dtype) ||
         shares_slots(dtype);
}

bool is_packed(KvCacheDtype dtype) { return kv_format(dtype).packed.has_value(); }

int footer_bytes(KvCacheDtype dtype) {
  const std::optional<PackedEntry>& packed = kv_format(dtype).packed;
  return packed ? packed->footer_bytes : 0;
}

Dtype kv_element_dtype(KvCacheDtype dtype, Dtype model_dtype) {
  return is_packed(dtype) ? Dtype::kU8 : kv_format(dtype).codes.value_or(model_dtype);
}

int stored_width(KvCacheDtype dtype, int head_size) {
  const KvFormat& format = kv_format(dtype);
  const int codes = head_size / format.columns_of_code;
  if (is_per_token_head(dtype)) return codes + static_cast<int>(sizeof(float));
  if (format.slot) {
    return attn::slot_bytes(format.slot->key_bits, format.slot->value_bits, head_size) / 2;
  }
  return format.scales == kBlocks ? codes + head_size / attn::kKvScaleBlock : codes;
}

std::int64_t stored_vector_bytes(KvCacheDtype dtype, Dtype model_dtype, int head_size) {
  const auto size = static_cast<std::int64_t>(dtype_size(kv_element_dtype(dtype, model_dtype)));
  return stored_width(dtype, head_size) * size;
}

std::string stored_size_misfit(KvCacheDtype dtype, int head_size) {
  const KvScales scales = kv_format(dtype).scales;
  if (scales == kTokenHead && head_size % 4 != 0) {
    return "per-token-head KV cache requires head_size % 4 == 0";
  }
  const bool power_of_two = (head_size & (head_size - 1)) == 0;
  if (scales == kTokenHeadZero &&
      (!power_of_two || head_size < 8 || head_size > attn::kMaxRotatedHead)) {
    return fmt::format("{} KV cache requires a head_size that is a power of two from 8 to {}",
                       to_string(dtype), attn::kMaxRotatedHead);
  }
  const std::optional<SlotCodes>& slot = kv_format(dtype).slot;
  if (slot && slot->key_bits < 8 &&
      (!power_of_two || head_size < attn::kMinTurboHead || head_size > attn::kMaxRotatedHead)) {
    return fmt::format("{} KV cache requires a head_size that is a power of two from {} to {}",
                       to_string(dtype), attn::kMinTurboHead, attn::kMaxRotatedHead);
  }
  if (slot && (head_size % 8 != 0 || head_size > attn::kMaxRotatedHead)) {
    return fmt::format("{} KV cache requires head_size % 8 == 0, at most {}", to_string(dtype),
                       attn::kMaxRotatedHead);
  }
  if (scales == kBlocks && head_size % attn::kKvSwizzledHead != 0) {
    return fmt::format("{} KV cache requires head_size % {} == 0", to_string(dtype),
                       attn::kKvSwizzledHead);
  }
  return "";
}

std::int64_t latent_entry_bytes(KvCacheDtype dtype, Dtype model_dtype, int kv_lora_rank,
                                int qk_rope_head_dim) {
  if (const auto& packed = kv_format(dtype).packed) return packed->bytes;
  const auto size = static_cast<std::int64_t>(dtype_size(kv_element_dtype(dtype, model_dtype)));
  return (std::int64_t{kv_lora_rank} + qk_rope_head_dim) * size;
}

std::vector<float> key_centroids(const SlotCodes& slot, int head_size) {
  if (slot.key_bits == 8) return {};
  const Normal normal{1.0 / head_size};
  const double most = kReach * std::sqrt(normal.variance);
  std::vector<double> centroids(std::size_t{1} << slot.key_bits);
  const auto count = static_cast<double>(centroids.size());
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    centroids[i] = -most + (most + most) * (static_cast<double>(i) + 0.5) / count;
  }
  for (int iteration = 0; iteration < kMostIterations; ++iteration) {
    const std::vector<double> next = next_centroids(normal, centroids, most);
    double moved = 0;
    for (std::size_t i = 0; i < next.size(); ++i) {
      moved = std::max(moved, std::fabs(next[i] - centroids[i]));
    }
    // Upstream leaves with the centroids before its last step.
    if (moved < kTolerance) break;
    centroids = next;
  }
  return {centroids.begin(), centroids.end()};
}

std::string_view refused_kv_format(std::string_view word) {
  if (word.starts_with("turboquant")) {
    return "vLLM defines four presets of TurboQuant: turboquant_k8v4, turboquant_4bit_nc, "
           "turboquant_k3v4_nc and turboquant_3bit_nc";
  }
  if (word == "nvfp4_4over6") {
    return "the bytes of nvfp4 by another search for the scales, which is not defined here";
  }
  if (word == "nvfp4_ds_mla") return "vLLM's packed NVFP4 latents are not defined here";
  return "";
}

std::string kv_format_names(bool (*has)(const KvFormat&)) {
  std::vector<std::string> names;
  for (const KvFormat& format : kFormats) {
    if (has(format)) names.emplace_back(format.name);
  }
  return either_of(names);
}

}  // namespace attnbench
