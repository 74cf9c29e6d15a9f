// The candidates of 16-bit queries, and of int8 ones for decode:
// kernels/attention/decode/decode.cuh (decode/forms.cuh) and prefill.cuh. Either can do most calls
// of attend(); decode is made for few rows, where the memory is the limit, and yields to prefill
// where there are more. Tiles and constants of both are in spec.h.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "kernels/attention/decode/layout.cuh"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_prefill.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// The entry of decode.cuh or decode/forms.cuh for the operation; null where there is none.
const char* decode_entry(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "decode";
    case AttendOperation::kSplits:
      return "decode_splits";
    case AttendOperation::kSegments:
      return "decode_segments";
    case AttendOperation::kPlan:
      return "decode_plan";
    default:
      return nullptr;
  }
}

/// What may be chosen behind the kernel's name, to compare. 0: as is known to be good.
struct DecodeOptions {
  int rows = 0;     // of a tile, at most
  int cluster = 1;  // splits that are joined are the CTAs of a cluster, where they can be
  int warps = 0;
  int stages = 0;
  int ctas = 0;      // of a multiprocessor
  int heads = 0;     // KV heads of a CTA
  int save = 1;      // 1: int8 decodes store new keys and values themselves, where they can
  int few = 0;       // 1: more query rows than decodes have are left to the kernel for them
  int own_call = 0;  // 1: pipelines attend to decodes beside prefills in a call of their own
};

struct DecodeOption {
  std::string_view name;
  int DecodeOptions::*value;
  std::array<int, 5> known;  // in turn; the last one again where there are fewer
};
constexpr std::array kDecodeOptions = {
    DecodeOption{"rows", &DecodeOptions::rows, {16, 32, 64, 128, 128}},
    DecodeOption{"cluster", &DecodeOptions::cluster, {0, 1, 1, 1, 1}},
    DecodeOption{"warps", &DecodeOptions::warps, {4, 8, 16, 16, 16}},
    DecodeOption{"stages", &DecodeOptions::stages, {2, 3, 4, 5, 6}},
    DecodeOption{"ctas", &DecodeOptions::ctas, {1, 2, 2, 2, 2}},
    DecodeOption{"heads", &DecodeOptions::heads, {1, 2, 2, 2, 2}},
    DecodeOption{"save", &DecodeOptions::save, {0, 1, 1, 1, 1}},
    DecodeOption{"few", &DecodeOptions::few, {0, 1, 1, 1, 1}},
    DecodeOption{"own_call", &DecodeOptions::own_call, {0, 1, 1, 1, 1}},
};

/// Applies them to `to` where there is one; what is wrong with them, or "".
std::string apply_decode_options(std::string_view options, DecodeOptions* to) {
  DecodeOptions unused;
  DecodeOptions& chosen = to == nullptr ? unused : *to;
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(':'));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    bool is_known = false;
    for (const DecodeOption& option : kDecodeOptions) {
      for (const int value : option.known) {
        if (word != fmt::format("{}={}", option.name, value)) continue;
        chosen.*option.value = value;
        is_known = true;
      }
    }
    if (!is_known) {
      return fmt::format(
          "option '{}': expected rows=16, 32, 64 or 128, cluster=0 or 1, warps=4, 8 or 16, "
          "stages=2 to 6, ctas=1 or 2, heads=1 or 2, save=0 or 1, few=0 or 1, own_call=0 or 1",
          word);
    }
  }
  return "";
}
std::string decode_options_misfit(std::string_view options) {
  return apply_decode_options(options, nullptr);
}

DecodeOptions options_of(const Launcher& launcher) {
  DecodeOptions options;
  apply_decode_options(forced_options(launcher.forced_kernel(), kDecodeCandidate.name), &options);
  return options;
}

DecodeForm form_of(const DecodeOptions& options, std::string entry, int parts) {
  return {.entry = std::move(entry),
          .parts = parts,
          .most_rows = options.rows,
          .warps = options.warps,
          .stages = options.stages,
          .ctas = options.ctas,
          .heads = options.heads};
}

std::string decode_misfit(const Target& target, const AttendCall& call) {
  const bool is_whole = call.operation == AttendOperation::kWhole;
  if (decode_entry(call.operation) == nullptr) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (std::string reason = tiled_misfit(*call.params); !reason.empty()) return reason;
  // Why not in splits: what divides the keys of a batch-invariant run fixes its own order.
  if (is_whole && call.params->batch_invariant != 0) {
    return "its tiles depend on the size of the batch, which has to be batch invariant";
  }
  return decode_tile_misfit(target, *call.params);
}

/// Why so few of int8 scores: two tiles of a request read its keys twice, the next kernel once.
int most_rows_of(const attn::AttendParams& params) {
  constexpr int kMostInt8Rows = 32;
  return has_int8_scores(params) ? kMostInt8Rows : kMostDecodeRows;
}
bool has_more_than_decodes(const attn::AttendParams& params) {
  return !has_few_rows(params) || max_packed_rows(params) > most_rows_of(params);
}

/// What is bound by bandwidth is this kernel's, whatever is not, the next one's. Most contiguous
/// keys are an encoder's, which has as many of them as rows: with windows of 64 patches and 80
/// columns (one NVIDIA H200, 2026-11-23) this kernel takes 101 us, the Hopper kernel 40.
std::string decode_yields(const Target& target, const AttendCall& call) {
  constexpr int kMostEncoderRows = 16;
  const attn::AttendParams& params = *call.params;
  if (call.operation != AttendOperation::kWhole) return "";
  const std::int64_t rows = max_packed_rows(params);
  const auto reason = [&](int most) {
    return fmt::format("{} query rows of a KV head, from {} on the next is faster", rows, most + 1);
  };
  if (has_more_than_decodes(params)) return reason(most_rows_of(params));
  const bool is_left =
      !is_paged(params) && rows > kMostEncoderRows && hopper_prefill_misfit(target, params).empty();
  return is_left ? reason(kMostEncoderRows) : "";
}

/// Why only whole requests: no other kernel for many rows has splits.
bool decode_leaves(std::string_view options, const AttendCall& call) {
  DecodeOptions chosen;
  apply_decode_options(options, &chosen);
  return chosen.few == 1 && call.operation == AttendOperation::kWhole &&
         has_more_than_decodes(*call.params);
}

bool decode_attends_apart(std::string_view options) {
  DecodeOptions chosen;
  apply_decode_options(options, &chosen);
  return chosen.own_call == 1;
}

/// As the CTAs of clusters. Why at most 8: more are no cluster on every device.
bool fits_cluster(const Target& target, const attn::SplitParams& split) {
  constexpr int kMostOfCluster = 8;
  return target.sm >= 90 && split.num_splits >= 2 && split.num_splits <= kMostOfCluster;
}

/// Attention in splits and their combination: in one launch, or in two where the weights of so many
/// splits do not fit into shared memory.
void launch_joined(Launcher& launcher, const AttendCall& call, const DecodeOptions& options) {
  const attn::AttendParams& params = *call.params;
  const attn::SplitParams& split = *call.split;
  DecodeForm form = form_of(options, std::string(kClusterEntry), split.num_splits);
  if (options.cluster == 1 && fits_cluster(launcher.target(), split)) {
    const AttendKernel kernel = decode_kernel(launcher.target(), params, form);
    if (fits_in_cluster(launcher.target(), params, kernel)) {
      LaunchShape shape = row_tiles(kernel, params, split.num_splits);
      shape.grid_x = ceil_quotient(max_packed_rows(params), kernel.tile_rows) * split.num_splits;
      shape.grid_y = params.num_kv_heads;
      shape.grid_z = params.num_requests;
      shape.cluster_x = split.num_splits;
      return launch(launcher, kernel.spec, shape, params);
    }
  }
  form.entry = "decode_joined";
  form.heads = 1;  // of all its kernels: they are launched by one shape
  const AttendKernel kernel = decode_kernel(launcher.target(), params, form);
  const LaunchShape shape = row_tiles(kernel, params, split.num_splits);
  if (attn::join_bytes(kernel.tile_rows, split.num_splits, kernel.threads) > kernel.ring_bytes) {
    form.entry = "decode_splits";
    launch(launcher, decode_kernel(launcher.target(), params, form).spec, shape, params, split);
    return combine_splits(launcher, params, split);
  }
  launch(launcher, kernel.spec, shape, params, split);
}

/// The parts of a plan for every KV head, as far as one launch takes them at a time.
void launch_planned(Launcher& launcher, const AttendCall& call, const DecodeOptions& options) {
  const attn::AttendParams& params = *call.params;
  if (params.num_requests == 0) return;
  const auto ctas_of = [&](int rows) {
    return ceil_quotient(max_packed_rows(params), rows) * params.num_kv_heads *
           call.plan->num_parts;
  };
  DecodeForm form = form_of(options, "decode_plan", 1);
  form.num_ctas = ctas_of(attn::kArrivalRows);
  const AttendKernel kernel = decode_kernel(launcher.target(), params, form);
  LaunchShape shape;
  shape.grid_x = ctas_of(kernel.tile_rows);
  shape.threads = kernel.threads;
  shape.shared_bytes = kernel.shared_bytes;
  launch(launcher, kernel.spec, shape, params, *call.plan);
}

void launch_decode(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const DecodeOptions options = options_of(launcher);
  if (call.plan != nullptr) return launch_planned(launcher, call, options);
  if (call.split != nullptr && call.split->arrivals != nullptr) {
    return launch_joined(launcher, call, options);
  }
  const int parts = call.num_parts();
  AttendKernel kernel = decode_kernel(launcher.target(), params,
                                      form_of(options, decode_entry(call.operation), parts));
  const LaunchShape shape = row_tiles(kernel, params, parts);
  if (call.save != nullptr) {
    kernel.spec.function += "_saving";
    kernel.spec.name += " saving";
    if (call.split == nullptr) return launch(launcher, kernel.spec, shape, params, *call.save);
    return launch(launcher, kernel.spec, shape, params, *call.split, *call.save);
  }
  if (call.split != nullptr) return launch(launcher, kernel.spec, shape, params, *call.split);
  if (call.segments != nullptr) {
    return launch(launcher, kernel.spec, shape, params, *call.segments);
  }
  launch(launcher, kernel.spec, shape, params);
}

/// New keys and values by position, of requests whose rows are one tile: several tiles of a request
/// would read what one of them stores. Splits that are joined have no such form.
bool decode_saves(const Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const attn::Int8CacheWriteParams& save = *call.save;
  const DecodeOptions options = options_of(launcher);
  if (options.save == 0 || save.slot_mapping != nullptr) return false;
  if (call.split != nullptr && call.split->arrivals != nullptr) return false;
  const int aligned = Alignment()
                          .pointer(save.key)
                          .bytes(save.key_token_stride)
                          .bytes(save.key_head_stride)
                          .pointer(save.value)
                          .stride(save.value_token_stride, save.value_element)
                          .stride(save.value_head_stride, save.value_element)
                          .pointer(save.key_cache)
                          .bytes(save.block_stride)
                          .bytes(save.slot_stride)
                          .bytes(save.head_stride)
                          .pointer(save.value_cache)
                          .common_bytes();
  const DecodeForm form = form_of(options, decode_entry(call.operation), call.num_parts());
  return aligned >= kRowAlignment &&
         max_packed_rows(params) <= decode_kernel(launcher.target(), params, form).tile_rows;
}

std::string prefill_misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (has_int8_scores(*call.params)) return "scores of int8 codes: it multiplies 16 bits";
  if (std::string reason = tiled_misfit(*call.params); !reason.empty()) return reason;
  return prefill_tile_misfit(target, *call.params);
}

void launch_prefill(Launcher& launcher, const AttendCall& call) {
  const AttendKernel kernel = prefill_kernel(launcher.target(), *call.params);
  launch(launcher, kernel.spec, row_tiles(kernel, *call.params, 1), *call.params);
}

}  // namespace

const AttendCandidate kDecodeCandidate{.name = "decode",
                                       .misfit = decode_misfit,
                                       .yields = decode_yields,
                                       .launch = launch_decode,
                                       .options_misfit = decode_options_misfit,
                                       .joins_splits = true,
                                       .saves = decode_saves,
                                       .leaves = decode_leaves,
                                       .attends_apart = decode_attends_apart};
const AttendCandidate kPrefillCandidate{"prefill", prefill_misfit, nullptr, launch_prefill};

}  // namespace attnbench::cuda
