// What the rows of operations.def are made of, and their names: the parameter structs, which host
// and device code share, and the macro that takes rows apart. Included by whatever makes something
// of the rows: the interface (ops.h), its realisations and wrappers, and tests that go over all of
// them.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/numbers/dtype.h"
#include "kernels/params.h"
#include "kernels/params_dcp.h"
#include "kernels/params_indexer.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/params_rope.h"
#include "kernels/params_scale.h"
#include "kernels/params_tiles.h"

/// `ATTNBENCH_LIST parameters` or `ATTNBENCH_LIST arguments`: those of a row without their
/// parentheses.
#define ATTNBENCH_LIST(...) __VA_ARGS__

namespace attnbench {

/// "attend", "attend_splits", ..., in the order of the table. Tests find by these what has no case.
#define ATTNBENCH_OPERATION(name, parameters, arguments) #name,
inline constexpr std::string_view kOperationNames[] = {
#include "ops/operations.def"
};

// Parameter structs name element types as device code numbers them: the same values as Dtype, of
// which device code knows nothing; so a cast is the conversion. core/dtype.cpp holds the two enums
// together.
inline attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }
inline Dtype dtype_of(attn::Element element) { return static_cast<Dtype>(element); }
/// Bytes of one element.
inline std::size_t element_size(attn::Element element) { return dtype_size(dtype_of(element)); }

}  // namespace attnbench
