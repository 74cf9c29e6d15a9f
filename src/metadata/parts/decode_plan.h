// How the KV blocks of a decode batch are dealt out to parts of the GPU, FlashMLA style
// (semantics §8.8), or divided into as many splits for every request (flash decoding).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attnbench {

struct Problem;

inline constexpr int kDecodePlanBlock = 64;         // keys per block
inline constexpr int kDecodePlanDenseOverhead = 5;  // blocks that starting a request costs

/// One part works on requests begin_req..end_req (both inclusive): the first from begin_block, the
/// last up to but excluding end_block, those between entirely. A part without work has
/// begin_req > end_req. Eight int32, the kernel's record.
struct DecodePart {
  int32_t begin_req = 0;
  int32_t end_req = -1;
  int32_t begin_block = 0;
  int32_t end_block = 0;    // 0 for a request of length 0
  int32_t begin_split = 0;  // index of the part's share among the splits of begin_req
  int32_t first_req_split = 0;
  int32_t last_req_split = 0;
  int32_t padding = 0;
  bool operator==(const DecodePart&) const = default;
};

struct DecodePlan {
  std::vector<int32_t> num_blocks;  // [B]; 1 for length 0
  int64_t payload = 0;              // blocks and overhead that a part takes at most
  std::vector<DecodePart> parts;    // [num_parts]
  std::vector<int32_t> num_splits;  // [B+1] cumulative

  /// Whether some request has more than one split.
  bool is_split() const;
};

/// lens [B] >= 0 (E-VALUE): sequence lengths, or the valid top-k counts with sparse, which takes 0
/// as 1. num_parts >= 1, else E-CONFIG.
DecodePlan plan_decode(std::span<const int32_t> lens, int num_parts, int fixed_overhead,
                       bool sparse = false);

/// The plan of a dense decode: whole requests, neighbours one after another, where no part then has
/// more than kDecodePlanSplitCost blocks beyond the payload of plan_decode(), which splits requests
/// to deal out the same load to all; otherwise as plan_decode(), but by the least payload that is
/// enough. Why: that of plan_decode() counts the overhead once too often where no part begins a
/// second request, and 64 requests of 64 blocks over 132 parts became 34 and 30 blocks instead of
/// twice 32 (one NVIDIA H200, 2026-11-30: 99.9 and 98.1 us). Errors: as plan_decode().
DecodePlan plan_dense_decode(std::span<const int32_t> lens, int num_parts);
/// What splitting costs a part, in blocks: partial results are written, read and put together
/// (17 us at 128 heads, 64 parts and 64 blocks a request; one NVIDIA H200, 2026-11-22).
inline constexpr int kDecodePlanSplitCost = 10;

/// Parts of a dense decode: one CTA per 64 (query row, head) pairs of a KV head.
int dense_decode_parts(int num_sms, int query_len, int num_heads, int num_kv_heads);
/// Parts of a sparse fp8 decode; num_heads is padded to a multiple of 64 (E-SHAPE).
int sparse_decode_parts(int num_sms, int query_len, int num_heads);

/// Splits of the keys for decode-only work that fill the device: the fewest parts that fill whole
/// waves (two parts on each of its `num_sms` multiprocessors) nearly as well as any number up to
/// 64, none shorter than 256 keys; 1 = no split.
int splits_of_waves(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                    int num_sms);
/// Those, but none where nearly every multiprocessor has a part anyway, and none more than two.
int choose_num_splits(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                      int num_sms);
/// attention.num_splits where the problem has it, else those; 1 without requests.
int num_splits_of(const Problem& problem, std::int64_t num_requests, int num_kv_heads,
                  std::int64_t max_seq_len, int num_sms);

}  // namespace attnbench
