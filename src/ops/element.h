// Element types as device code numbers them: the same values as Dtype, of which device code knows
// nothing.
#pragma once

#include <cstddef>

#include "core/numbers/dtype.h"
#include "kernels/params.h"

namespace attnbench {

inline attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }
inline Dtype dtype_of(attn::Element element) { return static_cast<Dtype>(element); }
inline std::size_t element_size(attn::Element element) { return dtype_size(dtype_of(element)); }

}  // namespace attnbench
