// Which attention a definition means, and what its parts are called there.
//
// FlashInfer-Bench's data set has one name for each input; FlashInfer's own dumps have those of the
// entry point that was called: k_cache or one kv_cache of both, kv_indptr or block_tables, sm_scale
// or bmm1_scale. Everything behind this asks the form and not the definition. Which form it is
// follows from the names of the inputs; op_type is a free text that older files do not have, and is
// asked only where the names are not enough.
#pragma once

#include <string>

#include "interop/trace/definition.h"

namespace attnbench {

/// What can be taken over.
enum class TraceKind { kGqaPaged, kRagged, kMlaPaged, kSparseMla, kIndexer, kHeadLists };

/// Latents as bytes, with their scales between or behind them.
enum class PackedLatents { kNone, kFp8DsMla, kModel1 };

/// Names of inputs are empty where the definition has none of the kind.
struct TraceForm {
  TraceKind kind = TraceKind::kGqaPaged;
  std::string query;     // [T, N, D], [B, S, N, D], or [N, D] of one token
  std::string query_pe;  // of MLA; empty where `query` has both parts
  std::string key;       // cache, keys, or latents; with `key_pe` empty, both parts of latents
  std::string value;     // equal to `key` where one tensor has both, along `plane_axis`
  std::string key_pe;

  int plane_axis = -1;  // of 2 planes, keys and values
  int page_axis = 1;    // tokens of a page; of keys without pages 0, or 1 where requests are axis 0
  int head_axis = 2;    // KV heads; -1 for latents

  std::string query_offsets, query_lengths;  // [B + 1]; [B]
  std::string key_offsets, key_pages;        // [B + 1]; pages of all requests
  std::string table, key_lengths;            // [B, M]; [B]
  std::string lists;               // [T, topk] of sparse MLA; [Hk, T, topk] of blocks for KV heads
  std::string block_offsets;       // [B, Hk, query blocks + 1] into block_indices
  std::string scale, value_scale;  // of the scores; bmm2_scale, of the output
  bool scale_has_key_scale = false;  // bmm1_scale: everything that multiplies the scores

  PackedLatents packed = PackedLatents::kNone;
  bool is_single = false;     // one request, which no axis counts
  bool is_causal = true;      // unless the workload says otherwise
  bool tells_mask = true;     // false: nothing in the definition says what several new tokens see
  bool has_solutions = true;  // whether attnbench can hand over what a solution takes

  bool is_mla() const { return kind == TraceKind::kMlaPaged || kind == TraceKind::kSparseMla; }
  bool has_pages() const {
    return kind != TraceKind::kRagged &&
           (kind != TraceKind::kHeadLists || !table.empty() || !key_pages.empty());
  }
  bool is_heads_first() const { return head_axis >= 0 && head_axis < page_axis; }
};

/// Errors: E-VALUE for what cannot be taken over: with the reason for attention of a kind that
/// attnbench does not have, otherwise with the inputs that were found and the sets that are known.
TraceForm trace_form(const TraceDefinition& definition);

}  // namespace attnbench
