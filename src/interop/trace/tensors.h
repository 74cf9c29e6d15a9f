// The inputs of a workload: their sizes, types and, where files give them, values.
//
// A file is opened once and its tensors are read when they are asked for: caches of a captured
// workload are large, and its indptrs small.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/tensor.h"
#include "inputs/files/safetensors.h"
#include "interop/trace/definition.h"

namespace attnbench {

class TraceTensors {
 public:
  /// All are borrowed but `root`, the folder that paths of files are relative to.
  TraceTensors(const TraceDefinition& definition, const TraceWorkload& workload,
               std::filesystem::path root);

  /// Extent of an axis of an input, by its file or else by the axes. Errors: E-VALUE naming the
  /// axis where neither says it, and for an input that has no such axis.
  std::int64_t dim(const std::string& input, int axis) const;
  /// Axes of an input, by its file or else by the definition; 0 without the input.
  int num_axes(const std::string& input) const;
  std::optional<std::int64_t> dim_if_known(const std::string& input, int axis) const;
  /// Extent of a named axis of the definition, by the workload or as it is fixed.
  std::optional<std::int64_t> axis(const std::string& name) const;

  /// As the definition says it, "unknown" where it does not; where a file has the values, theirs.
  std::string dtype(const std::string& input) const;

  /// Whether a file has the values.
  bool is_given(const std::string& input) const;
  /// The values of an int32 or int64 tensor; nothing where no file has them.
  std::optional<std::vector<std::int64_t>> integers(const std::string& input) const;
  /// The value of a scalar, of a workload or a file.
  std::optional<double> number(const std::string& input) const;

  /// The tensor with its first `leading` axes as one, and of that the rows that are named, in that
  /// order; all where none are. fp8 is multiplied by `scale`. Errors: E-VALUE for a row that the
  /// tensor does not have.
  Tensor rows(const std::string& input, int leading, const std::vector<std::int64_t>& rows,
              double scale) const;

  /// Rows of a cache [P, ...] as [rows, heads, D], without heads [rows, D]: `page_axis` are the
  /// tokens of a page, `head_axis` the heads, -1 for none; any other axis between counts planes, of
  /// which `plane` is taken. Row r is token r % page of page r / page. Otherwise as rows().
  Tensor cache_rows(const std::string& input, int page_axis, int head_axis, std::int64_t plane,
                    const std::vector<std::int64_t>& rows, double scale) const;

  /// Fails with E-VALUE, definition and uuid before the message.
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kValue, "{}: workload {}: {}", definition_.name, workload_.uuid,
         fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  /// The file's entry; null where no file has the values. Errors: E-IO, E-FORMAT; E-VALUE where the
  /// file has no tensor of that key.
  const SafetensorsEntry* entry(const std::string& input) const;
  const SafetensorsReader& reader(const std::filesystem::path& path) const;

  const TraceDefinition& definition_;
  const TraceWorkload& workload_;
  const std::filesystem::path root_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsReader>> readers_;
};

/// [T, N, A] and [T, N, B] as [T, N, A + B].
Tensor side_by_side(const Tensor& left, const Tensor& right);

/// Columns `first` to `end` of the last axis.
Tensor columns(const Tensor& tensor, std::int64_t first, std::int64_t end);

/// `count` unit matrices [count, size, size] in bfloat16, which holds 0 and 1.
Tensor unit_matrices(std::int64_t count, std::int64_t size);

}  // namespace attnbench
