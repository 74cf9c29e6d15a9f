// Which work a CTA of screening takes: all of it is in the shape of tiles, so that tests see it
// without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/numbers/dtype.h"
#include "jit/kernel_spec.h"
#include "kernels/params_measure.h"

namespace attnbench::cuda {

/// Requests whose rows are screened together. Tokens are those of query and output, so that some of
/// a batch's requests may be given. Borrowed.
struct ScreenBatch {
  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B] keys
  std::span<const std::int64_t> key_start_loc;  // [>=B] first key, in the order that they are seen
  std::span<const std::int32_t> visible_begin;  // [T]: the row sees keys [begin, end) of its
  std::span<const std::int32_t> visible_end;    //   request
  int num_kv_heads = 1;
  int group = 1;  // query heads that share a KV head
  int v_head_size = 0;
};

/// Of sets of types.
constexpr unsigned screen_element_bit(attn::Element element) {
  return 1u << static_cast<unsigned>(element);
}
constexpr unsigned screen_element_bit(Dtype dtype) {
  return screen_element_bit(static_cast<attn::Element>(dtype));
}

/// What a kernel of screening is compiled for, beside its tiles.
struct ScreenForm {
  unsigned elements = 0;    // the set of types of query, key and value
  bool writes_rows = true;  // or compares them where they are made
};

struct ScreenPlan {
  int rows = 64;                         // of a tile
  int columns = 128;                     // of V
  int num_chunks = 1;                    // of columns of V
  std::vector<attn::ScreenItem> items;   // costliest first
  std::vector<attn::ScreenItem> merges;  // of items that share the keys of their rows
  std::int64_t num_partials = 0;

  /// Of a CTA.
  int shared_bytes() const;
  /// The kernels of measure/screen.cuh with these tiles.
  KernelSpec value_squares_spec() const;
  KernelSpec attention_spec(const ScreenForm& form) const;
  KernelSpec merge_spec(const ScreenForm& form) const;
};

/// Few rows take small tiles; keys are split where there would be fewer than some tiles for each of
/// `num_sms`.
ScreenPlan plan_screen(const ScreenBatch& batch, int num_sms);

/// The columns of V that a CTA has, and how many such chunks of them there are.
int screen_chunk_columns(std::int64_t v_head_size);
int num_screen_chunks(std::int64_t v_head_size);

/// The kernels of tiles for requests of at most `most_rows` rows that share a KV head.
std::vector<KernelSpec> screen_specs(std::int64_t most_rows, std::int64_t v_head_size,
                                     const ScreenForm& form);

/// The kernel that compares rows which were written.
KernelSpec screen_compare_rows_spec();

/// How much memory the rows of an output may take that are written for later comparisons.
inline constexpr std::size_t kMostKeptScreenBytes = std::size_t{4} << 30;
/// What they take.
std::size_t screen_rows_bytes(std::int64_t rows, std::int64_t v_head_size);

}  // namespace attnbench::cuda
