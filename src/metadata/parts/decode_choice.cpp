// Splits are chosen as before there were other forms of them; the forms follow from their number
// and from how unequal the lengths are.
#include "metadata/parts/decode_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

/// CTAs that read keys at a time: two on each multiprocessor saturate the memory.
constexpr int kPlacesPerSm = 2;
constexpr std::int64_t kRowTile = 16;
constexpr std::int64_t kWidestTile = 32;  // of rows that read their keys together

std::int64_t longest_of(std::span<const std::int64_t> seq_lens) {
  return seq_lens.empty() ? 0 : *std::ranges::max_element(seq_lens);
}

std::int64_t num_blocks(std::int64_t keys) {
  return ceil_div(keys, std::int64_t{kDecodePlanBlock});
}

/// Row tiles of all requests and KV heads, each of which reads its keys once.
std::int64_t num_units(const DecodeQuestion& q) {
  const std::int64_t rows = q.max_query_len * (q.num_heads / std::max(q.num_kv_heads, 1));
  return std::ssize(q.seq_lens) * q.num_kv_heads * ceil_div(rows, kWidestTile);
}

/// Blocks of the longest split of any request.
std::int64_t longest_split(std::span<const std::int64_t> seq_lens, int num_splits) {
  return ceil_div(num_blocks(longest_of(seq_lens)), std::int64_t{num_splits});
}

/// "256 parts for 264 places, none longer than 4096 keys".
std::string splits_in_words(const DecodeQuestion& q, int num_splits) {
  const auto requests = static_cast<std::int64_t>(q.seq_lens.size());
  const std::int64_t keys =
      std::min(longest_split(q.seq_lens, num_splits) * kDecodePlanBlock, longest_of(q.seq_lens));
  return fmt::format("{} parts for {} places, none longer than {} keys",
                     requests * q.num_kv_heads * num_splits, q.num_sms * kPlacesPerSm, keys);
}

DecodeChoice plan_of(const DecodeQuestion& q, std::string_view why) {
  DecodeChoice choice;
  choice.form = SplitForm::kPlanned;
  choice.num_parts = heads_decode_parts(q.num_sms, q.max_query_len, q.num_heads, q.num_kv_heads);
  choice.reason = fmt::format("{} parts of equal load for each KV head: {}", choice.num_parts, why);
  return choice;
}

/// "64 parts in clusters of 8, none longer than 128 keys".
std::string clusters_in_words(const DecodeQuestion& q, int num_splits) {
  return fmt::format("{} parts in clusters of {}, none longer than {} keys",
                     num_units(q) * num_splits, num_splits,
                     ceil_div(longest_of(q.seq_lens), std::int64_t{num_splits}));
}

/// What tiles go through in turn, in keys: of all tiles together, and of the one with most.
struct TileKeys {
  double sum = 0;
  double longest = 0;
};

/// Of causal rows: the last tile sees all keys, the first one those before the request's new ones.
TileKeys tile_keys(const ApartQuestion& q, std::span<const Request> requests) {
  TileKeys keys;
  for (const Request& request : requests) {
    const auto seen = [&](std::int64_t before) {
      return q.window ? std::min(before, *q.window + request.query_len) : before;
    };
    const std::int64_t rows = request.query_len * (q.num_heads / q.num_kv_heads);
    const std::int64_t tiles = ceil_div(rows, std::int64_t{q.tile_rows}) * q.num_kv_heads;
    if (tiles == 0) continue;
    const std::int64_t middle = request.seq_len - request.query_len / 2;
    keys.sum += static_cast<double>(tiles) * static_cast<double>(seen(middle));
    keys.longest = std::max(keys.longest, static_cast<double>(seen(request.seq_len)));
  }
  return keys;
}

std::int64_t most_rows(const ApartQuestion& q) {
  std::int64_t most = 0;
  for (const Request& request : q.decodes) {
    most = std::max(most, request.query_len * (q.num_heads / q.num_kv_heads));
  }
  return most;
}

}  // namespace

/// One NVIDIA H200, 2026-11-28, 32 heads on 8 of 128 unless something else is said, in a graph, us
/// by a second launch and joined in clusters of 8, 4 and 2:
///   q1s1k        11.4   9.2   9.5  10.5     2q1s1k   12.1  14.4  10.5  11.3
///   q1s8k        21.0  18.1  21.2  32.3     2q1s8k   30.6  34.2  28.2  34.0
///   q1s64k       78.6  77.7 108.5 204.7     3q1s4k   25.6  23.8  23.1  24.0
///   q1s1k fp8    11.1   9.0   9.6  10.7     4q1s2k   20.5  23.1  22.4  18.3
///   q1s32k fp8   32.2  34.0  57.7 103.1     8q1s1k   20.2  23.6  22.4  17.8
///   8 heads on 1, q1s4k / q1s8k             10.9 / 12.0  10.4 / 13.4
/// A cluster has to find its multiprocessors in one group of 16 to 18 of them, where clusters of 8
/// and 4 leave some over: of 128 CTAs not all run at a time, of 96 they do.
int joined_splits(const DecodeQuestion& q) {
  // What was measured: Hopper, and no wider heads.
  constexpr int kGeneration = 9;
  constexpr int kMostColumns = 128;
  const std::int64_t units = num_units(q);
  if (!q.may_join || q.sm / 10 != kGeneration || q.head_size > kMostColumns || units == 0) return 1;
  // Of one part, which nothing is gained beyond; where parts are too few to saturate the memory, a
  // second launch pays sooner.
  const std::int64_t most_keys = q.key_bytes == 1 ? 2048 : 4096;
  constexpr std::int64_t kMostKeysOfFew = 512;
  for (const int splits : {8, 4, 2}) {
    const std::int64_t parts = units * splits;
    if (parts > (splits == 2 ? q.num_sms : q.num_sms * 3 / 4)) continue;
    const std::int64_t keys = ceil_div(longest_of(q.seq_lens), std::int64_t{splits});
    const bool is_few = parts < q.num_sms * 3 / 8;
    return keys <= (is_few ? kMostKeysOfFew : most_keys) ? splits : 1;
  }
  return 1;
}

int heads_decode_parts(int num_sms, std::int64_t max_query_len, int num_heads, int num_kv_heads) {
  if (num_sms < 1 || max_query_len < 1 || num_kv_heads < 1 || num_heads < num_kv_heads) {
    fail(ErrorKind::kShape,
         "decode parts: expected multiprocessors and query_len >= 1 and heads >= KV heads >= 1, "
         "got {}, {}, {} and {}",
         num_sms, max_query_len, num_heads, num_kv_heads);
  }
  const std::int64_t tiles = ceil_div(max_query_len * (num_heads / num_kv_heads), kRowTile);
  return static_cast<int>(
      std::max<std::int64_t>(1, std::int64_t{kPlacesPerSm} * num_sms / num_kv_heads / tiles));
}

bool is_skewed(std::span<const std::int64_t> seq_lens, int num_splits, int num_kv_heads,
               int num_sms) {
  std::int64_t blocks = 0;
  std::int64_t keys = 0;
  for (const std::int64_t len : seq_lens) {
    blocks += num_blocks(len);
    keys += len;
  }
  // Requests of about one length are split alike; what few of them leave idle, a plan, which is a
  // launch more, would not win back.
  if (longest_of(seq_lens) * std::ssize(seq_lens) <= 2 * keys) return false;
  const std::int64_t places = std::int64_t{kPlacesPerSm} * num_sms;
  // The longest piece twice above blocks * heads / places, and longer than starting it takes.
  const std::int64_t longest = longest_split(seq_lens, num_splits);
  return longest * places > 2 * blocks * num_kv_heads && longest > 2 * kDecodePlanHeadsOverhead;
}

DecodeChoice choose_decode(const DecodeQuestion& q) {
  DecodeChoice choice;
  if (q.seq_lens.empty()) {
    choice.reason = "no decodes";
    return choice;
  }
  if (q.form == SplitForm::kPlanned) return plan_of(q, "attention.split_form asks for them");
  const auto requests = static_cast<std::int64_t>(q.seq_lens.size());
  choice.num_splits =
      q.num_splits ? *q.num_splits
                   : choose_num_splits(requests, q.num_kv_heads, longest_of(q.seq_lens), q.num_sms);
  const bool is_free = q.form == SplitForm::kAuto && !q.num_splits;
  const bool skewed =
      is_free && is_skewed(q.seq_lens, choice.num_splits, q.num_kv_heads, q.num_sms);
  if (skewed && q.may_plan && kPlansByDefault) {
    return plan_of(q, "equal splits would leave one long request to few");
  }
  const int joined = joined_splits(q);
  const bool may_join = (is_free && !skewed) || (q.form == SplitForm::kJoined && !q.num_splits);
  if (may_join && joined > 1) {
    choice.form = SplitForm::kJoined;
    choice.num_splits = joined;
    choice.reason = clusters_in_words(q, joined) + ", joined within their launch";
    return choice;
  }
  choice.reason = splits_in_words(q, choice.num_splits);
  if (q.num_splits) choice.reason += ", as attention.num_splits asks for";
  if (skewed && q.may_plan) {
    choice.reason +=
        "; a plan would deal them out evenly, and is made where attention.split_form asks for it";
  }
  if (choice.num_splits <= 1) return choice;
  if (q.form == SplitForm::kJoined) {
    choice.form = SplitForm::kJoined;
    choice.reason += "; joined within their launch, as attention.split_form asks for";
  } else if (q.form == SplitForm::kAuto) {
    choice.reason += "; combined by a second launch, unless attention.split_form is joined";
  }
  return choice;
}

/// One NVIDIA H200, 2026-12-01, 32 heads on 8 of 128 over an fp8 cache, 60q1s4k_4q1ks3k: 512 us in
/// one launch; its decodes alone 156 us, its prefills alone 276. So a multiprocessor takes about
/// 17 ns for a key by a tile of 192 rows, of which a decode has 4 here, and the memory brings a key
/// of one byte in half the time, one of 16 bits in no less. A launch more costs 8 to 15 us, the
/// time of some 700 keys: less than that is not worth it, nor are tiles that find multiprocessors
/// idle beside those of the prefills. But a long decode whose one tile would end after all others
/// is: by itself its keys are split. In one launch and by this rule: 541 and 422 us; 48q1s1k beside
/// the same prefills 340 and 316, 23q1s1k 299 and 296, 12q1s1k 286 either way; q1s128k beside one
/// of 8,192 tokens 1444 and 807.
bool decodes_pay_apart(const ApartQuestion& q) {
  constexpr double kLaunchKeys = 700;  // of 256 columns
  const double memory_share = q.key_bytes == 1 ? 0.5 : 1.0;
  // 60 requests of 4k and 4, 8 and 16 tokens of 4 heads: 541 us together, 564 and 838 apart for 8
  // and 16 tokens.
  constexpr std::int64_t kMostRows = 16;
  if (most_rows(q) > kMostRows || q.prefills.empty()) return false;
  const TileKeys decodes = tile_keys(q, q.decodes);
  const TileKeys prefills = tile_keys(q, q.prefills);
  // Where the longest prefill ends last, the answer is no without it here too.
  const double together = std::max((decodes.sum + prefills.sum) / q.num_sms, decodes.longest);
  const double apart = std::max(prefills.sum / q.num_sms, prefills.longest) +
                       kLaunchKeys * 256 / q.columns + decodes.sum * memory_share / q.num_sms;
  return apart < together;
}

/// The tile of a long decode of 16 bits takes up to 30 ns for a key of 128 columns, a tile of 192
/// rows 17; the memory takes half of that for all decodes, and has others to do meanwhile. One
/// NVIDIA H200, 2026-12-01, by a list and with the decodes split in a launch of their own, us:
/// beside a prefill of 8,192 tokens one decode of 64k keys 1228 and 817, one of 128k 1711 and 876;
/// eight of 1k and one of 64k beside four chunks of 1,024 696 and 374. But 12 of 8k beside two
/// prefills of 2,048 take 189 and 228, where the decodes' tiles are 1.8 times all else by these
/// numbers.
bool decode_ends_last(const ApartQuestion& q) {
  constexpr double kLongKey = 1.8;
  constexpr double kLate = 2.5;
  constexpr double kMemoryShare = 0.5;
  const TileKeys decodes = tile_keys(q, q.decodes);
  const TileKeys prefills = tile_keys(q, q.prefills);
  const double all =
      std::max((prefills.sum + decodes.sum * kMemoryShare) / q.num_sms, prefills.longest);
  return decodes.longest * kLongKey > kLate * all;
}

}  // namespace attnbench
