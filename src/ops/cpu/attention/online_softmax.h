// The running softmax of a block of rows. Of every row the scratch holds the largest score so far m
// (row_max), l = sum e^(s - m) (row_sum) and the sum of e^(s - m) v (output). A tile with scores s
// changes them by
//
//   m' = max(m, max s)    factor = e^(m - m')    P = e^(s - m')
//   l' = l * factor + sum P                      O' = O * factor + P V
//
// fold_scores() does all but the last product; rescale_output() must follow before P V is added.
// The result is output / l, once, at the end. Two things keep NaN out of rows that have seen no
// key, whose m is -inf: scores are then taken relative to 0, and the factor is 1 where m does not
// change.
#pragma once

#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Folds scores [keys, row_stride] into the state of every row: scores become P, row_max and
/// row_sum are updated, scratch.rescale holds the factor. A NaN score is passed over by m and shows
/// in l and in the output of its row.
void fold_scores(int keys, Scratch& scratch);

/// output *= rescale, row by row; nothing when every factor is 1, as in most tiles once the largest
/// scores have been seen.
void rescale_output(int v_head_size, Scratch& scratch);

}  // namespace attnbench::cpu
