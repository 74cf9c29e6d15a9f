#include "inputs/draw_rows.h"

#include <algorithm>

#include "inputs/chunks.h"

namespace attnbench {
namespace {

constexpr double kOutlierChannelShare = 0.01;
constexpr double kOutlierTokenShare = 0.001;
constexpr float kOutlierChannelFactor = 20.0f;
constexpr float kOutlierTokenFactor = 5.0f;

/// Factor of every channel (h, d) under the outlier distribution; at least one is large.
std::vector<float> outlier_channels(const Stream& stream, std::int64_t width) {
  std::vector<float> factors(static_cast<std::size_t>(width), 1.0f);
  std::size_t lowest = 0;
  double lowest_draw = 2.0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double u = stream.uniform(i);
    if (u < kOutlierChannelShare) factors[i] = kOutlierChannelFactor;
    if (u < lowest_draw) {
      lowest_draw = u;
      lowest = i;
    }
  }
  if (!factors.empty()) factors[lowest] = kOutlierChannelFactor;
  return factors;
}

}  // namespace

void fill_rows(const InputsSpec& spec, const TensorStreams& streams,
               const std::vector<SourceRow>& sources, std::int64_t width, Tensor& tensor) {
  if (spec.shapes_only) return;
  const bool outliers = spec.distribution == Distribution::kOutlier;
  std::vector<float> channels;
  if (outliers) channels = outlier_channels({spec.seed, streams.channels}, width);
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(width));
    for (std::int64_t r = begin; r < end; ++r) {
      const SourceRow source = sources[static_cast<std::size_t>(r)];
      const auto index = static_cast<std::uint64_t>(source.index);
      draw({spec.seed, source.shared ? streams.prefix : streams.body}, spec.distribution, spec.std,
           index * static_cast<std::uint64_t>(width), row);
      if (outliers) {
        const Stream tokens{spec.seed, source.shared ? streams.prefix_tokens : streams.body_tokens};
        const bool large = tokens.uniform(index) < kOutlierTokenShare;
        const float token_factor = large ? kOutlierTokenFactor : 1.0f;
        for (std::size_t i = 0; i < row.size(); ++i) row[i] *= channels[i] * token_factor;
      }
      store_floats(
          tensor.dtype(), row.data(), width,
          tensor.bytes() + r * width * static_cast<std::int64_t>(dtype_size(tensor.dtype())));
    }
  };
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, width));
  for_each_chunk(static_cast<std::int64_t>(sources.size()), rows_per_task, body);
}

}  // namespace attnbench
