// How the keys of a batch of decodes are shared out to the device: in how many splits for every
// request, who puts them together, or by a plan of equal loads; and whether decodes beside prefills
// are better attended by a call of their own. Pure functions of what the host knows when it
// prepares a batch; the first gives its reason in words, so that explain() can print it and a test
// can check it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/problem/enums.h"

namespace attnbench {

struct Problem;
struct Request;

/// What a choice goes by. Lengths are those of the decodes only.
struct DecodeQuestion {
  std::span<const std::int64_t> seq_lens;  // keys of each
  std::int64_t max_query_len = 1;          // tokens
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_size = 128;  // the larger one of keys and values
  int key_bytes = 2;    // of an element of the cache
  int num_sms = 1;
  int sm = 0;                         // compute capability, 10 * major + minor
  std::optional<int> num_splits;      // attention.num_splits
  SplitForm form = SplitForm::kAuto;  // attention.split_form
  bool may_plan = true;               // kAuto may take a plan of the device
  bool may_join = true;               // kAuto may have splits joined by their launch
};

struct DecodeChoice {
  SplitForm form = SplitForm::kSeparate;  // never kAuto
  int num_splits = 1;                     // for every request; 1 = none, and with kPlanned
  int num_parts = 0;                      // of a plan, for every KV head; kPlanned only
  std::string reason;                     // "32 splits: 256 of 264 places taken, ..."
  bool operator==(const DecodeChoice&) const = default;
};

/// Whether `auto` may take a plan of the device; where not, the reason says what would have been
/// chosen. One NVIDIA H200, 2026-11-23: one request of 128k beside 63 of 1k takes 203 us by a plan
/// and 1607 without.
inline constexpr bool kPlansByDefault = true;

/// Blocks that a part of a planned decode over heads spends on starting a request: as many as it
/// would read in the time that passes until its first keys have come.
inline constexpr int kDecodePlanHeadsOverhead = 2;

/// Parts of a plan for every KV head: two for each multiprocessor over all of them and their tiles
/// of 16 packed query rows; at least 1. Errors: E-SHAPE where an extent is below 1 or heads are
/// fewer than KV heads.
int heads_decode_parts(int num_sms, std::int64_t max_query_len, int num_heads, int num_kv_heads);

/// Whether the longest request has more than twice the mean of keys, and the longest piece that
/// equal splits leave takes more than twice what every place of the device would have if keys were
/// dealt out evenly. seq_lens [B], lengths in keys.
bool is_skewed(std::span<const std::int64_t> seq_lens, int num_splits, int num_kv_heads,
               int num_sms);

/// Splits for every request that a cluster joins in less time than a second launch would combine
/// choose_num_splits() of them: 8, 4 or 2; 1 where that is not so, or not known.
int joined_splits(const DecodeQuestion& question);

/// attention.num_splits and attention.split_form where they are given, else: joined_splits(), if
/// there are any; planned where equal splits would leave most of the device idle behind a long
/// request; choose_num_splits(), combined by a second launch. Without decodes one split. Errors:
/// those of heads_decode_parts().
DecodeChoice choose_decode(const DecodeQuestion& question);

/// Decodes and prefills of one batch, and the kernel that would do both in one launch.
struct ApartQuestion {
  std::span<const Request> decodes;
  std::span<const Request> prefills;
  std::optional<std::int64_t> window;  // keys that a row sees at most; nothing = all before it
  int num_heads = 1;
  int num_kv_heads = 1;
  int columns = 256;    // D + Dv
  int key_bytes = 1;    // of an element of a key
  int tile_rows = 192;  // packed query rows of a tile of that kernel
  int num_sms = 1;
};

/// Whether the decodes take less time by a launch of the decode kernel in front of the prefills'
/// than as tiles of that kernel. An estimate for causal attention. Not where either is missing, nor
/// for decodes of more than 16 packed rows. Extents are at least 1.
bool decodes_pay_apart(const ApartQuestion& question);

/// Whether one of the decodes, as a tile of a list that warps beside the others do, would end long
/// after everything else: then it is better split. Of 16 bits; extents as above.
bool decode_ends_last(const ApartQuestion& question);

}  // namespace attnbench
