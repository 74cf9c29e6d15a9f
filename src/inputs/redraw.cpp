// Which blocks move is decided here for both sides; how signs flip, in the functions that the
// kernels share.
#include "inputs/redraw.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "kernels/common/redraw.cuh"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

/// How many positions of every request the step leaves as they are, from the first on.
std::vector<std::int64_t> untouched(const Problem& problem) {
  std::vector<std::int64_t> counts;
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    const bool writes = fresh[b].begin < fresh[b].end;
    counts.push_back(writes ? fresh[b].begin : problem.batch[b].seq_len);
  }
  return counts;
}

/// Whether every request of the group that has keys has the same block in this column.
bool is_shared_by_all(const Problem& problem, const PrefixGroup& group, const Tensor& table,
                      std::int64_t column, std::int32_t block) {
  for (std::int64_t b = group.first_request; b < group.first_request + group.num_requests; ++b) {
    if (problem.batch[static_cast<std::size_t>(b)].seq_len == 0) continue;
    if (table.data<std::int32_t>()[b * table.dim(1) + column] != block) return false;
  }
  return true;
}

std::uint64_t pick(std::uint64_t nonce, std::uint64_t request, int lane, std::size_t count) {
  const attn::RedrawBits bits = attn::redraw_bits(nonce, request, attn::kRedrawBlocks);
  return static_cast<std::uint64_t>(bits.lanes[lane]) % count;
}

}  // namespace

RedrawBlocks RedrawBlocks::of_cache(const Problem& problem, const Tensor& table,
                                    std::int64_t page_tokens) {
  RedrawBlocks blocks;
  blocks.tokens_ = page_tokens;
  const std::vector<std::int64_t> counts = untouched(problem);
  const std::vector<PrefixGroup> groups = prefix_groups(problem);
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  std::set<std::int64_t> seen;
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const auto request = static_cast<std::int64_t>(b);
    std::vector<RedrawBlock>& own = blocks.of_request_.emplace_back();
    for (std::int64_t page = 0; (page + 1) * page_tokens <= counts[b]; ++page) {
      const std::int32_t block = table.data<std::int32_t>()[request * table.dim(1) + page];
      const SharedPrefix& prefix = prefixes[b];
      const bool in_prefix = page * page_tokens < prefix.num_keys;
      if (in_prefix && !is_shared_by_all(problem, groups[static_cast<std::size_t>(prefix.group)],
                                         table, page, block)) {
        continue;
      }
      own.push_back({block, request, page * page_tokens});
      if (seen.insert(block).second) blocks.all_.push_back(own.back());
    }
  }
  return blocks;
}

RedrawBlocks RedrawBlocks::of_rows(const Problem& problem) {
  RedrawBlocks blocks;
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  std::int64_t first_key = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    std::vector<RedrawBlock>& own = blocks.of_request_.emplace_back();
    const std::int64_t keys = problem.batch[b].seq_len;
    for (std::int64_t first = 0; first + kRedrawRows <= keys; first += kRedrawRows) {
      if (first < prefixes[b].num_keys) continue;
      own.push_back({first_key + first, static_cast<std::int64_t>(b), first});
      blocks.all_.push_back(own.back());
    }
    first_key += keys;
  }
  return blocks;
}

std::vector<RedrawBlocks::Copy> RedrawBlocks::copies(std::uint64_t nonce) const {
  std::vector<Copy> chosen;
  if (nonce == 0) return chosen;
  std::set<std::int64_t> sources, targets;
  for (std::size_t b = 0; b < of_request_.size(); ++b) {
    const std::vector<RedrawBlock>& own = of_request_[b];
    if (own.empty()) continue;
    const RedrawBlock& target = own[pick(nonce, b, 0, own.size())];
    const RedrawBlock& source = all_[pick(nonce, b, 1, all_.size())];
    const bool is_free = !sources.contains(target.unit) && !targets.contains(target.unit);
    if (!is_free || targets.contains(source.unit) || source.unit == target.unit) continue;
    sources.insert(source.unit);
    targets.insert(target.unit);
    chosen.push_back({source, target});
  }
  return chosen;
}

RedrawBlocks::Sources RedrawBlocks::sources(std::uint64_t nonce) const {
  Sources sources;
  for (const Copy& copy : copies(nonce)) sources.emplace(copy.target.unit, copy.source);
  return sources;
}

std::vector<MovedRows> RedrawBlocks::moved_rows(std::int64_t request,
                                                const Sources& sources) const {
  std::vector<MovedRows> moved;
  for (const RedrawBlock& block : of_request_[static_cast<std::size_t>(request)]) {
    const auto source = sources.find(block.unit);
    if (source == sources.end()) continue;
    moved.push_back({block.first, tokens_, source->second.request, source->second.first});
  }
  return moved;
}

namespace {

template <int kElementBytes>
void flip(const attn::RedrawParams& params) {
  for (attn::i64 i = 0; i < params.row_elements; ++i) {
    attn::redraw_piece<kElementBytes, false>(params, i);
  }
}

}  // namespace

void redraw_signs(Tensor& tensor, std::uint64_t nonce, std::int64_t count,
                  std::int64_t first_index) {
  if (tensor.dtype() == Dtype::kI8) {
    auto* codes = tensor.data<std::int8_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<std::uint64_t>(first_index + i);
      if ((attn::redraw_signs_from(nonce, index, 1) & 1u) != 0) {
        codes[i] = static_cast<std::int8_t>(-codes[i]);
      }
    }
    return;
  }
  attn::RedrawParams params{};
  params.source = params.target = tensor.bytes();
  params.nonce = nonce;
  params.num_rows = 1;
  params.row_elements = count;
  params.first_index = first_index;
  switch (dtype_size(tensor.dtype())) {
    case 1:
      return flip<1>(params);
    case 2:
      return flip<2>(params);
    default:
      return flip<4>(params);
  }
}

void move_rows(Tensor& target, const Tensor& source, const std::vector<std::int64_t>& key_start_loc,
               const std::vector<MovedRows>& moved) {
  if (moved.empty() || source.dim(0) == 0) return;
  const std::size_t row = source.size_bytes() / static_cast<std::size_t>(source.dim(0));
  for (const MovedRows& rows : moved) {
    const auto from = static_cast<std::size_t>(
        key_start_loc[static_cast<std::size_t>(rows.source_request)] + rows.source_first);
    std::memcpy(target.bytes() + static_cast<std::size_t>(rows.first) * row,
                source.bytes() + from * row, static_cast<std::size_t>(rows.count) * row);
  }
}

}  // namespace attnbench
