#include "inputs/files/file_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>

#include "core/error.h"

namespace attnbench {
namespace {

std::string shape_text(const FileTensors::Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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

}  // namespace attnbench
