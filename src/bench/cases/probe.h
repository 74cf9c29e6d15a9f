// The second draw of a case: the same problem on the values of the probe, whatever the scenario
// draws. A scenario's values may show little: keys of random scores have a weight of 1/S each, and
// inputs.std 0.02 makes every softmax a mean. The probe has needles and biased values (needles.h).
//
// The reference is shared between both draws, and of the probe those rows matter most that have
// needles: they come first where not all can be afforded. Everything here is a pure function of the
// problem, so the rows are the same on every machine and for every backend.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "reference/row_selection.h"

namespace attnbench {

/// Whether there is attention to probe: no operation, some rows, values and not only shapes.
bool has_probe(const Problem& problem);

/// The problem of the second draw: inputs.distribution probe with another seed and without a file.
/// inputs.std is chosen so that ordinary scores have a deviation of about 1 under the problem's
/// scale: 1 for the usual scale. Everything else stays, lengths, types and scales included, but
/// that no scale file is saved: mm_encoder.fp8_scale_save_path wants the scales of the scenario's
/// values.
Problem probe_problem(const Problem& problem);

/// Token rows that the reference checks: all of them while a third of `budget` affords it (the
/// scenario's draw has what the budget says), otherwise rows with needles, spread over the
/// requests, the longest and the shortest first, at least a quarter of budget.least_rows; or
/// validation.max_rows rows, filled up with rows without needles. `problem` is one with
/// inputs.distribution probe.
std::vector<std::int32_t> probe_rows(const Problem& problem, const RowBudget& budget = {});

/// A handful of rows with needles for as many GFLOP as mutants of the reference may cost (about a
/// quarter for each of the ten passes that they take, at least one row, at most six): the last
/// ones of the longest and of the shortest request and a few between them. Empty where has_probe()
/// says no.
std::vector<std::int32_t> mutant_rows(const Problem& problem);

}  // namespace attnbench
