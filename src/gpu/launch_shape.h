// Extents of a kernel launch.
#pragma once

#include <cstdint>

namespace attnbench {

struct LaunchShape {
  std::int64_t grid_x = 1;  // CTAs; at most 2^31 - 1
  std::int64_t grid_y = 1;  // at most 65535
  std::int64_t grid_z = 1;  // at most 65535
  int threads = 1;          // of a CTA
  int shared_bytes = 0;     // dynamic shared memory of a CTA
  /// The kernel waits itself for the one before it (kernels/ptx/dependents.cuh), so its launch may
  /// overlap with that.
  bool overlaps_previous = false;

  std::int64_t num_ctas() const { return grid_x * grid_y * grid_z; }
};

}  // namespace attnbench
