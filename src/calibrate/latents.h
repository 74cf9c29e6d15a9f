// Latent attention (semantics §8) as scales see it: q_scale is of the query of decodes in the
// latent space, k_scale of the entries of the cache, latents and rope parts alike; a value is part
// of an entry, so there is no other scale. What scales cost is taken through the whole decode, the
// projections of query and output included, and so in the space in which a layer goes on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/attention_error.h"
#include "calibrate/observations.h"
#include "reference/mla/inputs.h"

namespace attnbench {

/// Tensors of a layer of MLA as they were drawn or captured. N heads, P and R the parts of a head
/// without and with rotation.
struct LatentTensors {
  Tensor query;                        // [T, N, P + R], or [T, N, Lkv + R] without weights
  Tensor kv_c;                         // [S, Lkv]
  Tensor k_pe;                         // [S, R]
  std::optional<Tensor> w_uk;          // [N, P, Lkv]
  std::optional<Tensor> w_uv;          // [N, Lkv, V]
  std::optional<Tensor> kv_b_proj;     // [N * (P + V), Lkv] instead of both
  std::optional<Tensor> topk_indices;  // i32 [T, topk]
};

/// Its extents, for messages: "[2, 8, 64]".
std::string shape_text(const Tensor& tensor);

/// Sets tensors and latents of `observation`: q becomes the latent query [T, N, Lkv + R], k the
/// entries [S, 1, Lkv + R]. Without weights there is no attention. `name` begins messages. Errors:
/// E-SHAPE where the tensors do not fit together, E-VALUE for one that is all zeros or not finite,
/// E-FORMAT for a query that needs weights and one of them is missing.
void set_latents(const std::string& name, LatentTensors tensors, int num_threads,
                 Observation& observation);

/// As AttentionSample, of an observation with latents. Rows are taken as decodes, whatever a batch
/// has: only those read the cache for all of their keys.
class LatentSample {
 public:
  LatentSample(Observation observation, const SampleOptions& options);

  /// kv-cache: query and entries in e4m3, as FLASHMLA reads them; the legacy form has entries only.
  OutputError error(ScaleFormat format, const std::array<std::vector<double>, kNumRoles>& scales);

 private:
  ReferenceOutput attend(const Tensor& kv_c, const Tensor& k_pe, const Tensor* latent_query) const;

  LatentLayer layer_;         // query [rows, N, P + R] and topk_indices [rows, topk] of the sample
  Tensor kv_c_;               // [S, Lkv] of its sequences
  Tensor k_pe_;               // [S, R]
  double softmax_scale_ = 1;  // every row is a request of its own:
  std::vector<std::int32_t> query_start_loc_;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int64_t> key_start_loc_;
  std::vector<std::int32_t> rows_;
  ReferenceOptions options_;
  ReferenceOutput exact_;
};

}  // namespace attnbench
