// Small cases of the operations that move, quantise, reduce and multiply.
#pragma once

#include "ops/cuda/merge/reduce_cases_testing.h"
#include "ops/cuda/move/move_cases_testing.h"
#include "ops/cuda/quantise/quantise_cases_testing.h"

namespace attnbench::cuda {

inline void add_coverage_cases(std::vector<OperationCase>& cases) {
  add_move_cases(cases);
  add_quantise_cases(cases);
  add_reduce_cases(cases);
}

}  // namespace attnbench::cuda
