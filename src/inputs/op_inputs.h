// What a single operation works on (attention.type op): named tensors, and for those that write or
// read a cache the whole case that the cache belongs to. bench fills it in, the pipelines of
// backends/op read it, and what they should give is computed from the same tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"

namespace attnbench {

/// Only what the operation needs is filled in.
struct OpInputs {
  Problem base;  // of the type whose tensors the operation takes: decoder or mla
  std::vector<std::pair<std::string, Tensor>> tensors;  // operands, by the names they are saved by
  AttentionInputs attention;
  StoreRule store_rule;  // of a write of K and V: that of the backend with the cache's layout
  StoredKv stored;       // K and V as a correct write leaves them, by that rule
  PagedCache cache;      // before the operation
  MlaInputs latents;
  Tensor entries;  // [S, entry size] latents as a correct write leaves them
  MlaCache mla_cache;
  std::vector<std::string> notices;

  const Tensor& at(std::string_view name) const {
    for (const auto& [known, tensor] : tensors) {
      if (known == name) return tensor;
    }
    fail(ErrorKind::kInternal, "the operation has no input '{}'", std::string(name));
  }
  void add(std::string name, Tensor tensor) {
    tensors.emplace_back(std::move(name), std::move(tensor));
  }
};

/// Operands whose elements get fresh signs before each timed sample of a user's kernel, in the
/// order in which their elements are counted: float values, from which most of the result follows.
/// None where nothing is computed from floats, and for gathers, whose values lie in a cache.
inline std::vector<std::string> redrawn_operands(const Problem& problem) {
  const int int8_level = problem.kv_cache.int8_level;
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      if (problem.op.mla) return {"new_kv_c", "new_k_pe"};
      if (int8_level == 1) return {"new_key_scales"};
      if (int8_level == 2) return {"new_key_scales", "new_value_codes"};
      return {"new_key", "new_value"};
    case OpKind::kMerge:
      return {"prefix_output", "suffix_output"};
    case OpKind::kRope:
    case OpKind::kRopeAndCache:
      if (!problem.op.mla) return {"projection"};
      if (problem.op.name == OpKind::kRope) return {"query", "k_pe"};
      return {"query", "k_pe", "new_kv_c"};
    case OpKind::kQuantize:
      if (problem.op.mla) return {"ql_nope", "q_pe"};
      return {"projection"};
    case OpKind::kMmQuant:
      return {"projection"};
    case OpKind::kDcpCorrect:
      return {"partial_output"};
    case OpKind::kOutputQuant:
      return {"input"};
    case OpKind::kIndexKeyCache:
      return {"new_index_key"};
    case OpKind::kIndexLogits:
      return {"index_query", "index_weights"};
    case OpKind::kIndexTopk:
      return {"logits"};
    case OpKind::kGather:
    case OpKind::kMetadata:
      return {};
  }
  return {};
}

/// Whether a user's kernel gets the operands of the problem by name (AttnbenchTensors::operands)
/// and not as the tensors that version 1 of the plugin interface has for them.
inline bool has_named_operands(const Problem& problem) {
  if (problem.op.name == OpKind::kMerge) return false;
  const bool is_plain = !problem.op.mla && problem.kv_cache.int8_level == 0 &&
                        problem.dcp.world_size == 1 && !has_inner_scales(problem.kv_cache.dtype);
  return problem.op.name != OpKind::kReshapeAndCache || !is_plain;
}

}  // namespace attnbench
