// Fields of a scenario whose values are neither one number nor one word: lists, mappings, and a
// number or a list of them. fields.cpp puts them into the table beside the plain ones of
// field_builders.h.
//
// Each reads every form that the loader accepts and writes the one form that a result file shows,
// so that get() followed by set() gives the same Problem. On a mismatch the message names the item
// that is wrong, not the whole list. What only the rest of the scenario can tell, such as how many
// elements there must be, is left to the checks after all keys are read: a sweep or --set may still
// change it.
#pragma once

#include <string>
#include <vector>

#include "core/problem/fields.h"

namespace attnbench::fields {

/// attention.alibi_slopes: [H] numbers, or null for the geometric series.
Field alibi_slopes_field();
/// attention.sinks: "none", "normal", or [H] logits, which may be infinite but not NaN. JSON has no
/// infinity, so it is the word "inf" or "-inf" there.
Field sinks_field();
/// attention.mm_prefix_ranges: {request index: [[start, end], ...]}, both ends inclusive.
Field mm_prefix_ranges_field();
/// triton.capture_sizes: batch sizes for which a graph would have been captured; they round the
/// limit of the 3D path (metadata/parts/segments.h).
Field capture_sizes_field();
/// mm_encoder.images: [[height, width], ...] in pixels, or null; the loader makes the batch of
/// them.
Field images_field();
/// mla.sparse.topk_length and extra_topk_length: null, one integer, or one for each request.
Field topk_length_field(std::string key, std::vector<int> MlaSpec::*member);
/// cascade.groups: [[requests, keys], ...], the prefixes that consecutive requests share.
Field cascade_groups_field();
/// mm_encoder.layer_names: the layers whose scales a file holds, in the order in which they run.
Field layer_names_field();

/// `access` returns the list in a Problem. One number, or a list of one a KV head; a single number
/// is a list of one element, and written as a number again: kv_cache.k_scale and v_scale. Finite
/// and > 0 (E-VALUE).
Field scale_field(std::string key, std::vector<double>& (*access)(Problem&));

}  // namespace attnbench::fields
