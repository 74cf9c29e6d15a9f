// Counting: by patterns for types of 16 bits, by sorting or a table for floats. All ways give the
// same bins, and bins of parts are merged, so threads and order change nothing.
#include "calibrate/magnitudes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "core/system/parallel.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int kDroppedBits = 13;  // of the 23 below the first
constexpr std::uint32_t kMagnitudeMask = 0x7FFFFFFFu;
// Fewer elements are sorted, more are counted in a table of keys.
constexpr std::size_t kSortedElements = 1 << 15;
constexpr std::int64_t kElementsPerTask = 1 << 17;
constexpr std::size_t kPatterns = std::size_t{1} << 16;
constexpr std::int64_t kPatternsPerTask = 1 << 21;  // a table of all patterns for each

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value) & kMagnitudeMask; }
std::uint32_t key_of(float value) { return bits_of(value) >> kDroppedBits; }

std::vector<MagnitudeBin> bins_of_sorted(std::vector<std::uint32_t>& magnitudes) {
  std::sort(magnitudes.begin(), magnitudes.end());
  std::vector<MagnitudeBin> bins;
  std::uint32_t last = 0;
  for (const std::uint32_t bits : magnitudes) {
    if (bins.empty() || bits >> kDroppedBits != last) bins.push_back({});
    last = bits >> kDroppedBits;
    bins.back().value = std::bit_cast<float>(bits);
    ++bins.back().count;
  }
  return bins;
}

std::vector<MagnitudeBin> bins_of_table(const std::vector<std::uint32_t>& magnitudes) {
  // Why not of all keys: tensors have a tenth of them, and clearing the others would cost more.
  const auto [least, most] = std::minmax_element(magnitudes.begin(), magnitudes.end());
  const std::uint32_t first = *least >> kDroppedBits;
  std::vector<MagnitudeBin> table((*most >> kDroppedBits) - first + 1);
  for (const std::uint32_t bits : magnitudes) {
    MagnitudeBin& bin = table[(bits >> kDroppedBits) - first];
    bin.value = std::max(bin.value, std::bit_cast<float>(bits));
    ++bin.count;
  }
  std::erase_if(table, [](const MagnitudeBin& bin) { return bin.count == 0; });
  return {table.begin(), table.end()};  // without the capacity of the table
}

/// All elements of the tensor into one.
void add_whole(const Tensor& tensor, int num_threads, Magnitudes& magnitudes) {
  std::mutex mutex;
  const std::int64_t count = tensor.num_elements();
  const Dtype dtype = tensor.dtype();
  const bool has_patterns = dtype == Dtype::kBF16 || dtype == Dtype::kF16;
  const std::int64_t per_task = has_patterns ? kPatternsPerTask : kElementsPerTask;
  ThreadPool(num_threads).parallel_for(ceil_div(count, per_task), [&](std::int64_t i, int) {
    const std::int64_t begin = i * per_task;
    const std::int64_t size = std::min(per_task, count - begin);
    Magnitudes part;
    if (has_patterns) {
      part.add(dtype, {tensor.data<std::uint16_t>() + begin, static_cast<std::size_t>(size)});
    } else {
      std::vector<float> values(static_cast<std::size_t>(size));
      const auto offset = begin * static_cast<std::int64_t>(dtype_size(dtype));
      load_floats(dtype, tensor.bytes() + offset, size, values.data());
      part.add(values);
    }
    const std::lock_guard lock(mutex);
    magnitudes.add(part);
  });
}

/// The columns of `width` elements that begin at `column` of every row, each on its own or all
/// together.
void add_columns(const Tensor& tensor, std::int64_t column, std::int64_t width, bool together,
                 std::span<Magnitudes> magnitudes) {
  const std::int64_t rows = tensor.dim(0);
  const std::int64_t row_width = tensor.dim(1) * tensor.dim(2);
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t d = 0; d < width; ++d) {
      const std::int64_t to = together ? row * width + d : d * rows + row;
      values[static_cast<std::size_t>(to)] = tensor.at(row * row_width + column + d);
    }
  }
  const std::size_t group_size = values.size() / magnitudes.size();
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i].add(std::span(values).subspan(i * group_size, group_size));
  }
}

}  // namespace

void Magnitudes::add(std::span<const float> values) {
  std::vector<std::uint32_t> magnitudes;
  magnitudes.reserve(values.size());
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++num_not_finite_;
      continue;
    }
    amax_ = std::max(amax_, std::fabs(value));
    signed_max_ = has_maximum_ ? std::max(signed_max_, value) : value;
    has_maximum_ = true;
    if (value == 0.0f) {
      ++num_zeros_;
    } else {
      magnitudes.push_back(bits_of(value));
    }
  }
  num_elements_ += static_cast<std::int64_t>(values.size());
  merge(magnitudes.size() > kSortedElements ? bins_of_table(magnitudes)
                                            : bins_of_sorted(magnitudes));
}

void Magnitudes::add(Dtype dtype, std::span<const std::uint16_t> patterns) {
  std::vector<std::int64_t> counts(kPatterns);
  for (const std::uint16_t pattern : patterns) ++counts[pattern];
  add_counts(dtype, counts);
}

void Magnitudes::add_counts(Dtype dtype, std::span<const std::int64_t> counts) {
  constexpr std::uint16_t kSign = 0x8000;
  Magnitudes found;
  // Patterns without their sign ascend with the magnitude, and no two of them share a bin: the
  // bits that bins leave out are zero.
  for (std::uint16_t pattern = 0; pattern < kSign; ++pattern) {
    const std::int64_t positive = counts[pattern];
    const std::int64_t count = positive + counts[pattern | kSign];
    if (count == 0) continue;
    found.num_elements_ += count;
    const float value = load_float(dtype, &pattern, 0);
    if (!std::isfinite(value)) {
      found.num_not_finite_ += count;
      continue;
    }
    found.amax_ = value;
    if (positive > 0 || !found.has_maximum_) found.signed_max_ = positive > 0 ? value : -value;
    found.has_maximum_ = true;
    if (value == 0.0f) {
      found.num_zeros_ = count;
    } else {
      found.bins_.push_back({value, count});
    }
  }
  add(found);
}

void Magnitudes::add(const Magnitudes& other) {
  merge(other.bins_);
  num_elements_ += other.num_elements_;
  num_not_finite_ += other.num_not_finite_;
  num_zeros_ += other.num_zeros_;
  amax_ = std::max(amax_, other.amax_);
  if (!other.has_maximum_) return;
  signed_max_ = has_maximum_ ? std::max(signed_max_, other.signed_max_) : other.signed_max_;
  has_maximum_ = true;
}

void Magnitudes::merge(const std::vector<MagnitudeBin>& more) {
  std::vector<MagnitudeBin> merged;
  merged.reserve(bins_.size() + more.size());
  auto a = bins_.begin();
  for (const MagnitudeBin& b : more) {
    while (a != bins_.end() && key_of(a->value) < key_of(b.value)) merged.push_back(*a++);
    merged.push_back(b);
    if (a == bins_.end() || key_of(a->value) != key_of(b.value)) continue;
    merged.back().value = std::max(a->value, b.value);
    merged.back().count += (a++)->count;
  }
  merged.insert(merged.end(), a, bins_.end());
  bins_ = std::move(merged);
}

float Magnitudes::percentile(double percent) const {
  const std::int64_t finite = num_elements_ - num_not_finite_;
  const auto wanted =
      static_cast<std::int64_t>(std::ceil(percent / 100 * static_cast<double>(finite)));
  if (wanted >= finite) return amax_;
  std::int64_t seen = num_zeros_;
  if (seen >= wanted) return 0;
  for (const MagnitudeBin& bin : bins_) {
    seen += bin.count;
    if (seen >= wanted) return bin.value;
  }
  return amax_;
}

std::int64_t num_groups(const Tensor& tensor, ScaleGroups groups) {
  switch (groups) {
    case ScaleGroups::kTensor:
      return 1;
    case ScaleGroups::kHead:
      return tensor.dim(1);
    case ScaleGroups::kChannel:
      return tensor.dim(1) * tensor.dim(2);
  }
  return 1;
}

void add_magnitudes(const Tensor& tensor, ScaleGroups groups, int num_threads,
                    std::vector<Magnitudes>& magnitudes) {
  if (groups == ScaleGroups::kTensor) return add_whole(tensor, num_threads, magnitudes[0]);
  const std::int64_t width = tensor.dim(2);
  const bool together = groups == ScaleGroups::kHead;
  const auto per_head = static_cast<std::size_t>(together ? 1 : width);
  ThreadPool(num_threads).parallel_for(tensor.dim(1), [&](std::int64_t head, int) {
    const std::size_t first = static_cast<std::size_t>(head) * per_head;
    add_columns(tensor, head * width, width, together,
                std::span(magnitudes).subspan(first, per_head));
  });
}

}  // namespace attnbench
