// The launcher of kernels/move/tma_copy.cuh, which no operation uses: tensor maps and clusters for
// tests.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// A copy of a row-major tensor [planes, rows, columns] of 16-bit elements.
struct TmaCopy {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t columns = 0;
  std::int64_t rows = 0;
  std::int64_t planes = 1;
  std::int64_t row_stride = 0;  // elements of both, at least columns, a multiple of 8
  int rank = 2;                 // of the maps; 2 has one plane, dimensions from 3 on have extent 1
  int box_columns = 64;         // elements; box_bytes is a multiple of 1024
  int box_rows = 16;
  int ctas_y = 1;  // which share the boxes that lie below one another
  int stages = 2;
  TensorSwizzle swizzle = TensorSwizzle::kNone;
  bool evict_first = false;
};

inline TensorMap tma_copy_map(const TmaCopy& copy, const void* data) {
  TensorMap map;
  map.data = data;
  map.dtype = Dtype::kBF16;
  map.rank = copy.rank;
  const std::int64_t row_bytes = copy.row_stride * 2;
  const std::int64_t plane_bytes = row_bytes * copy.rows;
  map.extents = {copy.columns, copy.rows, copy.planes, 1, 1};
  map.strides = {2, row_bytes, plane_bytes, plane_bytes * copy.planes, plane_bytes * copy.planes};
  map.box = {copy.box_columns, copy.box_rows, 1, 1, 1};
  map.swizzle = copy.swizzle;
  return map;
}

inline KernelSpec tma_copy_spec(const TmaCopy& copy) {
  KernelSpec spec;
  spec.source = "move/tma_copy.cuh";
  spec.function = "attn::tma_copy";
  spec.constants = {{"int kRank", std::to_string(copy.rank)},
                    {"int kBoxColumns", std::to_string(copy.box_columns)},
                    {"int kBoxRows", std::to_string(copy.box_rows)},
                    {"int kBoxBytes", std::to_string(copy.box_columns * copy.box_rows * 2)},
                    {"int kStages", std::to_string(copy.stages)},
                    {"unsigned long long kPolicy",
                     copy.evict_first ? "attn::kEvictFirst" : "attn::kEvictNormal"}};
  spec.name =
      fmt::format("tma_copy {}-D boxes of {} x {}", copy.rank, copy.box_columns, copy.box_rows);
  return spec;
}

inline LaunchShape tma_copy_shape(const TmaCopy& copy) {
  constexpr std::int64_t kClusterCtas = 2;
  constexpr int kAlignment = 1024;
  LaunchShape shape;
  const std::int64_t box_columns = (copy.columns + copy.box_columns - 1) / copy.box_columns;
  shape.grid_x = (box_columns + kClusterCtas - 1) / kClusterCtas * kClusterCtas;
  shape.grid_y = copy.ctas_y;
  shape.grid_z = copy.planes;
  shape.cluster_x = kClusterCtas;
  shape.threads = 32;
  shape.shared_bytes = copy.stages * copy.box_columns * copy.box_rows * 2 + kAlignment;
  return shape;
}

inline void launch_tma_copy(Launcher& launcher, const TmaCopy& copy) {
  const int row_boxes = static_cast<int>((copy.rows + copy.box_rows - 1) / copy.box_rows);
  launch(launcher, tma_copy_spec(copy), tma_copy_shape(copy), tma_copy_map(copy, copy.from),
         tma_copy_map(copy, copy.to), row_boxes);
}

/// Ranks, swizzles, ring lengths and ragged edges, each at least once; without memory.
inline std::vector<TmaCopy> tma_copies() {
  TmaCopy plain;
  plain.columns = 64;
  plain.rows = 16;
  plain.row_stride = 64;
  TmaCopy ragged = plain;  // three columns of boxes, the last one of 40 elements, and a ring of two
  ragged.columns = 168;
  ragged.row_stride = 176;
  ragged.rows = 101;
  TmaCopy swizzled = ragged;
  swizzled.swizzle = TensorSwizzle::k128Bytes;
  swizzled.ctas_y = 3;
  swizzled.stages = 3;
  TmaCopy narrow = ragged;
  narrow.swizzle = TensorSwizzle::k32Bytes;
  narrow.box_columns = 16;
  narrow.box_rows = 64;
  narrow.evict_first = true;
  std::vector<TmaCopy> copies{plain, ragged, swizzled, narrow};
  for (const int rank : {3, 4, 5}) {
    TmaCopy planes = ragged;
    planes.rank = rank;
    planes.planes = 3;
    copies.push_back(planes);
  }
  return copies;
}

}  // namespace attnbench::cuda
