// Outputs of several parts (codes, scales, counters) are named after what they are of: "output" is
// the query's, "key_output" and "value_output" those of keys and values.
#include "backends/op/quant_steps.h"

#include "backends/kernel_params.h"
#include "inputs/cache/poison.h"
#include "inputs/files/encoder_scale_file.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

void queue_fp8_query(OpPipeline& op) {
  const Problem& problem = op.problem();
  const ProjectionHeads query = projection_heads(op)[0];
  attn::StaticQuantiseParams p{};
  p.source_element = element_of(problem.attention.dtype);
  p.source = query.data;
  p.source_row_stride = query.token_stride;
  p.code_row_stride = p.num_columns = i64{query.heads} * query.head_size;
  p.num_rows = query.tokens;
  p.codes = static_cast<unsigned char*>(op.output(
      "output", poisoned_tensor(Dtype::kE4M3, {query.tokens, query.heads, query.head_size})));
  p.scale = op.scale_operand("q_scale", {static_cast<float>(problem.kv_cache.q_scale)});
  p.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  queue_reset(op, p.num_saturated);
  op.add_step([&op, p] { op.ops().quantise_fp8(p); });
}

/// §11.2: queries with transposed scales as prefill takes them, keys without; values by channel.
attn::Int8QuantiseParams int8_params(OpPipeline& op, const ProjectionHeads& run,
                                     const std::string& name, attn::Int8Granularity granularity,
                                     bool transposed) {
  attn::Int8QuantiseParams p{};
  p.source_element = element_of(op.problem().attention.dtype);
  p.source = run.data;
  p.source_token_stride = run.token_stride;
  p.source_head_stride = run.head_stride;
  p.codes = static_cast<signed char*>(
      op.output(name, poisoned_tensor(Dtype::kI8, {run.tokens, run.heads, run.head_size})));
  p.code_token_stride = i64{run.heads} * run.head_size;
  p.code_head_stride = run.head_size;
  p.granularity = granularity;
  p.num_tokens = run.tokens;
  p.num_heads = run.heads;
  p.head_size = run.head_size;
  p.scale_token_stride = transposed ? 1 : run.heads;
  p.scale_head_stride = transposed ? run.tokens : 1;
  return p;
}

void queue_int8(OpPipeline& op) {
  const std::array<ProjectionHeads, 3> runs = projection_heads(op);
  const auto scales = [&](const std::string& name, std::vector<std::int64_t> shape) {
    return static_cast<float*>(op.output(name, poisoned_tensor(Dtype::kF32, std::move(shape))));
  };
  std::vector<attn::Int8QuantiseParams> params;
  constexpr auto kTokenHead = attn::Int8Granularity::kTokenHead;
  params.push_back(int8_params(op, runs[0], "output", kTokenHead, true));
  params.back().scale = scales("output_scales", {runs[0].heads, runs[0].tokens});
  params.push_back(int8_params(op, runs[1], "key_output", kTokenHead, false));
  params.back().scale = scales("key_scales", {runs[1].tokens, runs[1].heads});
  if (op.problem().kv_cache.int8_level == 1) {
    const bool given = op.problem().kv_cache.value_scale_file.has_value();
    params.push_back(int8_params(
        op, runs[2], "value_output",
        given ? attn::Int8Granularity::kChannelStatic : attn::Int8Granularity::kChannelDynamic,
        false));
    const std::vector<std::int64_t> shape{runs[2].heads, runs[2].head_size};
    params.back().scale = static_cast<float*>(op.output(
        "value_scales", given ? Tensor::from_f32(op.inputs().attention.value_channel_scale, shape)
                              : poisoned_tensor(Dtype::kF32, shape)));
  }
  op.add_step([&op, params] {
    for (const attn::Int8QuantiseParams& p : params) op.ops().quantise_int8(p);
  });
}

/// §8.7 step 2: cat(ql_nope, q_pe), then one static scale. Each part is quantised to its place in
/// the rows of codes, so that nothing is joined first: a third of the traffic of two passes.
void queue_latent_query(OpPipeline& op) {
  const Problem& problem = op.problem();
  const i64 tokens = problem.num_tokens();
  const int heads = problem.attention.num_heads;
  const i64 latent = problem.mla.kv_lora_rank;
  const i64 width = latent + problem.mla.qk_rope_head_dim;
  attn::StaticQuantiseParams nope{};
  nope.source_element = element_of(problem.attention.dtype);
  nope.source = op.operand("ql_nope");
  nope.source_row_stride = nope.num_columns = latent;
  nope.num_rows = tokens * heads;
  nope.code_row_stride = width;
  nope.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {tokens, heads, width})));
  nope.scale = op.scale_operand("q_scale", {static_cast<float>(problem.kv_cache.q_scale)});
  nope.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  attn::StaticQuantiseParams rope = nope;
  rope.source = op.operand("q_pe");
  rope.source_row_stride = rope.num_columns = width - latent;
  rope.codes = nope.codes + latent;
  queue_reset(op, nope.num_saturated);
  op.add_step([&op, nope, rope] {
    op.ops().quantise_fp8(nope);
    op.ops().quantise_fp8(rope);
  });
}

attn::AmaxParams amax_params(const Problem& problem, const ProjectionHeads& run, float* amax) {
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
std::function<void()> dynamic_scales(OpPipeline& op, const std::array<ProjectionHeads, 3>& runs,
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

attn::PadQuantiseParams pad_params(OpPipeline& op, const ProjectionHeads& run,
                                   const std::string& name) {
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

std::array<ProjectionHeads, 3> projection_heads(OpPipeline& op) {
  const Tensor& rows = op.inputs().at("projection");
  const AttentionSpec& a = op.problem().attention;
  const auto* data = static_cast<const char*>(op.operand("projection"));
  const attn::i64 bytes = rows.dim(2) * static_cast<attn::i64>(dtype_size(rows.dtype()));
  std::array<ProjectionHeads, 3> runs;
  const std::array<int, 3> heads{a.num_heads, a.num_kv_heads, a.num_kv_heads};
  attn::i64 first = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    runs[i] = {data + first * bytes, rows.dim(1) * rows.dim(2), rows.dim(2), rows.dim(0), heads[i],
               a.head_size};
    first += heads[i];
  }
  return runs;
}

void* zeroed_counter(OpPipeline& op, const std::string& name) {
  return op.output(name, Tensor(Dtype::kI64, {1}));
}

void queue_reset(OpPipeline& op, void* counter) {
  const void* zero = op.memory().upload(std::vector<attn::i64>{0}, "zero");
  const attn::CopyParams copy = repeated_copy(attn::Element::kI64, zero, counter, 1);
  op.add_step(side_step("reset_counter", [&op, copy] { op.ops().copy(copy); }));
}

void queue_quantize(OpPipeline& op) {
  if (op.problem().op.mla) return queue_latent_query(op);
  op.problem().kv_cache.int8_level > 0 ? queue_int8(op) : queue_fp8_query(op);
}

void queue_mm_quant(OpPipeline& op) {
  const std::array<ProjectionHeads, 3> runs = projection_heads(op);
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
