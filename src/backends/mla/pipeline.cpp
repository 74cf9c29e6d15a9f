// Reading back comes after everything is timed, so it goes through host memory freely: padded heads
// and rows are cut off there.
#include "backends/mla/pipeline.h"

#include <algorithm>
#include <cstring>

#include "backends/mla/decode.h"
#include "backends/mla/prefill.h"
#include "backends/mla/sparse.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

const BackendInputs& with_mla_inputs(const MlaCapability& capability, const BackendInputs& inputs) {
  if (inputs.mla == nullptr || inputs.mla_cache == nullptr) {
    fail(ErrorKind::kInternal, "{}: no MLA inputs were given", capability.name);
  }
  return inputs;
}

/// Decodes over the latents, prefills over expanded heads.
class NativeMlaPipeline final : public MlaPipeline {
 public:
  NativeMlaPipeline(const MlaCapability& capability, const Problem& problem,
                    const BackendInputs& inputs, Ops& ops)
      : MlaPipeline(capability, problem, inputs, ops) {
    if (capability.sparse) {
      wrong_choice_ = add_mla_sparse(work());
    } else {
      if (work().plan.batch.num_decodes > 0) add_mla_decode(work());
      if (work().plan.batch.num_prefills > 0) add_mla_prefill(work());
    }
    add_output_quant();
  }

  PipelineOutput read_output(bool with_cache) override {
    PipelineOutput output = MlaPipeline::read_output(with_cache);
    if (wrong_choice_ && output.defect.empty()) output.defect = wrong_choice_();
    return output;
  }

 private:
  std::function<std::string()> wrong_choice_;  // of an indexer
};

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace

MlaPipeline::MlaPipeline(const MlaCapability& capability, const Problem& problem,
                         const BackendInputs& inputs, Ops& ops)
    : problem_(problem), work_(capability, problem_, with_mla_inputs(capability, inputs), ops) {
  work_.add_write_step();
}

void MlaPipeline::poison_outputs() { work_.memory.poison(); }

PipelineOutput MlaPipeline::read_output(bool with_cache) {
  work_.ops.synchronize();
  PipelineOutput result;
  const MlaSizes& n = work_.sizes;
  DeviceBuffers::Rows output = work_.memory.read_rows(work_.output, problem_.attention.dtype,
                                                      {work_.num_tokens, n.heads, n.value});
  result.output = std::move(output.rows);
  if (output.written_past) result.defect = "an output row past the last token was written";
  if (work_.kv_scales && result.defect.empty()) {
    result.defect = work_.kv_scales->defect(problem_);
  }
  result.lse = work_.memory.read_lse(work_.lse, n.heads, work_.num_tokens, work_.num_rows);
  if (with_cache) result.cache = work_.read_cache();
  read_partials(result);
  if (!quant_->is_on()) return result;
  result.more.emplace_back("output_unquantized", std::move(result.output));
  DeviceBuffers::Rows codes = quant_->read_codes();
  result.output = std::move(codes.rows);
  result.more.emplace_back("output_scales", quant_->read_scales());
  if (codes.written_past && result.defect.empty()) {
    result.defect = "a row of the quantised output past the last token was written";
  }
  return result;
}

std::optional<SampleSide> MlaPipeline::sample_side() {
  SampleSide side;
  const MlaSizes& n = work_.sizes;
  side.add_query(work_.query, work_.element, work_.num_tokens, n.heads * n.qk());
  side.blocks =
      RedrawBlocks::of_cache(problem_, work_.cache_before.block_table, page_tokens(problem_));
  const std::int64_t block = problem_.kv_cache.block_size * work_.cache_before.data.shape().back() *
                             static_cast<std::int64_t>(dtype_size(work_.cache_before.data.dtype()));
  for (const MlaRank& rank : work_.ranks) {
    side.planes.push_back({reinterpret_cast<std::byte*>(rank.cache), block, block});
  }
  side.add_output(work_.memory, work_.output, work_.element);
  side.add_output(work_.memory, work_.lse, attn::Element::kF32);
  if (quant_->is_on()) quant_->add_outputs(side);
  side.workspace_bytes = work_.memory.poisoned_bytes();
  side.read = [this] { return read_output(false); };
  return side;
}

/// rank_output f32 [W, Td, N, Lkv] and rank_lse f32 [W, N, Td] of the decodes.
void MlaPipeline::read_partials(PipelineOutput& result) {
  if (work_.partials.empty()) return;
  const auto world_size = static_cast<std::int64_t>(work_.partials.size());
  const i64 tokens = work_.plan.batch.num_decode_tokens;
  const i64 heads = work_.sizes.heads;
  const i64 row = heads * work_.sizes.latent;
  const i64 padded_row = work_.padded_heads() * work_.sizes.latent;
  Tensor output(Dtype::kF32, {world_size, tokens, heads, work_.sizes.latent});
  Tensor lse(Dtype::kF32, {world_size, heads, tokens});
  std::vector<float> padded(static_cast<std::size_t>(tokens * padded_row));
  for (std::size_t r = 0; r < work_.partials.size(); ++r) {
    const auto& [partial, partial_lse] = work_.partials[r];
    const auto rank = static_cast<i64>(r);
    work_.ops.download(padded.data(), work_.memory.starting_at(partial),
                       padded.size() * sizeof(float));
    for (i64 t = 0; t < tokens; ++t) {
      std::copy_n(padded.data() + t * padded_row, row,
                  output.data<float>() + (rank * tokens + t) * row);
    }
    work_.ops.download(lse.data<float>() + rank * heads * tokens,
                       work_.memory.starting_at(partial_lse),
                       static_cast<std::size_t>(heads * tokens) * sizeof(float));
  }
  result.more.emplace_back("rank_output", std::move(output));
  result.more.emplace_back("rank_lse", std::move(lse));
}

std::unique_ptr<Pipeline> make_mla_pipeline(const MlaCapability& capability, const Problem& problem,
                                            const BackendInputs& inputs, Ops& ops) {
  return std::make_unique<NativeMlaPipeline>(capability, problem, inputs, ops);
}

MlaOutputQuant::MlaOutputQuant(MlaWork& work) : work_(work) {
  const OutputQuantSpec& spec = work.problem.output_quant;
  if (spec.type == OutputQuantType::kNone) return;
  layout_ = output_quant_layout(work.problem);
  const i64 columns = work.sizes.heads * work.sizes.value;
  const i64 row_bytes = spec.type == OutputQuantType::kNvfp4 ? columns / 2 : columns;
  codes_ = work.memory.workspace(work.num_rows * row_bytes, "quantised output");
  scale_bytes_ =
      elements(layout_.scale_shape) * static_cast<std::int64_t>(dtype_size(layout_.scale_dtype));
  if (spec.type == OutputQuantType::kFp8Static) {
    add_static();
  } else if (spec.type == OutputQuantType::kNvfp4) {
    add_nvfp4();
  } else {
    add_groups();
  }
}

void MlaOutputQuant::add_static() {
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  const auto scale = static_cast<float>(work_.problem.output_quant.scale);
  attn::StaticQuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = quantise.code_row_stride = columns;
  quantise.codes = static_cast<unsigned char*>(codes_);
  quantise.scale = work_.memory.upload(std::vector<float>{scale}, "output scale");
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  scales_ = const_cast<float*>(quantise.scale);
  attn::ValueOutputParams whole{};
  whole.by_scale = quantise;
  if (work_.joins_projection(whole)) return;
  work_.add_each("quantise_output", false, &Ops::quantise_fp8, std::vector{quantise});
}

void MlaOutputQuant::add_groups() {
  const OutputQuantSpec& spec = work_.problem.output_quant;
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  scales_ = work_.memory.workspace(scale_bytes_, "output scales");
  attn::GroupQuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = quantise.code_row_stride = columns;
  quantise.codes = static_cast<unsigned char*>(codes_);
  quantise.scales = static_cast<float*>(scales_);
  const bool by_column = spec.column_major || spec.tma_aligned;
  quantise.scale_row_stride = by_column ? 1 : layout_.scale_shape[1];
  quantise.scale_group_stride = by_column ? layout_.scale_shape[1] : 1;
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  quantise.group_size = output_quant_group(spec.type);
  quantise.ue8m0 = spec.ue8m0 ? 1 : 0;
  attn::ValueOutputParams whole{};
  whole.by_groups = quantise;
  if (work_.joins_projection(whole)) return;
  work_.add_each("quantise_output", false, &Ops::quantise_fp8_groups, std::vector{quantise});
}

void MlaOutputQuant::add_nvfp4() {
  const OutputQuantSpec& spec = work_.problem.output_quant;
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  scales_ = work_.memory.workspace(scale_bytes_, "output scales");
  const std::vector<float> global{static_cast<float>(spec.scale)};
  attn::Nvfp4QuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = columns;
  quantise.packed = static_cast<unsigned char*>(codes_);
  quantise.packed_row_stride = columns / 2;
  quantise.scales = static_cast<unsigned char*>(scales_);
  quantise.swizzled = spec.swizzle ? 1 : 0;
  quantise.global_scale = work_.memory.upload(global, "global output scale");
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  attn::ValueOutputParams whole{};
  whole.by_blocks = quantise;
  if (spec.swizzle) whole.clear = zero_scales();
  if (work_.joins_projection(whole)) return;
  if (spec.swizzle) {
    work_.add_each("clear_output_scales", false, &Ops::concat, std::vector{whole.clear});
  }
  work_.add_each("quantise_output", false, &Ops::quantise_nvfp4, std::vector{quantise});
}

attn::ConcatParams MlaOutputQuant::zero_scales() const {
  attn::ConcatParams zeros{};
  zeros.element = attn::Element::kU8;
  zeros.output = scales_;
  zeros.output_token_stride = layout_.scale_shape[1];
  zeros.num_tokens = layout_.scale_shape[0];
  zeros.num_heads = 1;
  zeros.second_size = checked_int32(layout_.scale_shape[1], "output scales of a row");
  return zeros;
}

void MlaOutputQuant::add_outputs(SampleSide& side) const {
  side.add_output(work_.memory, codes_, attn::Element::kU8);
  // A static scale is an input.
  if (work_.problem.output_quant.type == OutputQuantType::kFp8Static) return;
  side.add_output(work_.memory, scales_, attn::Element::kU8);
}

DeviceBuffers::Rows MlaOutputQuant::read_codes() const {
  return work_.memory.read_rows(codes_, layout_.code_dtype, layout_.code_shape);
}

Tensor MlaOutputQuant::read_scales() const {
  return work_.memory.read(scales_, layout_.scale_dtype, layout_.scale_shape);
}

}  // namespace attnbench
