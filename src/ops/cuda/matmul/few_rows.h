// Products of few rows, and what comes before and behind the attention of MLA decodes in one launch
// each: which calls their kernels (kernels/matmul/few_rows.cuh, kernels/fused/latent_query.cuh and
// value_output.cuh) take.
#pragma once

#include <string>

#include "kernels/params_mla.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

// Both are for decodes, whose products read their weights once and do little else. Where cuBLASLt
// is found it does plain products as fast (docs/performance-history.md), so that the kernel of few
// rows is for runs without it and for batch-invariant ones; one launch saves the
// launches and the ways through memory between its steps, which no library does.

/// A tile of C that a CTA makes.
struct FewRowsTile {
  int rows = 0;     // 16, 32 or 64
  int columns = 0;  // 32, 64 or 128
};
/// What is asked of a tile.
struct TileWish {
  int least_columns = 32;  // of 128 at most
  /// Of tiles that are as large: the wider one instead of the taller one.
  bool prefers_columns = false;
};
/// The tile for a product on so many multiprocessors: the largest that still gives nearly each of
/// them one, since small tiles read their part of A, or of B, more often.
FewRowsTile few_rows_tile(const attn::MatmulParams& params, int num_sms, const TileWish& wish = {});

/// Why the kernel cannot take a product ("rows of 100 elements: ..."); empty where it can.
std::string few_rows_misfit(const attn::MatmulParams& params);
/// Whether matmul() takes it where there is no library: where it can be, up to kMostFewRows rows.
bool prefers_few_rows(const attn::MatmulParams& params);
/// From about so many rows on, products of 128 heads are bound by the tensor cores, of which other
/// kernels make more.
inline constexpr std::int64_t kMostFewRows = 128;

/// Why make_latent_query() of these is no single kernel on the target; empty where it is one.
std::string latent_query_misfit(const Target& target, const attn::LatentQueryParams& params);

/// Why project_values() of these is no single kernel on the target; empty where it is one.
std::string value_output_misfit(const Target& target, const attn::ValueOutputParams& params);

/// The product by the kernel of few rows, which takes it.
void multiply_few_rows(Launcher& launcher, const attn::MatmulParams& params);

}  // namespace attnbench::cuda
