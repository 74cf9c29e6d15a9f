#include "gpu/launch_shape.h"

#include <fmt/format.h>

namespace attnbench {

std::string cluster_misfit(const LaunchShape& shape, int sm) {
  constexpr int kLeastSm = 90;  // Hopper, the first with clusters
  // What every device with clusters can place. Larger ones are possible on some, but only after an
  // opt-in of the kernel, and they then depend on how many multiprocessors of a group are enabled.
  constexpr int kMostCtas = 8;
  if (!shape.has_clusters()) return "";
  const std::string clusters = fmt::format("clusters of {} x {} x {} CTAs", shape.cluster_x,
                                           shape.cluster_y, shape.cluster_z);
  if (shape.cluster_x < 1 || shape.cluster_y < 1 || shape.cluster_z < 1) {
    return clusters + ", every extent is at least 1";
  }
  const std::int64_t ctas =
      std::int64_t{shape.cluster_x} * shape.cluster_y * std::int64_t{shape.cluster_z};
  if (ctas > kMostCtas) return fmt::format("{}, at most {} CTAs are possible", clusters, kMostCtas);
  if (shape.grid_x % shape.cluster_x != 0 || shape.grid_y % shape.cluster_y != 0 ||
      shape.grid_z % shape.cluster_z != 0) {
    return fmt::format("{} do not divide a grid of {} x {} x {}", clusters, shape.grid_x,
                       shape.grid_y, shape.grid_z);
  }
  // Last: a shape that is wrong everywhere should be called so on every device.
  if (sm < kLeastSm) {
    return fmt::format("{} need compute capability 9.0 or newer, the device has {}.{}", clusters,
                       sm / 10, sm % 10);
  }
  return "";
}

}  // namespace attnbench
