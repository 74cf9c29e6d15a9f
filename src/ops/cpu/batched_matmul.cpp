// Batched matrix products in f32: the up- and down-projections of MLA (semantics §8.2, §8.3). A
// tile of the result is the unit of work; its tiles of A and B are decoded to float32 into the
// scratch, multiplied by Eigen, and each sum is rounded once to the element of C.
#include <algorithm>

#include "kernels/params_mla.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

// Why: g++ 12 takes the "undefined" operand of its own AVX-512 intrinsics for a mistake of ours.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>

namespace attnbench::cpu {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstRows = Eigen::Map<const RowMajor>;

// Why these: with k 512 the decoded tiles of A, B and C take 0.9 MB, about one L2 cache. They do
// not depend on the number of threads, so neither does the order of any sum.
constexpr attn::i64 kTileRows = 128;
constexpr attn::i64 kTileColumns = 256;

/// Rows and columns of C that one thread makes; those at the edges are smaller.
struct Tile {
  attn::i64 batch;
  attn::i64 first_row;
  attn::i64 first_column;
  attn::i64 rows;
  attn::i64 columns;
};

attn::i64 tiles_of(attn::i64 extent, attn::i64 tile) { return (extent + tile - 1) / tile; }

Tile tile_at(const attn::MatmulParams& params, attn::i64 index) {
  const attn::i64 across = tiles_of(params.n, kTileColumns);
  const attn::i64 down = tiles_of(params.m, kTileRows);
  // Rows run fastest: threads that work at the same time read the same B.
  const attn::i64 row = index % down * kTileRows;
  const attn::i64 column = index / down % across * kTileColumns;
  return {index / (across * down), row, column, std::min(kTileRows, params.m - row),
          std::min(kTileColumns, params.n - column)};
}

/// Rows [first, first + count) of `width` elements, contiguous in `destination`.
void decode_rows(attn::Element element, const void* base, attn::i64 first_element,
                 attn::i64 row_stride, attn::i64 count, attn::i64 width, float* destination) {
  if (width == 0) return;
  for (attn::i64 i = 0; i < count; ++i, destination += width) {
    load_wide_row(element, element_at(element, base, first_element + i * row_stride), width,
                  destination);
  }
}

/// The tile of B as it is stored: [k, columns], or [columns, k] when transposed.
void decode_b(const attn::MatmulParams& params, const Tile& tile, float* destination) {
  const attn::i64 first = tile.batch * params.b_batch_stride;
  if (params.b_transposed != 0) {
    decode_rows(params.element, params.b, first + tile.first_column * params.b_row_stride,
                params.b_row_stride, tile.columns, params.k, destination);
  } else {
    decode_rows(params.element, params.b, first + tile.first_column, params.b_row_stride, params.k,
                tile.columns, destination);
  }
}

/// c = a b; a product of no terms is 0.
void multiply(const attn::MatmulParams& params, const Tile& tile, const float* a, const float* b,
              float* c) {
  const ConstRows left(a, tile.rows, params.k);
  Eigen::Map<RowMajor> product(c, tile.rows, tile.columns);
  if (params.k == 0) {
    product.setZero();
  } else if (params.b_transposed != 0) {
    product.noalias() = left * ConstRows(b, tile.columns, params.k).transpose();
  } else {
    product.noalias() = left * ConstRows(b, params.k, tile.columns);
  }
}

void multiply_tile(const attn::MatmulParams& params, const Tile& tile, Scratch& scratch) {
  float* a = room_for(scratch.query, tile.rows * params.k);
  float* b = room_for(scratch.key, tile.columns * params.k);
  float* c = room_for(scratch.scores, tile.rows * tile.columns);
  decode_rows(params.element, params.a,
              tile.batch * params.a_batch_stride + tile.first_row * params.a_row_stride,
              params.a_row_stride, tile.rows, params.k, a);
  decode_b(params, tile, b);
  multiply(params, tile, a, b, c);
  for (attn::i64 i = 0; i < tile.rows; ++i, c += tile.columns) {
    const attn::i64 at = tile.batch * params.c_batch_stride +
                         (tile.first_row + i) * params.c_row_stride + tile.first_column;
    store_row(params.output_element, c, tile.columns,
              element_at(params.output_element, params.c, at));
  }
}

}  // namespace

void matmul(const attn::MatmulParams& params, Workers& workers) {
  const attn::i64 count =
      params.num_batches * tiles_of(params.m, kTileRows) * tiles_of(params.n, kTileColumns);
  workers.pool.parallel_for(count, [&](std::int64_t index, int thread) {
    multiply_tile(params, tile_at(params, index),
                  workers.scratch[static_cast<std::size_t>(thread)]);
  });
}

void make_latent_query(const attn::LatentQueryParams& params, Workers& workers) {
  matmul(params.project, workers);
  concat(params.join, workers);
  if (params.quantise.codes != nullptr) quantise_fp8(params.quantise, workers);
  if (params.pad.num_heads > 0) concat(params.pad, workers);
  if (params.write.cache != nullptr) write_mla_cache(params.write, workers);
}

void project_values(const attn::ValueOutputParams& params, Workers& workers) {
  matmul(params.project, workers);
  switch (params.codes()) {
    case attn::OutputCodes::kNone:
      break;
    case attn::OutputCodes::kScale:
      quantise_fp8(params.by_scale, workers);
      break;
    case attn::OutputCodes::kGroups:
      quantise_fp8_groups(params.by_groups, workers);
      break;
    case attn::OutputCodes::kBlocks:
      if (params.clear.num_tokens > 0) concat(params.clear, workers);
      quantise_nvfp4(params.by_blocks, workers);
      break;
  }
}

}  // namespace attnbench::cpu
