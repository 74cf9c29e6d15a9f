// Products in the words of cuBLASLt, evaluated by columns as it is documented to do, against the
// same operation on the CPU.
#include "ops/cuda/matmul/library_matmul.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "ops/cuda/testing/column_major_testing.h"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {
namespace {

/// Without the large values of drawn(), beside which the others would be lost.
Tensor modest(Dtype dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  Tensor tensor = drawn(dtype, std::move(shape), static_cast<unsigned>(seed), false);
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.set(i, std::clamp(tensor.at(i), -3.0f, 3.0f));
  }
  return tensor;
}

/// Where the matrices of an operand lie in a tensor, in elements.
struct Operand {
  Tensor tensor;
  std::int64_t first = 0;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;

  void* data() {
    return tensor.bytes() + first * static_cast<std::int64_t>(dtype_size(tensor.dtype()));
  }
};

struct Extents {
  std::int64_t batches, m, n, k;
  bool transposed = false;
};

/// Operands whose rows lie `width + padding` apart: batch after batch, or row after row with the
/// batches beside one another, as heads are.
Operand operand(Dtype dtype, std::int64_t batches, std::int64_t rows, std::int64_t width,
                std::int64_t padding, bool interleaved, std::int64_t first, std::uint64_t seed) {
  const std::int64_t pitch = width + padding;
  Operand o{modest(dtype, {first + batches * rows * pitch}, seed), first, 0, 0};
  o.row_stride = interleaved ? batches * pitch : pitch;
  o.batch_stride = interleaved ? pitch : rows * pitch;
  return o;
}

attn::MatmulParams params_of(const Extents& e, Operand& a, Operand& b, Operand& c) {
  return {element_of(a.tensor.dtype()),
          element_of(c.tensor.dtype()),
          a.data(),
          a.batch_stride,
          a.row_stride,
          b.data(),
          b.batch_stride,
          b.row_stride,
          e.transposed ? 1 : 0,
          c.data(),
          c.batch_stride,
          c.row_stride,
          e.batches,
          e.m,
          e.n,
          e.k,
          0};
}

/// Elements of C that differ between the operation and the mapped product, poison included; -1
/// where the product is not mapped.
int num_different(const Extents& e, Operand a, Operand b, Operand c) {
  c.tensor = poisoned(c.tensor.dtype(), c.tensor.shape());
  Operand expected = c;
  make_cpu_ops(1)->matmul(params_of(e, a, b, expected));
  const attn::MatmulParams params = params_of(e, a, b, c);
  const std::optional<LtProduct> product = lt_product(params);
  if (!product) return -1;
  multiply_by_columns(*product, params.b, params.a, params.c);
  const double step = c.tensor.dtype() == Dtype::kF32 ? 1e-6 : 8e-3;
  int count = 0;
  for (std::int64_t i = 0; i < c.tensor.num_elements(); ++i) {
    const double found = double{c.tensor.at(i)};
    const double wanted = double{expected.tensor.at(i)};
    if (std::isnan(found) != std::isnan(wanted)) ++count;
    if (std::fabs(found - wanted) > step * std::fabs(wanted) + 1e-4) ++count;
  }
  return count;
}

/// As the pipelines of MLA call the operation, with `heads` of `all` heads from `first` on.
struct MlaShape {
  std::int64_t tokens, all, first, heads, latent, nope, rope, value;
};

int different_of_query(const MlaShape& s, Dtype dtype) {
  const std::int64_t qk = s.nope + s.rope;
  const Operand query{modest(dtype, {s.tokens, s.all, qk}, 1), s.first * qk, qk, s.all * qk};
  const Operand w_uk{modest(dtype, {s.all, s.nope, s.latent}, 2), s.first * s.nope * s.latent,
                     s.nope * s.latent, s.latent};
  const Operand latent{Tensor(dtype, {s.tokens + 1, s.heads, s.latent}), 0, s.latent,
                       s.heads * s.latent};
  return num_different({s.heads, s.tokens, s.latent, s.nope}, query, w_uk, latent);
}

int different_of_value(const MlaShape& s, Dtype dtype, std::int64_t padded_heads) {
  const Operand latent{modest(dtype, {s.tokens, padded_heads, s.latent}, 3), 0, s.latent,
                       padded_heads * s.latent};
  const Operand w_uv{modest(dtype, {s.all, s.latent, s.value}, 4), s.first * s.latent * s.value,
                     s.latent * s.value, s.value};
  const Operand output{Tensor(dtype, {s.tokens + 1, s.all, s.value}), s.first * s.value, s.value,
                       s.all * s.value};
  return num_different({s.heads, s.tokens, s.value, s.latent}, latent, w_uv, output);
}

int different_of_expansion(const MlaShape& s, Dtype dtype, std::int64_t entry) {
  const std::int64_t kv = s.nope + s.value;
  const Operand kv_c{modest(dtype, {s.tokens, entry}, 5), 0, 0, entry};
  const Operand kv_b_proj{modest(dtype, {s.all * kv, s.latent}, 6), s.first * kv * s.latent, 0,
                          s.latent};
  const Operand expanded{Tensor(dtype, {s.tokens + 1, s.heads * kv}), 0, 0, s.heads * kv};
  return num_different({1, s.tokens, s.heads * kv, s.latent, true}, kv_c, kv_b_proj, expanded);
}

struct Small {
  Operand a = operand(Dtype::kBF16, 3, 5, 8, 0, false, 0, 7);
  Operand b = operand(Dtype::kBF16, 3, 8, 6, 0, false, 0, 8);
  Operand c = operand(Dtype::kBF16, 3, 5, 6, 0, false, 0, 9);
  attn::MatmulParams params = params_of({3, 5, 6, 8}, a, b, c);
};

}  // namespace

TEST_CASE("every product of MLA's pipelines is the library's, whatever rank and padding") {
  for (const MlaShape& s : std::array<MlaShape, 4>{{{7, 4, 0, 4, 32, 12, 4, 16},
                                                    {7, 4, 2, 2, 32, 12, 4, 16},
                                                    {1, 3, 0, 3, 16, 8, 3, 5},
                                                    {9, 5, 1, 1, 24, 7, 9, 1}}}) {
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
      INFO(dtype_name(dtype), " ", s.tokens, " tokens, heads from ", s.first);
      CHECK(different_of_query(s, dtype) == 0);
      CHECK(different_of_value(s, dtype, s.heads) == 0);
      CHECK(different_of_value(s, dtype, s.heads + 3) == 0);
      CHECK(different_of_expansion(s, dtype, s.latent) == 0);
      CHECK(different_of_expansion(s, dtype, s.latent + s.rope) == 0);
    }
  }
}

TEST_CASE("random strides, orders, offsets and types agree with the operation") {
  std::mt19937 random(11);
  const auto upto = [&](unsigned most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  for (int i = 0; i < 200; ++i) {
    const Extents e{1 + upto(3), 1 + upto(9), 1 + upto(20), 1 + upto(30), upto(1) == 1};
    const auto dtype = std::array{Dtype::kBF16, Dtype::kF16, Dtype::kF32}[random() % 3];
    const Dtype output = upto(1) == 1 ? Dtype::kF32 : dtype;
    const Operand a = operand(dtype, e.batches, e.m, e.k, upto(4), upto(1) == 1, upto(5), random());
    Operand b = operand(dtype, e.batches, e.transposed ? e.n : e.k, e.transposed ? e.k : e.n,
                        upto(4), upto(1) == 1, upto(5), random());
    if (upto(3) == 0) b.batch_stride = 0;
    const Operand c =
        operand(output, e.batches, e.m, e.n, upto(4), upto(1) == 1, upto(5), random());
    CAPTURE(i);
    CHECK(num_different(e, a, b, c) == 0);
  }
}

TEST_CASE("strides that nothing steps over do not matter") {
  Operand a = operand(Dtype::kBF16, 1, 1, 8, 0, false, 0, 7);
  Operand b = operand(Dtype::kBF16, 1, 6, 8, 0, false, 0, 8);
  Operand c = operand(Dtype::kBF16, 1, 1, 6, 0, false, 0, 9);
  const Extents e{1, 1, 6, 8, true};
  const std::optional<LtProduct> product = lt_product(params_of(e, a, b, c));
  a.batch_stride = b.batch_stride = c.batch_stride = -5;
  a.row_stride = c.row_stride = 0;
  CHECK(num_different(e, a, b, c) == 0);
  CHECK(product == lt_product(params_of(e, a, b, c)));
}

TEST_CASE("what the library cannot express is the own kernel's") {
  const auto refused = [](const std::function<void(attn::MatmulParams&)>& change) {
    Small small;
    change(small.params);
    return !lt_product(small.params).has_value();
  };
  CHECK_FALSE(refused([](attn::MatmulParams&) {}));
  CHECK(refused([](attn::MatmulParams& p) { p.batch_invariant = 1; }));
  CHECK(refused([](attn::MatmulParams& p) { p.m = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.n = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.k = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.num_batches = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.num_batches = 65536; }));
  CHECK(refused([](attn::MatmulParams& p) { p.a_row_stride = p.k - 1; }));
  CHECK(refused([](attn::MatmulParams& p) { p.b_row_stride = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.c_row_stride = -p.n; }));
  CHECK(refused([](attn::MatmulParams& p) { p.a_batch_stride = -40; }));
  CHECK(refused([](attn::MatmulParams& p) { p.c_batch_stride = 0; }));
  CHECK(refused([](attn::MatmulParams& p) { p.a_row_stride = attn::i64{1} << 31; }));
  CHECK(refused([](attn::MatmulParams& p) { p.output_element = attn::Element::kF16; }));
  CHECK(refused([](attn::MatmulParams& p) { p.element = attn::Element::kF32; }));
  CHECK(refused([](attn::MatmulParams& p) { p.element = attn::Element::kE4M3; }));
}

TEST_CASE("the alignment that is promised holds for every matrix of the batch") {
  Small small;
  alignas(256) std::array<std::byte, 512> memory{};
  small.params.a = memory.data();
  small.params.a_batch_stride = 256;
  CHECK(lt_product(small.params)->b.alignment == 256);
  small.params.a_batch_stride = 40;
  CHECK(lt_product(small.params)->b.alignment == 16);
  small.params.a = memory.data() + 2;
  CHECK(lt_product(small.params)->b.alignment == 2);
  small.params.num_batches = 1;
  small.params.a = memory.data() + 64;
  CHECK(lt_product(small.params)->b.alignment == 64);
}

}  // namespace attnbench::cuda
