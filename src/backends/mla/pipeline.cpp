#include "backends/mla/pipeline.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

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
      add_mla_sparse(work());
    } else {
      if (work().plan.batch.num_decodes > 0) add_mla_decode(work());
      if (work().plan.batch.num_prefills > 0) add_mla_prefill(work());
    }
    add_output_quant();
  }
};

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

}  // namespace attnbench
