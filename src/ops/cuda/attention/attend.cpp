// The attention operations: each call goes to the first candidate that fits, and its parts are put
// together by kernels/attention/combine.cuh. There is one kernel for combining, whoever wrote the
// parts: candidates agree on the layout and meaning of partial results, which kernels/params.h
// gives.
#include <string>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Warps of a CTA that puts parts together: a row each, or, from so many parts on, all for one row.
constexpr int kCombineWarps = 4;
constexpr int kWideCombineWarps = 8;
constexpr int kWideCombineParts = 9;
constexpr int kLanes = 32;

/// Announces the call, for those who record decisions, and launches what is chosen for it: that.
const AttendCandidate& run_attend(Launcher& launcher, const AttendCall& call) {
  launcher.note_attend(call);
  const AttendCandidate& chosen = choose_attend(launcher.target(), call, launcher.forced_kernel());
  chosen.launch(launcher, call);
  return chosen;
}

}  // namespace

AttendKernel combine_kernel(const attn::AttendParams& params, const std::string& entry, int parts,
                            std::int64_t most_parts) {
  const bool wide = parts >= kWideCombineParts;
  const int warps = wide ? kWideCombineWarps : kCombineWarps;
  AttendKernel kernel;
  kernel.spec.source = "attention/combine.cuh";
  kernel.spec.function = "attn::" + entry;
  kernel.spec.constants = {{"attn::Element kOutput", spec_name(params.output_element)},
                           {"int kVHeadSize", std::to_string(params.v_head_size)},
                           {"int kWarps", std::to_string(warps)},
                           {"int kRowWarps", std::to_string(wide ? warps : 1)},
                           {"bool kFewParts", spec_flag(most_parts <= kLanes)}};
  // Splits are as many for every row. Wider rows, of latents, would take 157 registers. The kernel
  // asks whether there is such a constant.
  constexpr int kMostTogetherColumns = 256;
  if (entry == "combine_splits" && !wide && params.v_head_size <= kMostTogetherColumns) {
    kernel.spec.constants.emplace_back("int kTogether", std::to_string(parts));
  }
  kernel.spec.name =
      fmt::format("{} d{} to {}", entry, params.v_head_size, short_name(params.output_element));
  kernel.tile_rows = wide ? 1 : warps;
  kernel.threads = warps * 32;
  return kernel;
}

void attend(Launcher& launcher, const attn::AttendParams& params) {
  run_attend(launcher, {AttendOperation::kWhole, &params});
}

namespace {

/// One launch where the kernel stores what is new itself; else two on one stream, so that attention
/// sees the new tokens. Returns what attends.
const AttendCandidate& save_and_run(Launcher& launcher, AttendCall call) {
  const attn::Int8CacheWriteParams& save = *call.save;
  launcher.note_attend(call);
  const AttendCandidate& candidate =
      choose_attend(launcher.target(), call, launcher.forced_kernel());
  if (candidate.saves == nullptr || !candidate.saves(launcher, call)) {
    write_cache_int8(launcher, save);
    call.save = nullptr;
  }
  candidate.launch(launcher, call);
  return candidate;
}

}  // namespace

void save_and_attend_int8(Launcher& launcher, const attn::Int8CacheWriteParams& save,
                          const attn::AttendParams& params) {
  AttendCall call{AttendOperation::kWhole, &params};
  call.save = &save;
  save_and_run(launcher, call);
}

void save_and_attend_splits_int8(Launcher& launcher, const attn::Int8CacheWriteParams& save,
                                 const attn::AttendParams& params, const attn::SplitParams& split) {
  AttendCall call{.operation = AttendOperation::kSplits, .params = &params, .split = &split};
  call.save = &save;
  const AttendCandidate& chosen = save_and_run(launcher, call);
  if (split.arrivals != nullptr && !chosen.joins_splits) combine_splits(launcher, params, split);
}

void attend_splits(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SplitParams& split) {
  const AttendCandidate& chosen = run_attend(
      launcher, {.operation = AttendOperation::kSplits, .params = &params, .split = &split});
  if (split.arrivals != nullptr && !chosen.joins_splits) combine_splits(launcher, params, split);
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

void attend_tiles(Launcher& launcher, const attn::AttendParams& params,
                  const attn::TileListParams& list) {
  run_attend(launcher, {.operation = AttendOperation::kTiles, .params = &params, .list = &list});
}

// Parts are combined by kernels that may be launched while the attention before them ends and wait
// for its results themselves (overlaps_previous).
void combine_splits(Launcher& launcher, const attn::AttendParams& params,
                    const attn::SplitParams& split) {
  const AttendKernel kernel =
      combine_kernel(params, "combine_splits", split.num_splits, split.num_splits);
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
  const AttendKernel kernel =
      combine_kernel(params, "reduce_segments", segments.num_segments, segments.num_segments);
  LaunchShape shape;
  shape.overlaps_previous = true;
  shape.grid_x =
      ceil_quotient(std::int64_t{params.max_query_len} * params.num_heads, kernel.tile_rows);
  shape.grid_y = params.num_requests;
  shape.threads = kernel.threads;
  cuda::launch(launcher, kernel.spec, shape, params, segments);
}

void make_plan(Launcher& launcher, const attn::MakePlanParams& params) {
  if (params.num_requests > attn::kMostPlanRequests) {
    fail(ErrorKind::kUnsupported, "a plan of {} requests: the device makes plans of up to {}",
         params.num_requests, attn::kMostPlanRequests);
  }
  constexpr int kPlanThreads = 128;
  KernelSpec spec;
  spec.source = "attention/make_plan.cuh";
  spec.function = "attn::make_plan";
  spec.constants = {{"int kThreads", std::to_string(kPlanThreads)}};
  spec.name = "make_plan";
  LaunchShape shape;
  shape.threads = kPlanThreads;
  constexpr int kRequestBytes = 12;  // of a PlanRequest
  shape.shared_bytes = params.num_requests * kRequestBytes;
  cuda::launch(launcher, spec, shape, params);
}

void combine_plan(Launcher& launcher, const attn::AttendParams& params,
                  const attn::PlanParams& plan) {
  // The plan deals its parts by length; without the lengths, about as many for every request.
  const int parts = params.batch_invariant != 0 || params.num_requests == 0
                        ? 1
                        : static_cast<int>(ceil_quotient(plan.num_parts, params.num_requests));
  const AttendKernel kernel = combine_kernel(params, "combine_plan", parts, plan.num_parts);
  LaunchShape shape;
  shape.overlaps_previous = true;
  shape.grid_x =
      ceil_quotient(std::int64_t{params.max_query_len} * params.num_heads, kernel.tile_rows);
  shape.grid_y = params.num_requests;
  shape.threads = kernel.threads;
  cuda::launch(launcher, kernel.spec, shape, params, plan);
}

}  // namespace attnbench::cuda
