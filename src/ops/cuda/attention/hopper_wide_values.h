// Values of one byte that become f16 once, in front of the Hopper prefill kernel, where its keys
// stay codes: for which problems that kernel is then so much faster that it pays.
//
// Weights keep 16 bits beside int8 scores (semantics §11.4), and beside e4m3 scores unless P is
// rounded (§10.5), and products do not mix types. Where values are codes, two warps of the
// producers convert each tile of them for every row tile that reads it. Beside heads of 256
// columns, whose row tiles have 128 rows, that takes longer than the products. Keys need no
// conversion: their products take codes as they are.
//
// Nothing here was measured over such pages yet. What the choice goes by is what was measured of
// level 2 of int8, whose kernel that of level 1 then is, but for the scales of its columns: values
// of 16 bits in memory. One NVIDIA H200, 2026-12-01, 32 heads on 8, causal over pages of 16, us at
// level 1 and at level 2; 64 x 512, 8 x 2,048, 4 x 4,096 and 2 x 8,192 tokens:
//   D64 330 and 349, 408 and 400, 738 and 719, 1227 and 1311;
//   D128 412 and 438, 527 and 513, 943 and 879, 1715 and 1578;
//   D256 721 and 639, 1018 and 736, 1888 and 1298, 3737 and 2465.
// And e4m3 with P of 16 bits beside bf16, whose products of scores take twice as long; 64 x 512,
// 8 x 2,048 and 2 x 8,192 tokens:
//   D128 362 and 346, 436 and 443, 1397 and 1449;
//   D256 672 and 564, 939 and 776, 3268 and 2840.
// Converting goes at some 3 TB/s, a byte read and two written: 8 KV heads of 32,768 tokens of D128
// take 33 us, of D256 65.
#pragma once

#include <string>

#include "kernels/params.h"

namespace attnbench::cuda {

/// Whether it pays, and why, or why not ("columns of 64: conversion beside the products hides").
struct WideValuesChoice {
  bool pays = false;
  std::string reason;
};

/// Of a problem that the kernel takes (hopper_prefill_misfit()) with values in pages of their own,
/// where each is read by many row tiles; how many that are is for the caller to count. Never where
/// bytes may not depend on the batch: the longest request of it may choose.
WideValuesChoice wide_values_pay(const attn::AttendParams& params);

}  // namespace attnbench::cuda
