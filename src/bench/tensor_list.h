// Named tensors of a file that is about to be written. A case borrows what it has anyway, which may
// be gigabytes, and owns what it makes for the file.
#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/system/parallel.h"
#include "core/tensor.h"

namespace attnbench {

/// Borrowed tensors must outlive the list.
class TensorList {
 public:
  void borrow(const std::string& name, const Tensor& tensor) { list_.emplace_back(name, &tensor); }
  void own(const std::string& name, Tensor tensor) {
    borrow(name, owned_.emplace_back(std::move(tensor)));
  }
  const std::vector<std::pair<std::string, const Tensor*>>& list() const { return list_; }

 private:
  std::deque<Tensor> owned_;
  std::vector<std::pair<std::string, const Tensor*>> list_;
};

/// Without the padding rows behind row `count`.
inline Tensor first_rows(const Tensor& tensor, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape();
  shape[0] = count;
  Tensor result(tensor.dtype(), std::move(shape));
  for_each_chunk(static_cast<std::int64_t>(result.size_bytes()), 4 << 20,
                 [&](std::int64_t begin, std::int64_t end) {
                   std::memcpy(result.bytes() + begin, tensor.bytes() + begin,
                               static_cast<std::size_t>(end - begin));
                 });
  return result;
}

}  // namespace attnbench
