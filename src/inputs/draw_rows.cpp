// Drawing of rows. Work is split by rows among the cores, and each element depends only on its
// index in its stream, so neither the split nor the number of cores can be seen in the bytes.
#include "inputs/draw_rows.h"

#include <algorithm>

#include "core/system/parallel.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

constexpr double kOutlierChannelShare = 0.01;
constexpr double kOutlierTokenShare = 0.001;
constexpr float kOutlierChannelFactor = 20.0f;
constexpr float kOutlierTokenFactor = 5.0f;

/// Factor of every channel (h, d) under the outlier distribution; at least one is large.
std::vector<float> outlier_channels(const RandomStream& stream, std::int64_t width) {
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

/// Rows from r on, below end, that follow each other in one stream.
std::int64_t run_length(const std::vector<SourceRow>& sources, std::int64_t r, std::int64_t end) {
  const SourceRow first = sources[static_cast<std::size_t>(r)];
  std::int64_t count = 1;
  while (r + count < end) {
    const SourceRow& next = sources[static_cast<std::size_t>(r + count)];
    if (next.shared != first.shared || next.index != first.index + count) break;
    ++count;
  }
  return count;
}

}  // namespace

std::vector<SourceRow> key_sources(const Problem& problem) {
  std::vector<SourceRow> sources;
  if (problem.inputs.shapes_only) return sources;  // nothing is drawn
  sources.reserve(static_cast<std::size_t>(problem.num_keys()));
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const SharedPrefix& prefix = prefixes[b];
    for (std::int64_t p = 0; p < problem.batch[b].seq_len; ++p) {
      const bool shared = p < prefix.num_keys;
      sources.push_back(
          {shared, shared ? prefix.first_key + p : static_cast<std::int64_t>(sources.size())});
    }
  }
  return sources;
}

void fill_rows(const InputsSpec& spec, const TensorStreams& streams,
               const std::vector<SourceRow>& sources, std::int64_t width, Tensor& tensor,
               double mean) {
  if (spec.shapes_only) return;
  const bool outliers = spec.distribution == Distribution::kOutlier;
  std::vector<float> channels;
  if (outliers) channels = outlier_channels({spec.seed, streams.channels}, width);
  const auto row_width = static_cast<std::uint64_t>(width);
  const auto element = static_cast<std::int64_t>(dtype_size(tensor.dtype()));
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t r = begin; r < end;) {
      const std::int64_t run = run_length(sources, r, end);
      const SourceRow source = sources[static_cast<std::size_t>(r)];
      const auto index = static_cast<std::uint64_t>(source.index);
      values.resize(static_cast<std::size_t>(run) * row_width);
      draw({spec.seed, source.shared ? streams.prefix : streams.body}, spec.distribution, spec.std,
           index * row_width, values);
      if (outliers) {
        const RandomStream tokens{spec.seed,
                                  source.shared ? streams.prefix_tokens : streams.body_tokens};
        for (std::size_t i = 0; i < values.size(); i += row_width) {
          const bool large = tokens.uniform(index + i / row_width) < kOutlierTokenShare;
          const float token_factor = large ? kOutlierTokenFactor : 1.0f;
          for (std::size_t c = 0; c < row_width; ++c) values[i + c] *= channels[c] * token_factor;
        }
      }
      if (mean != 0) {
        for (float& value : values) value += static_cast<float>(mean);
      }
      store_floats(tensor.dtype(), values.data(), run * width,
                   tensor.bytes() + r * width * element);
      r += run;
    }
  };
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, width));
  for_each_chunk(static_cast<std::int64_t>(sources.size()), rows_per_task, body);
}

}  // namespace attnbench
