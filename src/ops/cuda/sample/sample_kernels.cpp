// One thread a piece of 16 bytes, but sums, whose CTAs take turns so that few of them add to the
// same words.
#include "ops/cuda/sample/sample_kernels.h"

#include <algorithm>
#include <string>

#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

constexpr const char* kSampleSource = "measure/sample.cuh";
constexpr int kDigestCtasPerSm = 8;

/// Rows of whole vectors of 16 bytes, whose signs begin at any element.
bool has_vectors(int element_bytes, const attn::RedrawParams& params) {
  return params.row_elements * element_bytes % 16 == 0;
}

KernelSpec redraw_spec(int element_bytes, bool vector) {
  return simple_spec(
      kSampleSource, "redraw_query",
      {{"int kElementBytes", std::to_string(element_bytes)}, {"bool kVector", spec_flag(vector)}},
      "redraw of the query");
}

KernelSpec moves_spec() { return simple_spec(kSampleSource, "move_blocks", {}, "redraw of keys"); }

KernelSpec digest_spec() {
  return simple_spec(kSampleSource, "digest_sample", {}, "digest of a sample");
}

}  // namespace

void launch_redraw(Launcher& launcher, int element_bytes, const attn::RedrawParams& params) {
  const bool vector = has_vectors(element_bytes, params);
  const int elements = vector ? 16 / element_bytes : 1;
  const std::int64_t pieces = ceil_quotient(params.num_rows * params.row_elements, elements);
  launch(launcher, redraw_spec(element_bytes, vector), simple_shape(pieces), params);
}

void launch_moves(Launcher& launcher, const attn::BlockMove* table, std::int64_t count,
                  std::int64_t longest) {
  // The height of a grid has 16 bits.
  constexpr std::int64_t kMost = 65535;
  for (std::int64_t first = 0; first < count; first += kMost) {
    LaunchShape shape = simple_shape(ceil_quotient(longest, std::int64_t{16}));
    shape.grid_y = std::min(kMost, count - first);
    launch(launcher, moves_spec(), shape, attn::MoveParams{table + first});
  }
}

void launch_digest(Launcher& launcher, const attn::DigestParams& params) {
  LaunchShape shape = simple_shape(ceil_quotient(params.bytes, std::int64_t{16}));
  shape.grid_x =
      std::min<decltype(shape.grid_x)>(shape.grid_x, kDigestCtasPerSm * launcher.target().num_sms);
  launch(launcher, digest_spec(), shape, params);
}

std::vector<KernelSpec> sample_specs() {
  std::vector<KernelSpec> specs{moves_spec(), digest_spec()};
  for (const int element_bytes : {1, 2, 4}) {
    for (const bool vector : {true, false}) specs.push_back(redraw_spec(element_bytes, vector));
  }
  return specs;
}

}  // namespace attnbench::cuda
