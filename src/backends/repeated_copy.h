// One element, many times: a scale for every head, a counter set to zero on the device.
#pragma once

#include "ops/ops.h"

namespace attnbench {

/// `count` elements in a row at `output`, all of them that at `source`.
inline attn::CopyParams repeated_copy(attn::Element element, const void* source, void* output,
                                      int count) {
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = element;
  copy.source = source;  // with strides of 0
  copy.output = output;
  copy.output_strides[2] = 1;
  copy.extents[0] = copy.extents[1] = copy.width = 1;
  copy.extents[2] = count;
  return copy;
}

}  // namespace attnbench
