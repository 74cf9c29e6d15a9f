// Pages of one-byte codes that become pages of 16 bits in front of the attention of prompts: keys
// and values beside queries of 16 bits, and values alone where queries and keys are multiplied as
// codes and weights keep 16 bits (int8 at level 1; e4m3 unless P is rounded to it).
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
  std::optional<attn::MlaGatherParams> keys;  // none: they are read as they are
  attn::MlaGatherParams values;
  attn::AttendParams attend;
};

/// Whether converting the keys of these requests once costs less than converting them for every
/// tile of query rows; `group` query heads share a KV head, a row sees at most `window` keys (below
/// 0: all). False as well where the pages would take more than 2 GiB, at `key_bytes` a key.
bool wide_pages_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                    std::int64_t key_bytes);
/// The same of values alone, at `value_bytes` a key.
bool wide_values_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                     std::int64_t value_bytes, int columns);

/// Wide pages of the requests of `part`, [first_request, first_request + num_requests) of `batch`,
/// with memory for them; none where the device does not want them (Ops::wide_use()), where
/// they do not pay, or where the cache is none of one-byte floats that are read as numbers of 16
/// bits. What they hold is codes times the scale of the first KV head, rounded once (semantics
/// §4.4): that all heads have this scale, and that rounding is right, is for the caller to know.
/// Errors: E-CAPACITY.
std::optional<WidePages> make_wide_pages(const std::vector<Request>& batch,
                                         const attn::AttendParams& part, DeviceBuffers& memory);
/// The same of values alone (KvParams::value_block_table), number for number: the scales of values
/// are still the attention's. None where it would not multiply the values' codes as f16 anyway.
std::optional<WidePages> make_wide_values(const std::vector<Request>& batch,
                                          const attn::AttendParams& part, DeviceBuffers& memory);

}  // namespace attnbench
