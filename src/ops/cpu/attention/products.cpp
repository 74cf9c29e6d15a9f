// Products of large blocks by Eigen, of small ones by its vector type ("packet"), whose width
// follows the instructions that the build may use.
#include "ops/cpu/attention/products.h"

// Why: g++ 12 takes the "undefined" operand of its own AVX-512 intrinsics for a mistake of ours.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>

#include "ops/cpu/scratch.h"

namespace attnbench::cpu {
namespace {

using Matrix = Eigen::Map<Eigen::MatrixXf>;  // column-major
using ConstMatrix = Eigen::Map<const Eigen::MatrixXf>;
using ConstRowMajor =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

using Packet = Eigen::internal::packet_traits<float>::type;
constexpr int kPacket = Eigen::internal::packet_traits<float>::size;
using Eigen::internal::ploadu;
using Eigen::internal::pmadd;
using Eigen::internal::predux;
using Eigen::internal::pset1;
using Eigen::internal::pstoreu;

/// A key is loaded once for all rows; kRows is a constant so that the sums are registers.
template <int kRows>
void scores_of_rows(const float* query, const float* key, int keys, int depth, int row_stride,
                    float* scores) {
  const int vector_depth = depth / kPacket * kPacket;
  for (int j = 0; j < keys; ++j, key += depth, scores += row_stride) {
    Packet sum[kRows];
    for (Packet& s : sum) s = pset1<Packet>(0.0f);
    for (int d = 0; d < vector_depth; d += kPacket) {
      const Packet k = ploadu<Packet>(key + d);
      for (int r = 0; r < kRows; ++r) {
        sum[r] = pmadd(ploadu<Packet>(query + r * depth + d), k, sum[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float dot = predux(sum[r]);
      for (int d = vector_depth; d < depth; ++d) dot += query[r * depth + d] * key[d];
      scores[r] = dot;
    }
  }
}

/// Values are read once for each vector of columns, the weights of a key once for every one.
template <int kRows>
void output_of_rows(const float* weights, const float* value, int keys, int width, int row_stride,
                    float* output) {
  const int vector_width = width / kPacket * kPacket;
  // Columns outside, keys inside: the sums of kRows rows stay in registers.
  for (int d = 0; d < vector_width; d += kPacket) {
    Packet sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = ploadu<Packet>(output + r * width + d);
    for (int j = 0; j < keys; ++j) {
      const Packet v = ploadu<Packet>(value + j * width + d);
      for (int r = 0; r < kRows; ++r) {
        sum[r] = pmadd(pset1<Packet>(weights[j * row_stride + r]), v, sum[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) pstoreu(output + r * width + d, sum[r]);
  }
  for (int d = vector_width; d < width; ++d) {
    for (int r = 0; r < kRows; ++r) {
      float sum = output[r * width + d];
      for (int j = 0; j < keys; ++j) sum += weights[j * row_stride + r] * value[j * width + d];
      output[r * width + d] = sum;
    }
  }
}

/// Calls function.operator()<rows>() with the row count as a constant.
template <int kRows = 1, typename Function>
void with_row_count(int rows, const Function& function) {
  if constexpr (kRows <= kMaxSmallRows) {
    if (rows == kRows) {
      function.template operator()<kRows>();
    } else {
      with_row_count<kRows + 1>(rows, function);
    }
  }
}

}  // namespace

void multiply_scores(const float* query, const float* key, int rows, int keys, int depth,
                     float* scores) {
  Matrix(scores, rows, keys).noalias() =
      ConstMatrix(query, rows, depth) * ConstMatrix(key, depth, keys);
}

void accumulate_output(const float* weights, const float* value, int rows, int keys, int width,
                       float* output) {
  Matrix(output, rows, width).noalias() +=
      ConstMatrix(weights, rows, keys) * ConstRowMajor(value, keys, width);
}

void multiply_scores_small(const float* query, const float* key, int rows, int keys, int depth,
                           int row_stride, float* scores) {
  with_row_count(rows, [&]<int kRows>() {
    scores_of_rows<kRows>(query, key, keys, depth, row_stride, scores);
  });
}

void accumulate_output_small(const float* weights, const float* value, int rows, int keys,
                             int width, int row_stride, float* output) {
  with_row_count(rows, [&]<int kRows>() {
    output_of_rows<kRows>(weights, value, keys, width, row_stride, output);
  });
}

}  // namespace attnbench::cpu
