// The candidate of kernels/attention/general.cuh: whatever the faster attention kernels do not do,
// such as other head sizes, plans, sparse lists and int8 scores. It is last in the list, so its
// refusal is the one that users see.
//
// A call is first put into the form of the kernel (kernel_params), then everything that is fixed at
// compile time is chosen (choose), or the reason why it cannot be.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "kernels/attention/general_layout.cuh"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

using attn::Element;

constexpr int kGeneralThreads = 256;

struct Tile {
  int row_blocks;
  int keys;
};
/// The first that leaves room for two CTAs on a multiprocessor, else the first that fits at all.
constexpr std::array kGeneralTiles = {Tile{2, 64}, Tile{2, 32}, Tile{1, 32}};

/// Everything that a call chooses at compile time.
struct Choice {
  const attn::AttendParams& params;
  const attn::SparseParams* sparse = nullptr;
  Element score{};        // operand of Q K^T
  Element value{};        // as stored
  Element probability{};  // operand of P V
  bool value_in_key = false;
  Tile tile{};
  int ctas = 0;  // of a multiprocessor
  int shared_bytes = 0;
  std::string misfit = {};  // why there is no kernel for it

  bool is_ds_mla() const { return sparse != nullptr && sparse->format == attn::MlaEntry::kDsMla; }
  bool is_model1() const { return sparse != nullptr && sparse->format == attn::MlaEntry::kModel1; }
  bool is_packed_mla() const { return is_ds_mla() || is_model1(); }
  int rows() const { return tile.row_blocks * 16; }
};

/// Of the cache; has_int8_scores() is about products.
bool has_codes(const attn::AttendParams& p) { return key_bytes(p) == 1; }

/// The element in which queries and keys are multiplied exactly: f32 where no other one holds both,
/// as values of slots that are shared, which are sums.
Element score_operand(const attn::AttendParams& p, bool packed_mla) {
  if (has_int8_scores(p)) return Element::kI8;
  if (attn::shares_slots(p.kv.coding)) return Element::kF32;
  const Element query = p.query_element;
  if (packed_mla) return query == Element::kBF16 ? query : Element::kF32;
  if (is_16_bit(query) && (has_codes(p) || p.kv.element == query)) return query;
  if (query == Element::kE4M3 && has_codes(p) && p.kv.round_dequantized == 0) return Element::kF16;
  if (query == Element::kE4M3 && is_16_bit(p.kv.element)) return p.kv.element;
  return Element::kF32;
}

/// The element in which P is rounded for P V: as queries and keys, or for int8 scores as the
/// values.
Element probability_operand(const attn::AttendParams& p, Element score) {
  if (score != Element::kI8) return score;
  // Codes of an int8 are exact in f16, and P keeps 11 bits.
  return is_16_bit(p.int8.value_element) ? p.int8.value_element : Element::kF16;
}

attn::GeneralLayout layout_of(const Choice& c) {
  return attn::general_layout(c.rows(), c.tile.keys, c.params.head_size, c.params.v_head_size,
                              size_of_element(c.score), size_of_element(c.probability),
                              c.value_in_key);
}

/// Sets tile, ctas and shared_bytes, or the misfit with what the smallest tile would need.
void choose_tile(const Target& target, Choice& c) {
  for (const int ctas : {2, 1}) {
    for (const Tile& tile : kGeneralTiles) {
      c.tile = tile;
      c.ctas = ctas;
      c.shared_bytes = layout_of(c).total;
      if (c.shared_bytes + kGeneralStaticSharedBytes <= target.max_shared_bytes / ctas) return;
    }
  }
  c.misfit = fmt::format("attend of head_size {} needs {} bytes of shared memory of {}",
                         c.params.head_size, c.shared_bytes + kGeneralStaticSharedBytes,
                         target.max_shared_bytes);
}

/// Why there is no kernel for the combination of elements.
std::string elements_misfit(const attn::AttendParams& p, bool packed_mla) {
  const bool ragged = p.kv.block_table == nullptr && p.kv.kv_start_loc != nullptr;
  if (ragged && (has_int8_scores(p) || p.kv.key_scales != nullptr)) {
    return "attend of ragged keys with a scale each has no CUDA kernel yet";
  }
  if (p.kv.coding != attn::KvCoding::kElements) {
    if (ragged || has_int8_scores(p)) return "attend of ragged 4-bit keys has no CUDA kernel yet";
    // Those of shared slots are read byte by byte.
    if (attn::shares_slots(p.kv.coding)) return "";
    const int bytes = Alignment()
                          .pointer(p.kv.key)
                          .pointer(p.kv.value)
                          .bytes(p.kv.block_stride)
                          .bytes(p.kv.token_stride_key)
                          .bytes(p.kv.head_stride_key)
                          .common_bytes();
    if (bytes < 4)
      return fmt::format("4-bit keys lie on multiples of {} bytes, 4 are needed", bytes);
  }
  const bool int8_query = p.query_element == Element::kI8;
  if (int8_query != has_int8_scores(p) || (has_int8_scores(p) && p.kv.element != Element::kI8)) {
    return fmt::format("attend of {} queries and {} keys has no CUDA kernel yet",
                       short_name(p.query_element), short_name(p.kv.element));
  }
  if (p.query_element == Element::kE4M3 && p.kv.round_dequantized != 0) {
    return "attend of e4m3 queries and keys rounded to e4m3 has no CUDA kernel yet";
  }
  if (packed_mla && p.query_element != Element::kBF16) {
    return fmt::format("attend of {} queries and packed latents has no CUDA kernel yet",
                       short_name(p.query_element));
  }
  return "";
}

Choice choose(const Target& target, const attn::AttendParams& p, const attn::SparseParams* sparse) {
  Choice c{p, sparse};
  c.misfit = elements_misfit(p, c.is_packed_mla());
  if (!c.misfit.empty()) return c;
  c.score = score_operand(p, c.is_packed_mla());
  c.value = value_element(p);
  c.probability = probability_operand(p, c.score);
  c.value_in_key = !has_int8_scores(p) && p.kv.key == p.kv.value && p.v_head_size <= p.head_size &&
                   p.kv.token_stride_key == p.kv.token_stride_value &&
                   p.kv.head_stride_key == p.kv.head_stride_value &&
                   (p.kv.round_dequantized == 0 || p.kv.k_scale == p.kv.v_scale);
  choose_tile(target, c);
  return c;
}

/// Elements of a load of a query row; cache_vector() likewise of keys or values.
int query_vector(const attn::AttendParams& p) {
  VectorSide side{p.query_element, {}};
  side.alignment.pointer(p.query)
      .stride(p.query_token_stride, p.query_element)
      .stride(p.query_head_stride, p.query_element);
  return widest_vector(16 / size_of_element(p.query_element), {p.head_size}, {side});
}

int cache_vector(const attn::AttendParams& p, const void* data, Element element,
                 std::int64_t token_stride, std::int64_t head_stride, int width) {
  VectorSide side{element, {}};
  side.alignment.pointer(data).stride(token_stride, element).stride(head_stride, element);
  if (p.kv.kv_start_loc == nullptr) side.alignment.stride(p.kv.block_stride, element);
  return widest_vector(16 / size_of_element(element), {width}, {side});
}

std::string coding_constant(attn::KvCoding coding) {
  switch (coding) {
    case attn::KvCoding::kElements:
      break;
    case attn::KvCoding::kInt4:
      return "attn::KvCoding::kInt4";
    case attn::KvCoding::kNvfp4:
      return "attn::KvCoding::kNvfp4";
    case attn::KvCoding::kSlotK8V4:
      return "attn::KvCoding::kSlotK8V4";
    case attn::KvCoding::kSlotK4V4:
      return "attn::KvCoding::kSlotK4V4";
    case attn::KvCoding::kSlotK3V4:
      return "attn::KvCoding::kSlotK3V4";
    case attn::KvCoding::kSlotK3V3:
      return "attn::KvCoding::kSlotK3V3";
  }
  return "attn::KvCoding::kElements";
}

/// What a kernel's name calls the keys.
std::string keys_name(const Choice& c) {
  if (c.is_ds_mla()) return "fp8_ds_mla";
  if (c.is_model1()) return "fp8_model1_mla";
  switch (c.params.kv.coding) {
    case attn::KvCoding::kElements:
      break;
    case attn::KvCoding::kInt4:
      return "int4";
    case attn::KvCoding::kNvfp4:
      return "nvfp4";
    case attn::KvCoding::kSlotK8V4:
    case attn::KvCoding::kSlotK4V4:
    case attn::KvCoding::kSlotK3V4:
    case attn::KvCoding::kSlotK3V3:
      return fmt::format("slots k{}v{}", attn::slot_key_bits(c.params.kv.coding),
                         attn::slot_value_bits(c.params.kv.coding));
  }
  return short_name(c.params.kv.element);
}

/// The spec of one of the entries "general", "general_splits" and so on.
KernelSpec general_spec(const Choice& c, const std::string& entry) {
  const attn::AttendParams& p = c.params;
  const attn::KvParams& kv = p.kv;
  const bool codes = has_codes(p) && !has_int8_scores(p);
  KernelSpec spec;
  spec.source = "attention/general.cuh";
  spec.function = "attn::" + entry;
  spec.constants = {
      {"attn::Element kQuery", spec_name(p.query_element)},
      {"attn::Element kKey", spec_name(kv.element)},
      {"attn::Element kValue", spec_name(c.value)},
      {"attn::Element kOutput", spec_name(p.output_element)},
      {"attn::Element kScore", spec_name(c.score)},
      {"attn::Element kProbability", spec_name(c.probability)},
      {"int kHeadSize", std::to_string(p.head_size)},
      {"int kVHeadSize", std::to_string(p.v_head_size)},
      {"int kRowBlocks", std::to_string(c.tile.row_blocks)},
      {"int kKeys", std::to_string(c.tile.keys)},
      {"int kMinCtas", std::to_string(c.ctas)},
      {"int kQueryVector", std::to_string(query_vector(p))},
      {"int kKeyVector", std::to_string(cache_vector(p, kv.key, kv.element, kv.token_stride_key,
                                                     kv.head_stride_key, p.head_size))},
      {"int kValueVector", std::to_string(cache_vector(p, kv.value, c.value, kv.token_stride_value,
                                                       kv.head_stride_value, p.v_head_size))},
      {"bool kSparse", spec_flag(c.sparse != nullptr)},
      {"bool kDsMla", spec_flag(c.is_ds_mla())},
      {"bool kModel1", spec_flag(c.is_model1())},
      {"bool kValueInKey", spec_flag(c.value_in_key)},
      {"attn::Alibi kAlibi", alibi_constant(p.score.alibi)},
      {"bool kSoftCap", spec_flag(p.score.soft_cap > 0.0f)},
      {"bool kTokenHeadScales", spec_flag(codes && kv.key_scales != nullptr)},
      {"bool kRoundDequantized", spec_flag(codes && kv.round_dequantized != 0)},
      {"bool kE4M3Probability", spec_flag(p.e4m3_probability != 0)},
      {"attn::KvCoding kCoding", coding_constant(kv.coding)}};
  // The loop over a part's requests leaves the output of 512 columns no room.
  const bool is_plan = entry == "general_plan" || entry == "general_sparse_plan";
  spec.allowed_spill_bytes = is_plan && p.v_head_size > 256 ? 48 : 0;
  spec.name = fmt::format("{} d{}/{} {} kv {} to {}", entry, p.head_size, p.v_head_size,
                          short_name(p.query_element), keys_name(c), short_name(p.output_element));
  return spec;
}

/// CTAs of the longest query; rows of a sparse tile are of one token.
std::int64_t row_tiles(const Choice& c) {
  if (c.sparse != nullptr) {
    return std::int64_t{c.params.max_query_len} * ceil_quotient(c.params.num_heads, c.rows());
  }
  return ceil_quotient(max_packed_rows(c.params), c.rows());
}

LaunchShape general_shape(const Choice& c, std::int64_t parts) {
  LaunchShape shape;
  shape.grid_x = row_tiles(c) * c.params.num_requests * c.params.num_kv_heads * parts;
  shape.threads = kGeneralThreads;
  shape.shared_bytes = c.shared_bytes;
  return shape;
}

/// Plans say themselves which requests a part is about.
LaunchShape plan_shape(const Choice& c, const attn::PlanParams& plan) {
  LaunchShape shape = general_shape(c, 1);
  shape.grid_x = c.params.num_requests == 0 ? 0 : row_tiles(c) * c.params.num_kv_heads;
  shape.grid_y = plan.num_parts;
  return shape;
}

/// Sparse attention as the kernel reads it: one KV head, the value inside the key, and neither
/// masks nor score transforms.
attn::AttendParams sparse_params(const attn::AttendParams& params,
                                 const attn::SparseParams& sparse) {
  if (sparse.format == attn::MlaEntry::kDsMla &&
      (params.head_size != attn::kDsMlaLatent + attn::kDsMlaRope ||
       params.v_head_size != attn::kDsMlaLatent)) {
    fail(ErrorKind::kShape, "fp8_ds_mla attention: expected head sizes 576 and 512, got {} and {}",
         params.head_size, params.v_head_size);
  }
  constexpr int kModel1Values = attn::kModel1Latent + attn::kModel1Rope;
  if (sparse.format == attn::MlaEntry::kModel1 &&
      (params.head_size != kModel1Values ||
       (params.v_head_size != attn::kModel1Latent && params.v_head_size != kModel1Values))) {
    fail(ErrorKind::kShape,
         "fp8_model1_mla attention: expected head sizes 512 and 448 or 512, got {} and {}",
         params.head_size, params.v_head_size);
  }
  attn::AttendParams p = params;
  p.num_kv_heads = 1;
  p.score = {};
  p.score.softmax_scale = params.score.softmax_scale;
  p.score.window_left = p.score.window_right = -1;
  p.int8 = {};
  p.e4m3_probability = 0;
  p.kv = {};
  p.kv.key = p.kv.value = params.kv.key;
  p.kv.block_stride = params.kv.block_stride;
  p.kv.token_stride_key = p.kv.token_stride_value = params.kv.token_stride_key;
  p.kv.block_size = params.kv.block_size;
  p.kv.element = params.kv.element;
  const bool packed =
      sparse.format == attn::MlaEntry::kDsMla || sparse.format == attn::MlaEntry::kModel1;
  if (packed) p.kv.element = Element::kE4M3;
  if (sparse.format == attn::MlaEntry::kE4M3) {
    p.kv.element = Element::kE4M3;
    p.kv.k_scale = p.kv.v_scale = params.kv.k_scale;
  }
  return p;
}

/// The parameters of the call as the kernel reads them.
attn::AttendParams kernel_params(const AttendCall& call) {
  return call.sparse != nullptr ? sparse_params(*call.params, *call.sparse) : *call.params;
}

std::string general_misfit(const Target& target, const AttendCall& call) {
  if (call.operation == AttendOperation::kTiles) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  const attn::AttendParams p = kernel_params(call);
  return choose(target, p, call.sparse).misfit;
}

void launch_general(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams p = kernel_params(call);
  const Choice c = choose(launcher.target(), p, call.sparse);
  const auto queue = [&](const char* entry, const LaunchShape& shape, const auto&... more) {
    launch(launcher, general_spec(c, entry), shape, p, more...);
  };
  switch (call.operation) {
    case AttendOperation::kWhole:
      return queue("general", general_shape(c, 1));
    case AttendOperation::kSplits:
      return queue("general_splits", general_shape(c, call.num_parts()), *call.split);
    case AttendOperation::kSegments:
      return queue("general_segments", general_shape(c, call.num_parts()), *call.segments);
    case AttendOperation::kPlan:
      return queue("general_plan", plan_shape(c, *call.plan), *call.plan);
    case AttendOperation::kSparse:
      return queue("general_sparse", general_shape(c, 1), *call.sparse);
    case AttendOperation::kSparsePlan:
      return queue("general_sparse_plan", plan_shape(c, *call.plan), *call.sparse, *call.plan);
    case AttendOperation::kTiles:
      return;  // general_misfit()
  }
}

}  // namespace

const AttendCandidate kGeneralCandidate{"general", general_misfit, nullptr, launch_general};

}  // namespace attnbench::cuda
