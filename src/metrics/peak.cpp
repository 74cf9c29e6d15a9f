#include "metrics/peak.h"

#include <limits>

namespace attnbench {
namespace {

struct Row {
  int sm;
  int f32;
  int f16;
  int e4m3;
  int i8;
};

// Sources in the header.
constexpr Row kRows[] = {
    {80, 128, 2048, 0, 4096},
    {89, 256, 1024, 2048, 2048},
    {90, 256, 4096, 8192, 8192},
    {100, 256, 8192, 16384, 16384},
};

}  // namespace

int operations_per_cycle(int sm, PeakType type) {
  for (const Row& row : kRows) {
    if (row.sm != sm) continue;
    switch (type) {
      case PeakType::kF32:
        return row.f32;
      case PeakType::kF16:
        return row.f16;
      case PeakType::kE4M3:
        return row.e4m3;
      case PeakType::kI8:
        return row.i8;
    }
  }
  return 0;
}

double peak_share(double flops, double cycles, double per_cycle) {
  if (!(cycles > 0) || !(per_cycle > 0)) return std::numeric_limits<double>::quiet_NaN();
  return 100 * flops / (cycles * per_cycle);
}

}  // namespace attnbench
