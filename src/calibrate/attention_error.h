// What scales cost: attention over quantised queries, keys and values against attention over the
// tensors themselves, both in float64, so that the difference is of the scales and of nothing else.
//
// Tensors are quantised by the very code that a run stores its cache by, and as the kernels divide:
// an error found here is the one that a model with these scales has. A forward may be far larger
// than float64 attention is affordable for, hence the sample; the same seed chooses the same rows
// for every method, which makes their errors comparable.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "calibrate/observations.h"
#include "inputs/make_inputs.h"
#include "metadata/mask/attention_math.h"
#include "reference/attention.h"

namespace attnbench {

/// Sums over the output elements of the sampled rows; those of several forwards add up.
struct OutputError {
  double squared_error = 0;
  double squared_reference = 0;
  double max_abs = 0;

  void add(const OutputError& other);
  /// ||a - r|| / ||r||; infinite when the reference is 0 and the output is not.
  double rms_rel() const;
};

/// Of `output` against `exact`, of the same rows.
OutputError output_error(const ReferenceOutput& output, const ReferenceOutput& exact);

/// The error of attention over `quantised` tensors, of all rows, as another device finds it;
/// nothing for what it does not serve. Lengths and starts of both are the same.
using ErrorOnDevice = std::function<std::optional<OutputError>(
    const AttentionMath& math, const ReferenceInputs& exact, const ReferenceInputs& quantised)>;

struct SampleOptions {
  ErrorOnDevice device_error;  // in place of the reference; may be empty
  std::int64_t max_rows = 128;
  std::uint64_t seed = 0;
  int num_threads = 0;  // 0 = all cores
};

/// Some whole sequences of a forward with some of their rows: first and last, the others by the
/// seed, as many as memory and time for a few thousand keys allow; at least one.
class AttentionSample {
 public:
  /// The observation must have attention; its tensors are taken.
  AttentionSample(Observation observation, const SampleOptions& options);

  /// `scales` of q, k and v as a scale file of `format` has them. What the format has no scale for
  /// is as vLLM has it beside such a file: int8-value quantises queries and keys by token and head
  /// (§11.1), the legacy form does not touch the query.
  OutputError error(ScaleFormat format, const std::array<std::vector<double>, kNumRoles>& scales);

 private:
  AttentionMath math() const;
  /// The sampled rows as decodes of their own, which see the same keys; nothing where those that a
  /// row sees do not end with it.
  bool set_single_rows();
  ReferenceInputs single_rows(const Tensor& query, const Tensor& key, const Tensor& value) const;
  /// `query` has only the sampled rows.
  ReferenceOutput attend(const Tensor& query, const Tensor& key, const Tensor& value) const;

  Problem problem_;
  KernelRules rules_;
  AttentionInputs inputs_;  // with the sampled rows of the query: only these are quantised
  std::vector<std::int32_t> rows_;
  ReferenceOptions options_;
  ErrorOnDevice device_error_;
  /// Of the sampled rows one by one, where the device takes them.
  std::vector<std::int32_t> single_starts_;
  std::vector<std::int32_t> single_lens_;
  std::vector<std::int64_t> single_keys_;
  std::optional<ReferenceOutput> exact_;  // of the host, once it is asked for
};

}  // namespace attnbench
