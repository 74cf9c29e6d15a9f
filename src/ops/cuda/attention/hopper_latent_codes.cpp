// The candidate of MLA latents in e4m3 on Hopper, kernels/attention/latent/latent_codes.cuh. What
// it does not take of e4m3 entries is hopper_gathered's.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/attention/latent/latent_codes_layout.cuh"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

using attn::Element;

constexpr int kQueryAlignment = 16;  // of loads of queries
constexpr int kMostRows = 64;        // of a tile

/// What the entry for the operation is called behind the kernel's name; null where there is none.
const char* codes_suffix(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "";
    case AttendOperation::kSplits:
      return "_splits";
    case AttendOperation::kPlan:
      return "_plan";
    default:
      return nullptr;
  }
}

/// Rows of a tile of queries: the smallest size that is enough for all rows of a request, or else
/// the largest.
int rows_of_tile(const attn::AttendParams& p) {
  const std::int64_t rows = max_packed_rows(p);
  return rows <= 16 ? 16 : (rows <= 32 ? 32 : kMostRows);
}
int shared_bytes(int rows) {
  if (rows == 16) return attn::CodesPlaces<16>::kSharedBytes;
  return rows == 32 ? attn::CodesPlaces<32>::kSharedBytes
                    : attn::CodesPlaces<kMostRows>::kSharedBytes;
}

std::string code_elements_misfit(const attn::AttendParams& p) {
  if (p.query_element != Element::kE4M3 || p.kv.element != Element::kE4M3) {
    return fmt::format("{} queries over {} entries: it multiplies e4m3 by e4m3",
                       short_name(p.query_element), short_name(p.kv.element));
  }
  if (p.kv.round_dequantized != 0) return "entries that are rounded: it takes codes as they are";
  if (!is_16_bit(p.output_element) && p.output_element != Element::kF32) {
    return fmt::format("output in {}: it stores 16 bits or f32", short_name(p.output_element));
  }
  const int bytes = Alignment()
                        .pointer(p.query)
                        .stride(p.query_token_stride, p.query_element)
                        .stride(p.query_head_stride, p.query_element)
                        .common_bytes();
  if (bytes >= kQueryAlignment) return "";
  return fmt::format("rows of queries lie on multiples of {} bytes, {} are needed", bytes,
                     kQueryAlignment);
}

/// latent_score_misfit(), but for e4m3 probabilities, which this kernel has a form for.
std::string code_score_misfit(const attn::AttendParams& p) {
  attn::AttendParams others = p;
  others.e4m3_probability = 0;
  return latent_score_misfit(others);
}

std::string codes_misfit(const Target& target, const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  if (codes_suffix(call.operation) == nullptr) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (target.sm != 90) return fmt::format("compute capability {}: it is for 90", target.sm);
  for (const auto& misfit : {code_elements_misfit, latent_sizes_misfit, latent_pages_misfit,
                             code_score_misfit, latent_output_misfit}) {
    if (std::string reason = misfit(p); !reason.empty()) return reason;
  }
  if (p.kv.key_scales != nullptr || p.kv.coding != attn::KvCoding::kElements) {
    return "scales of single tokens: it takes one of all";
  }
  if (shared_bytes(rows_of_tile(p)) > target.max_shared_bytes) {
    return fmt::format("it needs {} bytes of shared memory of {}", shared_bytes(rows_of_tile(p)),
                       target.max_shared_bytes);
  }
  return "";
}

KernelSpec codes_spec(const attn::AttendParams& p, AttendOperation operation) {
  const std::string entry = fmt::format("latent_codes{}", codes_suffix(operation));
  KernelSpec spec;
  spec.source = "attention/latent/latent_codes.cuh";
  spec.function = "attn::" + entry;
  spec.constants = {{"attn::Element kOutput", spec_name(p.output_element)},
                    {"int kBlockSize", std::to_string(p.kv.block_size)},
                    {"int kRows", std::to_string(rows_of_tile(p))},
                    {"bool kE4M3Probability", spec_flag(p.e4m3_probability != 0)}};
  // The output of 32 rows takes 128 registers, and fragments of V 64.
  spec.allowed_spill_bytes = rows_of_tile(p) == 32 ? 112 : 0;
  spec.name = fmt::format("{} paged {} to {}, {} rows{}", entry, p.kv.block_size,
                          short_name(p.output_element), rows_of_tile(p),
                          p.e4m3_probability != 0 ? ", e4m3 P" : "");
  return spec;
}

/// Boxes lie where the block table says, so that extents only have to be past those. Rows have 576
/// bytes: what the last box has beyond them is read as zeros.
TensorMap codes_map(const attn::AttendParams& p) {
  constexpr std::int64_t kPastAllBlocks = std::int64_t{1} << 31;
  TensorMap map;
  map.data = p.kv.key;
  map.dtype = Dtype::kE4M3;
  map.swizzle = TensorSwizzle::k128Bytes;
  map.promotion = TensorPromotion::k128Bytes;
  map.rank = 3;
  map.extents = {p.head_size, p.kv.block_size, kPastAllBlocks};
  map.strides = {1, p.kv.token_stride_key, p.kv.block_stride};
  map.box = {128, attn::latent_key_box(p.kv.block_size), 1};
  return map;
}

void launch_codes(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& p = *call.params;
  const KernelSpec spec = codes_spec(p, call.operation);
  const std::int64_t tiles = ceil_quotient(max_packed_rows(p), rows_of_tile(p));
  const TensorMap keys = codes_map(p);
  LaunchShape shape;
  shape.threads = attn::kLatentThreads;
  shape.overlaps_previous = true;
  shape.shared_bytes = shared_bytes(rows_of_tile(p));
  if (call.plan != nullptr) {
    shape.grid_x = p.num_requests == 0 ? 0 : tiles * call.plan->num_parts;
    return launch(launcher, spec, shape, p, *call.plan, keys);
  }
  const std::int64_t items = tiles * p.num_requests * call.num_parts();
  shape.grid_x = std::min<std::int64_t>(items, launcher.target().num_sms);
  if (call.split != nullptr) return launch(launcher, spec, shape, p, *call.split, keys);
  launch(launcher, spec, shape, p, keys);
}

}  // namespace

const AttendCandidate kLatentCodesCandidate{"hopper_latent_codes", codes_misfit, nullptr,
                                            launch_codes, nullptr};

}  // namespace attnbench::cuda
