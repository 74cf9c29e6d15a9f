// The element types as a table, and the conversions of values. The bits come from the kernels' own
// functions in kernels/common/numeric.cuh, so that the host rounds exactly as the device does: a
// difference between the two would be reported as an error of the kernel.
#include "core/numbers/dtype.h"

#include <algorithm>
#include <cstring>

#include "core/enum_names.h"
#include "kernels/common/numeric.cuh"
#include "kernels/params.h"

namespace attnbench {
namespace {

struct DtypeFacts {
  Dtype value;
  attn::Element element;  // the same in the kernels' parameters
  std::size_t size;
  std::string_view safetensors;
  std::string_view name;
  bool floating;
};

constexpr auto kFacts = every_value<DtypeFacts>({
    {Dtype::kF32, attn::Element::kF32, 4, "F32", "float32", true},
    {Dtype::kF16, attn::Element::kF16, 2, "F16", "float16", true},
    {Dtype::kBF16, attn::Element::kBF16, 2, "BF16", "bfloat16", true},
    {Dtype::kF64, attn::Element::kF64, 8, "F64", "float64", true},
    {Dtype::kE4M3, attn::Element::kE4M3, 1, "F8_E4M3", "fp8_e4m3", true},
    {Dtype::kE5M2, attn::Element::kE5M2, 1, "F8_E5M2", "fp8_e5m2", true},
    {Dtype::kI8, attn::Element::kI8, 1, "I8", "int8", false},
    {Dtype::kI32, attn::Element::kI32, 4, "I32", "int32", false},
    {Dtype::kI64, attn::Element::kI64, 8, "I64", "int64", false},
    {Dtype::kU8, attn::Element::kU8, 1, "U8", "uint8", false},
});

// Pipelines cast from one to the other.
static_assert(std::ranges::all_of(kFacts, [](const DtypeFacts& row) {
  return static_cast<int>(row.value) == static_cast<int>(row.element);
}));

const DtypeFacts& facts(Dtype dtype) { return kFacts[static_cast<std::size_t>(dtype)]; }

template <typename T>
T read(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void write(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

}  // namespace

std::size_t dtype_size(Dtype dtype) { return facts(dtype).size; }
std::string_view safetensors_name(Dtype dtype) { return facts(dtype).safetensors; }
std::string_view dtype_name(Dtype dtype) { return facts(dtype).name; }
bool is_floating(Dtype dtype) { return facts(dtype).floating; }

std::optional<Dtype> dtype_from_safetensors_name(std::string_view name) {
  for (const DtypeFacts& row : kFacts) {
    if (row.safetensors == name) return row.value;
  }
  return std::nullopt;
}

float load_float(Dtype dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case Dtype::kF32:
      return read<float>(data, index);
    case Dtype::kF16:
      return attn::f16_to_float(read<std::uint16_t>(data, index));
    case Dtype::kBF16:
      return attn::bf16_to_float(read<std::uint16_t>(data, index));
    case Dtype::kF64:
      return static_cast<float>(read<double>(data, index));
    case Dtype::kE4M3:
      return attn::e4m3_to_float(read<std::uint8_t>(data, index));
    case Dtype::kE5M2:
      return attn::e5m2_to_float(read<std::uint8_t>(data, index));
    case Dtype::kI8:
      return static_cast<float>(read<std::int8_t>(data, index));
    case Dtype::kI32:
      return static_cast<float>(read<std::int32_t>(data, index));
    case Dtype::kI64:
      return static_cast<float>(read<std::int64_t>(data, index));
    case Dtype::kU8:
      return static_cast<float>(read<std::uint8_t>(data, index));
  }
  return 0.0f;
}

void store_float(Dtype dtype, void* data, std::int64_t index, float value) {
  switch (dtype) {
    case Dtype::kF32:
      return write<float>(data, index, value);
    case Dtype::kF16:
      return write<std::uint16_t>(data, index, attn::f16_from_float(value));
    case Dtype::kBF16:
      return write<std::uint16_t>(data, index, attn::bf16_from_float(value));
    case Dtype::kF64:
      return write<double>(data, index, static_cast<double>(value));
    case Dtype::kE4M3:
      return write<std::uint8_t>(data, index, attn::e4m3_from_float(value));
    case Dtype::kE5M2:
      return write<std::uint8_t>(data, index, attn::e5m2_from_float(value));
    case Dtype::kI8:
      return write<std::int8_t>(data, index, attn::i8_nearest_even(value));
    case Dtype::kI32:
      return write<std::int32_t>(data, index, static_cast<std::int32_t>(value));
    case Dtype::kI64:
      return write<std::int64_t>(data, index, static_cast<std::int64_t>(value));
    case Dtype::kU8:
      // Saturates, NaN gives 0: a cast of what does not fit is undefined.
      return write<std::uint8_t>(
          data, index, static_cast<std::uint8_t>(value >= 0 ? std::min(value, 255.0f) : 0.0f));
  }
}

void load_floats(Dtype dtype, const void* source, std::int64_t count, float* destination) {
  if (count == 0) return;  // of an empty tensor, whose pointers are null
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(destination, source, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case Dtype::kBF16: {
      // A loop of its own, because it vectorises and 16-bit caches are the common case.
      const auto* codes = static_cast<const std::uint16_t*>(source);
      for (std::int64_t i = 0; i < count; ++i) destination[i] = attn::bf16_to_float(codes[i]);
      return;
    }
    case Dtype::kE4M3: {
      const auto* codes = static_cast<const std::uint8_t*>(source);
      for (std::int64_t i = 0; i < count; ++i) destination[i] = attn::e4m3_to_float(codes[i]);
      return;
    }
    default:
      for (std::int64_t i = 0; i < count; ++i) destination[i] = load_float(dtype, source, i);
  }
}

void store_floats(Dtype dtype, const float* source, std::int64_t count, void* destination) {
  if (count == 0) return;
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(destination, source, static_cast<std::size_t>(count) * sizeof(float));
      return;
    // Loops of their own, because they vectorise, and inputs are of 16 bits or become e4m3.
    case Dtype::kBF16: {
      auto* codes = static_cast<std::uint16_t*>(destination);
      for (std::int64_t i = 0; i < count; ++i) codes[i] = attn::bf16_from_float(source[i]);
      return;
    }
    case Dtype::kF16: {
      auto* codes = static_cast<std::uint16_t*>(destination);
      for (std::int64_t i = 0; i < count; ++i) codes[i] = attn::f16_from_float(source[i]);
      return;
    }
    case Dtype::kE4M3: {
      auto* codes = static_cast<std::uint8_t*>(destination);
      for (std::int64_t i = 0; i < count; ++i) codes[i] = attn::e4m3_from_float(source[i]);
      return;
    }
    default:
      for (std::int64_t i = 0; i < count; ++i) store_float(dtype, destination, i, source[i]);
  }
}

float round_to(Dtype dtype, float value) {
  double storage = 0.0;
  store_float(dtype, &storage, 0, value);
  return load_float(dtype, &storage, 0);
}

}  // namespace attnbench
