// Launches of kernels/quantise/int8.cuh. Scales of channels that are made here take three launches:
// clear, largest magnitude over all tokens by atomic maximum, which has one result in any order,
// and the division.
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

constexpr const char* kInt8Source = "quantise/int8.cuh";

/// Elements of a load, whose codes are one store.
int choose_vector(const attn::Int8QuantiseParams& p) {
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.source)
      .stride(p.source_token_stride, p.source_element)
      .stride(p.source_head_stride, p.source_element);
  VectorSide codes{attn::Element::kI8, {}};
  codes.alignment.pointer(p.codes).bytes(p.code_token_stride).bytes(p.code_head_stride);
  return widest_vector(16 / size_of_element(p.source_element), {p.head_size}, {source, codes});
}

/// Leaves the scales [H, D] in p.scale for quantise_int8_channel, which follows on the stream.
void make_channel_scales(Launcher& launcher, const attn::Int8QuantiseParams& p) {
  constexpr int kTokens = 128;  // of a run: enough loads under way, few atomics
  const std::int64_t channels = std::int64_t{p.num_heads} * p.head_size;
  launch(launcher,
         simple_spec(kInt8Source, "finish_channel_scales", {{"bool kClear", "true"}},
                     "int8 channel scales: clear"),
         simple_shape(channels), p);
  LaunchShape shape = simple_shape(channels);
  shape.grid_y = ceil_quotient(p.num_tokens, kTokens);
  launch(launcher,
         simple_spec(kInt8Source, "reduce_channels",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kTokens", std::to_string(kTokens)}},
                     "int8 channel scales: largest of " + short_name(p.source_element)),
         shape, p);
  launch(launcher,
         simple_spec(kInt8Source, "finish_channel_scales", {{"bool kClear", "false"}},
                     "int8 channel scales: finish"),
         simple_shape(channels), p);
}

}  // namespace

void quantise_int8(Launcher& launcher, const attn::Int8QuantiseParams& p) {
  const int vector = choose_vector(p);
  const std::string suffix = short_name(p.source_element) + " x" + std::to_string(vector);
  if (p.granularity == attn::Int8Granularity::kTokenHead) {
    // Threads of one head, up to a warp, which finds its largest magnitude by shuffles.
    int lanes = 1;
    while (lanes < 32 && lanes * vector < p.head_size) lanes *= 2;
    launch(launcher,
           simple_spec(kInt8Source, "quantise_int8_token_head",
                       {{"attn::Element kSource", spec_name(p.source_element)},
                        {"int kVector", std::to_string(vector)},
                        {"int kLanes", std::to_string(lanes)}},
                       "quantise_int8 per token and head " + suffix),
           simple_shape(p.num_tokens * p.num_heads * lanes), p);
    return;
  }
  if (p.granularity == attn::Int8Granularity::kChannelDynamic) make_channel_scales(launcher, p);
  launch(launcher,
         simple_spec(kInt8Source, "quantise_int8_channel",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)}},
                     "quantise_int8 per channel " + suffix),
         simple_shape(p.num_tokens * p.num_heads * (p.head_size / vector)), p);
}

}  // namespace attnbench::cuda
