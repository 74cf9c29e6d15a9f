// Splits are chosen as before there were other forms of them; the forms follow from their number
// and from how unequal the lengths are.
#include "metadata/parts/decode_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "metadata/int_math.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

/// CTAs that read keys at a time: two on each multiprocessor saturate the memory.
constexpr int kPlacesPerSm = 2;
constexpr std::int64_t kRowTile = 16;

std::int64_t longest_of(std::span<const std::int64_t> seq_lens) {
  return seq_lens.empty() ? 0 : *std::ranges::max_element(seq_lens);
}

std::int64_t num_blocks(std::int64_t keys) {
  return ceil_div(keys, std::int64_t{kDecodePlanBlock});
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

}  // namespace

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
  choice.reason = splits_in_words(q, choice.num_splits);
  if (q.num_splits) choice.reason += ", as attention.num_splits asks for";
  if (q.form == SplitForm::kAuto && !q.num_splits && q.may_plan &&
      is_skewed(q.seq_lens, choice.num_splits, q.num_kv_heads, q.num_sms)) {
    if (kPlansByDefault) return plan_of(q, "equal splits would leave one long request to few");
    choice.reason +=
        "; a plan would deal them out evenly, and is made where attention.split_form asks for it";
  }
  if (choice.num_splits <= 1) return choice;
  if (q.form == SplitForm::kJoined) {
    choice.form = SplitForm::kJoined;
    choice.reason += "; joined within their launch, as attention.split_form asks for";
  } else if (q.form == SplitForm::kAuto && choice.num_splits <= kMostJoinedByDefault) {
    choice.form = kJoinsByDefault ? SplitForm::kJoined : SplitForm::kSeparate;
    choice.reason += kJoinsByDefault
                         ? "; joined within their launch"
                         : "; combined by a second launch, unless attention.split_form is joined";
  }
  return choice;
}

}  // namespace attnbench
