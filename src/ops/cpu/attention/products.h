// The two matrix products of a tile of attention.
#pragma once

namespace attnbench::cpu {

/// scores [keys, rows] = key [keys, depth] * query [depth, rows]: S^T = K Q^T.
void multiply_scores(const float* query, const float* key, int rows, int keys, int depth,
                     float* scores);

/// output [width, rows] += value [keys, width]^T * weights [keys, rows]: O^T += V^T P^T.
void accumulate_output(const float* weights, const float* value, int rows, int keys, int width,
                       float* output);

/// The same for at most kMaxSmallRows rows: query [rows, depth], output [rows, width]; scores and
/// weights [keys, row_stride].
void multiply_scores_small(const float* query, const float* key, int rows, int keys, int depth,
                           int row_stride, float* scores);
void accumulate_output_small(const float* weights, const float* value, int rows, int keys,
                             int width, int row_stride, float* output);

}  // namespace attnbench::cpu
