// The host's side of a redraw: what a timed sample's inputs were, from the number that they were
// made with (kernels/common/redraw.cuh is the device's side).
//
// A sample has the case's own inputs with two changes. The elements of the query have fresh signs,
// so that every output differs from those of other samples. And one block of keys and values of
// every request holds the bytes of another block, so that what a kernel knows of the keys from
// earlier runs is wrong. Bytes of blocks are copied as they are, so a redraw is the same in every
// format; requests that share a block share its new content.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/make_inputs.h"

namespace attnbench {

/// Tokens of a block where keys and values lie side by side without a cache.
inline constexpr std::int64_t kRedrawRows = 16;

/// A block, and one place where it is used.
struct RedrawBlock {
  std::int64_t unit = 0;  // physical block of the cache; without one, its first row of keys
  std::int64_t request = 0;
  std::int64_t first = 0;  // position of its first token there

  bool operator==(const RedrawBlock&) const = default;
};

/// Where positions of a request have their keys and values from: [first, first + count) of it are
/// those of another request, which may be the same, from `source_first` on.
struct MovedRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t source_request = 0;
  std::int64_t source_first = 0;
};

/// The blocks that may change: whole ones that the step neither writes nor adds to. Of a prefix
/// that all requests are said to share only those that they do share.
class RedrawBlocks {
 public:
  /// `table` [B, MB] of a cache, whose columns serve `page_tokens` tokens each.
  static RedrawBlocks of_cache(const Problem& problem, const Tensor& table,
                               std::int64_t page_tokens);
  /// Of keys and values without a cache: runs of kRedrawRows positions.
  static RedrawBlocks of_rows(const Problem& problem);

  std::int64_t tokens() const { return tokens_; }
  std::size_t num_requests() const { return of_request_.size(); }
  struct Copy {
    RedrawBlock source;
    RedrawBlock target;
  };
  /// At most one a request. No target is another one's source or target. None for nonce 0.
  std::vector<Copy> copies(std::uint64_t nonce) const;
  /// The same as the sources of targets, by the unit of the target.
  using Sources = std::unordered_map<std::int64_t, RedrawBlock>;
  Sources sources(std::uint64_t nonce) const;
  /// What those copies mean for a request.
  std::vector<MovedRows> moved_rows(std::int64_t request, const Sources& sources) const;
  std::vector<MovedRows> moved_rows(std::int64_t request, std::uint64_t nonce) const {
    return moved_rows(request, sources(nonce));
  }

 private:
  std::int64_t tokens_ = kRedrawRows;
  std::vector<std::vector<RedrawBlock>> of_request_;  // may be changed, by request
  std::vector<RedrawBlock> all_;                      // the same, each block once
};

/// Flips signs of the first `count` elements of a floating-point or integer tensor, of which the
/// first is element `first_index` of the one that signs are drawn for. Twice changes nothing.
/// int8 codes, whose sign is no bit, are negated.
void redraw_signs(Tensor& tensor, std::uint64_t nonce, std::int64_t count,
                  std::int64_t first_index = 0);

/// Puts rows into their new places: `target` [keys of `request`, ...] from `source` [S, ...], all
/// keys of the case in the order of requests, which begin at `key_start_loc`.
void move_rows(Tensor& target, const Tensor& source, const std::vector<std::int64_t>& key_start_loc,
               const std::vector<MovedRows>& moved);

}  // namespace attnbench
