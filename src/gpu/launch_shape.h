// Extents of a kernel launch, and whether a device can launch them.
//
// Values of the host only: nothing here includes CUDA, so that launchers choose shapes, and tests
// check them, in programs that were built without the toolkit. Limits that depend on the device
// (clusters) are checked before a launch, since CUDA's own error, "invalid argument", names none of
// them.
#pragma once

#include <cstdint>
#include <string>

namespace attnbench {

/// Everything of a launch but the kernel and its arguments. Defaults are one CTA of one thread.
struct LaunchShape {
  std::int64_t grid_x = 1;  // CTAs; at most 2^31 - 1
  std::int64_t grid_y = 1;  // at most 65535
  std::int64_t grid_z = 1;  // at most 65535
  int threads = 1;          // of a CTA
  int shared_bytes = 0;     // dynamic shared memory of a CTA
  /// CTAs that run side by side on neighbouring multiprocessors and reach each other's shared
  /// memory; SM 9.0 and newer, at most 8. They divide the extents of the grid.
  int cluster_x = 1;
  int cluster_y = 1;
  int cluster_z = 1;
  /// The kernel waits itself for the one before it (kernels/ptx/dependents.cuh), so its launch may
  /// overlap with that.
  bool overlaps_previous = false;

  /// Of the whole grid; clusters do not change it.
  std::int64_t num_ctas() const { return grid_x * grid_y * grid_z; }
  bool has_clusters() const { return cluster_x != 1 || cluster_y != 1 || cluster_z != 1; }
};

/// Why a device of compute capability `sm` (10 * major + minor) cannot launch the clusters of the
/// shape ("clusters of 2 x 1 x 1 CTAs do not divide a grid of 3 x 1 x 1"); empty where it can, as
/// for every shape without clusters.
std::string cluster_misfit(const LaunchShape& shape, int sm);

}  // namespace attnbench
