// Plans by form of product, and what messages say of them.
#include "ops/cuda/matmul/library_matmul.h"

#include <fmt/format.h>

#include <utility>

#include "ops/cuda/matmul/lt_product.h"
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

}  // namespace

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
