// Pages of one-byte codes that become pages of 16 bits in front of the attention of prompts.
//
// A prompt reads each key once for every tile of 192 query rows, and a kernel that converts codes
// on their way into the products converts them as often: beside queries of 16 bits that is what
// bounds it. Where keys are read often enough they are converted once instead, into pages of their
// own, over which attention runs at the rate of a cache of 16 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/device_buffers.h"
#include "core/problem/problem.h"
#include "ops/ops.h"

namespace attnbench {

/// gather_mla() of keys and of values, and the attention over what these make.
struct WidePages {
  attn::MlaGatherParams keys;
  attn::MlaGatherParams values;
  attn::AttendParams attend;
};

/// Whether converting the keys of these requests once costs less than converting them for every
/// tile of query rows; `group` query heads share a KV head, a row sees at most `window` keys (below
/// 0: all). False as well where the pages would take more than 2 GiB, at `key_bytes` a key.
bool wide_pages_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                    std::int64_t key_bytes);

/// Wide pages of the requests of `part`, [first_request, first_request + num_requests) of `batch`,
/// with memory for them; none where the device does not want them (Ops::wants_wide_pages()), where
/// they do not pay, or where the cache is none of one-byte floats that are read as numbers of 16
/// bits. What they hold is codes times the scale of the first KV head, rounded once (semantics
/// §4.4): that all heads have this scale, and that rounding is right, is for the caller to know.
/// Errors: E-CAPACITY.
std::optional<WidePages> make_wide_pages(const std::vector<Request>& batch,
                                         const attn::AttendParams& part, DeviceBuffers& memory);

}  // namespace attnbench
