// Prompts of few keys whose queries, keys and values are codes of one byte: how a CTA of the Hopper
// prefill kernel that stays for several row tiles goes about them. hopper_plan.h makes the rest.
//
// Over fewer keys a CTA for each row tile spends much of its time on the start and the end of it.
// One NVIDIA H200, 2026-12-01, 32 heads on 8, a CTA each and ahead, us; 128 x 256, 64 x 512, 32 x
// 1,024, 8 x 2,048 and 4 x 4,096 tokens, and a window of 1,024 in 16,384:
// e4m3, P of 16 bits, D64 340, 388, 536, 380, 586, 414 and 238, 281, 403, 314, 536, 372;
//   D128 417, 470, 641, 482, 803, 522 and 291, 362, 520, 436, 757, 463;
//   D256 686, 873, 1245, 1017, 1760, 1034 and 484, 672, 1057, 939, 1712, 957;
// P in e4m3, D64 402, 422, 534, 370, -, - and 245, 301, 440, 356, -, -;
//   D128 474, 514, 668, 476, 751, - and 346, 433, 593, 477, 793, -;
//   D256 720, 871, 1153, 872, -, - and 457, 635, 978, 833, -, -;
// int8 at level 1, D64 -, 464, -, 464, 773, - and -, 330, -, 408, 738, -;
//   D128 -, 531, -, 555, 943, - and -, 412, -, 527, 953, -;
//   D256 -, 927, -, 1125, 1998, - and -, 721, -, 1018, 1888, -;
// int8 at level 2, D64 -, 509, -, 480, 770, - and -, 349, -, 400, 719, -;
//   D128 -, 552, -, 536, 879, - and -, 438, -, 513, 897, -;
//   D256 -, 852, -, 833, 1368, - and -, 639, -, 736, 1298, -.
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
