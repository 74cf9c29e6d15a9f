#include "backends/encoder/fp8.h"

#include <cmath>
#include <cstring>

#include "backends/repeated_copy.h"
#include "core/error.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/mm_inputs.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr std::array<const char*, 3> kNames{"query", "key", "value"};
constexpr int kHeadMultiple = 16;

attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }

std::size_t code_bytes(const MmSource& source, int padded) {
  return static_cast<std::size_t>(source.num_tokens * source.num_heads * padded);
}

}  // namespace

MmFp8::MmFp8(const Problem& problem, Ops& ops, const std::array<MmSource, 3>& sources)
    : problem_(problem),
      ops_(ops),
      sources_(sources),
      padded_(static_cast<int>(round_up(problem.attention.head_size, kHeadMultiple))),
      dynamic_(!problem.mm_encoder.fp8_scale_path),
      save_pending_(problem.mm_encoder.fp8_scale_save_path.has_value()) {
  const std::size_t layers = save_pending_ ? problem.mm_encoder.layer_names.size() : 1;
  for (std::size_t i = 0; i < 3; ++i) codes_[i] = make(code_bytes(sources[i], padded_), kNames[i]);
  amax_ = make(3 * sizeof(float), "amax");
  history_ = make(layers * 3 * attn::kAmaxHistoryLength * sizeof(float), "amax history");
  scale_ = make(layers * 3 * sizeof(float), "fp8 scales");
  zero_ = make(sizeof(std::int64_t), "zero");
  saturated_ = make(3 * sizeof(std::int64_t), "saturated elements");
  const auto kv_heads = static_cast<std::size_t>(problem.attention.num_kv_heads);
  kv_scales_ = make(2 * kv_heads * sizeof(float), "k_scale and v_scale");
  const std::vector<float> zeros(layers * 3 * attn::kAmaxHistoryLength, 0.0f);
  ops_.upload(*history_, zeros.data(), zeros.size() * sizeof(float));
  constexpr std::int64_t kZero = 0;
  ops_.upload(*zero_, &kZero, sizeof kZero);
  reset_counters();
  if (!dynamic_) load_static_scales();
  if (save_pending_) observe_earlier_forwards();
}

std::unique_ptr<Buffer> MmFp8::make(std::size_t size_bytes, const char* name) {
  return ops_.allocate(size_bytes, name);
}

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
  ops_.upload(*scale_, scales.data(), sizeof scales);
  const auto heads = static_cast<std::size_t>(problem_.attention.num_kv_heads);
  std::vector<float> expanded(2 * heads, scales[1]);
  std::fill(expanded.begin() + static_cast<std::ptrdiff_t>(heads), expanded.end(), scales[2]);
  ops_.upload(*kv_scales_, expanded.data(), expanded.size() * sizeof(float));
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
      std::array<std::unique_ptr<Buffer>, 3> buffers;
      std::array<MmSource, 3> sources = sources_;
      for (std::size_t i = 0; i < 3; ++i) {
        buffers[i] = make(tensors[i]->size_bytes(), kNames[i]);
        ops_.upload(*buffers[i], tensors[i]->bytes(), tensors[i]->size_bytes());
        sources[i].data = buffers[i]->data();
        sources[i].token_stride = std::int64_t{sources[i].num_heads} * a.head_size;
        sources[i].head_stride = a.head_size;
      }
      observe(layer, step, sources);
      ops_.synchronize();  // the buffers go with this step
    }
  }
}

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
    params.amax = amax_->as<float>() + i;
    ops_.amax(params);
  }
  attn::AmaxHistoryParams params{};
  params.amax = amax_->as<float>();
  params.history = history_->as<float>() + layer * 3 * attn::kAmaxHistoryLength;
  params.scale = scale_->as<float>() + layer * 3;
  params.position = position;
  params.num_tensors = 3;
  ops_.update_amax_history(params);
}

/// k_scale of every head times q_scale, which is no argument of the attention on the device.
void MmFp8::multiply_scales() {
  attn::MatmulParams params{};
  params.element = params.output_element = attn::Element::kF32;
  params.a = scale_->as<float>();  // by strides of 0 the same for every head
  params.b = scale_->as<float>() + 1;
  params.b_row_stride = 1;
  params.c = kv_scales_->as<float>();
  params.c_row_stride = 1;
  params.num_batches = params.n = params.k = 1;
  params.m = problem_.attention.num_kv_heads;
  ops_.matmul(params);
}

void MmFp8::expand_v_scale() {
  const int heads = problem_.attention.num_kv_heads;
  ops_.copy(repeated_copy(attn::Element::kF32, scale_->as<float>() + 2,
                          kv_scales_->as<float>() + heads, heads));
}

/// On the device, so that poisoning waits for nothing either.
void MmFp8::reset_counters() {
  ops_.copy(repeated_copy(attn::Element::kI64, zero_->data(), saturated_->data(), 3));
}

void MmFp8::quantise() {
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
    params.codes = codes_[i]->as<unsigned char>();
    params.scale = skip_[i] ? nullptr : scale_->as<float>() + i;
    params.num_saturated = saturated_->as<attn::i64>() + i;
    params.num_tokens = sources_[i].num_tokens;
    params.num_heads = sources_[i].num_heads;
    params.head_size = problem_.attention.head_size;
    params.padded_head_size = padded_;
    ops_.quantise_pad_fp8(params);
  }
}

/// Of all layers; those of the measured one come first.
std::vector<float> MmFp8::read_scales() {
  std::vector<float> scales(scale_->size_bytes() / sizeof(float));
  ops_.download(scales.data(), *scale_, scale_->size_bytes());
  for (std::size_t i = 0; dynamic_ && i < 3; ++i) {
    if (std::isfinite(scales[i])) continue;
    fail(ErrorKind::kValue, "dynamic fp8 scale of {}: expected a finite number, got {}", kNames[i],
         scales[i]);
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
  result.query = codes_[0]->data();
  result.query_token_stride = heads * padded_;
  result.query_head_stride = padded_;
  result.output = output;
  result.output_token_stride = heads * padded_;
  result.output_head_stride = padded_;
  result.head_size = result.v_head_size = padded_;
  // The scale of the unpadded head size. That of the keys, and with it a dynamic one of the
  // queries, is read from kv_scales_.
  result.score.softmax_scale =
      static_cast<float>(problem_.attention.scale * static_cast<double>(query_scale_));
  attn::KvParams& kv = result.kv;
  kv.element = attn::Element::kE4M3;
  kv.key = codes_[1]->data();
  kv.value = codes_[2]->data();
  kv.token_stride_key = kv.token_stride_value = kv_heads * padded_;
  kv.head_stride_key = kv.head_stride_value = padded_;
  kv.k_scale = kv_scales_->as<float>();
  kv.v_scale = kv_scales_->as<float>() + kv_heads;
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
  for (const auto& codes : codes_) ops_.poison(*codes);
  if (dynamic_) ops_.poison(*kv_scales_);
  reset_counters();
}

MmQuantisedForward MmFp8::read() {
  const std::vector<float> scales = read_scales();
  if (save_pending_) save_scales(scales);
  MmQuantisedForward forward;
  std::copy_n(scales.begin(), forward.scales.size(), forward.scales.begin());
  for (std::size_t i = 0; i < 3; ++i) {
    forward.codes[i] =
        Tensor(Dtype::kE4M3, {sources_[i].num_tokens, sources_[i].num_heads, padded_});
    ops_.download(forward.codes[i].bytes(), *codes_[i], forward.codes[i].size_bytes());
  }
  ops_.download(forward.saturated.data(), *saturated_, sizeof forward.saturated);
  return forward;
}

}  // namespace attnbench
