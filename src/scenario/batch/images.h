// Images of a vision encoder as sequences of patches (contract section 1, mm_encoder).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// An image of height x width pixels is a grid of (height / patch_size) x (width / patch_size)
/// patches; pixels beyond the last whole patch are dropped, as by a convolution with that stride.
/// Without window each image is one sequence. With window (Qwen2.5-VL) the grid is cut into squares
/// of window x window patches, row by row, those at the right and lower border smaller, and each
/// square is a sequence. E-VALUE for an image smaller than a patch, E-CAPACITY for too many
/// sequences.
std::vector<Request> image_requests(const MmEncoderSpec& spec);

}  // namespace attnbench
