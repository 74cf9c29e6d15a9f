// How the specs of attention kernels write their choices.
#pragma once

#include <string>

#include "kernels/params.h"

namespace attnbench::cuda {

/// "attn::Alibi::kSqrt".
std::string spec_name(attn::Alibi alibi);
/// "true" or "false".
std::string flag(bool value);
/// What a problem's kernels are called, after the entry: " d128 bf16 paged 16 soft cap".
std::string problem_name(const attn::AttendParams& params);

}  // namespace attnbench::cuda
