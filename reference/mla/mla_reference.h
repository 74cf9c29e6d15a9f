// Float64 reference of multi-head latent attention in its two forms (semantics §8.3, §15.2), and
// the same maths in storage precision.
//
// Kernels use one form or the other, and a mistake in the reference's own algebra would make
// correct kernels look wrong. Therefore the reference computes as much as it can afford in both
// forms and stops with an internal error where they differ by more than their rounding explains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/problem/problem.h"
#include "reference/attention.h"
#include "reference/mla/inputs.h"

namespace attnbench {

/// Results are output [rows, N, V] and lse [N, rows]: 0 and -inf for a row that sees nothing. All
/// return nothing when should_stop said so; errors as check_mla_inputs.

/// Every row in data-movement-friendly form, except prefill rows with fp8_prefill.
std::optional<ReferenceOutput> mla_reference_mqa(const MlaReferenceInputs& inputs,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options = {});
/// Every row in compute-friendly form, except decode rows with a latent_query. Expanding a key
/// costs 2 * N * Lkv * (P + V) operations, whatever the number of rows that see it.
std::optional<ReferenceOutput> mla_reference_mha(const MlaReferenceInputs& inputs,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options = {});

struct MlaReferenceOptions {
  ReferenceOptions reference;
  MlaRefForm form = MlaRefForm::kBoth;
  /// kBoth: floating-point operations that the second form may cost. Beyond them it is computed for
  /// an even choice of heads, at least one for every row; with 0 not at all.
  double second_form_flops = 20e9;
};

struct MlaAgreement {
  double worst = 0;                 // largest difference in units of what is allowed
  std::int64_t compared_pairs = 0;  // (row, head) pairs with both forms
  std::int64_t exempt_pairs = 0;    // not finite, as non-finite inputs allow
};

/// kBoth takes each row from the form that is cheaper for it, computes the other one too and fails
/// with kInternal, naming the worst place, where they differ by more than 1e-9 of the largest
/// output of that row and head (of the LSE; more for scores beyond 1000, whose own rounding shows).
std::optional<ReferenceOutput> mla_reference(const MlaReferenceInputs& inputs,
                                             std::span<const std::int32_t> rows,
                                             const MlaReferenceOptions& options = {},
                                             MlaAgreement* agreement = nullptr);

/// Compares two forms of the same rows; part of mla_reference. `inputs_finite` says whether a
/// result may be exempt for not being finite: the forms multiply infinities in different orders.
void check_mla_agreement(const ReferenceOutput& first, const ReferenceOutput& second,
                         std::span<const int> heads, bool inputs_finite, MlaAgreement& agreement);

/// The same maths in storage precision (contract §4, err_ratio), decode rows in MQA form and
/// prefill rows in MHA form: ql, o_l, k_nope and v rounded to rule.storage as well. A few prefill
/// rows of long requests are emulated in MQA form, which is cheaper by far and errs as much on
/// average, but not in the same rows.
std::optional<ReferenceOutput> emulate_mla(const MlaReferenceInputs& inputs,
                                           const EmulationRule& rule,
                                           std::span<const std::int32_t> rows,
                                           const ReferenceOptions& options = {});

/// The prefill rows among `rows` in MHA form whatever that costs, for `heads`, which ascend: output
/// [prefill rows, heads, V] and lse [heads, prefill rows]; no rows where all are decodes.
std::optional<ReferenceOutput> emulate_mla_prefills(const MlaReferenceInputs& inputs,
                                                    const EmulationRule& rule,
                                                    std::span<const std::int32_t> rows,
                                                    std::span<const int> heads,
                                                    const ReferenceOptions& options = {});

}  // namespace attnbench
