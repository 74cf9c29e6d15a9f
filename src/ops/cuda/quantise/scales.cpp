// Launches of kernels/quantise/scales.cuh. amax has one result in any order, so atomics do not harm
// its repeatability; a first launch sets it to the least value.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {
constexpr const char* kScalesSource = "quantise/scales.cuh";
}  // namespace

void amax(Launcher& launcher, const attn::AmaxParams& p) {
  // Measured on one NVIDIA H200, 2026-11-21, 131072 x 16 heads of 80: 3716 GB/s; 8 CTAs and four
  // items 3638, 4 CTAs 3151. One CTA for each tile: 3203, held up by its atomics.
  constexpr int kThreads = 256;
  constexpr int kItems = 2;
  constexpr int kCtasOfSm = 16;
  launch(launcher, simple_spec(kScalesSource, "start_amax", {}, "amax: start"), simple_shape(1), p);
  VectorSide source{p.element, {}};
  source.alignment.pointer(p.source)
      .stride(p.token_stride, p.element)
      .stride(p.head_stride, p.element);
  const int vector = widest_vector(16 / size_of_element(p.element), {p.head_size}, {source});
  const std::int64_t head_pieces = p.head_size / vector;
  const std::int64_t row_pieces = p.num_heads * head_pieces;
  KernelSpec spec;
  spec.source = kScalesSource;
  spec.function = "attn::amax";
  spec.constants = {{"attn::Element kElement", spec_name(p.element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kItems", std::to_string(kItems)},
                    {"int kHeadPieces", std::to_string(head_pieces)},
                    {"int kRowPieces", std::to_string(row_pieces)},
                    {"bool kSigned", spec_flag(p.is_signed != 0)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "amax " + short_name(p.element) + " x" + std::to_string(vector) + " of " +
              std::to_string(p.num_heads) + " x " + std::to_string(p.head_size);
  LaunchShape shape;
  shape.grid_x = std::min<std::int64_t>(ceil_quotient(p.num_tokens * row_pieces, kThreads * kItems),
                                        std::int64_t{launcher.target().num_sms} * kCtasOfSm);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void encoder_scales(Launcher& launcher, const attn::EncoderScalesParams& p) {
  // As amax() has them, the CTAs of three tensors together.
  constexpr int kThreads = 256;
  constexpr int kItems = 2;
  constexpr int kCtasOfSm = 16;
  VectorSide source{p.element, {}};
  std::int64_t pieces = 0;
  for (const attn::EncoderTensor& tensor : p.tensors) {
    source.alignment.pointer(tensor.source)
        .stride(tensor.token_stride, p.element)
        .stride(tensor.head_stride, p.element);
  }
  const int vector = widest_vector(16 / size_of_element(p.element), {p.head_size}, {source});
  const std::int64_t head_pieces = p.head_size / vector;
  for (const attn::EncoderTensor& tensor : p.tensors) {
    pieces = std::max<std::int64_t>(pieces, tensor.num_tokens * tensor.num_heads * head_pieces);
  }
  KernelSpec spec;
  spec.source = "quantise/encoder.cuh";
  spec.function = "attn::encoder_scales";
  spec.constants = {{"attn::Element kElement", spec_name(p.element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kItems", std::to_string(kItems)},
                    {"int kHeadPieces", std::to_string(head_pieces)},
                    {"int kRowPieces", std::to_string(p.tensors[0].num_heads * head_pieces)},
                    {"int kOtherRowPieces", std::to_string(p.tensors[1].num_heads * head_pieces)},
                    {"bool kSigned", p.is_signed != 0 ? "true" : "false"},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "encoder_scales " + short_name(p.element) + " x" + std::to_string(vector) + " of " +
              std::to_string(p.tensors[0].num_heads) + " and " +
              std::to_string(p.tensors[1].num_heads) + " x " + std::to_string(p.head_size);
  LaunchShape shape;
  const std::int64_t most = std::int64_t{launcher.target().num_sms} * kCtasOfSm / 3;
  shape.grid_x = std::clamp<std::int64_t>(ceil_quotient(pieces, kThreads * kItems), 1,
                                          std::clamp<std::int64_t>(most, 1, attn::kMostAmaxCtas));
  shape.grid_y = 3;
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void count_patterns(Launcher& launcher, const attn::PatternCountParams& p) {
  // Not measured: one CTA a multiprocessor, whose counters take 128 KB of its shared memory.
  constexpr int kThreads = 1024;
  constexpr int kCounterBytes = 128 * 1024;
  constexpr std::int64_t kElementsOfRound = 61440;  // patterns.cuh
  if (launcher.target().max_shared_bytes < kCounterBytes) {
    fail(ErrorKind::kUnsupported, "count_patterns: {} bytes of shared memory, {} are needed",
         launcher.target().max_shared_bytes, kCounterBytes);
  }
  VectorSide source{attn::Element::kBF16, {}};
  source.alignment.pointer(p.source);
  const int vector = widest_vector(8, {p.head_size}, {source});
  const std::int64_t elements = p.num_tokens * p.head_size;
  if (elements == 0) return;
  KernelSpec spec;
  spec.source = "quantise/patterns.cuh";
  spec.function = "attn::count_patterns";
  spec.constants = {{"int kVector", std::to_string(vector)},
                    {"int kHeadPieces", std::to_string(p.head_size / vector)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "count_patterns x" + std::to_string(vector) + " of " + std::to_string(p.head_size);
  LaunchShape shape;
  const std::int64_t of_head =
      std::max<std::int64_t>(1, launcher.target().num_sms / std::max(1, p.num_heads));
  shape.grid_x = std::min(ceil_quotient(elements, kElementsOfRound), of_head);
  shape.grid_y = p.num_heads;
  shape.threads = kThreads;
  shape.shared_bytes = kCounterBytes;
  launch(launcher, spec, shape, p);
}

void update_amax_history(Launcher& launcher, const attn::AmaxHistoryParams& p) {
  launch(launcher, simple_spec(kScalesSource, "update_amax_history", {}, "update_amax_history"),
         simple_shape(p.num_tensors), p);
}

void calc_kv_scales(Launcher& launcher, const attn::KvScaleParams& p) {
  launch(launcher, simple_spec(kScalesSource, "calc_kv_scales", {}, "calc_kv_scales"),
         simple_shape(1), p);
}

}  // namespace attnbench::cuda
