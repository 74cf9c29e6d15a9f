// The options by which a forced kernel's name overrides what HopperPlan chooses for a problem,
// "hopper_prefill:tile_n=64:stages=3": which there are, of which kernel, and how far they go. A
// user tunes a kernel by them on another GPU; what is measured to pay becomes a choice of
// hopper_plan().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ops/cuda/attention/hopper_plan.h"

namespace attnbench::cuda {

/// Whose options: those of one row tile after another, or of a list of tiles.
enum class HopperKernel { kPrefill, kTiles };

/// Applies `options` ("tile_n=64:stages=3", or empty) to `plan` where there is one, from the first
/// to the last that is right. Returns what is wrong with them, for `kernel` where one is given, or
/// "": a word that is no option=number of it, or a number that is out of its range or no multiple
/// of its step. Whether a problem allows what is asked for is said by hopper_plan(), which fails
/// where it does not.
std::string apply_hopper_options(std::string_view options, HopperPlan* plan,
                                 std::optional<HopperKernel> kernel = std::nullopt);

/// Whether a forced kernel's name asks for a tuning of this one,
/// "hopper_prefill:tile_n=64:stages=3", and if so why it cannot be ("tile_n=70: 64 to 256 in steps
/// of 16 is possible"). Options: tile_n (a multiple of 16, of e4m3 products 32, 64 to 256), stages
/// (2 to 4), persistent, ahead (which is persistent), slopes (0 to 2: linear ALiBi by distances in
/// a tile or by products), bounds, ordered (0, 1), of e4m3 products sums (0 to 128, a multiple of
/// 16) and with values of up to 128 columns promote (1 to 16 tiles), of int8 products add_floats,
/// and of codes that are converted keep_columns (0, 1); unroll (0, 1). Of prefill alone: consumers
/// (1 to 3), line (0, 64, 128; of 16 bits), apart (0, 1: of e4m3 products), ping_pong, late_output
/// (with ahead), fixed_base, reverse, tail (0, 1), group (from 1), cap (0 to 4: the form of a soft
/// cap), fit (0, 1: windows over pages, fits_tiles), wide (0, 1: codes of prompts, or of e4m3 and
/// int8 scores their values, become 16 bits in front). Of a list of tiles alone: few (0, 1), beside
/// (0 to 4: stages of the warps that do tiles of few rows beside the consumers, 0: the consumers do
/// them), shares (0, 1).
std::string hopper_prefill_options_misfit(std::string_view options);
std::string hopper_tiles_options_misfit(std::string_view options);
/// Whether they say wide=1 (AttendCandidate::wants_wide).
bool hopper_prefill_wants_wide(std::string_view options);

}  // namespace attnbench::cuda
