// The attention operations: each call goes to the first candidate that fits, and its parts are put
// together by kernels/attention/combine.cuh. There is one kernel for combining, whoever wrote the
// parts: candidates agree on the layout and meaning of partial results, which kernels/params.h
// gives.
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Announces the call, for those who record decisions, and launches what is chosen for it.
void run_attend(Launcher& launcher, const AttendCall& call) {
  launcher.note_attend(call);
  choose_attend(launcher.target(), call, launcher.forced_kernel()).launch(launcher, call);
}

}  // namespace

void attend(Launcher& launcher, const attn::AttendParams& params) {
  run_attend(launcher, {AttendOperation::kWhole, &params});
}

void attend_splits(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SplitParams& split) {
  run_attend(launcher, {.operation = AttendOperation::kSplits, .params = &params, .split = &split});
}

void attend_segments(Launcher& launcher, const attn::AttendParams& params,
                     const attn::SegmentParams& segments) {
  run_attend(launcher,
             {.operation = AttendOperation::kSegments, .params = &params, .segments = &segments});
}

void attend_plan(Launcher& launcher, const attn::AttendParams& params,
                 const attn::PlanParams& plan) {
  run_attend(launcher, {.operation = AttendOperation::kPlan, .params = &params, .plan = &plan});
}

void attend_sparse(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SparseParams& sparse) {
  run_attend(launcher,
             {.operation = AttendOperation::kSparse, .params = &params, .sparse = &sparse});
}

void attend_sparse_plan(Launcher& launcher, const attn::AttendParams& params,
                        const attn::SparseParams& sparse, const attn::PlanParams& plan) {
  run_attend(launcher, {.operation = AttendOperation::kSparsePlan,
                        .params = &params,
                        .plan = &plan,
                        .sparse = &sparse});
}

// Parts of splits and segments are combined by kernels that may be launched while the attention
// before them ends and wait for its results themselves (overlaps_previous). combine_plan does not.
void combine_splits(Launcher& launcher, const attn::AttendParams& params,
                    const attn::SplitParams& split) {
  const AttendKernel kernel = combine_kernel(params, "combine_splits", split.num_splits);
  LaunchShape shape;
  shape.overlaps_previous = true;
  shape.grid_x = params.num_requests == 0
                     ? 0
                     : ceil_quotient(split.num_tokens * params.num_heads, kernel.tile_rows);
  shape.threads = kernel.threads;
  cuda::launch(launcher, kernel.spec, shape, params, split);
}

void reduce_segments(Launcher& launcher, const attn::AttendParams& params,
                     const attn::SegmentParams& segments) {
  const AttendKernel kernel = combine_kernel(params, "reduce_segments", segments.num_segments);
  LaunchShape shape;
  shape.overlaps_previous = true;
  shape.grid_x =
      ceil_quotient(std::int64_t{params.max_query_len} * params.num_heads, kernel.tile_rows);
  shape.grid_y = params.num_requests;
  shape.threads = kernel.threads;
  cuda::launch(launcher, kernel.spec, shape, params, segments);
}

void combine_plan(Launcher& launcher, const attn::AttendParams& params,
                  const attn::PlanParams& plan) {
  AttendKernel kernel = combine_kernel(params, "combine_plan", 1);
  LaunchShape shape;
  shape.grid_x =
      ceil_quotient(std::int64_t{params.max_query_len} * params.num_heads, kernel.tile_rows);
  shape.grid_y = params.num_requests;
  shape.threads = kernel.threads;
  cuda::launch(launcher, kernel.spec, shape, params, plan);
}

}  // namespace attnbench::cuda
