// Tensors of inputs.file in place of seeded ones (contract section 5), checked against the
// scenario: the file gives numbers, the scenario shapes, lengths and types. A file that disagrees
// is refused; only the element type may differ, which a notice tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "inputs/files/safetensors.h"
#include "inputs/make_inputs.h"

namespace attnbench {

/// Rows beyond the tokens that query gets, all NaN.
inline constexpr std::int64_t kQueryPaddingRows = 3;

class FileTensors {
 public:
  using Shape = std::vector<std::int64_t>;

  /// Reads problem.inputs.file. Notices are appended to `notices`; both must outlive this.
  FileTensors(const Problem& problem, std::vector<std::string>& notices);

  const std::string& name() const { return name_; }
  const Tensor* find(const std::string& tensor) const { return file_.find(tensor); }
  void notice(const std::string& text);

  void check_shape(const std::string& tensor, const Shape& expected, const Shape& actual) const;
  void check_floating(const std::string& tensor, Dtype dtype) const;
  /// Integers that, when present, must agree with the batch.
  void check_lengths(const std::string& tensor, const std::vector<std::int32_t>& expected) const;
  /// Required; rounded to attention.dtype with a notice when the file's dtype differs.
  Tensor floating_tensor(const std::string& tensor, const Shape& shape);
  /// `rows` [T, H, D] with kQueryPaddingRows rows of NaN behind them.
  static Tensor pad_query(const Tensor& rows);

 private:
  std::string name_;
  Dtype dtype_;
  std::vector<std::string>& notices_;
  SafetensorsFile file_;
};

/// Reads query, key, value (required), sinks and alibi_slopes from problem.inputs.file into
/// `inputs`, whose query_start_loc, seq_lens and key_start_loc are set already. Numbers given in
/// the scenario win over the file's. Adds notices. Errors: as make_inputs.
void load_input_file(const Problem& problem, AttentionInputs& inputs);

/// A tensor `sinks` of inputs.file becomes the problem's numbers unless the scenario gives numbers
/// itself, so that refusals, pipelines and results all see the same sinks. Nothing happens without
/// a file. Errors: as make_inputs.
void adopt_file_sinks(Problem& problem);

}  // namespace attnbench
