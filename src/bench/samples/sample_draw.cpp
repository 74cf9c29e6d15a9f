#include "bench/samples/sample_draw.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "metadata/int_math.h"
#include "ops/cuda/measure/screen_plan.h"

namespace attnbench {
namespace {

/// Keys of the requests of a sample, at most, where more than kLeastRequests have more: in a row of
/// a head of 128 columns 9 GFLOP.
constexpr std::int64_t kKeys = std::int64_t{1} << 24;
constexpr std::size_t kLeastRequests = 16;
/// Heads times keys of a sample, about, where that is more than the least number of heads.
constexpr std::int64_t kHeadKeys = std::int64_t{1} << 20;
/// Rows times heads times keys likewise. Rows of a head share what it costs to read its keys.
constexpr std::int64_t kRowHeadKeys = std::int64_t{1} << 23;
/// Where there are few requests, so many rows, and heads, of all of them together are the least.
constexpr std::int64_t kLeastRows = 16;
constexpr std::int64_t kLeastHeads = 4;
/// Rows of a request, at most.
constexpr std::int64_t kMostRows = 16;

/// `count` draws of the numbers below `of`, ascending, each number once.
std::vector<std::int32_t> draw_rows(std::int64_t count, std::int64_t of, std::mt19937_64& random) {
  std::uniform_int_distribution<std::int64_t> any(0, of - 1);
  std::set<std::int32_t> drawn;
  for (std::int64_t i = 0; i < count; ++i) drawn.insert(static_cast<std::int32_t>(any(random)));
  return {drawn.begin(), drawn.end()};
}

}  // namespace

SampleDraw::SampleDraw(const Problem& problem, std::uint64_t seed)
    : num_heads_(problem.attention.num_heads),
      num_kv_heads_(std::max(1, problem.attention.num_kv_heads)),
      random_(seed) {
  std::int64_t first_row = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    if (request.query_len > 0) {
      decks_.push_back({{static_cast<std::int64_t>(b), first_row, request.query_len, {}, {}},
                        request.seq_len,
                        shuffled_heads()});
    }
    first_row += request.query_len;
  }
  std::shuffle(decks_.begin(), decks_.end(), random_);
}

/// All of them; heads of different KV heads follow one another.
std::vector<int> SampleDraw::shuffled_heads() {
  const int group = std::max(1, num_heads_ / num_kv_heads_);
  std::vector<std::vector<int>> groups;
  for (int head = 0; head < num_heads_; ++head) {
    if (head % group == 0) groups.emplace_back();
    groups.back().push_back(head);
  }
  std::shuffle(groups.begin(), groups.end(), random_);
  for (std::vector<int>& heads : groups) std::shuffle(heads.begin(), heads.end(), random_);
  std::vector<int> all;
  for (std::size_t turn = 0; turn < static_cast<std::size_t>(group); ++turn) {
    for (const std::vector<int>& heads : groups) {
      if (turn < heads.size()) all.push_back(heads[turn]);
    }
  }
  return all;
}

std::vector<int> SampleDraw::deal(Deck& deck, std::int64_t count) {
  if (count >= num_heads_) return {};
  std::vector<int> heads;
  for (std::int64_t i = 0; i < count; ++i) {
    heads.push_back(deck.heads[deck.next_head]);
    deck.next_head = (deck.next_head + 1) % deck.heads.size();
  }
  std::sort(heads.begin(), heads.end());
  return heads;
}

std::vector<JudgedRequest> SampleDraw::next() {
  std::vector<Deck*> chosen;
  std::int64_t keys = 0;
  while (chosen.size() < decks_.size()) {
    Deck& deck = decks_[next_deck_];
    if (chosen.size() >= kLeastRequests && keys + deck.num_keys > kKeys) break;
    keys += deck.num_keys;
    chosen.push_back(&deck);
    next_deck_ = (next_deck_ + 1) % decks_.size();
  }
  const std::int64_t requests = std::max<std::int64_t>(1, std::ssize(chosen));
  keys = std::max<std::int64_t>(1, keys);
  const std::int64_t heads = std::min<std::int64_t>(
      num_heads_, std::max(ceil_div(kLeastHeads, requests), kHeadKeys / keys));
  const std::int64_t rows = std::clamp(kRowHeadKeys / (keys * std::max<std::int64_t>(1, heads)),
                                       ceil_div(kLeastRows, requests), kMostRows);
  std::vector<JudgedRequest> drawn;
  for (Deck* const deck : chosen) {
    JudgedRequest& one = drawn.emplace_back(deck->request);
    one.rows = draw_rows(rows, one.num_rows, random_);
    one.heads = deal(*deck, heads);
  }
  return drawn;
}

bool is_all_of(const Problem& problem, const std::vector<JudgedRequest>& drawn) {
  std::int64_t rows = 0;
  for (const JudgedRequest& one : drawn) {
    if (one.heads.empty()) rows += std::ssize(one.rows);
  }
  return rows == problem.num_tokens();
}

namespace {

/// What screening of a sample may cost. Simple float64 attention does 9 TFLOP/s on a H200.
constexpr double kScreenedFlops = 1e12;

/// Rows of some tokens that a CTA takes together, and what that costs.
struct Tile {
  std::int32_t first = 0;
  std::int32_t count = 0;
  double flops = 0;
};

class Tiles {
 public:
  explicit Tiles(const Problem& problem) : problem_(problem) {
    const AttentionSpec& a = problem.attention;
    const bool latents = a.type == AttentionType::kMla;
    group_ = latents ? a.num_heads : std::max(1, a.num_heads / std::max(1, a.num_kv_heads));
    const std::int64_t value = latents ? problem.mla.kv_lora_rank : a.v_head_size;
    const std::int64_t score =
        latents ? value + problem.mla.qk_rope_head_dim : std::int64_t{a.head_size};
    // Each chunk of columns has its scores computed anew.
    pair_flops_ = 2.0 * static_cast<double>(cuda::num_screen_chunks(value) * score + value) *
                  (latents ? 1 : a.num_kv_heads);
    std::int64_t most_rows = 0;
    for (const Request& request : problem.batch) {
      most_rows = std::max(most_rows, request.query_len * group_);
    }
    tile_rows_ = most_rows <= 16 ? 16 : 64;
  }

  std::vector<Tile> all() const {
    std::vector<Tile> tiles;
    const std::int64_t step = std::max<std::int64_t>(1, tile_rows_ / group_);
    std::int64_t first_row = 0;
    for (const Request& request : problem_.batch) {
      for (std::int64_t first = 0; first < request.query_len; first += step) {
        const std::int64_t count = std::min(step, request.query_len - first);
        const double rows = static_cast<double>(ceil_div(count * group_, tile_rows_) * tile_rows_);
        tiles.push_back({static_cast<std::int32_t>(first_row + first),
                         static_cast<std::int32_t>(count),
                         rows * pair_flops_ * static_cast<double>(keys(request, first, count))});
      }
      first_row += request.query_len;
    }
    return tiles;
  }

 private:
  /// That the tile goes through, about.
  std::int64_t keys(const Request& request, std::int64_t first, std::int64_t count) const {
    const AttentionSpec& a = problem_.attention;
    std::int64_t keys = request.seq_len;
    if (a.causal) keys = std::min(keys, request.seq_len - request.query_len + first + count);
    if (a.sliding_window) keys = std::min(keys, *a.sliding_window + count);
    if (problem_.mla.sparse_topk) keys = std::min<std::int64_t>(keys, *problem_.mla.sparse_topk);
    return std::max<std::int64_t>(1, keys);
  }

  const Problem& problem_;
  std::int64_t group_ = 1;
  std::int64_t tile_rows_ = 64;
  double pair_flops_ = 0;
};

}  // namespace

std::vector<std::int32_t> draw_screened_rows(const Problem& problem, std::uint64_t seed) {
  std::vector<Tile> tiles = Tiles(problem).all();
  std::mt19937_64 random(seed);
  std::shuffle(tiles.begin(), tiles.end(), random);
  std::vector<std::int32_t> rows;
  double flops = 0;
  for (const Tile& tile : tiles) {
    flops += tile.flops;
    if (flops > kScreenedFlops && !rows.empty()) break;
    for (std::int32_t i = 0; i < tile.count; ++i) rows.push_back(tile.first + i);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<JudgedRequest> judged_with_others(const Problem& problem,
                                              const std::vector<std::int32_t>& rows) {
  constexpr std::int64_t kOthers = 8;
  std::vector<JudgedRequest> requests;
  std::int64_t first_row = 0;
  auto next = rows.begin();
  for (std::size_t b = 0; b < problem.batch.size() && next != rows.end(); ++b) {
    const std::int64_t num_rows = problem.batch[b].query_len;
    std::set<std::int32_t> own;
    for (; next != rows.end() && *next < first_row + num_rows; ++next) {
      own.insert(static_cast<std::int32_t>(*next - first_row));
    }
    if (!own.empty()) {
      for (std::int64_t i = 0; i < kOthers; ++i) {
        own.insert(static_cast<std::int32_t>((2 * i + 1) * num_rows / (2 * kOthers)));
      }
      requests.push_back(
          {static_cast<std::int64_t>(b), first_row, num_rows, {own.begin(), own.end()}, {}});
    }
    first_row += num_rows;
  }
  return requests;
}

}  // namespace attnbench
