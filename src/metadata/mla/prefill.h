// Which prefill backend of MLA fits a configuration (semantics §13.3).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// Names of semantics §13.3.
bool is_mla_prefill_backend(std::string_view name);

/// Reasons against a backend on SM 9.0; empty = it fits. FLASH_ATTN_PREFILL takes query and key
/// heads of P + R <= 256, a multiple of 8, and values no wider.
std::vector<std::string> mla_prefill_reasons(std::string_view name, const MlaSpec& mla,
                                             Dtype dtype);

/// "Selected MLA prefill backend X is not valid for this configuration. Reason: [...]".
std::string mla_prefill_message(std::string_view name, const std::vector<std::string>& reasons);

}  // namespace attnbench
