// Rows of an MLA case with the cache entries that they attend to, in pieces that fit into memory.
// Rows of one request share its entries; a sparse row (semantics §8.9) has entries of its own,
// listed in the order of its indices, duplicates included. From here on dense, sparse, chunked and
// distributed attention look the same: a row attends to a contiguous run of entries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "reference/mla/inputs.h"

namespace attnbench {

/// Row i attends to the entries [first_entry[i], first_entry[i] + num_entries[i]).
struct MlaBatch {
  std::vector<std::int32_t> tokens;       // [rows] ascending
  std::vector<std::int64_t> first_entry;  // [rows]
  std::vector<std::int64_t> num_entries;  // [rows]
  Tensor entries;                         // [K, 1, Lkv + R] kv_c, then k_pe; f32 or f64
  bool is_decode = false;

  void add_row(std::int32_t token, std::int64_t first, std::int64_t count) {
    tokens.push_back(token);
    first_entry.push_back(first);
    num_entries.push_back(count);
  }
};

/// Copies cache entries of a case into the entries of a batch.
class MlaEntryReader {
 public:
  MlaEntryReader(const MlaReferenceInputs& inputs, const MlaDims& dims);

  /// NaN everywhere. f32 holds every stored value exactly, f64 inputs need f64.
  Tensor make_entries(std::int64_t count) const;
  /// Entry of a request's token at `position` as a decode or a prefill row reads it.
  void copy(std::int64_t request, std::int64_t position, Tensor& entries, std::int64_t row) const;

 private:
  void copy_part(const Tensor& source, std::int64_t source_row, Tensor& entries, std::int64_t row,
                 std::int64_t column) const;

  const MlaReferenceInputs& inputs_;
  MlaDims dims_;
  std::int64_t num_decodes_;
  Dtype dtype_;
};

/// Rows [row_begin, row_end) of the list, all decode or all prefill, and what they cost.
struct MlaBatchPlan {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t num_entries = 0;  // to be loaded
  std::int64_t num_pairs = 0;    // of a row and an entry that it sees
  bool is_decode = false;
};

/// Bytes of the entries of one batch, and of its latent queries and outputs.
inline constexpr std::int64_t kMaxMlaBatchBytes = std::int64_t{1} << 30;

/// Visible keys of the direct definition: bottom-right causal, or the row's valid top-k indices.
class MlaBatcher {
 public:
  /// `rows` as checked by check_mla_inputs; everything is borrowed. A batch has more than
  /// `max_bytes` of entries only where the entries of one request are more.
  MlaBatcher(const MlaReferenceInputs& inputs, const MlaDims& dims,
             std::span<const std::int32_t> rows, std::int64_t max_bytes = kMaxMlaBatchBytes);

  const std::vector<MlaBatchPlan>& plans() const { return plans_; }
  MlaBatch load(const MlaBatchPlan& plan) const;

 private:
  std::int64_t visible_entries(std::int64_t request, std::int32_t token) const;
  /// Valid positions of a sparse row in the order of its indices, duplicates included.
  std::vector<std::int64_t> sparse_positions(std::int64_t request, std::int32_t token) const;
  void plan(std::int64_t max_bytes);

  const MlaReferenceInputs& inputs_;
  MlaDims dims_;
  std::span<const std::int32_t> rows_;
  std::vector<std::int64_t> requests_;  // of each row
  std::vector<MlaBatchPlan> plans_;
};

/// Request of each row.
std::vector<std::int64_t> requests_of_rows(std::span<const std::int32_t> query_start_loc,
                                           std::span<const std::int32_t> rows);

/// Keys that the token sees by the bottom-right causal rule (semantics §3.2).
std::int64_t num_causal_keys(const MlaReferenceInputs& inputs, std::int64_t request,
                             std::int32_t token);

}  // namespace attnbench
