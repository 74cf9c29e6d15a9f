// Specs of the attention kernels: compile-time choices, tile sizes, shared memory. What several
// candidates share is here too: names, row tiles, the kernel that combines parts.
//
// Tiles come from tables of measured ones, in the order in which they are tried; the first whose
// shared memory the target has is taken. So a device with less memory gets a smaller tile, and only
// when none is left there is a misfit.
#pragma once

#include "ops/cuda/launcher.h"

#include "kernels/params.h"

namespace attnbench::cuda {

/// A kernel and what its launch needs to know of it.
struct AttendKernel {
  KernelSpec spec;
  int tile_rows = 0;  // packed query rows of a CTA, of each of its KV heads
  int heads = 1;      // KV heads of a CTA
  int threads = 0;
  int shared_bytes = 0;
  int ring_bytes = 0;  // of a decode: what is free once its rows are stored
};

/// What the kernels of prefill.cuh and decode.cuh declare of shared memory beside shared_bytes, at
/// most: decode.cuh a row tile and, of eight warps, the states of 16 rows each, up to the next
/// multiple of attn::kRingAlignment.
constexpr int kTiledStaticSharedBytes = 1152;
/// What the kernels of general.cuh declare of it, at most: the choice of a tile leaves room for it.
constexpr int kGeneralStaticSharedBytes = 4096;

/// Why neither prefill.cuh nor decode.cuh can do it ("head size 92 is not a multiple of 8"); empty
/// where both can, as far as shared memory goes.
std::string tiled_misfit(const attn::AttendParams& params);
/// Why no tile of either fits into the target's shared memory; empty where one does.
std::string prefill_tile_misfit(const Target& target, const attn::AttendParams& params);
std::string decode_tile_misfit(const Target& target, const attn::AttendParams& params);

// Facts of a problem that choices go by.

bool is_paged(const attn::AttendParams& params);
/// bf16 or f16.
bool is_16_bit(attn::Element element);
/// Bytes of a stored element of keys.
int key_bytes(const attn::AttendParams& params);
/// Scores of int8 codes with scales of their own (semantics §11.4).
bool has_int8_scores(const attn::AttendParams& params);
attn::Element value_element(const attn::AttendParams& params);
/// Values of 16 bits beside keys of one byte, in pages of their own (KvParams::value_block_table).
inline bool has_values_apart(const attn::AttendParams& params) {
  return params.kv.value_block_table != nullptr;
}
/// Whether scores are brought to log2 units before their maximum. Why the sign: the maximum of
/// scaled scores is the scaled maximum for positive scales only.
bool scales_first(const attn::AttendParams& params);

/// "attn::Alibi::kNone", as a spec writes it.
std::string alibi_constant(attn::Alibi alibi);
/// What the kernels of a problem are called, after their entry: " d128 bf16 paged 16 soft cap".
std::string problem_name(const attn::AttendParams& params);

/// Many query rows: kernels/attention/prefill.cuh.
AttendKernel prefill_kernel(const Target& target, const attn::AttendParams& params);
/// What is wanted of a decode kernel beside the problem.
struct DecodeForm {
  /// Of kernels/attention/decode/decode.cuh ("decode", "decode_splits", "decode_segments") or, of
  /// the others, decode/forms.cuh.
  std::string entry;
  int parts = 1;              // CTAs that a request's keys are dealt to
  std::int64_t num_ctas = 0;  // of tiles of 16 rows; 0: parts for every row tile of every request
  int most_rows = 0;          // of a tile, a multiple of 16; 0: as is known to be good
  /// Instead of those of the tables, to compare: warps of a CTA, 16 at most; steps of a stream that
  /// are under way or in work; CTAs that share a multiprocessor. 0: as in the tables.
  int warps = 0;
  int stages = 0;
  int ctas = 0;
  int heads = 0;  // KV heads of a CTA, 1 or, where they can be, 2; 0: as is known to be good
};
/// Few query rows: tiles of 16 of them, or of 32 to 128 where `form` allows and there are as many.
/// Errors: E-UNSUPPORTED where what `form` says does not fit the target.
AttendKernel decode_kernel(const Target& target, const attn::AttendParams& params,
                           const DecodeForm& form);
/// The entry whose CTAs are a cluster, form.parts of them.
inline constexpr std::string_view kClusterEntry = "decode_cluster";
/// Whether the device has the shared memory for the CTAs of such a kernel, and extents of a grid
/// for the batch.
bool fits_in_cluster(const Target& target, const attn::AttendParams& params,
                     const AttendKernel& kernel);
/// An entry of kernels/attention/combine.cuh ("combine_splits", "reduce_segments", "combine_plan")
/// for about so many parts a row, with combine_splits exactly so many, of which none has more than
/// `most_parts`; tile_rows (token, head) rows a CTA. In attend.cpp.
AttendKernel combine_kernel(const attn::AttendParams& params, const std::string& entry, int parts,
                            std::int64_t most_parts);

/// Query rows of a KV head that the decode kernel still does better than a half-empty tile of the
/// prefill kernel.
constexpr std::int64_t kMostDecodeRows = 64;
/// Whether there are no more of them, so that bandwidth bounds it, and the batch may decide.
bool has_few_rows(const attn::AttendParams& params);

/// A launch with one CTA for every row tile of every request and KV head, or the kernel's number of
/// KV heads, `parts` times.
LaunchShape row_tiles(const AttendKernel& kernel, const attn::AttendParams& params, int parts);

/// CTAs for every row tile of `rows` packed rows of every request and KV head, `parts` times.
std::int64_t num_row_tiles(const attn::AttendParams& params, int rows, int parts);

/// Query rows of one request that share a KV head, at most.
std::int64_t max_packed_rows(const attn::AttendParams& params);

// What the kernels of MLA latents on Hopper share, in hopper_latent.cpp.

/// Why they cannot do the head sizes, the cache, of which a value has to be the first columns of
/// its key, in blocks of which a box takes whole rows, masks and transforms of scores, or the
/// output; empty where they can.
std::string latent_sizes_misfit(const attn::AttendParams& params);
std::string latent_pages_misfit(const attn::AttendParams& params);
std::string latent_score_misfit(const attn::AttendParams& params);
std::string latent_output_misfit(const attn::AttendParams& params);
/// Rows of a box of queries, which lie in one sequence; 0: the copy engine cannot take them, and
/// threads copy them.
int latent_boxes_of_query(const attn::AttendParams& params);
/// Queries of 16 bits in such boxes.
TensorMap latent_query_map(const attn::AttendParams& params, int box);

}  // namespace attnbench::cuda
