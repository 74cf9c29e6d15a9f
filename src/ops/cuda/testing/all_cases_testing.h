// The covering cases of all operations.
#pragma once

#include "ops/cuda/attention/attend_general_cases_testing.h"
#include "ops/cuda/attention/attend_tiles_cases_testing.h"
#include "ops/cuda/cache/packed_cache_cases_testing.h"
#include "ops/cuda/cache/slot_cache_cases_testing.h"
#include "ops/cuda/indexer/indexer_cases_testing.h"
#include "ops/cuda/matmul/few_rows_cases_testing.h"

namespace attnbench::cuda {

inline std::vector<OperationCase> all_operation_cases() {
  std::vector<OperationCase> cases = operation_cases();
  add_coverage_cases(cases);
  add_attend_cases(cases);
  add_f32_attend_cases(cases);
  add_general_attend_cases(cases);
  add_tile_cases(cases);
  add_packed_cases(cases);
  add_slot_cases(cases);
  add_indexer_cases(cases);
  add_latent_query_cases(cases);
  add_value_output_cases(cases);
  return cases;
}

}  // namespace attnbench::cuda
