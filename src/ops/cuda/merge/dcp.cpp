// Launches of kernels/merge/dcp.cuh: what one rank does with its partial output, or what combines
// those of all ranks. A CTA first computes the weights of its rows into shared memory, which bounds
// the number of ranks, then reads the partials.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

constexpr int kThreads = 64;

/// How many vectors of a thread are under way at once: of so many tokens and ranks.
struct Shares {
  int tokens;
  int terms;
};

/// Both operations; `rank_stride` is 0 where there is one partial.
template <typename Params>
void combine_ranks(Launcher& launcher, const Params& p, std::int64_t rank_stride,
                   const Shares& shares, const std::string& function) {
  if (p.lses.world_size > attn::kDcpWeightsOfCta) {
    fail(ErrorKind::kCapacity, "{} on CUDA expects at most {} ranks, got {}", function,
         attn::kDcpWeightsOfCta, p.lses.world_size);
  }
  VectorSide partial{p.partial_element, {}};
  partial.alignment.pointer(p.partial)
      .stride(rank_stride, p.partial_element)
      .stride(p.partial_token_stride, p.partial_element)
      .stride(p.partial_head_stride, p.partial_element);
  VectorSide output{p.output_element, {}};
  output.alignment.pointer(p.output)
      .stride(p.output_token_stride, p.output_element)
      .stride(p.output_head_stride, p.output_element);
  const int most =
      16 / std::max(size_of_element(p.partial_element), size_of_element(p.output_element));
  const int vector = widest_vector(most, {p.head_size}, {partial, output});
  const int row_vectors = p.head_size / vector;
  KernelSpec spec;
  spec.source = "merge/dcp.cuh";
  spec.function = "attn::" + function;
  spec.constants = {{"attn::Element kPartial", spec_name(p.partial_element)},
                    {"attn::Element kOutput", spec_name(p.output_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kTokens", std::to_string(shares.tokens)},
                    {"int kTerms", std::to_string(shares.terms)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = function + " " + short_name(p.partial_element) + " to " +
              short_name(p.output_element) + " x" + std::to_string(vector);
  const int heads = attn::dcp_heads_of_cta(row_vectors, p.lses.world_size, shares.tokens, kThreads);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_heads, heads) * ceil_quotient(p.num_tokens, shares.tokens);
  shape.grid_y = ceil_quotient(row_vectors, kThreads);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

}  // namespace

// Measured on one NVIDIA H200, 2026-11-29, 8192 tokens of 64 x 128 in bf16 over 2 and 8 ranks: half
// or twice the tokens make a correction 6 to 39 % slower, 128 threads 1 to 2 %, 256 threads 6 to
// 9 %. 2 partials by one token of four terms take 42 % longer, 8 partials by two tokens 2 %.
void correct_dcp(Launcher& launcher, const attn::DcpCorrectParams& params) {
  combine_ranks(launcher, params, 0, {4, 1}, "correct_dcp");
}

void combine_dcp(Launcher& launcher, const attn::DcpCombineParams& params) {
  const Shares shares = params.lses.world_size < 4 ? Shares{2, 2} : Shares{1, 4};
  combine_ranks(launcher, params, params.partial_rank_stride, shares, "combine_dcp");
}

void sum_ranks(Launcher& launcher, const attn::SumRanksParams& params) {
  VectorSide all{params.element, {}};
  all.alignment.pointer(params.output);
  for (int rank = 0; rank < params.world_size; ++rank) all.alignment.pointer(params.parts[rank]);
  const int vector = widest_vector(16 / size_of_element(params.element), {params.count}, {all});
  launch(launcher,
         simple_spec("merge/dcp.cuh", "sum_ranks",
                     {{"attn::Element kElement", spec_name(params.element)},
                      {"int kVector", std::to_string(vector)}},
                     "sum_ranks " + short_name(params.element) + " x" + std::to_string(vector)),
         simple_shape(params.count / vector), params);
}

}  // namespace attnbench::cuda
