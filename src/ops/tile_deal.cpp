#include "ops/tile_deal.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

// Estimates for D = Dv = 128 on one H200, of which only the ratios count. A tile's start and end:
// its list entry, its queries and the first keys come one after another (about 0.5 us each).
constexpr std::int64_t kStartNs = 2000;
// 512 bytes of a key at 85 GB/s, an assumption. Measured since, of a multiprocessor that others
// leave the memory: 57 GB/s with the products of few rows, 73 without any products.
constexpr std::int64_t kKeyPs = 6000;
// 192 rows by 80 keys at 783 TFLOP/s of 132 multiprocessors: 1.33 us, 86 ps a row and key.
constexpr std::int64_t kRowKeyPs = 86;
constexpr int kColumns = 256;    // that the estimates are of
constexpr int kPromptRows = 64;  // a tile of more is of a prompt

constexpr int kLeastPartKeys = 128;
constexpr int kMostParts = 64;

/// Keys of a sequence that its packed rows before `end_row` see.
std::int64_t keys_before(const TileSequence& sequence, std::int64_t end_row, const TileForm& form) {
  std::int64_t end = sequence.key_end;
  if (form.causal) {
    end = std::min(end, sequence.context_len + ceil_div(end_row, form.group));
  }
  return std::max<std::int64_t>(end - sequence.key_begin, 0);
}

void check_form(const TileForm& form, int num_ctas) {
  if (form.tile_rows >= 1 && form.group >= 1 && form.num_kv_heads >= 1 && num_ctas >= 1) return;
  fail(ErrorKind::kInternal, "tiles of {} rows, groups of {}, {} KV heads, {} CTAs", form.tile_rows,
       form.group, form.num_kv_heads, num_ctas);
}

/// Tiles of about this time in all make a bundle: a draw and what it leads to, three loads one
/// after the other, take about 2 us. Where a CTA has little to do, no more than this share of it.
constexpr std::int64_t kBundleNs = 8000;
constexpr int kBundleShare = 4;

struct Costed {
  std::vector<attn::AttendTile> tiles;  // a bundle
  std::int64_t ns;
};

void sort_by_cost(std::vector<Costed>& tiles) {
  std::ranges::stable_sort(tiles, std::greater<>(), &Costed::ns);
}

std::int64_t sum_of(const std::vector<Costed>& tiles) {
  return std::accumulate(tiles.begin(), tiles.end(), std::int64_t{0},
                         [](std::int64_t sum, const Costed& t) { return sum + t.ns; });
}

/// Both kinds in their order, mixed so that the share of either that is under way stays the same.
/// The multiplying tiles run ahead by the longest of them: what starts last has to be short, and
/// they are the longer ones as a rule.
std::vector<Costed> mixed(const std::vector<Costed>& multiplying,
                          const std::vector<Costed>& reading, int num_ctas) {
  const auto total_m = static_cast<double>(sum_of(multiplying));
  const auto total_r = static_cast<double>(sum_of(reading));
  const double wall = (total_m + total_r) / num_ctas;
  const double longest = multiplying.empty() ? 0 : static_cast<double>(multiplying.front().ns);
  const double pace = std::max(0.0, 1 - longest / std::max(wall, 1.0));  // 0: all of them first
  std::vector<Costed> all;
  all.reserve(multiplying.size() + reading.size());
  double done_m = 0;
  double done_r = 0;
  std::size_t m = 0;
  std::size_t r = 0;
  while (m < multiplying.size() || r < reading.size()) {
    const bool multiplies = r == reading.size() ||
                            (m < multiplying.size() && pace * done_m * total_r <= done_r * total_m);
    const Costed& next = multiplies ? multiplying[m++] : reading[r++];
    (multiplies ? done_m : done_r) += static_cast<double>(next.ns);
    all.push_back(next);
  }
  return all;
}

/// Puts neighbours together while they take no more than `most_ns`.
std::vector<Costed> bundled(const std::vector<Costed>& tiles, std::int64_t most_ns) {
  std::vector<Costed> bundles;
  for (const Costed& tile : tiles) {
    if (bundles.empty() || bundles.back().ns + tile.ns > most_ns) bundles.push_back({{}, 0});
    Costed& bundle = bundles.back();
    bundle.tiles.insert(bundle.tiles.end(), tile.tiles.begin(), tile.tiles.end());
    bundle.ns += tile.ns;
  }
  return bundles;
}

/// Each bundle to the CTA that is free first, as they are drawn if the costs are right.
void deal(const std::vector<Costed>& order, int num_ctas, TileDeal& result) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free;
  for (int cta = 0; cta < num_ctas; ++cta) free.push(0);
  for (const Costed& bundle : order) {
    const std::int64_t end = free.top() + bundle.ns;
    free.pop();
    free.push(end);
    result.longest_ns = std::max(result.longest_ns, end);
    result.total_ns += bundle.ns;
    result.tiles.insert(result.tiles.end(), bundle.tiles.begin(), bundle.tiles.end());
    result.bundles.push_back(checked_int32(std::ssize(result.tiles), "tiles"));
  }
}

}  // namespace

TileCost tile_cost(int rows, std::int64_t keys, const TileForm& form) {
  const std::int64_t products = rows * kRowKeyPs;
  const std::int64_t key = std::max(kKeyPs, products) * form.columns / kColumns;
  return {kStartNs + keys * key / 1000, products > kKeyPs};
}

int tile_rows_for(int head_size, int v_head_size, std::int64_t most_rows) {
  const bool holds_192 = head_size <= 192 && v_head_size <= 128;
  return holds_192 && most_rows > 1024 ? 192 : 128;
}

TileDeal deal_tiles(std::span<const TileSequence> sequences, const TileForm& form, int num_ctas) {
  check_form(form, num_ctas);
  std::vector<Costed> reading;      // bound by the memory
  std::vector<Costed> multiplying;  // bound by the tensor cores
  std::vector<Costed> beside;
  std::int64_t most_keys = 0;
  for (const TileSequence& sequence : sequences) {
    const std::int64_t rows = std::int64_t{sequence.num_tokens} * form.group;
    for (std::int64_t first = 0; first < rows; first += form.tile_rows) {
      attn::AttendTile tile{};
      tile.first_token = sequence.first_token;
      tile.first_row = static_cast<int>(first);
      tile.num_rows = static_cast<int>(std::min<std::int64_t>(form.tile_rows, rows - first));
      tile.context_len = sequence.context_len;
      tile.table_row = sequence.table_row;
      tile.key_begin = sequence.key_begin;
      tile.key_end = sequence.key_end;
      tile.part = static_cast<unsigned short>(sequence.part);
      const std::int64_t keys = keys_before(sequence, first + tile.num_rows, form);
      const TileCost cost = tile_cost(tile.num_rows, keys, form);
      if (tile.num_rows > kPromptRows) most_keys = std::max(most_keys, keys);
      for (int head = 0; head < form.num_kv_heads; ++head) {
        tile.kv_head = static_cast<unsigned short>(head);
        std::vector<Costed>& kind = form.has_beside && tile.num_rows <= attn::kMostFewRows ? beside
                                    : cost.is_product_bound ? multiplying
                                                            : reading;
        kind.push_back({{tile}, cost.ns});
      }
    }
  }
  sort_by_cost(reading);
  sort_by_cost(multiplying);
  sort_by_cost(beside);
  TileDeal result;
  result.most_keys = checked_int32(most_keys, "keys");
  const std::int64_t wall = (sum_of(reading) + sum_of(multiplying)) / num_ctas;
  reading = bundled(reading, std::min(kBundleNs, wall / kBundleShare));
  deal(mixed(multiplying, reading, num_ctas), num_ctas, result);
  for (const Costed& tile : beside) result.tiles.push_back(tile.tiles.front());
  result.num_beside = checked_int32(std::ssize(beside), "tiles beside");
  return result;
}

/// Packed rows of all of a sequence's tokens.
static std::int64_t rows_of(std::int64_t num_tokens, const TileForm& form) {
  return num_tokens * form.group;
}

bool beside_pays(std::span<const TileSequence> own, std::span<const SharedKeys> prefixes,
                 const TileForm& form, int num_ctas) {
  check_form(form, num_ctas);
  // One NVIDIA H200, 2026-11-28, D128, beside and among others: 60q1s4k_4q1ks3k (a share of 0.3)
  // 424 and 433 us, 32q1s2k_q2k (0.36) 110 and 124, 128q1s1k_2q2ks8k (0.09) 804 and 796,
  // 256q1s512_q8k (0.1) 914 and 860; 64, 128 and 256 requests with 128 keys behind a shared prefix
  // 43 and 40, 50 and 54, 80 and 92. Tiles beside others need the memory that is left, so that a
  // batch of hardly anything else gains nothing.
  constexpr double kLeastShare = 0.2;
  constexpr double kMostShare = 0.9;
  if (form.columns != kColumns) return false;  // not measured
  const auto cost_of = [&](std::int64_t rows, const auto& keys_of_end) {
    std::int64_t ns = 0;
    for (std::int64_t first = 0; first < rows; first += form.tile_rows) {
      const auto of_tile = static_cast<int>(std::min<std::int64_t>(form.tile_rows, rows - first));
      ns += tile_cost(of_tile, keys_of_end(first + of_tile), form).ns * form.num_kv_heads;
    }
    return ns;
  };
  std::int64_t few = 0;
  std::int64_t others = 0;
  std::int64_t num_few = 0;
  for (const TileSequence& sequence : own) {
    const std::int64_t rows = rows_of(sequence.num_tokens, form);
    const bool is_few = rows > 0 && rows <= attn::kMostFewRows;
    if (is_few) num_few += form.num_kv_heads;
    (is_few ? few : others) +=
        cost_of(rows, [&](std::int64_t end) { return keys_before(sequence, end, form); });
  }
  for (const SharedKeys& prefix : prefixes) {
    if (prefix.num_keys == 0) continue;
    others += cost_of(rows_of(prefix.num_tokens, form),
                      [&](std::int64_t) { return std::int64_t{prefix.num_keys}; });
  }
  if (!prefixes.empty() && num_few <= std::int64_t{num_ctas} * attn::kBesideWarps) return false;
  const double share =
      static_cast<double>(few) / static_cast<double>(std::max<std::int64_t>(few + others, 1));
  return share >= kLeastShare && share <= kMostShare;
}

/// prefix_parts() where all of the requests' own keys are read beside: the runs with which the last
/// CTA ends first.
static int parts_beside(std::span<const SharedKeys> prefixes, const TileForm& form, int num_ctas,
                        int most_parts) {
  // A part is written and read once more, in f32, by all multiprocessors at 4 TB/s.
  std::int64_t tokens = 0;
  for (const SharedKeys& prefix : prefixes) tokens += prefix.num_tokens;
  const std::int64_t part_ns =
      tokens * form.group * form.num_kv_heads * form.columns / 2 * 4 / 4000;
  int best = 1;
  std::int64_t least_ns = 0;
  for (int parts = 1; parts <= most_parts; ++parts) {
    std::int64_t tiles = 0;
    std::int64_t longest = 0;
    for (const SharedKeys& prefix : prefixes) {
      const std::int64_t rows = std::int64_t{prefix.num_tokens} * form.group;
      if (prefix.num_keys == 0) continue;
      tiles += ceil_div(rows, form.tile_rows) * form.num_kv_heads * parts;
      const auto most_rows = static_cast<int>(std::min<std::int64_t>(rows, form.tile_rows));
      longest = std::max(longest, tile_cost(most_rows, ceil_div(prefix.num_keys, parts), form).ns);
    }
    const std::int64_t ns = ceil_div(tiles, num_ctas) * longest + parts * part_ns;
    if (parts > 1 && ns >= least_ns) continue;
    best = parts;
    least_ns = ns;
  }
  return best;
}

int prefix_parts(std::span<const SharedKeys> prefixes, std::span<const TileSequence> own,
                 const TileForm& form, int num_ctas) {
  check_form(form, num_ctas);
  std::int64_t total = 0;
  std::int64_t longest = 0;
  std::int64_t most_keys = 0;
  const auto add = [&](std::int64_t tokens, std::int64_t keys) {
    const std::int64_t rows = tokens * form.group;
    std::int64_t most = 0;
    for (std::int64_t first = 0; first < rows; first += form.tile_rows) {
      const auto tile = static_cast<int>(std::min<std::int64_t>(form.tile_rows, rows - first));
      const std::int64_t ns = tile_cost(tile, keys, form).ns;
      total += ns * form.num_kv_heads;
      most = std::max(most, ns);
    }
    return most;
  };
  for (const SharedKeys& prefix : prefixes) {
    longest = std::max(longest, add(prefix.num_tokens, prefix.num_keys));
    most_keys = std::max<std::int64_t>(most_keys, prefix.num_keys);
  }
  const bool all_beside = std::ranges::all_of(own, [&](const TileSequence& sequence) {
    return rows_of(sequence.num_tokens, form) <= attn::kMostFewRows;
  });
  const auto most_parts =
      static_cast<int>(std::clamp<std::int64_t>(most_keys / kLeastPartKeys, 1, kMostParts));
  if (form.has_beside && all_beside) {
    return parts_beside(prefixes, form, num_ctas, most_parts);
  }
  for (const TileSequence& sequence : own) {
    add(sequence.num_tokens, std::max(sequence.key_end - sequence.key_begin, 0));
  }
  const std::int64_t share = std::max<std::int64_t>(total / num_ctas / 2, 1);
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div(longest, share), 1, most_parts));
}

std::vector<TileSequence> cascade_sequences(std::span<const SharedKeys> prefixes,
                                            std::vector<TileSequence> own, int parts,
                                            int block_size) {
  std::vector<TileSequence> sequences;
  for (const SharedKeys& prefix : prefixes) {
    if (prefix.num_tokens == 0) continue;
    const std::int64_t blocks = prefix.num_keys / block_size;
    for (int part = 0; part < parts; ++part) {
      TileSequence sequence;
      sequence.first_token = prefix.first_token;
      sequence.num_tokens = prefix.num_tokens;
      sequence.table_row = prefix.table_row;
      sequence.key_begin = static_cast<int>(blocks * part / parts * block_size);
      sequence.key_end = static_cast<int>(blocks * (part + 1) / parts * block_size);
      sequence.context_len = sequence.key_end;  // every row sees every key
      sequence.part = part;
      sequences.push_back(sequence);
    }
  }
  for (TileSequence& sequence : own) {
    if (sequence.num_tokens == 0) continue;
    sequence.part = parts;
    sequences.push_back(sequence);
  }
  return sequences;
}

}  // namespace attnbench
