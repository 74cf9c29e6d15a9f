// The candidate of MLA latents on Hopper: kernels/attention/latent/latent.cuh, for decodes over
// 16-bit entries of DeepSeek's sizes. Listed keys are hopper_gathered's, one-byte entries
// hopper_latent_codes', other sizes and machines the general kernel's.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/attention/latent/latent_layout.cuh"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kLatentAlignment = 16;  // bytes, of what the copy engine or whole vectors move

/// The entry of latent.cuh for the operation; null where there is none.
const char* latent_entry(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "latent";
    case AttendOperation::kSplits:
      return "latent_splits";
    case AttendOperation::kPlan:
      return "latent_plan";
    default:
      return nullptr;
  }
}

std::string elements_misfit(const attn::AttendParams& p) {
  if (!is_16_bit(p.query_element) || p.kv.element != p.query_element) {
    return fmt::format("{} queries over {} entries: it multiplies bf16 or f16 of one type",
                       short_name(p.query_element), short_name(p.kv.element));
  }
  if (p.output_element != p.query_element && p.output_element != attn::Element::kF32) {
    return fmt::format("output in {}: it stores the type of the query or f32",
                       short_name(p.output_element));
  }
  return "";
}

}  // namespace

std::string latent_sizes_misfit(const attn::AttendParams& p) {
  constexpr int kEntry = attn::kLatentValues + attn::kLatentRope;
  if (p.head_size != kEntry || p.v_head_size != attn::kLatentValues) {
    return fmt::format("head sizes {} and {}: it is for {} and {}", p.head_size, p.v_head_size,
                       kEntry, attn::kLatentValues);
  }
  if (p.num_kv_heads != 1) return fmt::format("{} KV heads: it is for 1", p.num_kv_heads);
  return "";
}

std::string latent_pages_misfit(const attn::AttendParams& p) {
  const attn::KvParams& kv = p.kv;
  if (kv.block_table == nullptr) return "keys that are not in blocks: it goes by a block table";
  if (kv.key != kv.value || kv.token_stride_key != kv.token_stride_value) {
    return "values beside the keys: it takes them from the keys";
  }
  if (attn::latent_key_box(kv.block_size) == 0) {
    return fmt::format("blocks of {} keys: it takes 16, 32 and multiples of {}", kv.block_size,
                       attn::kLatentKeys);
  }
  const int bytes = Alignment()
                        .pointer(kv.key)
                        .stride(kv.token_stride_key, kv.element)
                        .stride(kv.block_stride, kv.element)
                        .common_bytes();
  if (bytes < kLatentAlignment) {
    return fmt::format("entries lie on multiples of {} bytes, {} are needed", bytes,
                       kLatentAlignment);
  }
  return "";
}

/// MLA has neither masks but the causal one nor transforms of scores.
std::string latent_score_misfit(const attn::AttendParams& p) {
  const attn::ScoreParams& score = p.score;
  if (score.window_left != -1 || score.window_right != 0 || score.mm_ranges != nullptr) {
    return "masks: it has the causal one";
  }
  if (score.soft_cap > 0.0f || score.alibi != attn::Alibi::kNone || score.sinks != nullptr) {
    return "soft-caps, ALiBi and sinks: it has none of them";
  }
  // Why: masked scores are -inf before they are scaled.
  if (!(score.softmax_scale > 0.0f)) {
    return fmt::format("a softmax scale of {}: it has to be above 0", score.softmax_scale);
  }
  if (p.int8.query_scale != nullptr || p.e4m3_probability != 0 || p.output_scale > 0.0f) {
    return "codes of one byte: scores, probabilities and output have 16 or 32 bits";
  }
  return "";
}

std::string latent_output_misfit(const attn::AttendParams& p) {
  const int bytes = Alignment()
                        .pointer(p.output)
                        .stride(p.output_token_stride, p.output_element)
                        .stride(p.output_head_stride, p.output_element)
                        .common_bytes();
  if (bytes >= kLatentAlignment) return "";
  return fmt::format("rows of output lie on multiples of {} bytes, {} are needed", bytes,
                     kLatentAlignment);
}

namespace {

std::string latent_misfit(const Target& target, const AttendCall& call) {
  if (latent_entry(call.operation) == nullptr) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (target.sm != 90) return fmt::format("compute capability {}: it is for 90", target.sm);
  if (attn::kLatentSharedBytes > target.max_shared_bytes) {
    return fmt::format("it needs {} bytes of shared memory of {}", attn::kLatentSharedBytes,
                       target.max_shared_bytes);
  }
  for (const auto& misfit : {elements_misfit, latent_sizes_misfit, latent_pages_misfit,
                             latent_score_misfit, latent_output_misfit}) {
    if (std::string reason = misfit(*call.params); !reason.empty()) return reason;
  }
  return "";
}

/// What may be chosen behind the kernel's name, to compare.
struct LatentOptions {
  bool evict_first = false;  // keys leave the L2 first
  TensorPromotion promotion = TensorPromotion::k128Bytes;
  bool few = true;  // up to 16 rows as the narrow side of the products
};

/// Applies them to `to` where there is one; what is wrong with them, or "".
std::string apply_latent_options(std::string_view options, LatentOptions* to) {
  LatentOptions unused;
  LatentOptions& chosen = to == nullptr ? unused : *to;
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(':'));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    if (word == "evict_first=0" || word == "evict_first=1") {
      chosen.evict_first = word.back() == '1';
    } else if (word == "promotion=128" || word == "promotion=256") {
      chosen.promotion =
          word.ends_with("128") ? TensorPromotion::k128Bytes : TensorPromotion::k256Bytes;
    } else if (word == "few=0" || word == "few=1") {
      chosen.few = word.back() == '1';
    } else {
      return fmt::format(
          "option '{}': expected evict_first=0 or 1, promotion=128 or 256, few=0 or 1", word);
    }
  }
  return "";
}
std::string latent_options_misfit(std::string_view options) {
  return apply_latent_options(options, nullptr);
}

}  // namespace

int latent_boxes_of_query(const attn::AttendParams& p) {
  const int bytes =
      Alignment().pointer(p.query).stride(p.query_head_stride, p.query_element).common_bytes();
  const bool in_sequence = p.query_token_stride == p.num_heads * p.query_head_stride;
  return in_sequence && bytes >= kLatentAlignment ? attn::latent_query_box(p.num_heads) : 0;
}

namespace {

LatentOptions latent_options(const Launcher& launcher, const attn::AttendParams& p) {
  // Why: row tiles of one request read its keys from the L2, once each, and where there are several
  // nothing is worth keeping; one alone was 5 % slower so (one NVIDIA H200, 2026-11-22).
  LatentOptions chosen{.evict_first = max_packed_rows(p) > attn::kLatentRows};
  apply_latent_options(forced_options(launcher.forced_kernel(), kLatentCandidate.name), &chosen);
  return chosen;
}
bool takes_few_rows(const attn::AttendParams& p, const LatentOptions& options) {
  return options.few && max_packed_rows(p) <= attn::kFewRows;
}

TensorMap latent_map(const attn::AttendParams& p, const void* data, TensorPromotion promotion) {
  TensorMap map;
  map.data = data;
  map.dtype = p.query_element == attn::Element::kBF16 ? Dtype::kBF16 : Dtype::kF16;
  map.swizzle = TensorSwizzle::k128Bytes;
  map.promotion = promotion;  // rows have 1152 bytes: 256 would read others too
  return map;
}

/// How many blocks the cache has, and rows the query, is not known here: boxes lie where block
/// table and query_start_loc say, and extents only have to be past those.
constexpr std::int64_t kNoEnd = std::int64_t{1} << 31;

TensorMap key_map(const attn::AttendParams& p, TensorPromotion promotion) {
  TensorMap map = latent_map(p, p.kv.key, promotion);
  map.rank = 3;
  map.extents = {p.head_size, p.kv.block_size, kNoEnd};
  map.strides = {2, p.kv.token_stride_key * 2, p.kv.block_stride * 2};
  map.box = {64, attn::latent_key_box(p.kv.block_size), 1};
  return map;
}

}  // namespace

TensorMap latent_query_map(const attn::AttendParams& p, int box) {
  TensorMap map = latent_map(p, p.query, TensorPromotion::k128Bytes);
  map.rank = 2;
  map.extents = {p.head_size, kNoEnd};
  map.strides = {2, p.query_head_stride * 2};
  map.box = {64, box};
  return map;
}

namespace {

KernelSpec latent_spec(const attn::AttendParams& p, const std::string& entry, int box,
                       const LatentOptions& options) {
  const bool few = takes_few_rows(p, options);
  KernelSpec spec;
  spec.source = "attention/latent/latent.cuh";
  spec.function = "attn::" + entry;
  spec.constants = {{"attn::Element kElement", spec_name(p.query_element)},
                    {"attn::Element kOutput", spec_name(p.output_element)},
                    {"int kBlockSize", std::to_string(p.kv.block_size)},
                    {"int kQueryBox", std::to_string(box)},
                    {"unsigned long long kPolicy",
                     options.evict_first ? "attn::kEvictFirst" : "attn::kEvictNormal"},
                    {"bool kFew", spec_flag(few)}};
  // The slot within a block takes registers that the warp which loads does not have.
  spec.allowed_spill_bytes = p.kv.block_size > attn::kLatentKeys && !few ? 40 : 0;
  spec.name =
      fmt::format("{} {} paged {} to {}, query boxes of {}{}{}", entry, short_name(p.query_element),
                  p.kv.block_size, short_name(p.output_element), box,
                  options.evict_first ? ", evict first" : "", few ? ", few rows" : "");
  return spec;
}

void launch_latent(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  const int box = latent_boxes_of_query(p);
  const std::int64_t tiles = ceil_quotient(max_packed_rows(p), attn::kLatentRows);
  const LatentOptions chosen = latent_options(launcher, p);
  const KernelSpec spec = latent_spec(p, latent_entry(call.operation), box, chosen);
  const TensorMap keys = key_map(p, chosen.promotion);
  const TensorMap queries = box == 0 ? keys : latent_query_map(p, box);
  LaunchShape shape;
  shape.threads = attn::kLatentThreads;
  shape.overlaps_previous = true;
  shape.shared_bytes = attn::kLatentSharedBytes;
  if (call.plan != nullptr) {
    shape.grid_x = p.num_requests == 0 ? 0 : tiles * call.plan->num_parts;
    return launch(launcher, spec, shape, p, *call.plan, queries, keys);
  }
  const std::int64_t items = tiles * p.num_requests * call.num_parts();
  shape.grid_x = std::min<std::int64_t>(items, launcher.target().num_sms);
  if (call.split != nullptr) {
    return launch(launcher, spec, shape, p, *call.split, queries, keys);
  }
  launch(launcher, spec, shape, p, queries, keys);
}

}  // namespace

const AttendCandidate kLatentCandidate{"hopper_latent", latent_misfit, nullptr, launch_latent,
                                       latent_options_misfit};

}  // namespace attnbench::cuda
