// The paged cache of keys and values that a step starts from: what earlier steps left in it, and
// poison in every byte that must not be read. Made once for each layout and store rule of a case;
// each backend works on a copy, so the one made here stays what check_cache() compares with.
#pragma once

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/kv_layout.h"

namespace attnbench {

/// A paged cache before the step: context positions written, every other byte poison (NaN codes for
/// float formats, 127 and -128 for int8), but per-token-head scales never written are 1.0 (§5.5).
/// Under DCP of W > 1 ranks each rank has a cache of its own and the positions of §7.1 in it: data
/// is [W, ...] and slot_mapping [W, N], slots of other ranks' positions -1; the table is one.
struct PagedCache {
  /// paged_layout(); the same for all ranks.
  KvLayout layout;
  Tensor data;          // element type of the cache, physical shape of the layout
  Tensor block_table;   // i32 [B, MB]; entries past cdiv(seq_len, block_size) are garbage or -1
  Tensor slot_mapping;  // i64 [N_new + padding]: the new keys in request order, then padding
  Tensor new_key;       // [N_new + padding, Hk, D] rows to write; padding rows are NaN
  Tensor new_value;     // [N_new + padding, Hk, Dv]
  /// f32 [NB, Hk, bs], scales of the int8 keys, NaN in slots not written; int8 levels only (§11.1).
  Tensor key_scale_cache;
};

/// Where the cells of the problem's cache lie in that layout: of one rank, and of its layer where
/// several share an allocation. Its total is that of all layers. Errors: as make_kv_layout().
KvLayout paged_layout(const Problem& problem, CacheLayoutKind kind);

/// `stored` holds the rows of all positions; only those of the context are written here, the others
/// are what the step must add. With shapes only, `data` has its size and no content.
///
/// Physical pages are a seeded permutation when kv_cache.shuffle_blocks; requests share the pages
/// of cascade.common_prefix_len (and make_inputs gives them the same keys there) that lie whole in
/// their context. kIx is head-major whatever kv_cache.layout says. Errors: E-CONFIG when
/// kv_cache.num_blocks is too small, E-SHAPE when v_head_size differs from head_size.
PagedCache make_paged_cache(const Problem& problem, const AttentionInputs& inputs,
                            const StoredKv& stored, CacheLayoutKind kind);

}  // namespace attnbench
