// The verdict on attention: each row of each head answers for itself (semantics §14.2).
//
// A row is the vector a[Dv] of one token and one head beside the reference r[Dv] and the emulation
// e[Dv], the same mathematics with the roundings that the case declares. Its error is ||a - r|| / n
// in the size n of the row, and its limit follows from what honest rounding costs there. So a wrong
// row cannot hide among right ones, however many and however large they are. What floors and
// factors are decided by is docs/verdicts.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "core/tensor.h"
#include "metrics/row_limits.h"

namespace attnbench {

/// Which tokens are whose.
struct RowBatch {
  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B]
};

/// One output beside its reference, on the checked rows.
struct RowComparison {
  const Tensor* actual = nullptr;       // [T, H, Dv]
  std::span<const double> expected;     // [rows, H, Dv]
  std::span<const double> emulated;     // like expected; empty = only the floor counts
  std::span<const double> row_size;     // [rows, H], ReferenceOutput::row_size
  std::span<const double> output_loss;  // [rows, H], ReferenceOutput::output_loss; or empty
  std::span<const std::int32_t> rows;   // token indices, ascending
  RowBatch batch;
};

/// An LSE beside its reference.
struct LseComparison {
  const Tensor* actual = nullptr;    // [H, T]
  std::span<const double> expected;  // [H, rows]
  std::span<const double> emulated;  // like expected, or empty
  std::span<const double> lse_loss;  // [rows, H], ReferenceOutput::lse_loss; or empty
  std::span<const std::int32_t> rows;
  RowBatch batch;
};

/// Errors and limits of rows, both [rows, H]: of an output in the row's size, of an LSE absolute.
/// An error is infinite where NaN or infinity are in different places.
struct RowErrors {
  std::vector<double> errors;
  std::vector<double> limits;
};
RowErrors row_errors(const RowComparison& comparison, const RowLimits& limits);
RowErrors lse_errors(const LseComparison& comparison, const LseLimits& limits);

/// The limits of row_errors() by themselves: all but `actual`'s shape and type is looked at.
std::vector<double> row_limits(const RowComparison& comparison, const RowLimits& limits);

/// Median over rows and heads of a request of values [rows, H]; [B], 0 for a request without rows.
std::vector<double> request_medians(std::span<const double> values,
                                    std::span<const std::int32_t> rows, const RowBatch& batch,
                                    std::int64_t num_heads);

/// Decides, and adds row_error, row_limit, worst_row, rows_outside, requests_outside, matched_pct,
/// limit and rule to `stats`, which compare() made of the same tensors. Reasons are sentences such
/// as "output of request 31, row 0 (position 4000), head 5: error 0.025 of the row's size, limit
/// 0.004; 96 rows of 3 requests are outside". Returns the reasons; none = passed.
/// Errors: E-SHAPE when sizes do not fit each other.
std::vector<std::string> judge_rows(const RowComparison& comparison, const RowLimits& limits,
                                    ErrorStats& stats);
std::vector<std::string> judge_lse_rows(const LseComparison& comparison, const LseLimits& limits,
                                        ErrorStats& stats);

/// Places in [rows, H], ascending, of the rows that these count as outside.
std::vector<std::int64_t> rows_outside(const RowComparison& comparison, const RowLimits& limits);
std::vector<std::int64_t> lse_rows_outside(const LseComparison& comparison,
                                           const LseLimits& limits);

}  // namespace attnbench
