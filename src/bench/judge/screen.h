// Screening: every row of an attention output is compared, where the reference could only afford a
// sample of them.
//
// On a GPU a plain float64 kernel of this program does it (device_screen.h); on the CPU the
// reference's own mathematics in float32. Neither decides: what screening finds suspicious goes to
// the float64 reference, whose word counts (screened_judgement.h). So a screening that is a little
// off costs time and no verdict, and one that is far off is found, because rows that both have seen
// must agree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "metadata/mask/attention_math.h"
#include "metadata/parts/dcp.h"
#include "reference/attention.h"
#include "reference/mla/inputs.h"

namespace attnbench {

/// An output and how it reads: scale > 0 says that it holds e4m3 codes of value / scale.
struct ScreenedOutput {
  const Tensor* output = nullptr;  // [T, H, Dv]
  double e4m3_scale = 0;

  double scale() const { return e4m3_scale > 0 ? e4m3_scale : 1; }
  /// The largest value that it can hold; beyond it f32, f16 and bf16 have infinities, e4m3 that
  /// value.
  double limit() const;
};

/// A row `a` of a head beside the row `r` of the screening.
struct ScreenedRow {
  double error = 0;            // ||a - r|| over the elements that are finite in both
  double expected = 0;         // ||r|| over these
  double size = 0;             // max(||r||, kRowSpread * sqrt(sum_j p_j^2 ||v_j||^2))
  double largest = 0;          // of |a - r|
  double lse = 0;              // of the screening
  std::int64_t misplaced = 0;  // NaN and infinities on one side only
};

struct ScreenTable {
  std::vector<std::int32_t> rows;  // token indices, ascending
  std::int64_t num_heads = 0;
  std::vector<ScreenedRow> of;  // [rows, H]
  /// In float64: it must agree with the reference. Else it is float32, and how far it is from the
  /// reference is taken from the rows that both have.
  bool is_float64 = false;

  const ScreenedRow& at(std::size_t row, std::int64_t head) const {
    return of[row * static_cast<std::size_t>(num_heads) + static_cast<std::size_t>(head)];
  }
};

/// What of another output of a case is screened, which was computed from tensors of its own: a
/// timed sample (inputs/redraw.h).
struct ScreenedPart {
  /// Rows of keys and values in the order that lengths and starts count, or empty: as they are.
  std::span<const std::int32_t> keys;
  /// Token rows, ascending: those of the table.
  std::span<const std::int32_t> rows;
  /// Tensors of the inputs that go when the comparison is done.
  std::vector<const Tensor*> passing;
};

/// Screening on a device, of one case.
class RowScreen {
 public:
  virtual ~RowScreen() = default;
  /// All rows. Keeps what it uploads of the inputs, so their tensors must stay where they are until
  /// it is destroyed. Errors: E-CAPACITY where there is too little
  /// memory for that.
  virtual ScreenTable compare(const AttentionMath& math, const ReferenceInputs& inputs,
                              const ScreenedOutput& output) = 0;
  /// The same of latent attention; has_latents() says which.
  virtual ScreenTable compare_latent(const MlaReferenceInputs& inputs,
                                     const ScreenedOutput& output) = 0;
  /// The part of one rank of a group: attention to the keys of `keys`, in that order; lengths and
  /// starts of `inputs` count these.
  virtual ScreenTable compare_listed(const AttentionMath& math, const ReferenceInputs& inputs,
                                     std::span<const std::int32_t> keys,
                                     const ScreenedOutput& output) = 0;
  /// The decodes' part of one rank in the latent space (semantics §8.7), [Td, N, Lkv].
  virtual ScreenTable compare_latent_rank(const MlaReferenceInputs& inputs, const DcpGroup& group,
                                          int rank, const ScreenedOutput& output) = 0;
  /// Some rows of other outputs. What was uploaded of tensors that stay, stays until release().
  virtual ScreenTable compare_part(const AttentionMath& math, const ReferenceInputs& inputs,
                                   const ScreenedPart& part, const ScreenedOutput& output) = 0;
  virtual ScreenTable compare_latent_part(const MlaReferenceInputs& inputs,
                                          const ScreenedPart& part,
                                          const ScreenedOutput& output) = 0;
  /// Leaves the memory of the device to what is timed next.
  virtual void release() = 0;
  /// Whether compare_latent() has the mathematics: prefills in e4m3 are left to the CPU, since a
  /// product that rounds the other way there would be another value.
  static bool has_latents(const MlaReferenceInputs& inputs) { return !inputs.fp8_prefill; }
};

/// The table of rows that were computed on the host, by the reference or in float32.
ScreenTable screen_by(const ReferenceOutput& expected, const ScreenedOutput& output);

}  // namespace attnbench
