// A problem that nobody refuses, and the reasons that a change of it gives.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/bare_reasons_testing.h"

namespace attnbench {

using Reasons = std::vector<std::string>;
using Change = std::function<void(Problem&)>;

/// Two requests of 8 heads over 2, D64 in bf16: every backend of decoders takes it.
inline Problem plain() {
  Problem p;
  p.attention.num_heads = 8;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 64;
  p.attention.scale = 0.125;
  p.batch = {{1, 70}, {33, 33}};
  p.kv_cache.num_blocks = 100;
  return p;
}

/// Why the backend refuses the plain problem with this change, without the numbers of sections.
inline Reasons refusals(const std::string& backend, const Change& change, int sm = 90) {
  Problem p = plain();
  change(p);
  return bare_reasons(find_backend(backend)->refusals(p, DeviceFacts{sm, 132}));
}

inline const char* const kFa = "FLASH_ATTN";
inline const char* const kIx = "FLASH_ATTN_IX";
inline const char* const kTriton = "TRITON_ATTN";

inline void encoder(Problem& p) {
  p.attention.type = AttentionType::kEncoder;
  p.attention.causal = false;
}
inline void cascade(Problem& p) { p.cascade = {64, CascadeMode::kAlways}; }

}  // namespace attnbench
