#include "ops/cuda/matmul/few_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/matmul/few_rows_layout.cuh"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

using attn::Element;

constexpr int kFewRowsVector = 16;            // of every load and store
constexpr int kHalfSharedBytes = 113 * 1024;  // of a multiprocessor of an H200
constexpr std::int64_t kMostK = attn::kFewRowsStep * attn::kFewRowsMostSteps;

std::string alignment_misfit(const char* what, const Alignment& alignment) {
  const int bytes = alignment.common_bytes();
  if (bytes >= kFewRowsVector) return "";
  return fmt::format("rows of {} lie on multiples of {} bytes, {} are needed", what, bytes,
                     kFewRowsVector);
}

/// All of a product but where C goes.
std::string operands_misfit(const attn::MatmulParams& p) {
  if (p.element != Element::kBF16 && p.element != Element::kF16) {
    return fmt::format("{} operands: it multiplies bf16 or f16", short_name(p.element));
  }
  if (p.b_transposed != 0) return "a transposed B: its rows are those of k";
  if (p.k <= 0 || p.k > kMostK || p.k % 8 != 0 || p.n % 8 != 0) {
    return fmt::format("k {} and n {}: it takes multiples of 8, k up to {}", p.k, p.n, kMostK);
  }
  std::string reason = alignment_misfit("A", Alignment()
                                                 .pointer(p.a)
                                                 .stride(p.a_batch_stride, p.element)
                                                 .stride(p.a_row_stride, p.element));
  if (!reason.empty()) return reason;
  return alignment_misfit("B", Alignment()
                                   .pointer(p.b)
                                   .stride(p.b_batch_stride, p.element)
                                   .stride(p.b_row_stride, p.element));
}

int steps_of_k(const attn::MatmulParams& p) {
  return static_cast<int>(ceil_quotient(p.k, attn::kFewRowsStep));
}
/// All steps of k where they take no more of the memory than leaves room for a second CTA.
int stages_of(const Target& target, const attn::MatmulParams& p, FewRowsTile tile) {
  const int most = std::min(target.max_shared_bytes, kHalfSharedBytes);
  int stages = steps_of_k(p);
  while (stages > 1 && attn::few_rows_shared_bytes(tile.rows, tile.columns, stages) > most) {
    --stages;
  }
  return stages;
}
std::vector<std::pair<std::string, std::string>> few_rows_constants(const Target& target,
                                                                    const attn::MatmulParams& p,
                                                                    FewRowsTile tile) {
  return {{"attn::Element kElement", spec_name(p.element)},
          {"int kRows", std::to_string(tile.rows)},
          {"int kColumns", std::to_string(tile.columns)},
          {"int kSteps", std::to_string(steps_of_k(p))},
          {"int kStages", std::to_string(stages_of(target, p, tile))}};
}
LaunchShape few_rows_shape(const Target& target, const attn::MatmulParams& p, FewRowsTile tile,
                           std::int64_t batches) {
  LaunchShape shape;
  shape.grid_x = batches * ceil_quotient(p.m, tile.rows) * ceil_quotient(p.n, tile.columns);
  shape.threads = attn::few_rows_threads(tile.rows, tile.columns);
  shape.shared_bytes =
      attn::few_rows_shared_bytes(tile.rows, tile.columns, stages_of(target, p, tile));
  return shape;
}
std::string few_rows_name(const attn::MatmulParams& p, FewRowsTile tile) {
  return fmt::format("{} {}x{} k{}", short_name(p.element), tile.rows, tile.columns,
                     steps_of_k(p) * attn::kFewRowsStep);
}

std::string join_misfit(const attn::LatentQueryParams& p) {
  const attn::ConcatParams& join = p.join;
  if (join.first != p.project.c || join.first_size != p.project.n ||
      join.num_heads != p.project.num_batches || join.num_tokens != p.project.m ||
      join.element != p.project.element || join.second == nullptr || join.second_size % 8 != 0) {
    return "a join of other things than the product and its rope parts";
  }
  std::string reason =
      alignment_misfit("the rope part", Alignment()
                                            .pointer(join.second)
                                            .stride(join.second_token_stride, join.element)
                                            .stride(join.second_head_stride, join.element));
  if (!reason.empty()) return reason;
  if (p.quantise.codes == nullptr) {
    return alignment_misfit("the query", Alignment()
                                             .pointer(join.output)
                                             .stride(join.output_token_stride, join.element)
                                             .stride(join.output_head_stride, join.element));
  }
  if (p.quantise.num_saturated != nullptr) return "a count of saturated elements: it has none";
  // Pieces of 8 codes.
  const int bytes =
      Alignment().pointer(p.quantise.codes).bytes(p.quantise.code_row_stride).common_bytes();
  return bytes >= 8 ? "" : "codes that do not lie on multiples of 8 bytes";
}

/// Codes and padding that are not those of the joined query: the kernel goes by `join`.
std::string parts_misfit(const attn::LatentQueryParams& p) {
  const attn::ConcatParams& join = p.join;
  const std::int64_t head = std::int64_t{join.first_size} + join.second_size;
  const bool is_quantised = p.quantise.codes != nullptr;
  if (is_quantised && (p.quantise.source != join.output || p.quantise.num_rows != join.num_tokens ||
                       p.quantise.num_columns != join.num_heads * head)) {
    return "codes of other things than the joined query";
  }
  if (p.pad.num_heads == 0) return "";
  const char* const first = is_quantised ? reinterpret_cast<const char*>(p.quantise.codes)
                                         : static_cast<const char*>(join.output);
  const std::int64_t size = is_quantised ? 1 : size_of_element(join.element);
  const std::int64_t head_stride = is_quantised ? head : join.output_head_stride;
  const std::int64_t row = is_quantised ? p.quantise.code_row_stride : join.output_token_stride;
  if (p.pad.output != first + join.num_heads * head_stride * size ||
      p.pad.output_head_stride != head_stride || p.pad.output_token_stride != row ||
      p.pad.num_tokens != join.num_tokens || p.pad.first_size != 0 || p.pad.second != nullptr ||
      p.pad.second_size != head) {
    return "padding that is not behind the heads of the query";
  }
  return "";
}

/// What codes are made of must be the whole product.
template <typename Params>
std::string codes_misfit(const attn::MatmulParams& project, const Params& codes, const void* to,
                         std::int64_t row_bytes, int bytes_of_store) {
  const std::int64_t columns = project.num_batches * project.n;
  if (codes.source != project.c || codes.source_element != project.element ||
      codes.source_row_stride != project.c_row_stride || codes.num_rows != project.m ||
      codes.num_columns != columns) {
    return "codes of other things than the output";
  }
  const int bytes = Alignment().pointer(to).bytes(row_bytes).common_bytes();
  if (bytes >= bytes_of_store) return "";
  return fmt::format("codes lie on multiples of {} bytes, {} are needed", bytes, bytes_of_store);
}
std::string blocks_misfit(const attn::ValueOutputParams& p) {
  const attn::Nvfp4QuantiseParams& q = p.by_blocks;
  if (p.clear.num_tokens > 0) {
    const std::int64_t blocks = q.num_columns / attn::kNvfp4Block;
    if (q.swizzled == 0 || p.clear.output != q.scales || p.clear.element != Element::kU8 ||
        p.clear.output_token_stride != blocks || p.clear.num_heads != 1 ||
        p.clear.first_size != 0 || p.clear.second != nullptr || blocks % 4 != 0 ||
        p.clear.second_size != blocks ||
        p.clear.num_tokens != ceil_quotient(q.num_rows, 128) * 128) {
      return "zeros in other things than the scales of whole tiles";
    }
  }
  return codes_misfit(p.project, q, q.packed, q.packed_row_stride, 8);
}
std::string output_codes_misfit(const attn::ValueOutputParams& p) {
  const attn::OutputCodes codes = p.codes();
  if (codes == attn::OutputCodes::kNone) return "";
  if (p.project.n % attn::kGroupPiece != 0) {
    return fmt::format("heads of {} columns: codes are made of {} at a time", p.project.n,
                       attn::kGroupPiece);
  }
  if (codes == attn::OutputCodes::kBlocks) return blocks_misfit(p);
  if (codes == attn::OutputCodes::kScale) {
    if (p.by_scale.num_saturated != nullptr) return "a count of saturated elements: it has none";
    return codes_misfit(p.project, p.by_scale, p.by_scale.codes, p.by_scale.code_row_stride,
                        kFewRowsVector);
  }
  if (p.by_groups.num_saturated != nullptr) return "a count of saturated elements: it has none";
  if (p.by_groups.group_size > 128 || p.project.n % p.by_groups.group_size != 0) {
    return fmt::format("groups of {} columns in heads of {}", p.by_groups.group_size, p.project.n);
  }
  return codes_misfit(p.project, p.by_groups, p.by_groups.codes, p.by_groups.code_row_stride,
                      kFewRowsVector);
}
/// Columns that a CTA must have together.
int output_group(const attn::ValueOutputParams& p) {
  return p.codes() == attn::OutputCodes::kGroups ? p.by_groups.group_size : attn::kGroupPiece;
}

std::string write_misfit(const attn::LatentQueryParams& p) {
  const attn::MlaCacheWriteParams& write = p.write;
  if (write.cache == nullptr) return "";
  if (write.format == attn::MlaEntry::kModel1 || write.source_element != p.project.element) {
    return "entries of another type: it writes 16 bits as they are, e4m3 and fp8_ds_mla";
  }
  if (write.kv_lora_rank % 8 != 0 || write.rope_head_dim % 8 != 0) {
    return "entries that are no multiples of 8 elements";
  }
  const bool is_ds_mla = write.format == attn::MlaEntry::kDsMla;
  if (is_ds_mla &&
      (write.source_element != Element::kBF16 || write.kv_lora_rank != attn::kDsMlaLatent ||
       write.rope_head_dim != attn::kDsMlaRope)) {
    return "fp8_ds_mla of other sizes than 512 and 64, or not from bf16";
  }
  std::string reason =
      alignment_misfit("new entries", Alignment()
                                          .pointer(write.kv_c)
                                          .pointer(write.k_pe)
                                          .stride(write.kv_c_token_stride, write.source_element)
                                          .stride(write.k_pe_token_stride, write.source_element));
  if (!reason.empty()) return reason;
  const Element stored =
      write.format == attn::MlaEntry::kCopy ? write.source_element : Element::kE4M3;
  const int bytes = Alignment()
                        .pointer(write.cache)
                        .stride(write.block_stride, stored)
                        .stride(write.slot_stride, stored)
                        .common_bytes();
  const int needed = write.format == attn::MlaEntry::kE4M3 ? 8 : kFewRowsVector;
  if (bytes >= needed) return "";
  return fmt::format("entries lie on multiples of {} bytes, {} are needed", bytes, needed);
}

}  // namespace

FewRowsTile few_rows_tile(const attn::MatmulParams& p, int num_sms, const TileWish& wish) {
  const int most_rows = p.m > 32 ? 64 : (p.m > 16 ? 32 : 16);
  const int first_columns = std::max(32, wish.least_columns);
  FewRowsTile best{16, first_columns};
  for (int rows = 16; rows <= most_rows; rows *= 2) {
    for (int columns = first_columns; columns <= 128; columns *= 2) {
      const std::int64_t tiles =
          p.num_batches * ceil_quotient(p.m, rows) * ceil_quotient(p.n, columns);
      const bool is_larger = rows * columns > best.rows * best.columns ||
                             (rows * columns == best.rows * best.columns &&
                              (wish.prefers_columns ? columns > best.columns : rows > best.rows));
      if (tiles * 8 >= num_sms * 7 && columns <= p.n && is_larger) best = {rows, columns};
    }
  }
  return best;
}

std::string few_rows_misfit(const attn::MatmulParams& p) {
  if (p.output_element != p.element) {
    return fmt::format("output in {}: it stores the type of the operands",
                       short_name(p.output_element));
  }
  if (std::string reason = operands_misfit(p); !reason.empty()) return reason;
  return alignment_misfit("C", Alignment()
                                   .pointer(p.c)
                                   .stride(p.c_batch_stride, p.element)
                                   .stride(p.c_row_stride, p.element));
}

bool prefers_few_rows(const attn::MatmulParams& p) {
  return p.m <= kMostFewRows && few_rows_misfit(p).empty();
}

std::string latent_query_misfit(const Target& target, const attn::LatentQueryParams& p) {
  // Why: nothing was measured on others.
  if (target.sm != 90) return fmt::format("compute capability {}: it is for 90", target.sm);
  if (p.project.m > kMostFewRows) {
    return fmt::format("{} tokens: it is for up to {}", p.project.m, kMostFewRows);
  }
  for (const auto& misfit : {join_misfit, parts_misfit, write_misfit}) {
    if (std::string reason = misfit(p); !reason.empty()) return reason;
  }
  return operands_misfit(p.project);
}

std::string value_output_misfit(const Target& target, const attn::ValueOutputParams& p) {
  // Why: nothing was measured on others.
  if (target.sm != 90) return fmt::format("compute capability {}: it is for 90", target.sm);
  if (p.project.m > kMostFewRows) {
    return fmt::format("{} tokens: it is for up to {}", p.project.m, kMostFewRows);
  }
  if (p.project.c_batch_stride != p.project.n) return "heads that do not lie side by side";
  if (std::string reason = output_codes_misfit(p); !reason.empty()) return reason;
  return few_rows_misfit(p.project);
}

void multiply_few_rows(Launcher& launcher, const attn::MatmulParams& p) {
  const FewRowsTile tile = few_rows_tile(p, launcher.target().num_sms);
  KernelSpec spec;
  spec.source = "matmul/few_rows.cuh";
  spec.function = "attn::few_rows";
  spec.constants = few_rows_constants(launcher.target(), p, tile);
  spec.name = "matmul of few rows " + few_rows_name(p, tile);
  launch(launcher, spec, few_rows_shape(launcher.target(), p, tile, p.num_batches), p);
}

void make_latent_query(Launcher& launcher, const attn::LatentQueryParams& p) {
  if (!latent_query_misfit(launcher.target(), p).empty()) {
    matmul(launcher, p.project);
    concat(launcher, p.join);
    if (p.quantise.codes != nullptr) quantise_fp8(launcher, p.quantise);
    if (p.pad.num_heads > 0) concat(launcher, p.pad);
    if (p.write.cache != nullptr) write_mla_cache(launcher, p.write);
    return;
  }
  const FewRowsTile tile = few_rows_tile(p.project, launcher.target().num_sms);
  const bool is_quantised = p.quantise.codes != nullptr;
  const bool writes = p.write.cache != nullptr;
  KernelSpec spec;
  spec.source = "fused/latent_query.cuh";
  spec.function = "attn::latent_query";
  spec.constants = few_rows_constants(launcher.target(), p.project, tile);
  spec.constants.emplace_back("attn::Element kQuery",
                              spec_name(is_quantised ? Element::kE4M3 : p.project.element));
  spec.constants.emplace_back("bool kWrites", spec_flag(writes));
  const attn::MlaEntry entry = writes ? p.write.format : attn::MlaEntry::kCopy;
  const char* const entry_name = entry == attn::MlaEntry::kCopy
                                     ? "kCopy"
                                     : (entry == attn::MlaEntry::kE4M3 ? "kE4M3" : "kDsMla");
  spec.constants.emplace_back("attn::MlaEntry kEntry",
                              std::string("attn::MlaEntry::") + entry_name);
  spec.name = fmt::format("latent query {} to {}", few_rows_name(p.project, tile),
                          is_quantised ? "e4m3" : short_name(p.project.element));
  if (writes) spec.name += fmt::format(", writes {}", entry_name + 1);
  LaunchShape shape = few_rows_shape(launcher.target(), p.project, tile,
                                     std::int64_t{p.join.num_heads} + p.pad.num_heads);
  if (writes) shape.grid_x += ceil_quotient(p.write.num_slots, shape.threads / 32);
  launch(launcher, spec, shape, p);
}

void project_values(Launcher& launcher, const attn::ValueOutputParams& p) {
  const attn::OutputCodes codes = p.codes();
  if (!value_output_misfit(launcher.target(), p).empty()) {
    matmul(launcher, p.project);
    if (codes == attn::OutputCodes::kScale) quantise_fp8(launcher, p.by_scale);
    if (codes == attn::OutputCodes::kGroups) quantise_fp8_groups(launcher, p.by_groups);
    if (codes == attn::OutputCodes::kBlocks) {
      if (p.clear.num_tokens > 0) concat(launcher, p.clear);
      quantise_nvfp4(launcher, p.by_blocks);
    }
    return;
  }
  const int group = output_group(p);
  // Why columns: on one NVIDIA H200, 2026-11-29, a step of 64 decodes of 16 heads took 173.6 us by
  // 16 x 64, 174.5 by 32 x 32 (values without codes).
  const FewRowsTile tile = few_rows_tile(p.project, launcher.target().num_sms, {group, true});
  // In the order of OutputCodes.
  constexpr std::array kNames{"kNone", "kScale", "kGroups", "kBlocks"};
  const std::string name = kNames.at(static_cast<std::size_t>(codes));
  KernelSpec spec;
  spec.source = "fused/value_output.cuh";
  spec.function = "attn::value_output";
  spec.constants = few_rows_constants(launcher.target(), p.project, tile);
  spec.constants.emplace_back("attn::OutputCodes kCodes", "attn::OutputCodes::" + name);
  spec.constants.emplace_back("int kGroup", std::to_string(group));
  spec.name = "value output " + few_rows_name(p.project, tile);
  if (codes == attn::OutputCodes::kScale) spec.name += " to e4m3";
  if (codes == attn::OutputCodes::kGroups) spec.name += fmt::format(" to e4m3 by {}", group);
  if (codes == attn::OutputCodes::kBlocks) spec.name += " to nvfp4";
  LaunchShape shape = few_rows_shape(launcher.target(), p.project, tile, p.project.num_batches);
  shape.overlaps_previous = true;
  launch(launcher, spec, shape, p);
}

}  // namespace attnbench::cuda
