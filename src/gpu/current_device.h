// The CUDA device of the calling thread, which somebody else's code may leave changed.
#pragma once

namespace attnbench {

/// Makes the device current again that was so at its construction. Where `is_cuda` is false it
/// touches nothing.
class KeepDevice {
 public:
  explicit KeepDevice(bool is_cuda);
  ~KeepDevice();
  KeepDevice(const KeepDevice&) = delete;
  KeepDevice& operator=(const KeepDevice&) = delete;

 private:
  int index_ = -1;  // none
};

}  // namespace attnbench
