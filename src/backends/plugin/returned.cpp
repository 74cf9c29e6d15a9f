#include "backends/plugin/returned.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace attnbench {
namespace {

struct Axis {
  std::int64_t extent;
  std::int64_t source;  // strides
  std::int64_t target;
};

/// Axes outside of the rows, those that run on into each other as one.
std::vector<Axis> outer_axes(const StridedCopy& copy, std::size_t count) {
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < count; ++i) {
    const Axis axis{copy.shape[i], copy.source_strides[i], copy.target_strides[i]};
    if (axis.extent == 1) continue;
    if (!axes.empty() && axes.back().source == axis.extent * axis.source &&
        axes.back().target == axis.extent * axis.target) {
      axes.back() = {axes.back().extent * axis.extent, axis.source, axis.target};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

/// Any type of that size, since elements of one type are copied as bits.
attn::Element element_of_size(int bytes) {
  if (bytes == 1) return attn::Element::kU8;
  return bytes == 2 ? attn::Element::kBF16 : attn::Element::kF32;
}

void copy_axes(Ops& ops, attn::CopyParams params, const std::vector<Axis>& axes) {
  constexpr std::size_t kMost = std::size(decltype(params.extents){});
  if (axes.size() > kMost) {
    const Axis& first = axes.front();
    const auto bytes = static_cast<std::int64_t>(element_size(params.source_element));
    for (std::int64_t i = 0; i < first.extent; ++i) {
      attn::CopyParams part = params;
      part.source = static_cast<const std::byte*>(params.source) + i * first.source * bytes;
      part.output = static_cast<std::byte*>(params.output) + i * first.target * bytes;
      copy_axes(ops, part, {axes.begin() + 1, axes.end()});
    }
    return;
  }
  for (std::size_t i = 0; i < kMost; ++i) {
    const Axis axis = i < axes.size() ? axes[i] : Axis{1, 0, 0};
    params.extents[i] = axis.extent;
    params.source_strides[i] = axis.source;
    params.output_strides[i] = axis.target;
  }
  ops.copy(params);
}

/// The tensor of the case that a returned one stands for; the axis of its tokens comes first for an
/// LSE that is returned by tokens.
struct Place {
  const AttnbenchTensor* tensor;
  std::size_t token_axis;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

Place place_of(const AttnbenchTensors& tensors, ReturnedTensor::Kind kind) {
  const bool is_output = kind == ReturnedTensor::Kind::kOutput;
  const AttnbenchTensor* const tensor = is_output ? tensors.output : tensors.lse;
  Place place{tensor,
              kind == ReturnedTensor::Kind::kLse ? std::size_t{1} : std::size_t{0},
              {tensor->shape, tensor->shape + tensor->ndim},
              {tensor->strides, tensor->strides + tensor->ndim}};
  if (kind == ReturnedTensor::Kind::kLseByToken) {
    std::reverse(place.shape.begin(), place.shape.end());
    std::reverse(place.strides.begin(), place.strides.end());
  }
  return place;
}

}  // namespace

void copy_strided(Ops& ops, const StridedCopy& copy) {
  if (std::find(copy.shape.begin(), copy.shape.end(), 0) != copy.shape.end()) return;
  std::size_t count = copy.shape.size();
  attn::CopyParams params{};
  params.source_element = params.output_element = element_of_size(copy.element_bytes);
  params.source = copy.source;
  params.output = copy.target;
  params.width = 1;
  if (count > 0 && copy.target_strides[count - 1] == 1 && copy.source_strides[count - 1] == 1) {
    params.width = copy.shape[--count];
  }
  copy_axes(ops, params, outer_axes(copy, count));
}

/// Several axes of a returned tensor may stand for that of the tokens: [B, Q, H, Dv] for
/// [T, H, Dv]. Its rows follow each other in the tensor of the case, from `first_token` on.
StridedCopy ReturnedTensors::copy_of(const ReturnedTensor& part) const {
  const Place place = place_of(tensors_, part.kind);
  StridedCopy copy;
  copy.element_bytes = place.tensor->dtype.bits / 8;
  copy.source = part.data;
  copy.target = static_cast<std::byte*>(place.tensor->data) +
                part.first_token * place.strides[place.token_axis] * copy.element_bytes;
  copy.shape = part.shape;
  copy.source_strides = part.strides;
  const std::size_t num_token_axes = part.shape.size() - place.shape.size() + 1;
  const std::size_t behind = place.token_axis + num_token_axes;
  copy.target_strides.assign(place.strides.begin(),
                             place.strides.begin() + static_cast<std::ptrdiff_t>(place.token_axis));
  copy.target_strides.resize(part.shape.size());
  std::int64_t stride = place.strides[place.token_axis];
  for (std::size_t axis = behind; axis-- > place.token_axis;) {
    copy.target_strides[axis] = stride;
    stride *= part.shape[axis];
  }
  for (std::size_t axis = behind; axis < part.shape.size(); ++axis) {
    copy.target_strides[axis] = place.strides[axis - num_token_axes + 1];
  }
  return copy;
}

/// So many bytes of poison, which any number of rows may be copied from.
const void* ReturnedTensors::poison_line(std::int64_t bytes) {
  if (bytes > poison_bytes_) {
    poison_ =
        memory_.allocate(static_cast<std::size_t>(bytes), "poison of returned tensors").data();
    poison_bytes_ = bytes;
  }
  return poison_;
}

void ReturnedTensors::bring(const std::vector<ReturnedTensor>& returned) {
  std::vector<StridedCopy> copies;
  for (const ReturnedTensor& part : returned) {
    StridedCopy copy = copy_of(part);
    // A kernel with out= returns the tensor that it was given.
    if (copy.source == copy.target) continue;
    copy_strided(memory_.ops(), copy);
    copies.push_back(std::move(copy));
  }
  // Why behind all of them: parts may share memory.
  for (StridedCopy& copy : copies) {
    if (copy.shape.empty()) continue;
    copy.target = const_cast<void*>(std::exchange(copy.source, nullptr));
    copy.target_strides = copy.source_strides;
    std::fill(copy.source_strides.begin(), copy.source_strides.end(), 0);
    copy.source_strides.back() = 1;  // along the line
    copy.source = poison_line(copy.shape.back() * copy.element_bytes);
    copy_strided(memory_.ops(), copy);
  }
}

}  // namespace attnbench
