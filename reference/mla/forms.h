// The two forms of MLA (semantics §8.3) over a batch of rows and their cache entries. All softmax
// work is done by the attention reference; here are the products with the weights around it.
//
// MQA form: queries are projected into the latent space, all heads attend to the latents
// themselves, and the result is projected back; cheap where few rows see many keys. MHA form: keys
// and values are expanded from the latents for every head; cheap where many rows share them. In
// exact arithmetic both are equal, which mla_reference.h uses as a check of either.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/system/parallel.h"
#include "reference/attention.h"
#include "reference/mla/batch.h"
#include "reference/mla/inputs.h"
#include "reference/mla/products.h"

namespace attnbench {

/// A batch's entries expanded for some heads.
struct MlaKeyValue {
  Tensor key;    // [K, heads, P + R]
  Tensor value;  // [K, heads, V]
};

/// Real = double: the reference; Real = float with a rule: the emulation of storage precision.
/// Heads are given as ascending indices; results hold these heads in this order, rows as in the
/// batch. A function returns nothing when should_stop said so.
template <typename Real>
class MlaForms {
 public:
  /// `inputs` as checked by check_mla_inputs; `rule` is null for the reference. Borrowed.
  MlaForms(const MlaReferenceInputs& inputs, const MlaDims& dims, const EmulationRule* rule,
           const ReferenceOptions& options);

  const MlaDims& dims() const { return dims_; }
  std::vector<int> all_heads() const;

  /// Data-movement-friendly form: output [rows, heads, V].
  std::optional<ReferenceOutput> mqa(const MlaBatch& batch, std::span<const int> heads);
  /// Its first part, attention over the latents: output [rows, heads, Lkv].
  std::optional<ReferenceOutput> attend_latent(const MlaBatch& batch, std::span<const int> heads);
  /// Its second part: o = o_l * W_UV; a row that saw nothing stays 0.
  ReferenceOutput up_project(const ReferenceOutput& latent, std::span<const int> heads);

  /// Compute-friendly form: output [rows, heads, V].
  std::optional<ReferenceOutput> mha(const MlaBatch& batch, std::span<const int> heads);

 private:
  /// Sizes and losses of rows after up_project: a row of latents grows as the head's weights make
  /// vectors grow on average. `result` has its output.
  void project_sizes(const ReferenceOutput& latent, std::span<const int> heads,
                     ReferenceOutput& result) const;
  Tensor latent_queries(const MlaBatch& batch, std::span<const int> heads);
  void project_queries(const MlaBatch& batch, int head, Real* destination, std::int64_t stride);
  Tensor head_queries(const MlaBatch& batch, std::span<const int> heads) const;
  /// Entries [begin, end) of the batch as the maths reads them.
  void load_entry_rows(const MlaBatch& batch, std::int64_t begin, std::int64_t end,
                       Real* destination) const;
  /// The batch's entries as [K, Lkv + R] of Real; what prefill reads from its workspace is rounded.
  MlaBuffer<Real> load_entries(const MlaBatch& batch) const;
  MlaKeyValue expand(const MlaBuffer<Real>& entries, std::span<const int> heads, bool to_e4m3);
  /// query [rows, H, Dq], key [K, Hk, Dq], value [K, Hk, Dv].
  std::optional<ReferenceOutput> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const MlaBatch& batch) const;
  /// Rounds an intermediate that a kernel stores in 16 bits; nothing in the reference.
  void round_stored(Real* values, std::int64_t count) const;
  /// To e4m3 by way of the query's dtype.
  void round_to_e4m3(Real* values, std::int64_t count) const;

  const MlaReferenceInputs& inputs_;
  MlaDims dims_;
  const EmulationRule* rule_;
  ReferenceOptions options_;
  ThreadPool pool_;
};

extern template class MlaForms<double>;
extern template class MlaForms<float>;

/// Places `part`, computed for the chosen heads and for rows [row_begin, ...) of `whole`.
void place_part(const ReferenceOutput& part, std::span<const int> heads, std::int64_t row_begin,
                ReferenceOutput& whole);

/// Zero outputs and lse = -inf for `rows`.
ReferenceOutput empty_output(std::span<const std::int32_t> rows, std::int64_t num_heads,
                             std::int64_t v_head_size);

}  // namespace attnbench
