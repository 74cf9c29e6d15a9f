// What the rows of operations.def are made of, and their names.
#pragma once

#include <string_view>

#include "kernels/params.h"
#include "kernels/params_dcp.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/params_rope.h"
#include "kernels/params_scale.h"

/// `ATTNBENCH_LIST parameters` or `ATTNBENCH_LIST arguments`: those of a row without their
/// parentheses.
#define ATTNBENCH_LIST(...) __VA_ARGS__

namespace attnbench {

/// "attend", "attend_splits", ..., in the order of the table.
#define ATTNBENCH_OPERATION(name, parameters, arguments) #name,
inline constexpr std::string_view kOperationNames[] = {
#include "ops/operations.def"
};

}  // namespace attnbench
