// The candidate of MLA latents on Hopper whose keys are gathered by threads:
// kernels/attention/latent/gathered.cuh, for lists of slots (sparse MLA) over entries of 16 bits,
// e4m3 and "fp8_ds_mla", and for dense decodes over e4m3 entries. What the copy engine can bring is
// hopper_latent's.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "core/error.h"
#include "kernels/attention/latent/gathered_layout.cuh"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

using attn::Element;
using attn::MlaEntry;

constexpr int kVectorBytes = 16;  // of all loads

/// The entry of gathered.cuh for the operation; null where there is none.
const char* gathered_entry(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "gathered";
    case AttendOperation::kSplits:
      return "gathered_splits";
    case AttendOperation::kPlan:
      return "gathered_plan";
    case AttendOperation::kSparse:
      return "gathered_sparse";
    case AttendOperation::kSparsePlan:
      return "gathered_sparse_plan";
    case AttendOperation::kSegments:
    case AttendOperation::kTiles:
      return nullptr;
  }
  return nullptr;
}

/// How the entries of a call look; those of dense decodes are codes, or no business of this kernel.
MlaEntry format_of(const AttendCall& call) {
  return call.sparse != nullptr ? call.sparse->format : MlaEntry::kE4M3;
}
/// The element of the products. Codes of queries and keys are exact in f16, which keeps more bits
/// of the weights.
Element product_element(const attn::AttendParams& p) {
  return is_16_bit(p.query_element) ? p.query_element : Element::kF16;
}
bool is_rounded(const AttendCall& call) {
  return call.sparse == nullptr && call.params->kv.round_dequantized != 0;
}

std::string elements_misfit(const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  if (call.sparse == nullptr && p.kv.element != Element::kE4M3) {
    return fmt::format("{} entries in blocks: it is for lists of entries, and for e4m3",
                       short_name(p.kv.element));
  }
  const auto pair = [&](const std::string& entries) {
    return fmt::format("{} queries over {} entries", short_name(p.query_element), entries);
  };
  switch (format_of(call)) {
    case MlaEntry::kCopy:
      if (!is_16_bit(p.query_element) || p.kv.element != p.query_element) {
        return pair(short_name(p.kv.element)) + ": it multiplies bf16 or f16 of one type";
      }
      break;
    case MlaEntry::kE4M3:
      if (!is_16_bit(p.query_element) && p.query_element != Element::kE4M3) {
        return pair("e4m3") + ": it takes queries of 16 bits or e4m3";
      }
      if (p.query_element == Element::kE4M3 && is_rounded(call)) {
        return pair("e4m3") + ": it rounds entries to queries of 16 bits only";
      }
      break;
    case MlaEntry::kDsMla:
      if (p.query_element != Element::kBF16) return pair("fp8_ds_mla") + ": it takes bf16 ones";
      break;
    case MlaEntry::kModel1:
      return "fp8_model1_mla entries: it is for fp8_ds_mla, e4m3 and 16 bits";
  }
  if (!is_16_bit(p.output_element) && p.output_element != Element::kF32) {
    return fmt::format("output in {}: it stores 16 bits or f32", short_name(p.output_element));
  }
  if (p.query_element != Element::kE4M3) return "";
  const int bytes = Alignment()
                        .pointer(p.query)
                        .stride(p.query_token_stride, p.query_element)
                        .stride(p.query_head_stride, p.query_element)
                        .common_bytes();
  if (bytes >= kVectorBytes) return "";
  return fmt::format("rows of queries lie on multiples of {} bytes, {} are needed", bytes,
                     kVectorBytes);
}

std::string sizes_misfit(const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  constexpr int kEntry = attn::kLatentValues + attn::kLatentRope;
  if (p.head_size != kEntry || p.v_head_size != attn::kLatentValues) {
    return fmt::format("head sizes {} and {}: it is for {} and {}", p.head_size, p.v_head_size,
                       kEntry, attn::kLatentValues);
  }
  if (call.sparse == nullptr && p.num_kv_heads != 1) {
    return fmt::format("{} KV heads: it is for 1", p.num_kv_heads);
  }
  return "";
}

std::string cache_misfit(const AttendCall& call) {
  const attn::KvParams& kv = call.params->kv;
  if (call.sparse == nullptr) {
    if (kv.block_table == nullptr) return "keys that are not in blocks: it goes by a block table";
    if (kv.key != kv.value || kv.token_stride_key != kv.token_stride_value) {
      return "values beside the keys: it takes them from the keys";
    }
    if (kv.key_scales != nullptr || kv.coding != attn::KvCoding::kElements) {
      return "scales of single tokens: it takes one of all";
    }
    if (is_rounded(call) && kv.k_scale != kv.v_scale) {
      return "values with a scale of their own: they are the rounded keys";
    }
  }
  // Strides are in elements, those of packed entries in bytes.
  const Element element = format_of(call) == MlaEntry::kCopy ? kv.element : Element::kE4M3;
  const int bytes = Alignment()
                        .pointer(kv.key)
                        .stride(kv.token_stride_key, element)
                        .stride(kv.block_stride, element)
                        .common_bytes();
  if (bytes < kVectorBytes) {
    return fmt::format("entries lie on multiples of {} bytes, {} are needed", bytes, kVectorBytes);
  }
  constexpr std::int64_t kMostStride = std::numeric_limits<int>::max() / 2;
  if (kv.token_stride_key <= 0 || kv.block_stride % kv.token_stride_key != 0) {
    return fmt::format("blocks {} apart, entries {}: it counts in whole entries", kv.block_stride,
                       kv.token_stride_key);
  }
  if (kv.block_stride > kMostStride) {
    return fmt::format("blocks {} apart: it takes strides up to {}", kv.block_stride, kMostStride);
  }
  return "";
}

/// Lists have no masks, and nobody looks at what the parameters say of them.
std::string score_misfit(const AttendCall& call) {
  attn::AttendParams p = *call.params;
  if (call.sparse != nullptr) {
    const float scale = p.score.softmax_scale;
    p.score = {};
    p.score.softmax_scale = scale;
    p.score.window_left = -1;
    p.int8 = {};
    p.e4m3_probability = 0;
  }
  return latent_score_misfit(p);
}

std::string gathered_misfit(const Target& target, const AttendCall& call) {
  if (gathered_entry(call.operation) == nullptr) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (target.sm != 90) return fmt::format("compute capability {}: it is for 90", target.sm);
  if (attn::kGatheredSharedBytes > target.max_shared_bytes) {
    return fmt::format("it needs {} bytes of shared memory of {}", attn::kGatheredSharedBytes,
                       target.max_shared_bytes);
  }
  for (const auto& misfit : {elements_misfit, sizes_misfit, cache_misfit, score_misfit}) {
    if (std::string reason = misfit(call); !reason.empty()) return reason;
  }
  return latent_output_misfit(*call.params);
}

/// What may be chosen behind the kernel's name, to compare.
struct GatheredOptions {
  /// A barrier for each piece of a copied half; if nothing is asked for, of few rows only. Lists of
  /// 2,048, 128 heads, one NVIDIA H200, 2026-11-30, us: 4,096 tokens of a prompt 3892 with it and
  /// 3815 without, 64 decodes of two tokens 157 and 156, 128 of one 159 and 160.
  std::optional<bool> by_pieces;
  bool fences = true;
  bool few = true;  // up to 16 rows as the narrow side of the products
  /// Two CTAs convert codes for each other. Lists of fp8_ds_mla entries, as above: 273 us, 222
  /// without.
  bool pair = false;
};

/// Applies them to `to` where there is one; what is wrong with them, or "".
std::string apply_gathered_options(std::string_view options, GatheredOptions* to) {
  GatheredOptions unused;
  GatheredOptions& chosen = to == nullptr ? unused : *to;
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(':'));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    if (word == "pieces=0" || word == "pieces=1") {
      chosen.by_pieces = word.back() == '1';
    } else if (word == "fences=0" || word == "fences=1") {
      chosen.fences = word.back() == '1';
    } else if (word == "few=0" || word == "few=1") {
      chosen.few = word.back() == '1';
    } else if (word == "pair=0" || word == "pair=1") {
      chosen.pair = word.back() == '1';
    } else {
      return fmt::format("option '{}': expected pieces, fences, few or pair, =0 or 1", word);
    }
  }
  return "";
}
std::string gathered_options_misfit(std::string_view options) {
  return apply_gathered_options(options, nullptr);
}

std::string format_name(MlaEntry format) {
  switch (format) {
    case MlaEntry::kCopy:
      return "kCopy";
    case MlaEntry::kE4M3:
      return "kE4M3";
    case MlaEntry::kDsMla:
      return "kDsMla";
    case MlaEntry::kModel1:
      return "kModel1";
  }
  return "";
}

/// Rows of a box of queries; 0 where threads bring them, as they do with codes.
int query_box(const attn::AttendParams& p) {
  return is_16_bit(p.query_element) ? latent_boxes_of_query(p) : 0;
}

/// Whether the row tiles of a token come in pairs, each for a cluster, that see the same keys.
/// Without lists those of several tokens are packed, and see them up to different ends.
bool is_paired(const AttendCall& call, const GatheredOptions& options) {
  const attn::AttendParams& p = *call.params;
  if (!options.pair || is_copied(format_of(call))) return false;
  if (call.sparse == nullptr && p.max_query_len > 1) return false;
  return ceil_quotient(p.num_heads, attn::kLatentRows) % 2 == 0;
}

KernelSpec gathered_spec(const AttendCall& call, const GatheredOptions& options) {
  const attn::AttendParams& p = *call.params;
  const MlaEntry format = format_of(call);
  const int box = query_box(p);
  const std::string entry = gathered_entry(call.operation);
  // Rows of a list are of one token.
  const bool few = options.few && (call.sparse != nullptr ? p.num_heads : max_packed_rows(p)) <= 16;
  KernelSpec spec;
  spec.source = "attention/latent/gathered.cuh";
  spec.function = "attn::" + entry;
  spec.constants = {
      {"attn::Element kElement", spec_name(product_element(p))},
      {"attn::Element kQuery", spec_name(p.query_element)},
      {"attn::Element kOutput", spec_name(p.output_element)},
      {"attn::MlaEntry kFormat", "attn::MlaEntry::" + format_name(format)},
      {"bool kListed", spec_flag(call.sparse != nullptr)},
      {"bool kRounded", spec_flag(is_rounded(call))},
      {"int kQueryBox", std::to_string(box)},
      {"bool kByPieces", spec_flag(is_copied(format) && options.by_pieces.value_or(few))},
      {"bool kFences", spec_flag(options.fences)},
      {"bool kFew", spec_flag(few)},
      {"bool kPaired", spec_flag(is_paired(call, options))}};
  // What the warps that convert know of a pair of tiles makes room for the codes under way.
  spec.allowed_spill_bytes = attn::is_copied(format) || few ? 0
                             : is_paired(call, options)     ? 320
                                                            : 256;
  spec.name =
      fmt::format("{} {} over {} to {}, query boxes of {}{}{}", entry, short_name(p.query_element),
                  format_name(format).substr(1), short_name(p.output_element), box,
                  few ? ", few rows" : "", is_paired(call, options) ? ", in pairs" : "");
  return spec;
}

/// In the place of the query's where there is none: a box that nobody loads.
TensorMap unused_map(const attn::AttendParams& p) {
  TensorMap map;
  map.data = p.kv.key;
  map.rank = 2;
  map.extents = {8, 1};
  map.strides = {2, 16};
  map.box = {8, 1};
  return map;
}

/// Row tiles of the longest query; those of a list are of one token.
std::int64_t tiles_of(const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  if (call.sparse == nullptr) return ceil_quotient(max_packed_rows(p), attn::kLatentRows);
  return std::int64_t{p.max_query_len} * ceil_quotient(p.num_heads, attn::kLatentRows);
}

void launch_gathered(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  GatheredOptions options;
  apply_gathered_options(forced_options(launcher.forced_kernel(), kGatheredCandidate.name),
                         &options);
  const KernelSpec spec = gathered_spec(call, options);
  const int box = query_box(p);
  const TensorMap queries = box == 0 ? unused_map(p) : latent_query_map(p, box);
  const std::int64_t items = tiles_of(call) * p.num_requests * call.num_parts();
  LaunchShape shape;
  shape.threads = attn::kLatentThreads;
  shape.overlaps_previous = true;
  shape.shared_bytes = attn::kGatheredSharedBytes;
  shape.grid_x = std::min<std::int64_t>(items, launcher.target().num_sms);
  if (call.plan != nullptr) {
    shape.grid_x = p.num_requests == 0 ? 0 : tiles_of(call) * call.plan->num_parts;
  }
  if (is_paired(call, options)) {
    shape.cluster_x = 2;
    shape.grid_x -= shape.grid_x % 2;
  }
  switch (call.operation) {
    case AttendOperation::kWhole:
      return launch(launcher, spec, shape, p, queries);
    case AttendOperation::kSplits:
      return launch(launcher, spec, shape, p, *call.split, queries);
    case AttendOperation::kPlan:
      return launch(launcher, spec, shape, p, *call.plan, queries);
    case AttendOperation::kSparse:
      return launch(launcher, spec, shape, p, *call.sparse, queries);
    case AttendOperation::kSparsePlan:
      return launch(launcher, spec, shape, p, *call.sparse, *call.plan, queries);
    case AttendOperation::kSegments:
    case AttendOperation::kTiles:
      return;  // gathered_misfit()
  }
}

}  // namespace

const AttendCandidate kGatheredCandidate{"hopper_gathered", gathered_misfit, nullptr,
                                         launch_gathered, gathered_options_misfit};

}  // namespace attnbench::cuda
