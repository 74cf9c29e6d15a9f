// The encoder's Q, K and V in fp8 (semantics §10.5, §10.6).
#include "backends/op/quant_parts.h"
#include "inputs/cache/poison.h"
#include "inputs/files/encoder_scale_file.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

attn::AmaxParams amax_params(const Problem& problem, const HeadRun& run, float* amax) {
  attn::AmaxParams p{};
  p.element = element_of(problem.attention.dtype);
  p.source = run.data;
  p.token_stride = run.token_stride;
  p.head_stride = run.head_stride;
  p.num_tokens = run.tokens;
  p.num_heads = run.heads;
  p.head_size = run.head_size;
  p.is_signed = problem.mm_encoder.amax == AmaxKind::kSigned ? 1 : 0;
  p.amax = amax;
  return p;
}

/// Scales of the file's layer; a loaded 1.0 is skipped (§10.5).
std::array<double, 3> loaded_scales(const MmEncoderSpec& mm) {
  const MmScaleFile file = read_mm_scales(*mm.fp8_scale_path);
  const MmLayerScales& layer = require_mm_scales(file, mm.layer_names.front(), *mm.fp8_scale_path);
  return {layer.q, layer.k, layer.v};
}

/// A first forward: its own largest values are all that the history holds.
std::function<void()> dynamic_scales(OpPipeline& op, const std::array<HeadRun, 3>& runs,
                                     float* scales) {
  auto* amax = static_cast<float*>(op.memory().workspace(3 * i64{sizeof(float)}, "amax"));
  std::array<attn::AmaxParams, 3> largest;
  for (std::size_t i = 0; i < 3; ++i) largest[i] = amax_params(op.problem(), runs[i], amax + i);
  attn::AmaxHistoryParams history{};
  history.amax = amax;
  history.history = const_cast<float*>(
      op.memory().upload(std::vector<float>(3 * attn::kAmaxHistoryLength, 0.0f), "amax history"));
  history.scale = scales;
  history.num_tensors = 3;
  return [&op, largest, history] {
    for (const attn::AmaxParams& p : largest) op.ops().amax(p);
    op.ops().update_amax_history(history);
  };
}

attn::PadQuantiseParams pad_params(OpPipeline& op, const HeadRun& run, const std::string& name) {
  attn::PadQuantiseParams p{};
  p.source_element = element_of(op.problem().attention.dtype);
  p.source = run.data;
  p.source_token_stride = run.token_stride;
  p.source_head_stride = run.head_stride;
  p.num_tokens = run.tokens;
  p.num_heads = run.heads;
  p.head_size = run.head_size;
  p.padded_head_size = static_cast<int>(round_up(run.head_size, 16));
  p.codes = static_cast<unsigned char*>(
      op.output(name, poisoned_tensor(Dtype::kE4M3, {run.tokens, run.heads, p.padded_head_size})));
  return p;
}

}  // namespace

void queue_mm_quant(OpPipeline& op) {
  const std::array<HeadRun, 3> runs = projection_heads(op);
  const MmEncoderSpec& mm = op.problem().mm_encoder;
  std::array<attn::PadQuantiseParams, 3> codes{pad_params(op, runs[0], "query_codes"),
                                               pad_params(op, runs[1], "key_codes"),
                                               pad_params(op, runs[2], "value_codes")};
  std::function<void()> make_scales = [] {};
  std::array<double, 3> given{};
  Tensor before = poisoned_tensor(Dtype::kF32, {3});
  if (mm.fp8_scale_path) {
    given = loaded_scales(mm);
    for (int i = 0; i < 3; ++i)
      before.set(i, static_cast<float>(given[static_cast<std::size_t>(i)]));
  }
  auto* scales = static_cast<float*>(op.output("fp8_scales", std::move(before)));
  if (!mm.fp8_scale_path) make_scales = dynamic_scales(op, runs, scales);
  for (std::size_t i = 0; i < 3; ++i) codes[i].scale = given[i] == 1.0 ? nullptr : scales + i;
  op.add_step([&op, make_scales, codes] {
    make_scales();
    for (const attn::PadQuantiseParams& p : codes) op.ops().quantise_pad_fp8(p);
  });
}

}  // namespace attnbench
