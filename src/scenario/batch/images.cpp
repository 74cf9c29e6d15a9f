#include "scenario/batch/images.h"

#include <algorithm>

#include "core/error.h"
#include "metadata/int_math.h"
#include "scenario/batch/batch_spec.h"

namespace attnbench {

std::vector<Request> image_requests(const MmEncoderSpec& spec) {
  std::vector<Request> batch;
  for (const auto& [height, width] : *spec.images) {
    const std::int64_t rows = height / spec.patch_size;
    const std::int64_t columns = width / spec.patch_size;
    if (rows == 0 || columns == 0) {
      fail(ErrorKind::kValue, "expected images of at least one patch of {0} x {0}, found {1} x {2}",
           spec.patch_size, height, width);
    }
    const std::int64_t window = spec.window ? *spec.window : std::max(rows, columns);
    const auto sequences = static_cast<std::int64_t>(batch.size()) +
                           ceil_div(rows, window) * ceil_div(columns, window);
    if (sequences > kMaxRequests) {
      fail(ErrorKind::kCapacity, "expected at most {} sequences, found {}", kMaxRequests,
           sequences);
    }
    for (std::int64_t top = 0; top < rows; top += window) {
      for (std::int64_t left = 0; left < columns; left += window) {
        const std::int64_t patches =
            std::min(window, rows - top) * std::min(window, columns - left);
        batch.push_back({patches, patches});
      }
    }
  }
  return batch;
}

}  // namespace attnbench
