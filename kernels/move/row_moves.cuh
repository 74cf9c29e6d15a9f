// Rows that are found by look-ups and moved whole: the shape of all kernels that write or gather
// the entries of a paged cache. Why not a look-up a thread: request, then block table, then entry
// are loads that wait for one another, and a thread that does them for one vector leaves the memory
// idle; here those of all rows of a CTA are under way side by side, and then many loads of every
// thread.
//
// Two phases with one barrier between them: a thread for each row finds where it comes from and
// goes to and leaves that in shared memory; then all threads load and store pieces of rows.
#pragma once

#include "kernels/params.h"

namespace attn {

/// Where a row comes from and goes to; a row without an output (a null pointer) is skipped.
struct RowMove {
  const char* source;
  char* output;
};

/// Moves the rows of this CTA that are below `num_rows`. find(row) -> RowMove, called once a row;
/// load(row, source, piece) -> what a thread holds of one piece of it; store(output, piece, held).
/// Pieces are numbered along a row, and neighbouring threads have neighbouring pieces. A row may be
/// found to be skipped; a row that is moved has all of its pieces loaded and stored.
/// Config: int kRowPieces (pieces of a row), kRows (rows of a CTA), kItems (pieces that a thread
/// loads before it stores), kThreads. Grid: cdiv(num_rows, kRows).
template <class Config, class Find, class Load, class Store>
__device__ __forceinline__ void move_rows(i64 num_rows, const Find& find, const Load& load,
                                          const Store& store) {
  constexpr unsigned kRowPieces = Config::kRowPieces;
  constexpr unsigned kPieces = Config::kRows * kRowPieces;
  __shared__ RowMove moves[Config::kRows];
  const i64 first_row = static_cast<i64>(blockIdx.x) * Config::kRows;
  for (int r = static_cast<int>(threadIdx.x); r < Config::kRows; r += Config::kThreads) {
    moves[r] = first_row + r < num_rows ? find(first_row + r) : RowMove{};
  }
  __syncthreads();
  // All kItems loads of a thread are issued before its first store waits for one of them.
  using Held = decltype(load(i64{}, nullptr, 0));
  for (unsigned first = threadIdx.x; first < kPieces; first += Config::kThreads * Config::kItems) {
    Held held[Config::kItems];
    char* outputs[Config::kItems];
#pragma unroll
    for (int i = 0; i < Config::kItems; ++i) {
      const unsigned piece = first + i * Config::kThreads;
      const unsigned row = piece / kRowPieces;
      const RowMove move = piece < kPieces ? moves[row] : RowMove{};
      outputs[i] = move.output;
      if (move.output == nullptr) continue;
      held[i] = load(first_row + row, move.source, static_cast<int>(piece % kRowPieces));
    }
#pragma unroll
    for (int i = 0; i < Config::kItems; ++i) {
      if (outputs[i] == nullptr) continue;
      const unsigned piece = first + i * Config::kThreads;
      store(outputs[i], static_cast<int>(piece % kRowPieces), held[i]);
    }
  }
}

}  // namespace attn
