// Tensors of a user's file in place of drawn ones. Everything about the file is checked before a
// tensor is used, and each message names file, tensor, what the scenario makes of the batch and
// what the file has.
#include "inputs/files/input_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "core/error.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

std::string shape_text(const FileTensors::Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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
  /// The requests of a group share the pages of its prefix, so their keys must be the same there.
  void check_shared_prefix(const std::string& tensor, const Tensor& rows) const {
    if (rows.empty()) return;
    for (const PrefixGroup& group : prefix_groups(problem_)) {
      check_shared_prefix(tensor, rows, group);
    }
  }
  void check_shared_prefix(const std::string& tensor, const Tensor& rows,
                           const PrefixGroup& group) const {
    const std::span<const std::int32_t> seq_lens(inputs_.seq_lens);
    const auto own = seq_lens.subspan(static_cast<std::size_t>(group.first_request),
                                      static_cast<std::size_t>(group.num_requests));
    if (own.empty()) return;
    const auto longest = static_cast<std::size_t>(
        group.first_request + (std::max_element(own.begin(), own.end()) - own.begin()));
    const std::size_t row_bytes = rows.size_bytes() / static_cast<std::size_t>(rows.dim(0));
    const auto row = [&](std::size_t request, std::int64_t position) {
      return rows.bytes() +
             static_cast<std::size_t>(inputs_.key_start_loc[request] + position) * row_bytes;
    };
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::size_t b = static_cast<std::size_t>(group.first_request) + i;
      for (std::int64_t p = 0; p < std::min<std::int64_t>(group.num_keys, own[i]); ++p) {
        if (std::memcmp(row(b, p), row(longest, p), row_bytes) == 0) continue;
        fail(ErrorKind::kValue,
             "inputs.file '{}': tensor '{}': cascade.{} {} needs equal rows, but position {} of "
             "request {} differs from request {}",
             name(), tensor, problem_.cascade.groups.empty() ? "common_prefix_len" : "groups",
             group.num_keys, p, b, longest);
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

FileTensors::FileTensors(const Problem& problem, std::vector<std::string>& notices)
    : name_(*problem.inputs.file),
      dtype_(problem.attention.dtype),
      notices_(notices),
      file_(read_safetensors(name_)) {}

void FileTensors::notice(const std::string& text) {
  notices_.push_back(fmt::format("inputs.file '{}': {}", name_, text));
}

void FileTensors::check_shape(const std::string& tensor, const Shape& expected,
                              const Shape& actual) const {
  if (expected == actual) return;
  fail(ErrorKind::kShape, "inputs.file '{}': tensor '{}': expected shape {}, got {}", name_, tensor,
       shape_text(expected), shape_text(actual));
}

void FileTensors::check_floating(const std::string& tensor, Dtype dtype) const {
  if (is_floating(dtype)) return;
  fail(ErrorKind::kDtype, "inputs.file '{}': tensor '{}': expected a floating dtype, got {}", name_,
       tensor, dtype_name(dtype));
}

void FileTensors::check_lengths(const std::string& tensor,
                                const std::vector<std::int32_t>& expected) const {
  const Tensor* found = find(tensor);
  if (found == nullptr) return;
  check_shape(tensor, {static_cast<std::int64_t>(expected.size())}, found->shape());
  const bool wide = found->dtype() == Dtype::kI64;
  if (!wide && found->dtype() != Dtype::kI32) {
    fail(ErrorKind::kDtype, "inputs.file '{}': tensor '{}': expected int32, got {}", name_, tensor,
         dtype_name(found->dtype()));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t actual =
        wide ? found->data<std::int64_t>()[i] : found->data<std::int32_t>()[i];
    if (actual == expected[i]) continue;
    fail(ErrorKind::kValue,
         "inputs.file '{}': {}[{}] disagrees with the batch: expected {}, got {}", name_, tensor, i,
         expected[i], actual);
  }
}

Tensor FileTensors::floating_tensor(const std::string& tensor, const Shape& shape) {
  const Tensor* found = find(tensor);
  if (found == nullptr) {
    fail(ErrorKind::kFormat, "inputs.file '{}': tensor '{}' {} is missing", name_, tensor,
         shape_text(shape));
  }
  check_shape(tensor, shape, found->shape());
  check_floating(tensor, found->dtype());
  if (found->dtype() == dtype_) return *found;
  notice(fmt::format("{} is {}, rounded to {}", tensor, dtype_name(found->dtype()),
                     dtype_name(dtype_)));
  return convert(*found, dtype_);
}

Tensor FileTensors::pad_query(const Tensor& rows) {
  Tensor query(rows.dtype(), {rows.dim(0) + kQueryPaddingRows, rows.dim(1), rows.dim(2)});
  if (!rows.empty()) std::memcpy(query.bytes(), rows.bytes(), rows.size_bytes());
  for (std::int64_t i = rows.num_elements(); i < query.num_elements(); ++i) {
    query.set(i, std::numeric_limits<float>::quiet_NaN());
  }
  return query;
}

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
