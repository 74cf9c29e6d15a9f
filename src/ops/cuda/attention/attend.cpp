// Launches of kernels/attention.
#include "ops/cuda/attention/attend_general.h"
#include "ops/cuda/attention/attend_spec.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

LaunchShape row_tiles(const AttendKernel& kernel, const attn::AttendParams& params, int parts) {
  LaunchShape shape;
  shape.grid_x = num_row_tiles(params, kernel.tile_rows, parts);
  shape.threads = kernel.threads;
  shape.shared_bytes = kernel.shared_bytes;
  return shape;
}

}  // namespace

void attend(Launcher& launcher, const attn::AttendParams& params) {
  const bool f32 = fits_f32_kernel(params);
  if (!f32 && !fits_tiled_kernels(params)) return attend_general(launcher, params);
  const AttendKernel kernel = f32 ? f32_kernel(params, "f32_whole")
                              : has_few_rows(params)
                                  ? decode_kernel(launcher.target(), params, "decode", 1)
                                  : prefill_kernel(launcher.target(), params);
  cuda::launch(launcher, kernel.spec, row_tiles(kernel, params, 1), params);
}

void attend_splits(Launcher& launcher, const attn::AttendParams& params,
                   const attn::SplitParams& split) {
  const bool f32 = fits_f32_kernel(params);
  if (!f32 && !fits_tiled_kernels(params)) {
    return attend_general_splits(launcher, params, split);
  }
  const AttendKernel kernel =
      f32 ? f32_kernel(params, "f32_splits")
          : decode_kernel(launcher.target(), params, "decode_splits", split.num_splits);
  cuda::launch(launcher, kernel.spec, row_tiles(kernel, params, split.num_splits), params, split);
}

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

void attend_segments(Launcher& launcher, const attn::AttendParams& params,
                     const attn::SegmentParams& segments) {
  const bool f32 = fits_f32_kernel(params);
  if (!f32 && !fits_tiled_kernels(params)) {
    return attend_general_segments(launcher, params, segments);
  }
  const AttendKernel kernel =
      f32 ? f32_kernel(params, "f32_segments")
          : decode_kernel(launcher.target(), params, "decode_segments", segments.num_segments);
  cuda::launch(launcher, kernel.spec, row_tiles(kernel, params, segments.num_segments), params,
               segments);
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

}  // namespace attnbench::cuda
