// Operations that quantise: queries, the output of attention, the encoder's Q, K and V
// (semantics §8.7, §9, §10.5, §10.6, §11.2).
#include <array>

#include "backends/op_pipeline.h"
#include "inputs/mm_scale_file.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }

/// Query, key or value heads inside the rows of a projection.
struct HeadRun {
  const char* data = nullptr;
  i64 token_stride = 0;
  i64 head_stride = 0;
  i64 tokens = 0;
  int heads = 0;
  int head_size = 0;
};

std::array<HeadRun, 3> projection_heads(OpPipeline& op) {
  const Tensor& rows = op.inputs().at("projection");
  const AttentionSpec& a = op.problem().attention;
  const auto* data = static_cast<const char*>(op.operand("projection"));
  const i64 bytes = rows.dim(2) * static_cast<i64>(dtype_size(rows.dtype()));
  std::array<HeadRun, 3> runs;
  const std::array<int, 3> heads{a.num_heads, a.num_kv_heads, a.num_kv_heads};
  i64 first = 0;
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

/// The counter adds up: it starts from zero in every run.
void queue_reset(OpPipeline& op, void* counter) {
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = attn::Element::kI64;
  copy.source = op.upload(std::vector<i64>{0}, "zero");
  copy.output = counter;
  copy.extents[0] = copy.extents[1] = copy.extents[2] = copy.width = 1;
  op.add_side_step("reset_counter", [&op, copy] { op.ops().copy(copy); });
}

void queue_fp8_query(OpPipeline& op) {
  const Problem& problem = op.problem();
  const HeadRun query = projection_heads(op)[0];
  attn::StaticQuantiseParams p{};
  p.source_element = element_of(problem.attention.dtype);
  p.source = query.data;
  p.source_row_stride = query.token_stride;
  p.code_row_stride = p.num_columns = i64{query.heads} * query.head_size;
  p.num_rows = query.tokens;
  p.codes = static_cast<unsigned char*>(op.output(
      "output", poisoned_tensor(Dtype::kE4M3, {query.tokens, query.heads, query.head_size})));
  p.scale = op.upload(std::vector<float>{static_cast<float>(problem.kv_cache.q_scale)}, "q_scale");
  p.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  queue_reset(op, p.num_saturated);
  op.add_step([&op, p] { op.ops().quantise_fp8(p); });
}

/// §11.2: queries with transposed scales as prefill takes them, keys without; values by channel.
attn::Int8QuantiseParams int8_params(OpPipeline& op, const HeadRun& run, const std::string& name,
                                     attn::Int8Granularity granularity, bool transposed) {
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
  const std::array<HeadRun, 3> runs = projection_heads(op);
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

/// §8.7 step 2: cat(ql_nope, q_pe), then one static scale.
void queue_latent_query(OpPipeline& op) {
  const Problem& problem = op.problem();
  const i64 tokens = problem.num_tokens();
  const int heads = problem.attention.num_heads;
  attn::ConcatParams concat{};
  concat.element = element_of(problem.attention.dtype);
  concat.first = op.operand("ql_nope");
  concat.second = op.operand("q_pe");
  concat.first_size = problem.mla.kv_lora_rank;
  concat.second_size = problem.mla.qk_rope_head_dim;
  concat.first_head_stride = concat.first_size;
  concat.second_head_stride = concat.second_size;
  concat.first_token_stride = i64{heads} * concat.first_size;
  concat.second_token_stride = i64{heads} * concat.second_size;
  const i64 width = concat.first_size + concat.second_size;
  concat.output = op.workspace(
      tokens * heads * width * static_cast<i64>(dtype_size(problem.attention.dtype)), "query");
  concat.output_head_stride = width;
  concat.output_token_stride = heads * width;
  concat.num_tokens = tokens;
  concat.num_heads = heads;
  attn::StaticQuantiseParams p{};
  p.source_element = concat.element;
  p.source = concat.output;
  p.source_row_stride = p.code_row_stride = p.num_columns = heads * width;
  p.num_rows = tokens;
  p.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {tokens, heads, width})));
  p.scale = op.upload(std::vector<float>{static_cast<float>(problem.kv_cache.q_scale)}, "q_scale");
  p.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  queue_reset(op, p.num_saturated);
  op.add_step([&op, concat, p] {
    op.ops().concat(concat);
    op.ops().quantise_fp8(p);
  });
}

// ---- Output of attention ----------------------------------------------------------------------

void queue_static_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  attn::StaticQuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.code_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {p.num_rows, a.num_heads, a.v_head_size})));
  const std::vector<float> scale{static_cast<float>(problem.output_quant.scale)};
  p.scale = op.upload(scale, "output_scale");
  p.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  queue_reset(op, p.num_saturated);
  op.add_step([&op, p] { op.ops().quantise_fp8(p); });
}

void queue_group_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  const OutputScaleLayout layout = output_scale_layout(problem);
  attn::GroupQuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.code_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.group_size = problem.output_quant.type == OutputQuantType::kFp8Group128 ? 128 : 64;
  p.ue8m0 = problem.output_quant.ue8m0 ? 1 : 0;
  p.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {p.num_rows, a.num_heads, a.v_head_size})));
  p.scales =
      static_cast<float*>(op.output("output_scales", poisoned_tensor(Dtype::kF32, layout.shape)));
  p.scale_row_stride = layout.row_stride;
  p.scale_group_stride = layout.group_stride;
  op.add_step([&op, p] { op.ops().quantise_fp8_groups(p); });
}

void queue_nvfp4_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  const bool swizzled = problem.output_quant.swizzle;
  attn::Nvfp4QuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.packed_row_stride = p.num_columns / 2;
  p.packed = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kU8, {p.num_rows, p.packed_row_stride})));
  // Swizzled: the padding is zero from the start (§9.4), what must be written is poison.
  const OutputScaleLayout layout = output_scale_layout(problem);
  Tensor scales =
      swizzled ? Tensor(Dtype::kE4M3, layout.shape) : poisoned_tensor(Dtype::kE4M3, layout.shape);
  for (i64 row = 0; swizzled && row < p.num_rows; ++row) {
    for (i64 block = 0; block < p.num_columns / attn::kNvfp4Block; ++block) {
      scales.data<std::uint8_t>()[attn::nvfp4_swizzled_offset(row, block,
                                                              ceil_div(p.num_columns, 64))] = 0xFF;
    }
  }
  p.scales = static_cast<unsigned char*>(op.output("output_scales", std::move(scales)));
  p.swizzled = swizzled ? 1 : 0;
  const std::vector<float> scale{static_cast<float>(problem.output_quant.scale)};
  p.global_scale = op.upload(scale, "output_scale");
  op.add_step([&op, p] { op.ops().quantise_nvfp4(p); });
}

// ---- Multimodal encoder -----------------------------------------------------------------------

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
  auto* amax = static_cast<float*>(op.workspace(3 * i64{sizeof(float)}, "amax"));
  std::array<attn::AmaxParams, 3> largest;
  for (std::size_t i = 0; i < 3; ++i) largest[i] = amax_params(op.problem(), runs[i], amax + i);
  attn::AmaxHistoryParams history{};
  history.amax = amax;
  history.history = const_cast<float*>(
      op.upload(std::vector<float>(3 * attn::kAmaxHistoryLength, 0.0f), "amax history"));
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

OutputScaleLayout output_scale_layout(const Problem& problem) {
  const OutputQuantSpec& quant = problem.output_quant;
  const std::int64_t rows = problem.num_tokens();
  const std::int64_t columns =
      std::int64_t{problem.attention.num_heads} * problem.attention.v_head_size;
  if (quant.type == OutputQuantType::kNvfp4) {
    const std::int64_t blocks = columns / attn::kNvfp4Block;
    if (!quant.swizzle) return {{rows, blocks}, blocks, 1};
    return {{round_up(rows, 128), round_up(blocks, 4)}, 0, 0};
  }
  const std::int64_t groups = columns / (quant.type == OutputQuantType::kFp8Group128 ? 128 : 64);
  if (!quant.column_major && !quant.tma_aligned) return {{rows, groups}, groups, 1};
  const std::int64_t stride = quant.tma_aligned ? round_up(rows, 4) : rows;
  return {{groups, stride}, 1, stride};
}

void queue_quantize(OpPipeline& op) {
  if (op.problem().op.mla) return queue_latent_query(op);
  op.problem().kv_cache.int8_level > 0 ? queue_int8(op) : queue_fp8_query(op);
}

void queue_output_quant(OpPipeline& op) {
  switch (op.problem().output_quant.type) {
    case OutputQuantType::kFp8Static:
      return queue_static_output(op);
    case OutputQuantType::kFp8Group128:
    case OutputQuantType::kFp8Group64:
      return queue_group_output(op);
    case OutputQuantType::kNvfp4:
      return queue_nvfp4_output(op);
    case OutputQuantType::kNone:
      break;
  }
  fail(ErrorKind::kInternal, "op output_quant without a quantisation");
}

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
