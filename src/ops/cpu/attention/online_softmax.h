// The running softmax of a block of rows: m, l and the rescaling of what was summed before.
#pragma once

#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Folds scores [keys, row_stride] into the state of every row: scores become P = e^(s - m),
/// row_max and row_sum are updated, scratch.rescale holds e^(m_old - m_new).
void fold_scores(int keys, Scratch& scratch);

/// output *= rescale, row by row; nothing when every factor is 1.
void rescale_output(int v_head_size, Scratch& scratch);

}  // namespace attnbench::cpu
