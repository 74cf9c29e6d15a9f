// All scales live on the device. With dynamic scales a forward is: largest values of Q, K and V
// into a ring of 16, scales from the ring, codes by these scales. The ring is that of the measured
// layer; with a scale file to save there is one for each layer (§10.6, §10.7).
#include "backends/encoder/fp8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/kernel_params.h"
#include "core/error.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_inputs.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr std::array<const char*, 3> kOperandNames{"query", "key", "value"};
// Heads in e4m3 are padded to a multiple of this; the columns of padding are zeros (§10.5).
constexpr int kHeadMultiple = 16;

}  // namespace

MmFp8::MmFp8(const Problem& problem, Ops& ops, const std::array<MmSource, 3>& sources)
    : problem_(problem),
      ops_(ops),
      memory_(ops),
      sources_(sources),
      padded_(static_cast<int>(round_up(problem.attention.head_size, kHeadMultiple))),
      dynamic_(!problem.mm_encoder.fp8_scale_path),
      save_pending_(problem.mm_encoder.fp8_scale_save_path.has_value()),
      num_layers_(save_pending_ ? std::ssize(problem.mm_encoder.layer_names) : 1) {
  set_memory();
  reset_counters();
  if (!dynamic_) load_static_scales();
  if (save_pending_) observe_earlier_forwards();
}

void MmFp8::set_memory() {
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t size = sources_[i].num_tokens * sources_[i].num_heads * padded_;
    codes_[i] = memory_.workspace_of<unsigned char>(size, kOperandNames[i]);
  }
  const auto layers = static_cast<std::size_t>(num_layers_);
  const std::vector<float> zeros(layers * 3 * attn::kAmaxHistoryLength, 0.0f);
  amax_ = memory_.allocate(3 * sizeof(float), "amax").as<float>();
  history_ = const_cast<float*>(memory_.upload(zeros, "amax history"));
  scale_ = memory_.allocate(layers * 3 * sizeof(float), "fp8 scales").as<float>();
  zero_ = memory_.upload(std::vector<attn::i64>{0}, "zero");
  saturated_ = memory_.allocate(3 * sizeof(attn::i64), "saturated elements").as<attn::i64>();
  if (problem_.mm_encoder.fp8_fused) {
    partial_ = memory_.workspace_of<float>(3 * attn::kMostAmaxCtas, "largest values of CTAs");
    arrivals_ = const_cast<int*>(memory_.upload(std::vector<int>{0}, "arrivals"));
  }
  const std::int64_t num_kv_scales = 2 * std::int64_t{problem_.attention.num_kv_heads};
  const auto bytes = static_cast<std::size_t>(num_kv_scales) * sizeof(float);
  constexpr const char* kKvScales = "k_scale and v_scale";
  // Loaded ones are there before any run.
  kv_scales_ = dynamic_ ? memory_.workspace_of<float>(num_kv_scales, kKvScales)
                        : memory_.allocate(bytes, kKvScales).as<float>();
}

/// Every layer of the problem has to be in the file, as vLLM checks at its start, although only the
/// first is measured. A scale of exactly 1.0 is skipped, as vLLM does it.
void MmFp8::load_static_scales() {
  const std::string& path = *problem_.mm_encoder.fp8_scale_path;
  const MmScaleFile file = read_mm_scales(path);
  for (const std::string& layer : problem_.mm_encoder.layer_names) {
    require_mm_scales(file, layer, path);
  }
  const MmLayerScales& layer =
      require_mm_scales(file, problem_.mm_encoder.layer_names.front(), path);
  const std::array<double, 3> loaded{layer.q, layer.k, layer.v};
  std::array<float, 3> scales{};
  for (std::size_t i = 0; i < 3; ++i) {
    scales[i] = static_cast<float>(loaded[i]);
    skip_[i] = loaded[i] == 1.0;
  }
  query_scale_ = scales[0];
  ops_.upload(memory_.starting_at(scale_), scales.data(), sizeof scales);
  const auto heads = static_cast<std::size_t>(problem_.attention.num_kv_heads);
  std::vector<float> expanded(2 * heads, scales[1]);
  std::fill(expanded.begin() + static_cast<std::ptrdiff_t>(heads), expanded.end(), scales[2]);
  ops_.upload(memory_.starting_at(kv_scales_), expanded.data(), expanded.size() * sizeof(float));
}

/// Why only 15: with the 16th forward of the first layer its ring wraps and the file is written,
/// before the other layers see that forward (§10.7).
void MmFp8::observe_earlier_forwards() {
  position_ = attn::kAmaxHistoryLength - 1;
  const AttentionSpec& a = problem_.attention;
  for (std::size_t layer = 0; layer < problem_.mm_encoder.layer_names.size(); ++layer) {
    for (int step = 0; step < position_; ++step) {
      const AttentionInputs inputs = make_mm_observation(problem_, layer, step);
      const std::array<const Tensor*, 3> tensors{&inputs.query, &inputs.key, &inputs.value};
      DeviceBuffers observed(ops_);
      std::array<MmSource, 3> sources = sources_;
      for (std::size_t i = 0; i < 3; ++i) {
        sources[i].data = observed.upload(*tensors[i], kOperandNames[i]);
        sources[i].token_stride = std::int64_t{sources[i].num_heads} * a.head_size;
        sources[i].head_stride = a.head_size;
      }
      observe(layer, step, sources);
      ops_.synchronize();  // the buffers go with this step
    }
  }
}

/// Records the largest values of one forward at `position` of the layer's ring, and makes the
/// layer's scales of the whole ring.
void MmFp8::observe(std::size_t layer, int position, const std::array<MmSource, 3>& sources) {
  for (std::size_t i = 0; i < 3; ++i) {
    attn::AmaxParams params{};
    params.element = element_of(problem_.attention.dtype);
    params.source = sources[i].data;
    params.token_stride = sources[i].token_stride;
    params.head_stride = sources[i].head_stride;
    params.num_tokens = sources[i].num_tokens;
    params.num_heads = sources[i].num_heads;
    params.head_size = problem_.attention.head_size;
    params.is_signed = problem_.mm_encoder.amax == AmaxKind::kSigned ? 1 : 0;
    params.amax = amax_ + i;
    ops_.amax(params);
  }
  attn::AmaxHistoryParams params{};
  params.amax = amax_;
  params.history = history_ + layer * 3 * attn::kAmaxHistoryLength;
  params.scale = scale_ + layer * 3;
  params.position = position;
  params.num_tensors = 3;
  ops_.update_amax_history(params);
}

/// k_scale of every head times q_scale, which is no argument of the attention on the device.
void MmFp8::multiply_scales() {
  attn::MatmulParams params{};
  params.element = params.output_element = attn::Element::kF32;
  params.a = scale_;  // by strides of 0 the same for every head
  params.b = scale_ + 1;
  params.b_row_stride = 1;
  params.c = kv_scales_;
  params.c_row_stride = 1;
  params.num_batches = params.n = params.k = 1;
  params.m = problem_.attention.num_kv_heads;
  ops_.matmul(params);
}

void MmFp8::expand_v_scale() {
  const int heads = problem_.attention.num_kv_heads;
  ops_.copy(repeated_copy(attn::Element::kF32, scale_ + 2, kv_scales_ + heads, heads));
}

/// On the device, so that poisoning waits for nothing either.
void MmFp8::reset_counters() {
  ops_.copy(repeated_copy(attn::Element::kI64, zero_, saturated_, 3));
}

void MmFp8::quantise() {
  if (problem_.mm_encoder.fp8_fused) return quantise_at_once();
  if (dynamic_) {
    observe(0, position_, sources_);
    multiply_scales();
    expand_v_scale();
  }
  for (std::size_t i = 0; i < 3; ++i) {
    attn::PadQuantiseParams params{};
    params.source_element = element_of(problem_.attention.dtype);
    params.source = sources_[i].data;
    params.source_token_stride = sources_[i].token_stride;
    params.source_head_stride = sources_[i].head_stride;
    params.codes = codes_[i];
    params.scale = skip_[i] ? nullptr : scale_ + i;
    params.num_saturated = saturated_ + i;
    params.num_tokens = sources_[i].num_tokens;
    params.num_heads = sources_[i].num_heads;
    params.head_size = problem_.attention.head_size;
    params.padded_head_size = padded_;
    ops_.quantise_pad_fp8(params);
  }
}

/// The same in two launches.
void MmFp8::quantise_at_once() {
  attn::EncoderQuantiseParams codes{};
  for (std::size_t i = 0; i < 3; ++i) {
    const MmSource& source = sources_[i];
    codes.tensors[i] = {source.data, source.num_tokens, source.num_heads, source.token_stride,
                        source.head_stride};
    codes.codes[i] = codes_[i];
    codes.scale[i] = skip_[i] ? nullptr : scale_ + i;
  }
  codes.source_element = element_of(problem_.attention.dtype);
  codes.num_saturated = saturated_;
  codes.head_size = problem_.attention.head_size;
  codes.padded_head_size = padded_;
  if (dynamic_) {
    attn::EncoderScalesParams scales{};
    scales.element = codes.source_element;
    std::copy_n(codes.tensors, 3, scales.tensors);
    scales.head_size = codes.head_size;
    scales.is_signed = problem_.mm_encoder.amax == AmaxKind::kSigned ? 1 : 0;
    scales.amax = amax_;
    scales.history = history_;
    scales.scale = scale_;
    scales.position = position_;
    scales.kv_scales = kv_scales_;
    scales.num_kv_heads = problem_.attention.num_kv_heads;
    scales.partial = partial_;
    scales.arrivals = arrivals_;
    ops_.encoder_scales(scales);
  }
  ops_.quantise_encoder(codes);
}

/// Of all layers; those of the measured one come first.
std::vector<float> MmFp8::read_scales() {
  const Tensor found = memory_.read(scale_, Dtype::kF32, {num_layers_, 3});
  const std::vector<float> scales(found.data<float>(), found.data<float>() + found.num_elements());
  for (std::size_t i = 0; dynamic_ && i < 3; ++i) {
    if (std::isfinite(scales[i])) continue;
    fail(ErrorKind::kValue, "dynamic fp8 scale of {}: expected a finite number, got {}",
         kOperandNames[i], scales[i]);
  }
  return scales;
}

void MmFp8::save_scales(const std::vector<float>& scales) {
  const std::vector<std::string>& names = problem_.mm_encoder.layer_names;
  const double margin = problem_.mm_encoder.fp8_scale_save_margin;
  std::vector<std::pair<std::string, MmLayerScales>> layers;
  for (std::size_t layer = 0; layer < names.size(); ++layer) {
    const auto saved = [&](std::size_t i) { return double{scales[layer * 3 + i]} * margin; };
    layers.push_back({names[layer], {saved(0), saved(1), saved(2)}});
  }
  write_mm_scales(*problem_.mm_encoder.fp8_scale_save_path, layers);
  save_pending_ = false;
}

attn::AttendParams MmFp8::attend_params(const attn::AttendParams& params, void* output) const {
  attn::AttendParams result = params;
  const auto heads = static_cast<std::int64_t>(params.num_heads);
  const auto kv_heads = static_cast<std::int64_t>(params.num_kv_heads);
  result.query_element = attn::Element::kE4M3;
  result.query = codes_[0];
  result.query_token_stride = heads * padded_;
  result.query_head_stride = padded_;
  result.head_size = padded_;
  if (output != nullptr) {
    result.output = output;
    result.output_token_stride = heads * padded_;
    result.output_head_stride = padded_;
    result.v_head_size = padded_;
  }
  // The scale of the unpadded head size. That of the keys, and with it a dynamic one of the
  // queries, is read from kv_scales_.
  result.score.softmax_scale =
      static_cast<float>(problem_.attention.scale * static_cast<double>(query_scale_));
  attn::KvParams& kv = result.kv;
  kv.element = attn::Element::kE4M3;
  kv.key = codes_[1];
  kv.value = codes_[2];
  kv.token_stride_key = kv.token_stride_value = kv_heads * padded_;
  kv.head_stride_key = kv.head_stride_value = padded_;
  kv.k_scale = kv_scales_;
  kv.v_scale = kv_scales_ + kv_heads;
  return result;
}

double MmFp8::traffic_bytes() const {
  double bytes = 0;
  for (const MmSource& source : sources_) {
    const auto rows = static_cast<double>(source.num_tokens) * source.num_heads;
    bytes += rows * (problem_.attention.head_size *
                         static_cast<double>(dtype_size(problem_.attention.dtype)) +
                     padded_);
  }
  return bytes;
}

void MmFp8::poison() {
  memory_.poison();
  reset_counters();
}

MmQuantisedForward MmFp8::read() {
  const std::vector<float> scales = read_scales();
  if (save_pending_) save_scales(scales);
  MmQuantisedForward forward;
  std::copy_n(scales.begin(), forward.scales.size(), forward.scales.begin());
  for (std::size_t i = 0; i < 3; ++i) {
    forward.codes[i] = memory_.read(codes_[i], Dtype::kE4M3,
                                    {sources_[i].num_tokens, sources_[i].num_heads, padded_});
  }
  ops_.download(forward.saturated.data(), memory_.starting_at(saturated_),
                sizeof forward.saturated);
  return forward;
}

}  // namespace attnbench
