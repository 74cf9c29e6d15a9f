// Values of one byte that become f16 once, in front of the Hopper prefill kernel, where its keys
// stay codes: for which problems that kernel is then so much faster that it pays.
//
// Weights keep 16 bits beside int8 scores (semantics §11.4), and beside e4m3 scores unless P is
// rounded (§10.5), and products do not mix types. Where values are codes, two warps of the
// producers convert each tile of them for every row tile that reads it. Beside heads of 256
// columns, whose row tiles have 128 rows, that takes longer than the products. Keys need no
// conversion: their products take codes as they are.
//
// One NVIDIA H200, 2026-12-01, 32 heads on 8, causal over pages of 16, timed only, two rounds in
// turns, us on the way and in front, with converting; 64 x 512, 8 x 2,048, 2 x 8,192 tokens, and a
// chunk of 2,048 behind 14k keys:
//   e4m3, P of 16 bits: D64 283 and 295, 316 and 322, 976 and 960, 484 and 478;
//     D96 438 and 440, 458 and 422, 1394 and 1119, 712 and 558;
//     D128 368 and 404, 429 and 415, 1406 and 1260, 729 and 629;
//     D256 675 and 591, 940 and 677, 3297 and 2245, 1522 and 1010;
//     32 x 1,024 and 4 x 4,096: D96 600 and 594, 764 and 655; D128 520 and 528, 755 and 681; D256
//     1059 and 832, 1712 and 1173;
//   int8 at level 1: D64 332 and 336, 410 and 403, 1233 and 1217, 615 and 610;
//     D96 508 and 507, 536 and 480, 1673 and 1398, 849 and 726;
//     D128 416 and 438, 531 and 521, 1730 and 1579, 877 and 817;
//     D256 723 and 655, 1021 and 743, 3758 and 2429, 1740 and 1099.
#pragma once

#include <string>

#include "kernels/params.h"

namespace attnbench::cuda {

/// Whether it pays, and why, or why not ("columns of 64: converting hides behind the products").
struct WideValuesChoice {
  bool pays = false;
  std::string reason;
};

/// Of a problem that the kernel takes (hopper_prefill_misfit()) with values in pages of their own,
/// where each is read by many row tiles; how many that are is for the caller to count. Never where
/// bytes may not depend on the batch: the longest request of it may choose.
WideValuesChoice wide_values_pay(const attn::AttendParams& params);

}  // namespace attnbench::cuda
