#include "bench/cases/same_values.h"

#include <string>

#include "core/problem/fields.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

/// The problem with one value for everything that no input and no reference depends on.
std::string values_of(Problem problem) {
  problem.case_name.clear();
  problem.dcp = {};
  problem.cascade.mode = CascadeMode::kAuto;
  problem.kv_cache.num_blocks = 0;
  problem.timing = {};
  return problem_to_json(problem);
}

}  // namespace

bool same_values(const Problem& a, const Problem& b) {
  // Calculated scales are written into the problem.
  if (calculates_kv_scales(a) || calculates_kv_scales(b)) return false;
  if (a.inputs.shapes_only != b.inputs.shapes_only) return false;
  return values_of(a) == values_of(b);
}

bool same_ranks(const Problem& a, const Problem& b) {
  return a.dcp.world_size == b.dcp.world_size && a.dcp.interleave_size == b.dcp.interleave_size;
}

}  // namespace attnbench
