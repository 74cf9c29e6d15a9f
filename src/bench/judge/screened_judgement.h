// The verdict on an output of which every row was seen: judge() on the rows that were checked by
// the reference and, after them, on those that screening found suspicious.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bench/judge/judge.h"
#include "bench/judge/screen.h"
#include "reference/row_selection.h"

namespace attnbench {

/// References of some rows, owned.
struct OwnedYardsticks {
  ReferenceOutput reference;
  ReferenceOutput emulation;
  std::optional<ReferenceOutput> unquantised;  // where something is quantised
};
/// Computes them for any rows, ascending; nothing when should_stop said so.
using YardsticksOf =
    std::function<std::optional<OwnedYardsticks>(const std::vector<std::int32_t>& rows)>;

/// Emulates rows in the form that kernels compute them in, where the yardsticks' emulation may have
/// another one to save time: output [those of `rows` for which that can be, heads, Dv]. Nothing
/// when should_stop said so.
using EmulateAsRun = std::function<std::optional<ReferenceOutput>(
    const std::vector<std::int32_t>& rows, const std::vector<int>& heads)>;

/// References of `rows`, ascending, of all heads, that are as right as the yardsticks: each is by
/// codes of the quantised query that another order of sums gives in some of the rows and heads.
/// Nothing when should_stop said so.
using OtherCodes = std::function<std::optional<std::vector<OwnedYardsticks>>(
    const std::vector<std::int32_t>& rows, const std::vector<int>& heads)>;

/// What is judged, and by which rows.
struct ScreenedTrial {
  const Problem& problem;
  const Numerics& numerics;
  const PipelineOutput& output;
  const RowSample& sample;  // of the checked rows
  Yardsticks checked;
  EmulateAsRun emulate_as_run = {};  // empty: the emulation has the form of the kernels
  OtherCodes other_codes = {};       // empty: nothing is quantised that a kernel sums itself
};

/// judge(), with what screening adds: `table` null = nothing was screened beside the checked rows.
/// A row is suspicious beyond the median limit of its request's checked rows, an LSE of e4m3
/// products beyond what its own size explains as well. The worst of them, as many as the reference
/// can afford, are judged like the checked rows, and stand for the others. Figures that are
/// compared between runs are of all screened rows, or of rows that do not depend on the drawn seed.
/// A few rows that are outside are judged once more: by emulate_as_run, and each head of them by
/// that one of other_codes, if any, that it is closest to. Nothing when should_stop said so.
/// Errors: E-INTERNAL where a screening in float64 disagrees with the reference on a row that both
/// have seen.
std::optional<Judgement> judge_screened(const ScreenedTrial& trial, const ScreenTable* table,
                                        const YardsticksOf& yardsticks_of);

/// Rows of a timed sample, ascending, that are suspicious beside the rows that were checked of a
/// run on the case's own inputs: as judge_screened() has it, the worst of them, as many as the
/// reference can afford. trial.output is the sample's, the rest is of that run.
std::vector<std::int32_t> suspicious_rows(const ScreenedTrial& trial, const ScreenTable& table);

/// Errors: E-INTERNAL where a screening in float64 disagrees with the reference on a row that both
/// have seen.
void check_agreement(const ScreenTable& screened, const ScreenTable& reference);

/// The output of a pipeline as it reads; e4m3 is that of a fused static quantisation.
ScreenedOutput screened_output(const Problem& problem, const Tensor& output);

/// Empty, or how a screening in float64 disagrees with the reference: "row 12, head 3: ...".
std::string screening_disagrees(const ScreenTable& screened, const ScreenTable& reference);

/// Results of both, whose rows are different ones, in the order of the rows.
ReferenceOutput join_rows(const ReferenceOutput& a, const ReferenceOutput& b);

}  // namespace attnbench
