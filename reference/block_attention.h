// Attention of one block of rows as two matrix products with the exact softmax between them. It is
// the inner loop of the reference: a block is some rows of one request times the query heads that
// share a KV head, and blocks are independent of each other, so that threads need no locks.
//
// What must not change: the maximum of a row is taken over all of its keys before the first weight
// is formed. An online softmax would be faster and would be the kernels' algorithm again.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "core/tensor.h"
#include "reference/attention.h"
#include "reference/e4m3_products.h"
#include "reference/row_blocks.h"

namespace attnbench {

/// Computes blocks in Real (double: the reference; float: the emulation of storage precision) and
/// writes them to their places in the output. Holds the scratch memory of one thread. All keys of a
/// row are scored before the first weight is formed; tiles of keys only bound the sizes of the
/// matrix products.
template <typename Real>
class BlockAttention {
 public:
  /// `rule` is null for the reference. Everything is borrowed.
  BlockAttention(const AttentionMath& math, const ReferenceInputs& inputs,
                 const EmulationRule* rule, std::span<const std::int32_t> rows,
                 ReferenceOutput& output);

  void compute(const RowBlock& block);

 private:
  using Buffer = std::vector<Real, AlignedAllocator<Real>>;
  static constexpr std::int64_t kTileKeys = 256;

  /// The keys [begin, end) with the block's tokens that see some of them.
  struct Tile {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t first_token = 0;
    std::int64_t last_token = 0;    // exclusive
    std::int64_t score_offset = 0;  // of its scores [rows of its tokens, end - begin]
    std::int64_t num_keys() const { return end - begin; }
  };
  /// A visible key whose value has NaN or infinity.
  struct SpecialKey {
    std::int64_t column = 0;  // in the tile
    Buffer value;             // [Dv]
  };

  void find_visible(const RowBlock& block);
  void plan_tiles(const RowBlock& block);
  void load_query(const RowBlock& block);
  /// Keys or values of the tile, [tile keys, width of the tensor].
  void load_tile(const Tensor& tensor, const RowBlock& block, const Tile& tile, Buffer& buffer);
  void load_tile_values(const RowBlock& block, const Tile& tile);
  void score_tile(const RowBlock& block, const Tile& tile);
  /// Whether the tile's products of queries and keys were those of e4m3 codes, [rows, tile keys].
  bool multiply_codes(const RowBlock& block, const Tile& tile, Real* products);
  void add_bias(Real* scores, const KeyRange& keys, const RowBlock& block, std::int64_t token,
                int head) const;
  void add_sinks(const RowBlock& block);
  void weigh_tile(const RowBlock& block, const Tile& tile);
  void accumulate_tile(const RowBlock& block, const Tile& tile);
  /// Size and float32 loss of the rows; of the reference only.
  void measure_keys(const RowBlock& block, const Tile& tile);
  void measure_values(const Tile& tile);
  void add_spread(const RowBlock& block, const Tile& tile);
  void finish_spread(const RowBlock& block, std::int64_t row, std::int64_t place);
  void finish(const RowBlock& block);

  /// Where the query of a chosen row stands, and a key of the block's request.
  std::int64_t query_row_of(std::int64_t list_row) const;
  std::int64_t key_row_of(const RowBlock& block, std::int64_t key) const;
  std::int64_t position_of(const RowBlock& block, std::int64_t token) const;
  /// Calls body(range) for each part of the tile that the token sees.
  template <typename Body>
  void for_visible(const Tile& tile, std::int64_t token, const Body& body) const;

  const AttentionMath& math_;
  const ReferenceInputs& inputs_;
  const EmulationRule* rule_;
  std::span<const std::int32_t> rows_;
  ReferenceOutput& result_;
  int num_heads_;
  int num_kv_heads_;
  std::int64_t head_size_;
  std::int64_t v_head_size_;

  // Matrix rows are token-major: token * block.num_heads + head.
  std::vector<KeyRange> visible_;            // of all tokens of the block
  std::vector<std::size_t> visible_offset_;  // [tokens + 1] into visible_
  std::vector<Tile> tiles_;
  Buffer query_;  // [matrix rows, D]
  // Of the emulation of e4m3 products only.
  bool query_is_codes_ = false;
  E4m3Rows query_codes_;
  E4m3Rows key_codes_;
  Buffer keys_;    // [tile keys, D]
  Buffer values_;  // [tile keys, Dv], rows of special keys zeroed
  Buffer scores_;  // scores, then weights, tile after tile
  Buffer sums_;    // [matrix rows, Dv]
  Buffer row_max_;
  Buffer row_sum_;
  std::vector<SpecialKey> special_keys_;

  /// Sums over the keys of a row, w being a weight before division by the sum of weights and d the
  /// error of its score in float32.
  struct Spread {
    double values = 0;           // w^2 ||v||^2
    double errors = 0;           // w^2 d^2
    double value_errors = 0;     // w^2 d^2 ||v||^2
    double weighted_errors = 0;  // w^3 d^2 ||v||^2
    double largest_value = 0;    // ||v||^2
  };
  static constexpr bool kMeasuresRows = std::is_same_v<Real, double>;
  std::vector<Spread> spread_;        // [matrix rows]
  std::vector<double> query_norm_;    // [matrix rows]
  std::vector<double> key_norm_;      // of all tiles, at the key's place in the block's range
  std::vector<double> value_square_;  // ||v||^2 of the tile's keys
};

extern template class BlockAttention<double>;
extern template class BlockAttention<float>;

}  // namespace attnbench
