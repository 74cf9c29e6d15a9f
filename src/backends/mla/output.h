// The attention output of MLA quantised for the next layer (semantics §9).
#pragma once

#include <string>

#include "backends/mla/work.h"
#include "backends/output_quant.h"

namespace attnbench {

/// Quantises MlaWork::output, of which only the first T rows are read and written.
class MlaOutputQuant {
 public:
  /// Adds its step; nothing for output_quant none.
  explicit MlaOutputQuant(MlaWork& work);

  bool is_on() const { return codes_ != nullptr; }
  /// Codes and scales after a run. Scales that stand for no row keep what they held.
  DeviceBuffers::Rows read_codes() const;
  Tensor read_scales() const;

 private:
  void add_static();
  void add_groups();
  void add_nvfp4();
  /// Swizzled scales begin as zeros, so that rows and blocks of padding read as such (§9.4).
  void add_zero_scales();

  MlaWork& work_;
  OutputQuantLayout layout_;
  void* codes_ = nullptr;  // [T_pad, ...]
  void* scales_ = nullptr;
  std::int64_t scale_bytes_ = 0;
};

}  // namespace attnbench
