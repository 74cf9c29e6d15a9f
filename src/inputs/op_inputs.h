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

}  // namespace attnbench
