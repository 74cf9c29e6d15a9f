// A product put into the words of the library, plans by form of product, and what messages say of
// them. Each test of lt_product() is one of the refusals that its declaration lists.
#include "ops/cuda/matmul/library_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

std::string shape_text(const attn::MatmulParams& p) {
  return fmt::format("{} x [{}, {}] x {}", p.num_batches, p.m, p.k,
                     p.b_transposed != 0 ? fmt::format("[{}, {}]^T", p.n, p.k)
                                         : fmt::format("[{}, {}]", p.k, p.n));
}

std::string types_text(const attn::MatmulParams& p) {
  return short_name(p.element) + " to " + short_name(p.output_element);
}

using attn::i64;

/// Of a matrix with `columns` of `rows` elements each; what a single column or matrix does not need
/// is put in order.
struct Placed {
  const void* first;
  i64 rows, columns, leading, batch_stride;
  attn::Element element;
};

std::optional<MatrixType> matrix_type(attn::Element element) {
  if (element == attn::Element::kF32) return MatrixType::kF32;
  if (element == attn::Element::kF16) return MatrixType::kF16;
  if (element == attn::Element::kBF16) return MatrixType::kBF16;
  return std::nullopt;
}

/// Products of 16-bit elements are stored in their type or in f32, those of f32 in f32.
bool has_types(attn::Element element, attn::Element output) {
  return matrix_type(element) && (output == element || output == attn::Element::kF32);
}

/// What the address of every matrix of the batch is a multiple of.
int alignment_of(const Placed& matrix) {
  constexpr std::uint64_t kMost = 256;
  const auto stride =
      static_cast<std::uint64_t>(matrix.batch_stride * size_of_element(matrix.element));
  const std::uint64_t all = reinterpret_cast<std::uintptr_t>(matrix.first) | stride | kMost;
  return 1 << std::countr_zero(all);
}

std::optional<LtMatrix> lt_matrix(Placed matrix, i64 batches) {
  constexpr i64 kMost = std::numeric_limits<std::int32_t>::max();
  if (matrix.columns == 1) matrix.leading = std::max(matrix.leading, matrix.rows);
  if (batches == 1) matrix.batch_stride = 0;
  if (matrix.rows > kMost || matrix.columns > kMost || matrix.leading > kMost) return std::nullopt;
  if (matrix.leading < matrix.rows || matrix.batch_stride < 0) return std::nullopt;
  return LtMatrix{*matrix_type(matrix.element), matrix.rows,         matrix.columns, matrix.leading,
                  matrix.batch_stride,          alignment_of(matrix)};
}

}  // namespace

std::optional<LtProduct> lt_product(const attn::MatmulParams& p) {
  constexpr i64 kMostBatches = 65535;
  if (p.batch_invariant != 0 || !has_types(p.element, p.output_element)) return std::nullopt;
  if (p.m <= 0 || p.n <= 0 || p.k <= 0) return std::nullopt;
  if (p.num_batches <= 0 || p.num_batches > kMostBatches) return std::nullopt;
  if (p.num_batches > 1 && p.c_batch_stride == 0) return std::nullopt;
  const bool transposed = p.b_transposed != 0;
  const auto a = lt_matrix({p.b, transposed ? p.k : p.n, transposed ? p.n : p.k, p.b_row_stride,
                            p.b_batch_stride, p.element},
                           p.num_batches);
  const auto b =
      lt_matrix({p.a, p.k, p.m, p.a_row_stride, p.a_batch_stride, p.element}, p.num_batches);
  const auto d =
      lt_matrix({p.c, p.n, p.m, p.c_row_stride, p.c_batch_stride, p.output_element}, p.num_batches);
  if (!a || !b || !d) return std::nullopt;
  return LtProduct{*a, *b, *d, transposed, false, static_cast<int>(p.num_batches)};
}

LibraryMatmul::LibraryMatmul(CublasLtOpener open, Runtime& runtime, const Stream& stream,
                             Ops& memory)
    : open_(std::move(open)), runtime_(runtime), stream_(stream), memory_(memory) {}

const LibraryProduct* LibraryMatmul::find_or_plan(const attn::MatmulParams& params) {
  const std::optional<LtProduct> product = lt_product(params);
  if (!product) return nullptr;
  if (open_) library_ = std::exchange(open_, nullptr)(runtime_, stream_).library;
  if (!library_) return nullptr;
  auto known = products_.find(*product);
  if (known == products_.end()) {
    known = products_.emplace(*product, plan(*library_, *product, params)).first;
  }
  return known->second.plan ? &known->second : nullptr;
}

LibraryProduct LibraryMatmul::plan(CublasLt& library, const LtProduct& product,
                                   const attn::MatmulParams& params) {
  const std::string by = "by cuBLASLt " + library.version();
  LibraryProduct planned;
  try {
    planned.plan = library.plan(product);
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("matmul {} {} of {}: {}", types_text(params), by,
                                  shape_text(params), error.what()),
                      error.is_sticky());
  }
  if (!planned.plan) return planned;
  planned.info.name = fmt::format("matmul {} {} ({}; {})", types_text(params), by,
                                  shape_text(params), planned.plan->algorithm());
  // Why the largest at once: launches that were captured keep its address.
  if (planned.plan->workspace_bytes() > 0 && !workspace_) {
    workspace_ = memory_.allocate(kMostLtWorkspaceBytes, "cuBLASLt's workspace");
  }
  return planned;
}

void LibraryMatmul::run(const LibraryProduct& product, const attn::MatmulParams& params) {
  void* const workspace = product.plan->workspace_bytes() > 0 ? workspace_->data() : nullptr;
  try {
    product.plan->run(params.b, params.a, params.c, workspace);
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("{}: {}", product.info.name, error.what()), error.is_sticky());
  }
}

void LibraryMatmul::poison_workspace() {
  if (workspace_) memory_.poison(*workspace_);
}

}  // namespace attnbench::cuda
