// Sizes of the arrays of attention. Rows and keys are counted by whole tiles, whatever the problem
// has, so that only the head sizes and the number of ranges can make an array grow.
#include "ops/cpu/scratch.h"

#include <algorithm>

namespace attnbench::cpu {

void Scratch::reserve(int head_size, int v_head_size, int num_ranges) {
  const auto d = static_cast<std::size_t>(head_size);
  const auto dv = static_cast<std::size_t>(v_head_size);
  const auto grow = [](auto& array, std::size_t size) {
    if (array.size() < size) array.resize(size);
  };
  grow(query, kRowTile * d);
  grow(key, kKeyTile * d);
  grow(value, kKeyTile * dv);
  grow(scores, std::size_t{kKeyTile} * kRowTile);
  grow(output, kRowTile * dv);
  grow(line, std::max(d, dv));
  for (FloatArray* rows :
       {&row_max, &row_sum, &tile_max, &tile_sum, &rescale, &slope, &shift, &row_scale}) {
    grow(*rows, kRowTile);
  }
  grow(position, kRowTile);
  grow(intervals, static_cast<std::size_t>(num_ranges) + 1);
  for (KeyInterval& interval : intervals) {
    grow(interval.begin, kRowTile);
    grow(interval.end, kRowTile);
  }
}

}  // namespace attnbench::cpu
