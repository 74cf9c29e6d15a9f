// Batches in their short forms: the grammar of batch specs, and images of a vision encoder.
//
// A batch spec such as "60q1s4k_4q1ks3k" says 60 requests of one query token against 4096 keys,
// then 4 of 1024 against 3072. The canonical text of a batch is what case names, and so result ids
// and baselines, are made of: it must never change for a batch that exists.
//
//   batch   = segment { "_" segment }
//   segment = [count] "q" number ["k"] ["s" number ["k"]]
//
// where k is 1024, and without s seq_len is query_len.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// Token counts are 32-bit in cumulative arrays (semantics §1.1).
inline constexpr std::int64_t kMaxTokens = 2147483647;
inline constexpr std::int64_t kMaxRequests = 1000000;

/// Strict batch-spec grammar of contract §1.1; `cross` allows seq_len < query_len
/// (encoder_decoder). Errors: E-CONFIG naming the offending segment.
std::vector<Request> parse_batch_spec(const std::string& spec, bool cross);

/// Canonical text of a batch: run-length segments in request order, with 'k' where exact, e.g.
/// {(1,4096) x 60, (1024,3072) x 4} -> "60q1s4k_4q1ks3k"; "q8k" when seq_len = query_len.
std::string canonical_batch_spec(const std::vector<Request>& batch);

/// Images as sequences of patches (contract section 1, mm_encoder). An image of height x width
/// pixels is a grid of (height / patch_size) x (width / patch_size) patches; pixels beyond the last
/// whole patch are dropped, as by a convolution with that stride. Without window each image is one
/// sequence. With window (Qwen2.5-VL) the grid is cut into squares of window x window patches, row
/// by row, those at the right and lower border smaller, and each square is a sequence. E-VALUE for
/// an image smaller than a patch, E-CAPACITY for too many sequences.
std::vector<Request> image_requests(const MmEncoderSpec& spec);

}  // namespace attnbench
