#include "interop/trace/tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace attnbench {
namespace {

/// The words of FlashInfer-Trace for the types of safetensors.
std::string trace_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kE4M3:
      return "float8_e4m3fn";
    case Dtype::kE5M2:
      return "float8_e5m2";
    default:
      return std::string(dtype_name(dtype));
  }
}

/// xqa has lengths of a type that no tensor here has.
std::vector<std::int64_t> unsigned_integers(const SafetensorsReader& file,
                                            const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes;
  file.stream(entry, [&](std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  });
  std::vector<std::uint32_t> values(bytes.size() / sizeof(std::uint32_t));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(std::uint32_t));
  return {values.begin(), values.end()};
}

bool is_fp8(Dtype dtype) { return dtype == Dtype::kE4M3 || dtype == Dtype::kE5M2; }

}  // namespace

TraceTensors::TraceTensors(const TraceDefinition& definition, const TraceWorkload& workload,
                           std::filesystem::path root)
    : definition_(definition), workload_(workload), root_(std::move(root)) {}

const SafetensorsReader& TraceTensors::reader(const std::filesystem::path& path) const {
  const std::string full = (root_ / path).string();
  std::unique_ptr<SafetensorsReader>& known = readers_[full];
  if (!known) known = std::make_unique<SafetensorsReader>(full);
  return *known;
}

const SafetensorsEntry* TraceTensors::entry(const std::string& input) const {
  const TraceInput* source = workload_.input(input);
  if (source == nullptr || source->kind != TraceInput::Kind::kSafetensors) return nullptr;
  const SafetensorsReader& file = reader(source->path);
  const SafetensorsEntry* found = file.find(source->tensor_key);
  if (found == nullptr) {
    fail(ErrorKind::kValue, "{}: no tensor '{}', which workload {} names for {}", file.name(),
         source->tensor_key, workload_.uuid, input);
  }
  return found;
}

std::optional<std::int64_t> TraceTensors::dim_if_known(const std::string& input, int axis) const {
  const auto at = static_cast<std::size_t>(axis);
  if (const SafetensorsEntry* found = entry(input)) {
    if (at < found->shape.size()) return found->shape[at];
  }
  const TraceTensor* tensor = definition_.input(input);
  if (tensor == nullptr || at >= tensor->axes.size()) return std::nullopt;
  return axis_size(definition_, workload_, tensor->axes[at]);
}

std::optional<std::int64_t> TraceTensors::axis(const std::string& name) const {
  return axis_size(definition_, workload_, name);
}

int TraceTensors::num_axes(const std::string& input) const {
  if (const SafetensorsEntry* found = entry(input)) return static_cast<int>(found->shape.size());
  const TraceTensor* tensor = definition_.input(input);
  return tensor == nullptr ? 0 : static_cast<int>(tensor->axes.size());
}

std::int64_t TraceTensors::dim(const std::string& input, int axis) const {
  const std::optional<std::int64_t> size = dim_if_known(input, axis);
  if (size) return *size;
  const TraceTensor* tensor = definition_.input(input);
  const auto at = static_cast<std::size_t>(axis);
  const bool has_axis = tensor != nullptr && at < tensor->axes.size();
  fail(ErrorKind::kValue, "{}: workload {}: {}: expected a size of its axis {}, found none",
       definition_.name, workload_.uuid, input, has_axis ? tensor->axes[at] : std::to_string(axis));
}

std::string TraceTensors::dtype(const std::string& input) const {
  if (const SafetensorsEntry* found = entry(input)) {
    const std::optional<Dtype> known = dtype_from_safetensors_name(found->dtype);
    if (known) return trace_dtype(*known);
  }
  const TraceTensor* tensor = definition_.input(input);
  return tensor == nullptr ? "unknown" : tensor->dtype;
}

bool TraceTensors::is_given(const std::string& input) const { return entry(input) != nullptr; }

std::optional<std::vector<std::int64_t>> TraceTensors::integers(const std::string& input) const {
  const SafetensorsEntry* found = entry(input);
  if (found == nullptr) return std::nullopt;
  const SafetensorsReader& file = reader(workload_.input(input)->path);
  if (found->dtype == "U32") return unsigned_integers(file, *found);
  const Tensor tensor = file.read(*found);
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.num_elements()));
  if (tensor.dtype() == Dtype::kI32) {
    std::copy_n(tensor.data<std::int32_t>(), values.size(), values.begin());
  } else if (tensor.dtype() == Dtype::kI64) {
    std::copy_n(tensor.data<std::int64_t>(), values.size(), values.begin());
  } else {
    fail(ErrorKind::kDtype, "workload {}: {}: expected int32 or int64, found {}", workload_.uuid,
         input, dtype_name(tensor.dtype()));
  }
  return values;
}

std::optional<double> TraceTensors::number(const std::string& input) const {
  const TraceInput* source = workload_.input(input);
  if (source == nullptr) return std::nullopt;
  if (source->kind == TraceInput::Kind::kScalar) return source->value;
  const SafetensorsEntry* found = entry(input);
  if (found == nullptr) return std::nullopt;
  const Tensor tensor = reader(source->path).read(*found);
  if (tensor.num_elements() != 1) {
    fail(ErrorKind::kShape, "workload {}: {}: expected one number, found {}", workload_.uuid, input,
         tensor.num_elements());
  }
  if (tensor.dtype() == Dtype::kF64) return *tensor.data<double>();
  return tensor.at(0);
}

Tensor TraceTensors::rows(const std::string& input, int leading,
                          const std::vector<std::int64_t>& rows, double scale) const {
  const Tensor source = reader(workload_.input(input)->path).read(*entry(input));
  const std::vector<std::int64_t>& shape = source.shape();
  if (shape.size() <= static_cast<std::size_t>(leading)) {
    fail(ErrorKind::kShape, "workload {}: {}: expected more than {} axes, found {}", workload_.uuid,
         input, leading, shape.size());
  }
  std::int64_t num_rows = 1;
  for (int axis = 0; axis < leading; ++axis) num_rows *= source.dim(axis);
  const std::int64_t width = num_rows == 0 ? 0 : source.num_elements() / num_rows;
  const std::int64_t count = rows.empty() ? num_rows : static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> result_shape{count};
  result_shape.insert(result_shape.end(), shape.begin() + leading, shape.end());
  const bool scaled = is_fp8(source.dtype());
  Tensor result(scaled ? Dtype::kF32 : source.dtype(), std::move(result_shape));
  const std::size_t row_bytes = static_cast<std::size_t>(width) * dtype_size(source.dtype());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows.empty() ? i : rows[static_cast<std::size_t>(i)];
    if (row < 0 || row >= num_rows) {
      fail(ErrorKind::kValue, "workload {}: {}: expected a row below {}, found {}", workload_.uuid,
           input, num_rows, row);
    }
    if (!scaled) {
      std::memcpy(result.bytes() + static_cast<std::size_t>(i) * row_bytes,
                  source.bytes() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
      continue;
    }
    for (std::int64_t j = 0; j < width; ++j) {
      result.set(i * width + j, source.at(row * width + j) * static_cast<float>(scale));
    }
  }
  return result;
}

Tensor TraceTensors::cache_rows(const std::string& input, int page_axis, int head_axis,
                                std::int64_t plane, const std::vector<std::int64_t>& rows,
                                double scale) const {
  const Tensor source = reader(workload_.input(input)->path).read(*entry(input));
  const std::vector<std::int64_t>& shape = source.shape();
  const auto last = static_cast<int>(shape.size()) - 1;
  if (last < 2 || page_axis >= last || head_axis >= last) {
    fail(ErrorKind::kShape,
         "workload {}: {}: expected pages, tokens, heads and columns, found {} axes",
         workload_.uuid, input, shape.size());
  }
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (int axis = last - 1; axis >= 0; --axis) {
    const auto at = static_cast<std::size_t>(axis);
    strides[at] = strides[at + 1] * shape[at + 1];
  }
  std::int64_t offset = 0;
  for (int axis = 1; axis < last; ++axis) {
    if (axis == page_axis || axis == head_axis) continue;
    const auto at = static_cast<std::size_t>(axis);
    if (plane >= shape[at]) {
      refuse("{}: expected keys and values in axis {}, found {} of them", input, axis, shape[at]);
    }
    offset += plane * strides[at];
  }
  const std::int64_t page = source.dim(page_axis), width = shape.back();
  const std::int64_t heads = head_axis < 0 ? 1 : source.dim(head_axis);
  const std::int64_t head_stride = head_axis < 0 ? 0 : strides[static_cast<std::size_t>(head_axis)];
  const bool scaled = is_fp8(source.dtype());
  std::vector<std::int64_t> result_shape{static_cast<std::int64_t>(rows.size())};
  if (head_axis >= 0) result_shape.push_back(heads);
  result_shape.push_back(width);
  Tensor result(scaled ? Dtype::kF32 : source.dtype(), std::move(result_shape));
  const std::size_t size = dtype_size(source.dtype());
  std::int64_t target = 0;
  for (const std::int64_t row : rows) {
    if (page < 1 || row < 0 || row / page >= shape[0]) {
      refuse("{}: expected a row below {}, found {}", input, shape[0] * page, row);
    }
    const std::int64_t start = offset + row / page * strides[0] +
                               row % page * strides[static_cast<std::size_t>(page_axis)];
    for (std::int64_t head = 0; head < heads; ++head, target += width) {
      const std::int64_t from = start + head * head_stride;
      if (!scaled) {
        std::memcpy(result.bytes() + static_cast<std::size_t>(target) * size,
                    source.bytes() + static_cast<std::size_t>(from) * size,
                    static_cast<std::size_t>(width) * size);
        continue;
      }
      for (std::int64_t j = 0; j < width; ++j) {
        result.set(target + j, source.at(from + j) * static_cast<float>(scale));
      }
    }
  }
  return result;
}

Tensor columns(const Tensor& tensor, std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> shape = tensor.shape();
  const std::int64_t width = shape.back();
  const std::int64_t rows = width == 0 ? 0 : tensor.num_elements() / width;
  shape.back() = end - first;
  Tensor part(tensor.dtype(), std::move(shape));
  const std::size_t size = dtype_size(tensor.dtype());
  const std::size_t bytes = static_cast<std::size_t>(end - first) * size;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(part.bytes() + static_cast<std::size_t>(row) * bytes,
                tensor.bytes() + static_cast<std::size_t>(row * width + first) * size, bytes);
  }
  return part;
}

Tensor side_by_side(const Tensor& left, const Tensor& right) {
  const std::vector<std::int64_t>& shape = left.shape();
  if (shape.size() != 3 || right.shape().size() != 3 || shape[0] != right.dim(0) ||
      shape[1] != right.dim(1) || left.dtype() != right.dtype()) {
    fail(ErrorKind::kShape, "q_nope and q_pe: expected equal tokens, heads and types");
  }
  Tensor both(left.dtype(), {shape[0], shape[1], shape[2] + right.dim(2)});
  const std::size_t left_bytes = static_cast<std::size_t>(shape[2]) * dtype_size(left.dtype());
  const std::size_t right_bytes =
      static_cast<std::size_t>(right.dim(2)) * dtype_size(right.dtype());
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0] * shape[1]); ++row) {
    std::byte* target = both.bytes() + row * (left_bytes + right_bytes);
    std::memcpy(target, left.bytes() + row * left_bytes, left_bytes);
    std::memcpy(target + left_bytes, right.bytes() + row * right_bytes, right_bytes);
  }
  return both;
}

Tensor unit_matrices(std::int64_t count, std::int64_t size) {
  Tensor matrices(Dtype::kBF16, {count, size, size});
  for (std::int64_t row = 0; row < count * size; ++row) matrices.set(row * size + row % size, 1);
  return matrices;
}

}  // namespace attnbench
