#include "ops/cuda/attention/hopper_prefill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_options.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Columns of a key that each head has for itself.
int own_key_columns(const attn::AttendParams& params) {
  return params.head_size - (params.kv.rope == nullptr ? 0 : params.kv.rope_size);
}

std::string head_misfit(const attn::AttendParams& params) {
  const int least = 16 / key_bytes(params);  // rows of 16 bytes; of pages, of whole steps
  if (params.v_head_size % 8 != 0) {
    return fmt::format("head size {} of values is not a multiple of 8", params.v_head_size);
  }
  for (const int size : {params.head_size, multiplied_columns(params)}) {
    if (size % least != 0) return fmt::format("head size {} is not a multiple of {}", size, least);
    if (size % (2 * least) != 0 && is_paged(params)) {
      return fmt::format("head size {} over pages is not a multiple of {}", size, 2 * least);
    }
    if (size > 256) return fmt::format("head size {} is more than 256", size);
    if (size < 32) return fmt::format("head size {} is less than 32", size);
  }
  return "";
}

std::string int8_misfit(const attn::AttendParams& params) {
  const attn::Element value = value_element(params);
  if (!is_paged(params))
    return "scores of int8 codes over contiguous keys, whose scales have slots";
  if (params.query_element != attn::Element::kI8 || params.kv.element != attn::Element::kI8 ||
      (value != attn::Element::kI8 && value != attn::Element::kBF16 &&
       value != attn::Element::kF16)) {
    return fmt::format("scores of int8 codes of {} queries over {} keys and {} values",
                       short_name(params.query_element), short_name(params.kv.element),
                       short_name(value));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

std::string element_misfit(const attn::AttendParams& params) {
  const attn::Element query = params.query_element;
  const attn::KvParams& kv = params.kv;
  if (has_values_apart(params) && !has_int8_scores(params) && !has_wide_values(params)) {
    return "values in pages of their own beside weights in e4m3, or queries of 16 bits";
  }
  if (has_int8_scores(params)) return int8_misfit(params);
  if (kv.element == attn::Element::kE4M3 && kv.key_scales != nullptr) {
    return "scales of every token and head: it has those of tensors and heads";
  }
  if (query == attn::Element::kE4M3 && kv.element == query && kv.round_dequantized == 0) return "";
  if (!is_16_bit(query) || (kv.element != query && kv.element != attn::Element::kE4M3)) {
    return fmt::format(
        "{} queries over {} keys: it multiplies 16 bits of one type, or e4m3, or decodes e4m3",
        short_name(query), short_name(kv.element));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

/// What every row of one side starts on.
Alignment side_alignment(const attn::AttendParams& params, attn::Element element, const void* data,
                         attn::i64 token_stride, attn::i64 head_stride, attn::i64 block_stride) {
  Alignment alignment;
  alignment.pointer(data).stride(token_stride, element).stride(head_stride, element);
  if (is_paged(params)) alignment.stride(block_stride, element);
  return alignment;
}
attn::i64 value_block_stride(const attn::AttendParams& params) {
  return has_values_apart(params) ? params.kv.value_block_stride : params.kv.block_stride;
}

std::string row_misfit(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int keys =
      std::min(side_alignment(params, kv.element, kv.key, kv.token_stride_key, kv.head_stride_key,
                              kv.block_stride)
                   .common_bytes(),
               side_alignment(params, value_element(params), kv.value, kv.token_stride_value,
                              kv.head_stride_value, value_block_stride(params))
                   .common_bytes());
  if (keys < kRowAlignment) {
    return fmt::format("rows of keys and values lie on multiples of {} bytes, {} are needed", keys,
                       kRowAlignment);
  }
  const int queries = Alignment()
                          .pointer(params.query)
                          .stride(params.query_token_stride, params.query_element)
                          .stride(params.query_head_stride, params.query_element)
                          .common_bytes();
  if (queries < kRowAlignment) {
    return fmt::format("rows of queries lie on multiples of {} bytes, {} are needed", queries,
                       kRowAlignment);
  }
  return "";
}

/// Of the copy engine's maps: heads are a dimension of their own, or lines of a row.
std::string stride_misfit(const attn::AttendParams& params, int bytes, attn::i64 token_stride,
                          attn::i64 head_stride, int columns) {
  if (token_stride <= 0) return fmt::format("tokens of keys or values lie {} apart", token_stride);
  if (params.num_kv_heads == 1) return "";
  if (head_stride <= 0) return fmt::format("heads of keys or values lie {} apart", head_stride);
  const int elements = attn::operand_span(attn::padded_columns(columns, bytes), bytes) / bytes;
  if (is_paged(params) && head_stride % elements != 0) {
    return fmt::format("heads of a page lie {} elements apart, a multiple of {} is needed",
                       head_stride, elements);
  }
  return "";
}

/// Of keys whose rope part lies apart. Why whole lines: each box fills lines of a stage by itself.
std::string rope_misfit(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  if (kv.rope == nullptr) return "";
  if (is_paged(params)) return "keys over pages whose rope part lies apart";
  if (key_bytes(params) != 2) return "codes of keys whose rope part lies apart";
  constexpr int kLine = 64;
  const int own = own_key_columns(params);
  if (own <= 0 || kv.rope_size <= 0 || own % kLine != 0 || kv.rope_size % kLine != 0) {
    return fmt::format("keys of {} columns and {} that lie apart, which are not multiples of {}",
                       own, kv.rope_size, kLine);
  }
  const int bytes =
      Alignment().pointer(kv.rope).stride(kv.rope_token_stride, kv.element).common_bytes();
  if (bytes < kRowAlignment || kv.rope_token_stride <= 0) {
    return fmt::format("rope parts of keys lie {} elements apart, on multiples of {} bytes",
                       kv.rope_token_stride, bytes);
  }
  return "";
}

/// Of rows and pages, which are not counted: the kernel names none that the request does not have.
constexpr std::int64_t kUncounted = std::int64_t{1} << 30;

TensorSwizzle swizzle_of(int span) {
  if (span == 128) return TensorSwizzle::k128Bytes;
  return span == 64 ? TensorSwizzle::k64Bytes : TensorSwizzle::k32Bytes;
}

TensorMap side_map(const attn::AttendParams& params, const HopperPlan& plan, attn::Element element,
                   const void* data, attn::i64 token_stride, attn::i64 head_stride,
                   attn::i64 block_stride, int columns) {
  const int bytes = size_of_element(element);
  const int stored = attn::stored_columns(plan.tile, columns, bytes);
  const int span = attn::side_span(plan.tile, columns, bytes);
  const int chunks = stored * bytes / span;
  const int rows = attn::box_rows(plan.tile);
  const std::int64_t token_bytes = token_stride * bytes;
  TensorMap map;
  map.data = data;
  map.dtype = static_cast<Dtype>(element);
  map.swizzle = swizzle_of(span);
  map.promotion =
      columns * bytes % 256 == 0 ? TensorPromotion::k256Bytes : TensorPromotion::k128Bytes;
  if (!is_paged(params)) {
    // One head needs no stride, but the map wants one that it can take.
    const std::int64_t head_bytes = params.num_kv_heads == 1 ? token_bytes : head_stride * bytes;
    if (columns != stored) {
      // A box a span, since what lies behind a row's columns is to be read as zeros.
      map.rank = 3;
      map.extents = {columns, kUncounted, params.num_kv_heads};
      map.strides = {bytes, token_bytes, head_bytes};
      map.box = {span / bytes, rows, 1};
      return map;
    }
    map.rank = 4;
    map.extents = {span / bytes, kUncounted, chunks, params.num_kv_heads};
    map.strides = {bytes, token_bytes, span, head_bytes};
    map.box = {span / bytes, rows, chunks, 1};
    return map;
  }
  const std::int64_t lines = head_stride * bytes / span * (params.num_kv_heads - 1) + chunks;
  map.rank = 5;
  map.extents = {span / bytes, 8, lines, params.kv.block_size / 8, kUncounted};
  map.strides = {bytes, token_bytes, span, 8 * token_bytes, block_stride * bytes};
  map.box = {span / bytes, 8, chunks, rows / 8, 1};
  return map;
}

std::string hopper_call_misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  return hopper_prefill_misfit(target, *call.params);
}

/// New keys and values by position, of requests whose rows are one tile: several tiles of a request
/// would read what one of them stores. Rows that are copied lie on 16 bytes.
bool saves(const Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const attn::Int8CacheWriteParams& save = *call.save;
  const HopperPlan plan =
      hopper_plan(params, forced_options(launcher.forced_kernel(), kHopperPrefillCandidate.name));
  const int aligned = Alignment()
                          .pointer(save.key)
                          .bytes(save.key_token_stride)
                          .bytes(save.key_head_stride)
                          .pointer(save.value)
                          .stride(save.value_token_stride, save.value_element)
                          .stride(save.value_head_stride, save.value_element)
                          .common_bytes();
  return save.slot_mapping == nullptr && !plan.tile.ahead && !has_values_apart(params) &&
         max_packed_rows(params) <= plan.tile_rows() && aligned >= kRowAlignment;
}

void launch_hopper(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const HopperPlan plan =
      hopper_plan(params, forced_options(launcher.forced_kernel(), kHopperPrefillCandidate.name));
  AttendKernel kernel = hopper_prefill_kernel(params, plan);
  if (kernel.shared_bytes > launcher.target().max_shared_bytes) {
    fail(ErrorKind::kUnsupported,
         "kernel hopper_prefill: {}: {} bytes of shared memory, {} are there", plan.reason,
         kernel.shared_bytes, launcher.target().max_shared_bytes);
  }
  const LaunchShape shape = hopper_shape(launcher.target(), params, plan);
  const TensorMap keys = hopper_key_map(params, plan);
  const TensorMap values = hopper_value_map(params, plan);
  // A kernel that does not read it takes any map.
  const TensorMap queries = plan.tile.ahead ? hopper_query_map(params) : keys;
  const TensorMap outputs = stores_boxes(params, plan) ? hopper_output_map(params) : keys;
  const attn::HopperGrid grid = hopper_grid(launcher.target(), params, plan);
  if (params.kv.rope != nullptr) {
    launch(launcher, kernel.spec, shape, params, keys, values, queries, outputs,
           hopper_rope_map(params, plan), grid);
    return;
  }
  if (call.save == nullptr) {
    launch(launcher, kernel.spec, shape, params, keys, values, queries, outputs, grid);
    return;
  }
  kernel.spec.function = "attn::hopper_prefill_saving";
  kernel.spec.name += " saving";
  launch(launcher, kernel.spec, shape, params, keys, values, queries, outputs, grid, *call.save);
}

}  // namespace

std::string hopper_prefill_misfit(const Target& target, const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  if (target.sm != 90) {
    return fmt::format("compute capability {}.{}: its instructions are those of 9.0",
                       target.sm / 10, target.sm % 10);
  }
  if (attn::is_global(params.score.alibi)) {
    return "ALiBi by global positions: it knows rows by their positions in the request";
  }
  if (std::string reason = element_misfit(params); !reason.empty()) return reason;
  if (std::string reason = head_misfit(params); !reason.empty()) return reason;
  if (is_paged(params) && kv.block_size % 16 != 0) {
    return fmt::format("blocks of {} keys: it takes multiples of 16", kv.block_size);
  }
  if (std::string reason = row_misfit(params); !reason.empty()) return reason;
  if (std::string reason = rope_misfit(params); !reason.empty()) return reason;
  if (std::string reason = stride_misfit(params, key_bytes(params), kv.token_stride_key,
                                         kv.head_stride_key, params.head_size);
      !reason.empty()) {
    return reason;
  }
  if (std::string reason =
          stride_misfit(params, size_of_element(value_element(params)), kv.token_stride_value,
                        kv.head_stride_value, multiplied_columns(params));
      !reason.empty()) {
    return reason;
  }
  const int bytes = attn::hopper_layout(hopper_plan(params).tile).total;
  return bytes <= target.max_shared_bytes
             ? ""
             : fmt::format("{} bytes of shared memory are needed, {} are there", bytes,
                           target.max_shared_bytes);
}

/// What was seen: O, S and P take nearly all registers of three consumers, and of two whose O has
/// 256 columns. More than that spills only what transforms scores and what finds ranges.
static int allowed_spill_bytes(const attn::AttendParams& params, const HopperPlan& plan) {
  if (params.score.mm_ranges != nullptr) return 240;
  // Addresses that a row tile needs once, some 25 loads of it, are worked out before the first one;
  // in the loop over tiles that nobody masks there are none, of pieces beside weights four.
  if (operand_bytes(params) == 1 && plan.tile.ahead) {
    return has_e4m3_products(params) ? 560 : has_int8_scores(params) ? 500 : 400;
  }
  // Of a series and what is taken instead of it, either wants the registers of the other.
  if (params.v_head_size > 192) {
    return plan.scales_first ? 240 : plan.cap == 0 ? 64 : plan.unrolled ? 440 : 300;
  }
  // In the loop over tiles that nobody masks there are none.
  if (has_int8_scores(params) && plan.unrolled) return 256;
  if (key_bytes(params) == 1 && plan.scales_first) return 128;
  if (plan.sums > 0 && params.score.window_left >= 0) return 184;
  // Three CTAs on a multiprocessor.
  if (plan.tile.wide_values && plan.tile.consumers == 1) return 112;
  if (key_bytes(params) == 1) return plan.apart ? 160 : plan.unrolled ? 64 : 48;
  // Once a row tile, where its output is handed to the copy engine.
  const int boxes = stores_boxes(params, plan) ? (plan.late_output ? 120 : 80) : 0;
  if (plan.tile.consumers < 3) return boxes;
  if (plan.scales_first) return boxes + 256;
  // Of steps in a row, where some rows are masked or scores are large; where neither is, none.
  if (plan.cap > 0 && plan.unrolled) return 288;
  if (plan.tile.slope_products && plan.unrolled) return 112;
  if (plan.cap > 0 && boxes > 0) return boxes + 320;
  if (plan.cap > 3) return 240;
  // What a tile's rare path needs is kept on the stack while a box is handed over: 240 bytes of a
  // soft cap in f16, 204 of bounds in a window, 248 of bounds beside 64 columns; in the loop over
  // tiles 4.
  const bool has_form = plan.cap > 0 || plan.slopes > 0 || plan.bounds;
  // Of three steps in a row, once for all of them.
  const int steps = plan.unrolled && plan.tile.stages > 2 ? 48 : 0;
  return boxes + (has_form ? (boxes > 0 ? 168 : 48 + steps) : 32);
}

AttendKernel hopper_prefill_kernel(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::ScoreParams& score = params.score;
  const bool soft_cap = score.soft_cap > 0.0f;
  AttendKernel kernel;
  kernel.spec.source = "attention/hopper/prefill.cuh";
  kernel.spec.function = "attn::hopper_prefill";
  const bool rounds = key_bytes(params) == 1 && params.kv.round_dequantized != 0;
  kernel.spec.constants = {
      {"attn::Element kQuery", spec_name(params.query_element)},
      {"attn::Element kKeyValue", spec_name(params.kv.element)},
      {"attn::Element kOutput", spec_name(params.output_element)},
      {"attn::Element kInt8Value",
       spec_name(has_int8_scores(params) ? value_element(params) : attn::Element::kF32)},
      {"int kHeadSize", std::to_string(params.head_size)},
      {"int kVHeadSize", std::to_string(multiplied_columns(params))},
      {"int kOutputColumns", std::to_string(params.v_head_size)},
      {"int kBlockSize", std::to_string(plan.tile.block_size)},
      {"bool kRoundDequantized", spec_flag(rounds)},
      {"int kPromote", std::to_string(plan.promote)},
      {"int kConsumers", std::to_string(plan.tile.consumers)},
      {"int kTileN", std::to_string(plan.tile.tile_n)},
      {"int kStages", std::to_string(plan.tile.stages)},
      {"int kLine", std::to_string(plan.tile.line)},
      {"bool kPingPong", spec_flag(plan.ping_pong)},
      {"bool kPersistent", spec_flag(plan.stays())},
      {"bool kAhead", spec_flag(plan.tile.ahead)},
      {"bool kLateOutput", spec_flag(plan.late_output)},
      {"bool kFixedBase", spec_flag(plan.fixed_base)},
      // Ragged keys end with a tile, and begin in the middle of one.
      {"bool kLeft", spec_flag(score.window_left >= 0 || !is_paged(params))},
      {"bool kRanges", spec_flag(score.mm_ranges != nullptr)},
      {"bool kWideStores", spec_flag(has_wide_stores(params))},
      {"attn::Alibi kAlibi", alibi_constant(score.alibi)},
      {"bool kSoftCap", spec_flag(soft_cap)},
      {"bool kScaleFirst", spec_flag(plan.scales_first)},
      {"int kCap", std::to_string(plan.cap)},
      {"int kSlopes", std::to_string(plan.slopes)},
      {"bool kFitTiles", spec_flag(plan.fits_tiles)},
      {"bool kBounds", spec_flag(plan.bounds)},
      {"bool kOrdered", spec_flag(plan.ordered)},
      {"int kSums", std::to_string(plan.sums)}};
  // Kernels ask whether there is such a constant.
  if (plan.add_floats) kernel.spec.constants.emplace_back("bool kAddFloats", spec_flag(true));
  if (plan.keep_columns) kernel.spec.constants.emplace_back("bool kKeepColumns", spec_flag(true));
  if (plan.unrolled) kernel.spec.constants.emplace_back("bool kUnrolled", spec_flag(true));
  if (plan.tile.ahead) {
    kernel.spec.constants.emplace_back("int kGroup",
                                       std::to_string(params.num_heads / params.num_kv_heads));
  }
  if (plan.apart) kernel.spec.constants.emplace_back("bool kApart", spec_flag(true));
  if (plan.tile.wide_values) {
    kernel.spec.constants.emplace_back("bool kWideValues", spec_flag(true));
  }
  if (plan.tile.slope_products) {
    kernel.spec.constants.emplace_back("bool kSlopeProducts", spec_flag(true));
  }
  if (plan.tile.values_apart) {
    kernel.spec.constants.emplace_back("bool kValuesApart", spec_flag(true));
  }
  if (plan.tail) kernel.spec.constants.emplace_back("bool kTail", spec_flag(true));
  if (params.kv.rope != nullptr) {
    kernel.spec.function = "attn::hopper_prefill_rope";
    kernel.spec.constants.emplace_back("int kRopeColumns", std::to_string(params.kv.rope_size));
  }
  kernel.spec.allowed_spill_bytes = allowed_spill_bytes(params, plan);
  const char* const apart = params.kv.rope != nullptr  ? " rope apart"
                            : has_values_apart(params) ? " values apart"
                                                       : "";
  kernel.spec.name = fmt::format("hopper_prefill{}{} {}x{}", problem_name(params), apart,
                                 plan.tile_rows(), plan.tile.tile_n);
  kernel.tile_rows = plan.tile_rows();
  kernel.threads = (plan.tile.consumers + (plan.tile.beside > 0 ? 2 : 1)) * 128;
  kernel.shared_bytes = attn::hopper_layout(plan.tile).total;
  return kernel;
}

/// Terms in powers of x^2 of tanh(x) / x for |x| up to kMostTanh, fitted so that the largest
/// relative error is least: 2.9e-8.
constexpr std::array<double, attn::SoftCap::kTerms> kTanhTerms = {
    0.999999971, -0.3333295888, 0.1332540602, -0.05334443021, 0.01958290834, -0.004716257368};
constexpr double kMostTanh = 0.75;
/// Likewise up to kMostShortTanh: 4e-7, 5e-6 of a score at a cap of 50.
constexpr std::array<double, attn::SoftCap::kShortTerms> kShortTanhTerms = {
    0.9999996043, -0.3332190823, 0.1284161343};
constexpr double kMostShortTanh = 0.25;

static attn::SoftCap soft_cap_of(const attn::ScoreParams& score) {
  const double unit = double{score.softmax_scale} / double{score.soft_cap};  // of a score, in caps
  const double outer = double{score.soft_cap} * std::numbers::log2e;
  attn::SoftCap cap{};
  cap.inner = static_cast<float>(2.0 * unit * std::numbers::log2e);
  cap.outer = static_cast<float>(outer);
  cap.fall = static_cast<float>(-2.0 * outer);
  const auto fill = [&](auto& series, const auto& terms, float& bound, double most) {
    double factor = outer * unit;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      series[i] = static_cast<float>(factor * terms[i]);
      factor *= unit * unit;
    }
    bound = static_cast<float>(most / std::max(std::abs(unit), 1e-30));
  };
  fill(cap.series, kTanhTerms, cap.bound, kMostTanh);
  fill(cap.short_series, kShortTanhTerms, cap.short_bound, kMostShortTanh);
  return cap;
}

static std::int64_t places_of(const Target& target, const HopperPlan& plan) {
  return std::int64_t{target.num_sms} * attn::hopper_ctas(plan.tile);
}

attn::HopperGrid hopper_grid(const Target& target, const attn::AttendParams& params,
                             const HopperPlan& plan) {
  const auto row_tiles = static_cast<int>(ceil_quotient(max_packed_rows(params), plan.tile_rows()));
  const int num_units = params.num_requests * params.num_kv_heads;
  attn::HopperGrid grid =
      attn::hopper_grid_of(row_tiles, num_units, std::clamp(plan.group, 1, std::max(num_units, 1)),
                           plan.reverse ? 1 : 0, params.num_heads, params.num_kv_heads);
  if (plan.cap > 0) grid.cap = soft_cap_of(params.score);
  if (plan.tail) {
    grid.num_whole = static_cast<int>(attn::whole_tiles(
        attn::hopper_work_items(grid), places_of(target, plan), plan.tile.consumers));
  }
  return grid;
}

LaunchShape hopper_shape(const Target& target, const attn::AttendParams& params,
                         const HopperPlan& plan) {
  const AttendKernel kernel = hopper_prefill_kernel(params, plan);
  LaunchShape shape = row_tiles(kernel, params, 1);
  if (plan.stays()) {
    shape.grid_x = std::min(shape.grid_x, places_of(target, plan));
  }
  if (plan.tail) {
    const std::int64_t cut = shape.grid_x - hopper_grid(target, params, plan).num_whole;
    shape.grid_x += cut * (plan.tile.consumers - 1);
  }
  return shape;
}

TensorMap hopper_key_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, kv.element, kv.key, kv.token_stride_key, kv.head_stride_key,
                  kv.block_stride, own_key_columns(params));
}

TensorMap hopper_rope_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  attn::AttendParams shared = params;
  shared.num_kv_heads = 1;
  return side_map(shared, plan, kv.element, kv.rope, kv.rope_token_stride, 0, 0, kv.rope_size);
}

TensorMap hopper_value_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, value_element(params), kv.value, kv.token_stride_value,
                  kv.head_stride_value, value_block_stride(params), multiplied_columns(params));
}

bool stores_boxes(const attn::AttendParams& params, const HopperPlan& plan) {
  return plan.tile.ahead && has_wide_stores(params) && params.v_head_size % 16 == 0;
}

/// Boxes of `rows` packed rows of `heads` heads a token, and of `chunks` of their lines. Where
/// tokens are not counted, the kernel names none that the request does not have.
static TensorMap packed_rows_map(const attn::AttendParams& params, attn::Element element,
                                 const void* data, attn::i64 token_stride, attn::i64 head_stride,
                                 int columns, int rows, int chunks,
                                 std::int64_t num_tokens = kUncounted) {
  const int bytes = size_of_element(element);
  const int span = attn::operand_span(columns, bytes);
  const int heads = std::min(params.num_heads / params.num_kv_heads, rows);
  TensorMap map;
  map.data = data;
  map.dtype = static_cast<Dtype>(element);
  map.swizzle = swizzle_of(span);
  map.rank = 4;
  map.extents = {span / bytes, params.num_heads, num_tokens, attn::operand_chunks(columns, bytes)};
  map.strides = {bytes, (params.num_heads == 1 ? token_stride : head_stride) * bytes,
                 token_stride * bytes, span};
  map.box = {span / bytes, heads, rows / heads, chunks};
  return map;
}

TensorMap hopper_output_map(const attn::AttendParams& params) {
  return packed_rows_map(params, params.output_element, params.output, params.output_token_stride,
                         params.output_head_stride, params.v_head_size, 16, 1);
}

TensorMap hopper_query_map(const attn::AttendParams& params,
                           std::optional<std::int64_t> num_tokens) {
  return packed_rows_map(params, params.query_element, params.query, params.query_token_stride,
                         params.query_head_stride, params.head_size, attn::kConsumerRows,
                         attn::operand_chunks(params.head_size, operand_bytes(params)),
                         num_tokens.value_or(kUncounted));
}

const AttendCandidate kHopperPrefillCandidate{.name = "hopper_prefill",
                                              .misfit = hopper_call_misfit,
                                              .yields = nullptr,
                                              .launch = launch_hopper,
                                              .options_misfit = hopper_prefill_options_misfit,
                                              .saves = saves,
                                              .knows_ropes = true,
                                              .knows_value_pages = true,
                                              .wants_wide = hopper_prefill_wants_wide};

}  // namespace attnbench::cuda
