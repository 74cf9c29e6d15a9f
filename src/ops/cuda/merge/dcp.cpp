// Launches of kernels/merge/dcp.cuh: what one rank does with its partial output, or what combines
// those of all ranks. A CTA first computes the weights of its rows into shared memory, which bounds
// the number of ranks, then reads the partials.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

/// How many vectors of a thread are under way at once: of one rank, or of several.
struct Shares {
  int items;
  int terms;
  int threads;
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
  // Vectors that a CTA has at once, by which dcp_rows_of_cta() finds how many rows that is.
  const int slots = shares.items * shares.threads;
  KernelSpec spec;
  spec.source = "merge/dcp.cuh";
  spec.function = "attn::" + function;
  spec.constants = {{"attn::Element kPartial", spec_name(p.partial_element)},
                    {"attn::Element kOutput", spec_name(p.output_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kItems", std::to_string(shares.items)},
                    {"int kTerms", std::to_string(shares.terms)},
                    {"int kThreads", std::to_string(shares.threads)}};
  spec.name = function + " " + short_name(p.partial_element) + " to " +
              short_name(p.output_element) + " x" + std::to_string(vector);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_tokens * p.num_heads,
                               attn::dcp_rows_of_cta(row_vectors, p.lses.world_size, slots));
  shape.grid_y = ceil_quotient(row_vectors, slots);
  shape.threads = shares.threads;
  launch(launcher, spec, shape, p);
}

}  // namespace

// Of one partial a thread has several vectors under way, of many partials one vector of several.
void correct_dcp(Launcher& launcher, const attn::DcpCorrectParams& params) {
  combine_ranks(launcher, params, 0, {4, 1, 128}, "correct_dcp");
}

void combine_dcp(Launcher& launcher, const attn::DcpCombineParams& params) {
  combine_ranks(launcher, params, params.partial_rank_stride, {1, 4, 256}, "combine_dcp");
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
