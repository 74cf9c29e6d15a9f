// The two matrix products of a tile of attention, S = Q K^T and O += P V, in float32.
//
// Each has two forms. Large blocks of rows go to Eigen's matrix product, for which rows are the
// fastest dimension of scores and output ("transposed"): the softmax then works on whole vectors of
// rows. Small blocks, as of a decode, would leave such vectors half empty; there the vectors run
// along D and Dv, and the sums of up to kMaxSmallRows rows stay in registers.
//
// Callers take the form that scratch.small says, for both products and for the layouts of query and
// output. Within a form the order of every sum follows from the extents and the machine.
#pragma once

namespace attnbench::cpu {

/// scores [keys, rows] = key [keys, depth] * query [depth, rows]: S^T = K Q^T.
void multiply_scores(const float* query, const float* key, int rows, int keys, int depth,
                     float* scores);

/// output [width, rows] += value [keys, width]^T * weights [keys, rows]: O^T += V^T P^T. A weight
/// of 0 times a value that is NaN or infinite is NaN, so values must be finite where rows are
/// masked.
void accumulate_output(const float* weights, const float* value, int rows, int keys, int width,
                       float* output);

/// The same for at most kMaxSmallRows rows: query [rows, depth], output [rows, width]; scores and
/// weights [keys, row_stride].
void multiply_scores_small(const float* query, const float* key, int rows, int keys, int depth,
                           int row_stride, float* scores);
void accumulate_output_small(const float* weights, const float* value, int rows, int keys,
                             int width, int row_stride, float* output);

}  // namespace attnbench::cpu
