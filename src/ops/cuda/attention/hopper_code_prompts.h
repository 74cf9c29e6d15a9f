// Prompts of few keys whose queries, keys and values are codes of one byte: how a CTA of the Hopper
// prefill kernel that stays for several row tiles goes about them. hopper_plan.h makes the rest.
#pragma once

#include <optional>

#include "ops/cuda/attention/hopper_plan.h"

namespace attnbench::cuda {

/// What replaces the choice of long prompts (HopperPlan).
struct CodePrompt {
  int tile_n;
  int stages;
  bool ping_pong;
  bool late_output;
  bool bounds;
};

/// Where it was measured to pay: causal over pages, without what transforms scores, head sizes 64,
/// 128 and 256. None where bytes may not depend on the batch: its longest request would choose.
std::optional<CodePrompt> code_prompt(const attn::AttendParams& params, const HopperPlan& forms);

/// Whether a prompt in e4m3 with P in e4m3 is so short that its values are summed by pieces beside
/// the next weights, not apart (HopperPlan): then it is a code_prompt().
bool sums_by_pieces(const attn::AttendParams& params);

}  // namespace attnbench::cuda
