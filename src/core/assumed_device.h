// The device that is assumed where there is none and nothing else was said: choices that depend on
// the number of multiprocessors or on the compute capability are then made, compiled and explained
// on a machine without a GPU as they would be on this one.
#pragma once

namespace attnbench {

/// An NVIDIA H100 or H200 in the SXM form, whose kernels are the ones that upstream tunes for.
inline constexpr int kAssumedSm = 90;  // 10 * major + minor
inline constexpr int kAssumedNumSms = 132;

}  // namespace attnbench
