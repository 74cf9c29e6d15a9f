// The two products of at most 8 rows, transposed: S^T = K @ Q^T and O^T = V^T @ P^T. Keys and value
// columns then fill the 16 rows of mma.sync, the queries its 8 columns, and half as many products
// are needed as with half of the rows empty. Accumulators are kept in the order of softmax.cuh:
// number 2 * half + i is of one of the thread's two rows (2t + half), and of its key g + 8 i or, in
// block n of the output, of column 8 (2 n + i) + g in the order of the Values.
//
// Operands come from the same Query, Keys and Values as in products.cuh: a right operand of 8
// columns and a left one of 8 rows have the same fragment, so that two right operands make a left
// one.
#pragma once

#include "kernels/attention/products.cuh"

namespace attn {

/// c^T += a @ b with c in that order. mma.sync numbers its accumulators by rows first, here keys or
/// value columns: 1 and 2 trade places.
template <Element kElement>
__device__ __forceinline__ void multiply_add_transposed(float (&c)[4], const u32 (&a)[4], u32 b0,
                                                        u32 b1) {
  float by_column[4] = {c[0], c[2], c[1], c[3]};
  multiply_add<kElement>(by_column, a, b0, b1);
  c[0] = by_column[0];
  c[2] = by_column[1];
  c[1] = by_column[2];
  c[3] = by_column[3];
}

/// Two right operands of 8 columns each as one left operand of 16 rows.
__device__ __forceinline__ void join_operands(const u32 (&first)[2], const u32 (&second)[2],
                                              u32 (&a)[4]) {
  a[0] = first[0];
  a[1] = second[0];
  a[2] = first[1];
  a[3] = second[1];
}

/// S^T = K @ Q^T of 16 keys over kSteps * 16 columns. The first eight rows of the query's left
/// operand, registers 0 and 2, are the right operand here; rows 8 to 15 are empty.
template <Element kElement, int kSteps, class Query, class Keys>
__device__ __forceinline__ void multiply_keys(const Query& query, const Keys& keys, float (&s)[4]) {
  // Why two sums: a product waits for the one before it.
  float sums[2][4] = {};
  constexpr int kUnroll = kSteps > 12 ? 4 : kSteps;
#pragma unroll kUnroll
  for (int k = 0; k < kSteps; ++k) {
    u32 rows[4];
    query.load(k, 0, rows);
    u32 b[2][2];
    keys.load(k, 0, b);
    u32 a[4];
    join_operands(b[0], b[1], a);
    multiply_add_transposed<kElement>(sums[k % 2], a, rows[0], rows[2]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = sums[0][i] + sums[1][i];
}

/// The same of int8 codes over kSteps * 32 columns: exact integers, as f32.
template <int kSteps, class Query, class Keys>
__device__ __forceinline__ void multiply_int8_keys(const Query& query, const Keys& keys,
                                                   float (&s)[4]) {
  int sums[2][4] = {};
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    u32 rows[4];
    query.load(k, 0, rows);
    u32 b[2][2];
    keys.load(k, 0, b);
    u32 a[4];
    join_operands(b[0], b[1], a);
    multiply_add_int8(sums[k % 2], a, rows[0], rows[2]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = i == 1 ? 2 : (i == 2 ? 1 : i);  // as in multiply_add_transposed()
    s[i] = static_cast<float>(sums[0][from] + sums[1][from]);
  }
}

/// O^T += V^T @ P^T of 16 keys. The accumulators of S^T hold a key a lane, the right operand wants
/// two neighbouring keys in a register: transpose_matrix() brings them from one layout to the
/// other.
template <Element kElement, class Values, int kValueBlocks>
__device__ __forceinline__ void accumulate_columns(const float (&p)[4], const Values& values,
                                                   float (&o)[kValueBlocks][4]) {
  const u32 b0 = transpose_matrix(pack<kElement>(p[0], p[2]));
  const u32 b1 = transpose_matrix(pack<kElement>(p[1], p[3]));
#pragma unroll
  for (int n = 0; n < 2 * kValueBlocks; n += Values::kBlocks) {
    u32 b[Values::kBlocks][2];
    values.load(0, n, b);
#pragma unroll
    for (int j = 0; j < Values::kBlocks; j += 2) {
      u32 a[4];
      join_operands(b[j], b[j + 1], a);
      multiply_add_transposed<kElement>(o[(n + j) / 2], a, b0, b1);
    }
  }
}

/// accumulate_nonfinite() for transposed products: left operands are codes of the values, right
/// ones which of the keys each row sees.
template <Element kElement, class Values, int kValueBlocks>
__device__ __forceinline__ void accumulate_nonfinite_columns(const Row* rows, int first_key,
                                                             const Values& values,
                                                             float (&o)[kValueBlocks][4]) {
  u32 seen[4];
  visibility_weights<kElement>(rows, first_key, seen);
#pragma unroll
  for (int n = 0; n < 2 * kValueBlocks; n += Values::kBlocks) {
    u32 b[Values::kBlocks][2];
    values.load(0, n, b);
#pragma unroll
    for (int j = 0; j < Values::kBlocks; j += 2) {
      u32 a[4];
      join_operands(b[j], b[j + 1], a);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = nonfinite_codes<kElement>(a[i]);
      float codes[4] = {};
      multiply_add_transposed<kElement>(codes, a, seen[0], seen[2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) o[(n + j) / 2][i] += nonfinite_sum(codes[i]);
    }
  }
}

}  // namespace attn
