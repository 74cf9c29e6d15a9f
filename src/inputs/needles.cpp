// For each chosen row: the places that matter there in an order of importance, then one or two of
// them for each head. What does not fit into one row comes with the next one, because the start of
// the list moves on from row to row and from request to request.
#include "inputs/needles.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/assumed_device.h"
#include "inputs/random.h"
#include "metadata/mask/attention_math.h"
#include "metadata/parts/cascade.h"
#include "metadata/parts/dcp.h"
#include "metadata/parts/decode_plan.h"
#include "metadata/parts/segments.h"

namespace attnbench {
namespace {

constexpr std::int64_t kMostRows = 256;           // of the batch, requests aside
constexpr std::int64_t kMostRowsOfARequest = 32;  // enough for each kind under few heads
constexpr std::int64_t kSplitTile = 64;           // splits are runs of tiles of so many keys
constexpr std::int64_t kSegmentTile = 16;
/// Below so few dimensions two needles of one query would not be far enough apart.
constexpr int kLeastDimsForTwo = 32;
/// A query is as long as an ordinary one with this share of its length along the needles.
constexpr double kAlignedShare = 0.9;
constexpr double kMostLength = 4;
/// Above the log-sum-exp of the other keys: half of the weight and a little more.
constexpr double kMargin = 0.5;

struct Place {
  std::int64_t key = 0;
  NeedleKind kind = NeedleKind::kFirstVisible;
  bool visible = true;
};

/// What one row sees.
struct Row {
  std::int64_t request = 0;
  std::int64_t index = 0;  // among the rows with needles
  std::int64_t token = 0;
  std::int64_t position = 0;
  std::int64_t seq_len = 0;
  bool is_last = false;  // of its request
  KeyRange range;        // hull of the visible keys
  std::int64_t visible = 0;
};

class Planner {
 public:
  Planner(const Problem& problem, ListedKeys listed)
      : problem_(problem),
        listed_(listed),
        math_(resolve_attention_math(problem, KernelRules{})),
        slopes_(problem.attention.alibi == AlibiKind::kNone
                    ? std::vector<float>{}
                    : resolved_alibi_slopes(problem.attention)) {
    const AttentionSpec& a = problem.attention;
    const double std = problem.inputs.std;
    unit_ = a.scale * a.head_size * std * std;
    noise_ = a.scale * std::sqrt(static_cast<double>(a.head_size)) * std * std;
    for (std::size_t b = 0; b < problem.batch.size(); ++b) {
      const Request& request = problem.batch[b];
      if (request.query_len < 1) continue;
      const auto index = static_cast<std::int64_t>(b);
      if (shortest_ < 0 || request.seq_len < length_of(shortest_)) shortest_ = index;
      if (longest_ < 0 || request.seq_len > length_of(longest_)) longest_ = index;
    }
  }

  std::vector<Needle> plan() {
    if (problem_.attention.type == AttentionType::kOp || !(unit_ > 0)) return {};
    std::int64_t token = 0;
    for (std::size_t b = 0; b < problem_.batch.size(); ++b) {
      const Request& request = problem_.batch[b];
      for (const std::int64_t i : chosen_rows(request)) {
        plan_row(row_of(static_cast<std::int64_t>(b), token, i));
      }
      token += request.query_len;
    }
    return std::move(needles_);
  }

 private:
  std::int64_t length_of(std::int64_t request) const {
    return problem_.batch[static_cast<std::size_t>(request)].seq_len;
  }

  /// Indices of a request's rows, ascending: first, last, and between them at edges of tiles.
  std::vector<std::int64_t> chosen_rows(const Request& request) const {
    const std::int64_t share =
        kMostRows / std::max<std::int64_t>(1, static_cast<std::int64_t>(problem_.batch.size()));
    const std::int64_t count =
        std::clamp(share, std::int64_t{1}, std::min(kMostRowsOfARequest, request.query_len));
    std::vector<std::int64_t> rows;
    if (request.query_len < 1) return rows;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool is_end = i == 0 || i == count - 1;
      // A single row is the last one, which sees most.
      std::int64_t row =
          count == 1 ? request.query_len - 1 : i * (request.query_len - 1) / (count - 1);
      if (!is_end && request.query_len > 4 * kSplitTile) {
        row = row / kSplitTile * kSplitTile - i % 2;
      }
      if (rows.empty() || row > rows.back()) rows.push_back(row);
    }
    return rows;
  }

  Row row_of(std::int64_t request, std::int64_t first_token, std::int64_t i) {
    Row row;
    row.request = request;
    row.index = num_rows_++;
    row.token = first_token + i;
    row.seq_len = length_of(request);
    const std::int64_t query_len = problem_.batch[static_cast<std::size_t>(request)].query_len;
    row.position = i + row.seq_len - query_len;
    row.is_last = i == query_len - 1;
    row.range = visible_range(math_, row.position, row.seq_len);
    row.visible = row.range.end - row.range.begin;
    for (const MmRange& range : math_.ranges_of(request)) {
      if (row.position < range[0] || row.position > range[1]) continue;
      const std::int64_t end = std::min(range[1] + 1, row.seq_len);
      row.visible = std::max(row.visible, end - range[0]);
      row.range.begin = std::min(row.range.begin, std::int64_t{range[0]});
      row.range.end = std::max(row.range.end, end);
    }
    return row;
  }

  bool sees(const Row& row, std::int64_t key) const {
    return is_allowed(math_, math_.ranges_of(row.request), row.position, key, row.seq_len);
  }

  // ---- Places
  // ------------------------------------------------------------------------------------

  void add(const Row& row, std::int64_t key, NeedleKind kind, bool visible = true) {
    if (key < 0 || key >= row.seq_len || sees(row, key) != visible) return;
    for (const Place& known : places_) {
      if (known.key == key) return;
    }
    places_.push_back({key, kind, visible});
  }

  /// Key `edge` and the one before it.
  void add_edge(const Row& row, std::int64_t edge, NeedleKind kind) {
    add(row, edge, kind);
    add(row, edge - 1, kind);
  }

  /// The last multiple of `step` that the row sees, the first one and one between them.
  void add_multiples(const Row& row, std::int64_t step, NeedleKind kind) {
    const std::int64_t last = (row.range.end - 1) / step;
    const std::int64_t first = row.range.begin / step + 1;
    if (step < 1 || last < first) return;
    add_edge(row, last * step, kind);
    add_edge(row, first * step, kind);
    add_edge(row, (first + pick(row, static_cast<std::uint32_t>(step), last - first + 1)) * step,
             kind);
  }

  /// One of `count`, another one for each row.
  std::int64_t pick(const Row& row, std::uint32_t what, std::int64_t count) const {
    const auto seed = problem_.inputs.seed;
    const auto bits =
        philox4x32({static_cast<std::uint32_t>(row.token), what, 0x6E65, 0},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})[0];
    return static_cast<std::int64_t>((std::uint64_t{bits} * static_cast<std::uint64_t>(count)) >>
                                     32);
  }

  NeedleKind last_kind(const Row& row) const {
    if (row.is_last && row.request == longest_) return NeedleKind::kLongestEnd;
    if (row.is_last && row.request == shortest_) return NeedleKind::kShortestEnd;
    return row.range.end - 1 == row.position ? NeedleKind::kNewToken : NeedleKind::kLastVisible;
  }

  /// The first `fixed_` are wanted in every row.
  void find_places(const Row& row) {
    places_.clear();
    if (!listed_.empty()) return find_listed_places(row);
    add(row, row.range.end - 1, last_kind(row));
    add(row, row.range.begin, NeedleKind::kFirstVisible);
    add(row, row.range.begin - 1, NeedleKind::kBeforeVisible, false);
    add(row, row.range.end, NeedleKind::kBehindVisible, false);
    add(row, row.position, NeedleKind::kNewToken);
    fixed_ = places_.size();
    for (const MmRange& range : math_.ranges_of(row.request)) {
      add(row, range[0], NeedleKind::kRangeEdge);
      add(row, range[1], NeedleKind::kRangeEdge);
    }
    const std::int64_t shared = prefixes_[static_cast<std::size_t>(row.request)].num_keys;
    if (shared > 0) add_edge(row, shared, NeedleKind::kPrefixEdge);
    add_shard_edges(row);
    add_split_edges(row);
    if (!has_direct_kv(problem_.attention.type)) {
      add_multiples(row, problem_.kv_cache.block_size, NeedleKind::kPageEdge);
    }
    for (const std::int64_t tile : {256, 128, 64}) {
      add_multiples(row, tile, NeedleKind::kTileEdge);
    }
  }

  /// Ends of the list and of the positions in it.
  void find_listed_places(const Row& row) {
    const std::int64_t topk = problem_.mla.sparse_topk.value_or(0);
    const ListedKeys list =
        listed_.subspan(static_cast<std::size_t>(row.token * topk), static_cast<std::size_t>(topk));
    std::int64_t first = -1, last = -1, least = -1, greatest = -1;
    for (const std::int32_t key : list) {
      if (key < 0) continue;
      if (first < 0) first = least = greatest = key;
      last = key;
      least = std::min<std::int64_t>(least, key);
      greatest = std::max<std::int64_t>(greatest, key);
    }
    add(row, greatest, greatest == row.position ? last_kind(row) : NeedleKind::kLastVisible);
    add(row, least, NeedleKind::kFirstVisible);
    fixed_ = places_.size();
    add(row, last, NeedleKind::kRangeEdge);
    add(row, first, NeedleKind::kRangeEdge);
  }

  void add_shard_edges(const Row& row) {
    const DcpGroup group = DcpGroup::of(problem_);
    if (group.world_size < 2) return;
    const std::int64_t turn = std::int64_t{group.world_size} * group.interleave_size;
    const std::int64_t start = row.range.end / turn * turn;
    // Where the last round of the ranks begins, and each rank's last run of tokens.
    add_edge(row, start, NeedleKind::kShardEdge);
    for (int rank = 1; rank < group.world_size; ++rank) {
      const std::int64_t edge = start + std::int64_t{rank} * group.interleave_size;
      add_edge(row, edge < row.range.end ? edge : edge - turn, NeedleKind::kShardEdge);
    }
  }

  void add_split_edges(const Row& row) {
    const AttentionSpec& a = problem_.attention;
    if (has_direct_kv(a.type)) return;
    const int kv_heads = std::max(1, a.num_kv_heads);
    const int splits =
        splits_of_waves(problem_.num_requests(), kv_heads, problem_.max_seq_len(), kAssumedNumSms);
    if (splits > 1) {
      const std::int64_t tiles = (row.seq_len + kSplitTile - 1) / kSplitTile;
      const std::int64_t width = (tiles + splits - 1) / splits * kSplitTile;
      add_multiples(row, width, NeedleKind::kSplitEdge);
    }
    if (problem_.max_query_len() <= 1 && a.type != AttentionType::kMla) {
      const SegmentPlan plan = plan_segments(row.seq_len, static_cast<int>(kSegmentTile));
      if (plan.num_active > 1) {
        add_multiples(row, plan.tiles_per_segment * kSegmentTile, NeedleKind::kSplitEdge);
      }
    }
    if (a.type == AttentionType::kMla) add_plan_edges(row);
  }

  /// Where a part of the plan of a dense decode ends in this request.
  void add_plan_edges(const Row& row) {
    if (!decode_plan_) {
      std::vector<std::int32_t> lengths;
      for (const Request& request : problem_.batch) {
        lengths.push_back(static_cast<std::int32_t>(request.seq_len));
      }
      const int query_len = static_cast<int>(std::max<std::int64_t>(1, problem_.max_query_len()));
      decode_plan_ =
          plan_dense_decode(lengths, dense_decode_parts(kAssumedNumSms, std::min(query_len, 8),
                                                        problem_.attention.num_heads, 1));
    }
    for (const DecodePart& part : decode_plan_->parts) {
      if (part.begin_req == row.request && part.begin_block > 0) {
        add_edge(row, std::int64_t{part.begin_block} * kDecodePlanBlock, NeedleKind::kSplitEdge);
      }
    }
  }

  // ---- Scores
  // ------------------------------------------------------------------------------------

  double bias(double slope, const Row& row, std::int64_t key) const {
    const auto distance = static_cast<double>(row.position - key);
    switch (math_.alibi) {
      case AlibiForm::kNone:
        return 0;
      case AlibiForm::kKeyIndex:
      case AlibiForm::kContextRelative:
        return -slope * distance;  // but for what all keys of a row have in common
      case AlibiForm::kDistance:
        return -slope * std::fabs(distance);
      case AlibiForm::kSqrt:
        return distance > 0 ? -slope * std::sqrt(distance) : 0;
    }
    return 0;
  }

  /// About the log-sum-exp of the row's ordinary keys.
  double level(double slope, const Row& row) const {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, row.visible));
    double heard = count;  // keys that the bias leaves
    double peak = 0;
    if (math_.alibi != AlibiForm::kNone) {
      peak = std::max(bias(slope, row, row.range.begin), bias(slope, row, row.range.end - 1));
      if (sees(row, row.position)) peak = std::max(peak, bias(slope, row, row.position));
      if (slope > 0) {
        const double reach = math_.alibi == AlibiForm::kSqrt ? 2 / (slope * slope) : 2 / slope;
        heard = std::min(count, 1 + reach);
      }
    }
    // Normal scores of deviation s have a mean of exp(s^2 / 2); few samples do not show it all.
    const double spread = std::min(noise_ * noise_ / 2, 3.0);
    const double keys = peak + portable_log(heard) + spread;
    return math_.has_sinks ? std::max(keys, 1.0) : keys;
  }

  double wanted_score(int head, const Row& row, std::int64_t key) const {
    const double slope = slopes_.empty() ? 0 : slopes_[static_cast<std::size_t>(head)];
    double floor = level(slope, row);
    if (problem_.attention.sinks == SinksKind::kValues) {
      floor = std::max(floor, problem_.attention.sink_values.at(static_cast<std::size_t>(head)));
    }
    double score = floor + kMargin - bias(slope, row, key);
    const double cap = math_.logits_soft_cap;
    if (cap > 0) {
      constexpr double kNearlyCap = 0.95;
      const double share = std::clamp(score / cap, -kNearlyCap, kNearlyCap);
      score = cap * (portable_log(1 + share) - portable_log(1 - share)) / 2;  // cap * artanh
    }
    return score;
  }

  // ---- Choice
  // ------------------------------------------------------------------------------------

  void plan_row(const Row& row) {
    find_places(row);
    if (places_.empty()) return;
    const int heads = problem_.attention.num_heads;
    const bool two = places_.size() > static_cast<std::size_t>(heads) &&
                     problem_.attention.head_size >= kLeastDimsForTwo;
    const std::vector<Place> order =
        order_of(row, static_cast<std::size_t>(two ? 2 * heads : heads));
    for (int head = 0; head < heads; ++head) {
      const auto start = static_cast<std::size_t>(slot_of(row, head));
      const std::size_t first = needles_.size();
      add_needle(row, head, order, start, first);
      if (two) add_needle(row, head, order, start + static_cast<std::size_t>(heads), first);
      const double share = two ? std::sqrt(2.0) : 1.0;
      for (std::size_t i = first; i < needles_.size(); ++i) {
        needles_[i].length =
            std::clamp(needles_[i].score * share / (kAlignedShare * unit_), 1.0, kMostLength);
      }
    }
  }

  /// The places by slots: those of every row first, the others beginning elsewhere in each row. At
  /// most half of the slots go to the first, so that the others have their turn with few heads.
  std::vector<Place> order_of(const Row& row, std::size_t slots) const {
    std::vector<Place> order;
    const std::size_t rest = places_.size() - fixed_;
    const std::size_t kept =
        places_.size() <= slots || rest == 0 ? fixed_ : std::min(fixed_, (slots + 1) / 2);
    const auto turn = static_cast<std::size_t>(row.index);
    for (std::size_t i = 0; i < fixed_; ++i) {
      // With few slots the first of them take turns as well.
      order.push_back(places_[kept < fixed_ ? (i + turn) % fixed_ : i]);
    }
    const std::size_t step = std::max<std::size_t>(1, slots - std::min(slots, kept));
    std::vector<Place> others;
    for (std::size_t i = 0; i < rest; ++i) {
      others.push_back(places_[fixed_ + (i + turn * step) % rest]);
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(kept), others.begin(), others.end());
    return order;
  }

  /// Neighbouring slots go to different KV heads, and to other heads in every request.
  std::int64_t slot_of(const Row& row, int head) const {
    const int heads = problem_.attention.num_heads;
    const int kv_heads = std::max(1, problem_.attention.num_kv_heads);
    const int group = std::max(1, heads / kv_heads);
    const int slot = head % group * kv_heads + head / group;
    return (slot + row.request) % heads;
  }

  /// The place of the slot, or the next one that the head can hear.
  void add_needle(const Row& row, int head, const std::vector<Place>& order, std::size_t slot,
                  std::size_t first_of_head) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Place& place = order[(slot + i) % order.size()];
      const double score = wanted_score(head, row, place.key);
      if (!(score > 0) || score > kMostLength * unit_) continue;
      for (std::size_t known = first_of_head; known < needles_.size(); ++known) {
        if (needles_[known].key == place.key) return;
      }
      needles_.push_back({row.request, row.token, row.position, head, place.key, place.kind,
                          place.visible, score, 1});
      return;
    }
  }

  const Problem& problem_;
  std::vector<SharedPrefix> prefixes_ = shared_prefixes(problem_);
  ListedKeys listed_;
  AttentionMath math_;
  std::vector<float> slopes_;
  double unit_ = 0;   // score of two ordinary vectors of the same direction
  double noise_ = 0;  // deviation of the scores of others
  std::int64_t shortest_ = -1;
  std::int64_t longest_ = -1;
  std::int64_t num_rows_ = 0;
  std::optional<DecodePlan> decode_plan_;
  std::vector<Place> places_;  // of the row that is planned
  std::size_t fixed_ = 0;
  std::vector<Needle> needles_;
};

}  // namespace

std::span<const EnumRow<NeedleKind>> enum_rows(NeedleKind) {
  using enum NeedleKind;
  static constexpr auto kRows = every_value<EnumRow<NeedleKind>>({
      {kFirstVisible, "first visible key", "the least position that the row sees"},
      {kLastVisible, "last visible key", "the greatest position that the row sees"},
      {kNewToken, "token just written", "the row's own key, written in this step"},
      {kShortestEnd, "end of the shortest request", "the last key of the request with fewest keys"},
      {kLongestEnd, "end of the longest request", "the last key of the request with most keys"},
      {kBeforeVisible, "one before the window", "must not count: the key before the first one"},
      {kBehindVisible, "one behind the last", "must not count: the key after the last visible one"},
      {kPageEdge, "page edge", "the first or last key of a block of the cache"},
      {kTileEdge, "tile edge", "a multiple of 64, 128 or 256 keys, or the key before it"},
      {kSplitEdge, "split edge", "where a split or segment of the plan begins or ends"},
      {kRangeEdge, "range edge", "an end of a bidirectional range or of a list of keys"},
      {kPrefixEdge, "prefix edge", "where the prefix that all requests share ends"},
      {kShardEdge, "shard edge", "where keys pass from one rank to the next"},
  });
  return kRows;
}

std::vector<Needle> plan_needles(const Problem& problem, ListedKeys listed) {
  return Planner(problem, listed).plan();
}

std::uint64_t probe_seed(std::uint64_t seed) {
  const auto bits = philox4x32({0x50726F62, 0x65, 0, 0}, {static_cast<std::uint32_t>(seed),
                                                          static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{bits[1]} << 32 | bits[0]) >> 11;
}

std::vector<std::int32_t> needle_rows(std::span<const Needle> needles) {
  std::vector<std::int32_t> rows;
  for (const Needle& needle : needles) rows.push_back(static_cast<std::int32_t>(needle.token));
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace attnbench
