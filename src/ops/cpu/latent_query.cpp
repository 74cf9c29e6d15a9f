// The query of MLA decodes step by step, as pipelines make it that find no kernel for all of it
// (semantics §8.4, §8.7).
#include "kernels/params_mla.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/heads_of_padding.h"

namespace attnbench::cpu {

void make_latent_query(const attn::LatentQueryParams& params, Workers& workers) {
  matmul(params.project, workers);
  concat(params.join, workers);
  if (params.quantise.codes != nullptr) quantise_fp8(params.quantise, workers);
  if (params.padded_heads > params.join.num_heads) concat(heads_of_padding(params), workers);
  if (params.write.cache != nullptr) write_mla_cache(params.write, workers);
}

}  // namespace attnbench::cpu
