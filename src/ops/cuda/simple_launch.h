// Launches of kernels whose work falls into independent pieces: specs with the usual constants, and
// grids that cover the pieces. Kernels that divide their work in other ways, attention and
// products, have launchers of their own.
//
// Two ways of dealing out: simple_spec() and simple_shape() give every thread one piece, which is
// enough where a piece is a vector of 16 bytes and rows do not matter. deal_out_rows() gives a CTA
// whole rows and every thread several pieces of them, so that enough loads are under way and what
// is found once a row (its slot, its block) is found once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda/launcher.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

constexpr int kSimpleThreads = 256;

/// `source` under kernels/ and a function of it ("attn::" is added), with kThreads and `constants`.
inline KernelSpec simple_spec(const std::string& source, const std::string& function,
                              std::vector<std::pair<std::string, std::string>> constants,
                              std::string name) {
  KernelSpec spec;
  spec.source = source;
  spec.function = "attn::" + function;
  spec.constants = std::move(constants);
  spec.constants.emplace_back("int kThreads", std::to_string(kSimpleThreads));
  spec.name = std::move(name);
  return spec;
}

/// CTAs for `threads` threads in all; the kernel itself drops those past the end.
inline LaunchShape simple_shape(std::int64_t threads) {
  LaunchShape shape;
  shape.grid_x = ceil_quotient(threads, kSimpleThreads);
  shape.threads = kSimpleThreads;
  return shape;
}

/// Adds what move_rows() of kernels/move/row_moves.cuh is configured by to `spec`, for rows of
/// `row_pieces` pieces of which a thread holds `piece_bytes` each, and gives the shape for
/// `num_rows`. A CTA loads and stores its rows in `batches`.
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
