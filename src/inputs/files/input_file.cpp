#include "inputs/files/input_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "inputs/files/file_tensors.h"

namespace attnbench {
namespace {

class Reader : private FileTensors {
 public:
  Reader(const Problem& problem, AttentionInputs& inputs)
      : FileTensors(problem, inputs.notices), problem_(problem), inputs_(inputs) {}

  void read() {
    check_lengths("query_start_loc", inputs_.query_start_loc);
    check_lengths("seq_lens", inputs_.seq_lens);
    const AttentionSpec& a = problem_.attention;
    inputs_.key = floating_tensor("key", {problem_.num_keys(), a.num_kv_heads, a.head_size});
    inputs_.value = floating_tensor("value", {problem_.num_keys(), a.num_kv_heads, a.v_head_size});
    inputs_.query =
        pad_query(floating_tensor("query", {problem_.num_tokens(), a.num_heads, a.head_size}));
    check_shared_prefix("key", inputs_.key);
    check_shared_prefix("value", inputs_.value);
    read_sinks();
    read_alibi_slopes();
  }

  /// The tensor `name` [H] as floats; empty when the file has none.
  std::vector<float> per_head(const std::string& tensor) const {
    const Tensor* found = find(tensor);
    if (found == nullptr) return {};
    check_shape(tensor, {problem_.attention.num_heads}, found->shape());
    check_floating(tensor, found->dtype());
    std::vector<float> values(static_cast<std::size_t>(found->num_elements()));
    load_floats(found->dtype(), found->bytes(), found->num_elements(), values.data());
    return values;
  }

 private:
  /// Requests share the pages of the prefix, so their keys must be the same there.
  void check_shared_prefix(const std::string& tensor, const Tensor& rows) const {
    const std::int64_t prefix = problem_.cascade.common_prefix_len;
    if (prefix == 0 || rows.empty()) return;
    const auto longest = std::max_element(inputs_.seq_lens.begin(), inputs_.seq_lens.end()) -
                         inputs_.seq_lens.begin();
    const std::size_t row_bytes = rows.size_bytes() / static_cast<std::size_t>(rows.dim(0));
    const auto row = [&](std::size_t request, std::int64_t position) {
      return rows.bytes() +
             static_cast<std::size_t>(inputs_.key_start_loc[request] + position) * row_bytes;
    };
    for (std::size_t b = 0; b < inputs_.seq_lens.size(); ++b) {
      for (std::int64_t p = 0; p < std::min<std::int64_t>(prefix, inputs_.seq_lens[b]); ++p) {
        if (std::memcmp(row(b, p), row(static_cast<std::size_t>(longest), p), row_bytes) == 0)
          continue;
        fail(ErrorKind::kValue,
             "inputs.file '{}': tensor '{}': cascade.common_prefix_len {} needs equal rows, but "
             "position {} of request {} differs from request {}",
             name(), tensor, prefix, p, b, longest);
      }
    }
  }

  void read_sinks() {
    if (problem_.attention.sinks == SinksKind::kValues) return;
    const std::vector<float> values = per_head("sinks");
    if (values.empty()) return;
    inputs_.sinks = values;
  }

  void read_alibi_slopes() {
    if (problem_.attention.alibi_slopes) return;
    const std::vector<float> values = per_head("alibi_slopes");
    if (values.empty()) return;
    if (problem_.attention.alibi == AlibiKind::kNone) {
      notice("alibi_slopes are ignored because attention.alibi is none");
      return;
    }
    inputs_.alibi_slopes = values;
  }

  const Problem& problem_;
  AttentionInputs& inputs_;
};

}  // namespace

void adopt_file_sinks(Problem& problem) {
  if (!problem.inputs.file || problem.attention.sinks == SinksKind::kValues) return;
  AttentionInputs unused;
  const std::vector<float> sinks = Reader(problem, unused).per_head("sinks");
  if (sinks.empty()) return;
  problem.attention.sinks = SinksKind::kValues;
  problem.attention.sink_values.assign(sinks.begin(), sinks.end());
}

void load_input_file(const Problem& problem, AttentionInputs& inputs) {
  Reader(problem, inputs).read();
}

}  // namespace attnbench
