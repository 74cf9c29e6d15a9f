// How few_rows.cuh cuts its tiles and what it needs: pure functions, so that the host chooses by
// the same numbers.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

constexpr int kFewRowsStep = 64;  // of k that is waited for at a time
constexpr int kFewRowsMostSteps = 8;

/// Warps down a tile of `rows` (16, 32 or 64) by `columns` (32, 64 or 128) of C, and across
/// it.
ATTN_FN constexpr int few_rows_warps_down(int rows) { return rows > 16 ? 2 : 1; }
ATTN_FN constexpr int few_rows_warps_across(int columns) { return columns > 32 ? 4 : 2; }
ATTN_FN constexpr int few_rows_threads(int rows, int columns) {
  return 32 * few_rows_warps_down(rows) * few_rows_warps_across(columns);
}
/// Bytes from row to row of 16-bit elements: 16 more than they take, so that the eight rows of a
/// fragment lie in different banks.
ATTN_FN constexpr int few_rows_pitch(int columns) { return columns * 2 + 16; }
/// A step of A, [rows, kFewRowsStep], and of B, [kFewRowsStep, columns].
ATTN_FN constexpr int few_rows_a_bytes(int rows) { return rows * few_rows_pitch(kFewRowsStep); }
ATTN_FN constexpr int few_rows_stage_bytes(int rows, int columns) {
  return few_rows_a_bytes(rows) + kFewRowsStep * few_rows_pitch(columns);
}
/// The tile of C, rounded, lies where the first steps were.
ATTN_FN constexpr int few_rows_shared_bytes(int rows, int columns, int stages) {
  const int steps = stages * few_rows_stage_bytes(rows, columns);
  const int tile = rows * few_rows_pitch(columns);
  return steps > tile ? steps : tile;
}

}  // namespace attn
