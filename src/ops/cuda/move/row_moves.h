// How kernels/move/row_moves.cuh deals rows out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/cuda/launcher.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

/// Adds what move_rows() is configured by to `spec`, for rows of `row_pieces` pieces of which a
/// thread holds `piece_bytes` each, and gives the shape for `num_rows`. A CTA loads and stores its
/// rows in `batches`.
inline LaunchShape deal_out_rows(KernelSpec& spec, std::int64_t num_rows, int row_pieces,
                                 int piece_bytes, int batches) {
  // Measured on one NVIDIA H200, 2026-11-21, 131072 latents: 64 or 256 threads, or half or twice
  // the bytes, are no more than 1 % faster and up to 6 % slower, of upconverted entries up to 15 %.
  constexpr int kThreads = 128;
  constexpr int kBytesInFlight = 128;  // of a thread
  const int items = std::clamp(kBytesInFlight / piece_bytes, 1, 8);
  const int rows = std::max(1, batches * kThreads * items / row_pieces);
  spec.constants.emplace_back("int kRowPieces", std::to_string(row_pieces));
  spec.constants.emplace_back("int kRows", std::to_string(rows));
  spec.constants.emplace_back("int kItems", std::to_string(items));
  spec.constants.emplace_back("int kThreads", std::to_string(kThreads));
  LaunchShape shape;
  shape.grid_x = ceil_quotient(num_rows, rows);
  shape.threads = kThreads;
  return shape;
}

}  // namespace attnbench::cuda
