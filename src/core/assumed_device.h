// The device that is assumed where there is none and nothing else was said.
#pragma once

namespace attnbench {

/// An NVIDIA H100 or H200 in the SXM form, whose kernels are the ones that upstream tunes for.
inline constexpr int kAssumedSm = 90;  // 10 * major + minor
inline constexpr int kAssumedNumSms = 132;

}  // namespace attnbench
