#include "interop/trace/form.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/error.h"

namespace attnbench {
namespace {

/// Attention that is known and not taken over, by an input or an op_type that nothing else has.
struct RefusalRow {
  const char* input;
  const char* op_type;
  const char* reason;
};
const std::vector<RefusalRow>& refusal_rows() {
  static const std::vector<RefusalRow> rows{
      {nullptr, "msa_proxy",
       "scores of key blocks for a later choice, no attention, and attnbench has no operation for "
       "them"},
      {nullptr, "pod",
       "a prefill and decodes in one kernel with separate inputs; attnbench mixes them in one "
       "batch "
       "(batch: q512s512_32q1s2k)"},
      {nullptr, "cascade_attention",
       "a cascade whose levels are arguments of plan(), which the definition does not have; "
       "attnbench's are prefix groups of a batch"},
      {"q_sf", "attention", "e2m1 queries, which attnbench does not have"},
      {"q_fp4", nullptr, "e2m1 queries, which attnbench does not have"},
      {"qkv", nullptr,
       "queries, keys and values in one input whose form (input_layout) the definition does not "
       "say"},
  };
  return rows;
}

class Names {
 public:
  explicit Names(const TraceDefinition& definition) : definition_(definition) {}

  bool has(const std::string& name) const { return definition_.input(name) != nullptr; }
  bool has_all(std::initializer_list<const char*> names) const {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return has(name); });
  }
  /// The first that the definition has; empty if it has none.
  std::string first(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return name;
    }
    return "";
  }
  std::size_t num_axes(const std::string& name) const {
    const TraceTensor* tensor = definition_.input(name);
    return tensor == nullptr ? 0 : tensor->axes.size();
  }
  /// The place of an axis that has one of these names; -1 without.
  int axis(const std::string& name, std::initializer_list<const char*> axes) const {
    const TraceTensor* tensor = definition_.input(name);
    if (tensor == nullptr) return -1;
    for (const char* wanted : axes) {
      const auto found = std::find(tensor->axes.begin(), tensor->axes.end(), wanted);
      if (found != tensor->axes.end()) return static_cast<int>(found - tensor->axes.begin());
    }
    return -1;
  }
  bool is_type(const char* op_type) const { return definition_.op_type == op_type; }
  bool has_axis(const char* axis) const {
    const auto has_it = [&](const TraceTensor& tensor) {
      return std::find(tensor.axes.begin(), tensor.axes.end(), axis) != tensor.axes.end();
    };
    return std::any_of(definition_.inputs.begin(), definition_.inputs.end(), has_it) ||
           std::any_of(definition_.outputs.begin(), definition_.outputs.end(), has_it);
  }
  bool is_bytes(const std::string& name) const {
    const TraceTensor* tensor = definition_.input(name);
    return tensor != nullptr && (tensor->dtype == "uint8" || tensor->dtype == "int8");
  }

 private:
  const TraceDefinition& definition_;
};

/// Tokens of a page and KV heads of a cache by the names of the axes; as in FlashInfer-Bench,
/// tokens first, where these do not tell.
void find_cache_axes(const Names& names, TraceForm& form) {
  const int first = form.plane_axis >= 0 ? form.plane_axis + 1 : 1;
  form.page_axis = first;
  form.head_axis = first + 1;
  const int page = names.axis(form.key, {"page_size", "page_block_size"});
  const int head = names.axis(form.key, {"num_kv_heads", "num_heads_kv"});
  if (page == first + 1 && head == first) std::swap(form.page_axis, form.head_axis);
}

void find_batch(const Names& names, TraceForm& form) {
  form.query_offsets = names.first({"qo_indptr", "cum_seq_lens_q"});
  form.query_lengths = names.first({"actual_seq_lens_q"});
  form.key_offsets = names.first({"kv_indptr", "paged_kv_indptr", "cum_seq_lens_kv"});
  form.key_pages = names.first({"kv_indices", "paged_kv_indices"});
  form.table = names.first({"block_tables", "block_table", "page_table"});
  form.key_lengths = names.first({"kv_len_arr", "seq_lens", "actual_seq_lens_kv", "seq_lens_kv"});
  // cum_seq_lens_kv counts tokens, and is beside a table what its lengths are.
  if (!form.table.empty()) form.key_offsets.clear();
  form.scale = names.first({"sm_scale", "scale", "softmax_scale", "bmm1_scale", "scale_bmm1"});
  form.value_scale = names.first({"bmm2_scale", "output_scale", "scale_bmm2"});
  form.scale_has_key_scale = form.scale == "bmm1_scale" || form.scale == "scale_bmm1" ||
                             (form.scale == "softmax_scale" && names.has("output_scale"));
  if (form.kind != TraceKind::kRagged && form.query_offsets.empty() && form.query_lengths.empty()) {
    form.tells_mask = names.first({"causal", "is_causal"}) != "";
  }
}

/// Query and latents of FlashInfer's entry points, each one tensor of both parts.
bool is_joined_mla(const Names& names) {
  const bool says_so = names.is_type("mla_paged") || names.has_axis("kv_lora_rank") ||
                       names.has_axis("head_dim_ckv");
  return says_so && (names.has("kv_cache") || names.has_all({"k_cache", "page_table"}));
}

TraceForm mla_form(const Names& names) {
  TraceForm form;
  form.kind = names.has("sparse_indices") ? TraceKind::kSparseMla : TraceKind::kMlaPaged;
  form.query = "q_nope";
  form.query_pe = "q_pe";
  form.key = "ckv_cache";
  form.key_pe = "kpe_cache";
  form.page_axis = 1;
  form.head_axis = -1;
  form.lists = names.first({"sparse_indices"});
  return form;
}

TraceForm joined_mla_form(const Names& names) {
  TraceForm form;
  form.kind = TraceKind::kMlaPaged;
  form.query = names.first({"query", "q"});
  form.key = names.first({"kv_cache", "k_cache"});
  form.head_axis = -1;
  form.page_axis = std::max(names.axis(form.key, {"page_size", "page_block_size"}), 1);
  form.has_solutions = false;
  return form;
}

TraceForm packed_mla_form(const TraceDefinition& definition, const Names& names) {
  TraceForm form = joined_mla_form(names);
  form.kind = TraceKind::kSparseMla;
  form.lists = "indices";
  const std::string& width_axis = definition.input(form.key)->axes.back();
  const std::int64_t width = axis_size(definition, {}, width_axis).value_or(0);
  if (width != 656 && width != 584) {
    fail(ErrorKind::kValue,
         "{}: {}: {}: expected 656 (fp8_ds_mla) or 584 (fp8_model1_mla) bytes a "
         "token, found {}",
         definition.path, definition.name, form.key, width);
  }
  form.packed = width == 656 ? PackedLatents::kFp8DsMla : PackedLatents::kModel1;
  return form;
}

TraceForm paged_form(const Names& names) {
  TraceForm form;
  form.kind = TraceKind::kGqaPaged;
  form.query = names.first({"q", "query"});
  if (names.has_all({"k_cache", "v_cache"})) {
    form.key = "k_cache";
    form.value = "v_cache";
  } else {
    form.key = form.value = names.first({"kv_cache", "paged_kv_cache"});
    form.plane_axis = 1;
  }
  find_cache_axes(names, form);
  return form;
}

TraceForm ragged_form(const Names& names) {
  TraceForm form;
  form.kind = TraceKind::kRagged;
  form.query = names.first({"q", "query"});
  form.key = names.first({"k", "key"});
  form.value = names.first({"v", "value"});
  const bool by_request = names.num_axes(form.key) == 4;
  form.page_axis = by_request ? 1 : 0;
  form.head_axis = by_request ? 2 : 1;
  return form;
}

/// Keys without offsets: of one request, or of as many as their first axis has.
bool is_unlisted_ragged(const Names& names) {
  if (!(names.has_all({"q", "k", "v"}) || names.has_all({"query", "key", "value"}))) return false;
  return names.is_type("single_decode") || names.is_type("single_prefill") ||
         names.is_type("gqa_ragged") ||
         (names.is_type("trtllm_paged") && names.num_axes("query") == 4);
}

bool is_paged_cache(const Names& names) {
  if (names.first({"q", "query"}).empty()) return false;
  const bool has_cache = names.has_all({"k_cache", "v_cache"}) || names.num_axes("kv_cache") == 5 ||
                         names.num_axes("paged_kv_cache") == 5;
  // Where nothing is listed, plan() was given it; only the type says then what this is.
  return has_cache &&
         (!names.first({"kv_indptr", "paged_kv_indptr", "block_tables", "page_table"}).empty() ||
          names.is_type("gqa_paged") || names.is_type("cudnn_paged"));
}

bool is_head_table(const Names& names) {
  return names.num_axes("block_tables") == 3 && names.axis("block_tables", {"num_kv_heads"}) == 0;
}

/// A list of blocks for each KV head, and the caches or keys of other attention.
TraceForm head_lists_form(const Names& names) {
  const bool has_cache = names.has_all({"k_cache", "v_cache"}) || names.num_axes("kv_cache") == 5 ||
                         names.num_axes("paged_kv_cache") == 5;
  TraceForm form = has_cache ? paged_form(names) : ragged_form(names);
  form.kind = TraceKind::kHeadLists;
  find_batch(names, form);
  form.tells_mask = true;
  form.has_solutions = false;
  if (is_head_table(names)) return form;
  form.table.clear();
  form.lists = names.first({"q2k_indices"});
  form.block_offsets = names.first({"block_indptr"});
  form.is_causal = form.block_offsets.empty();
  if (form.lists.empty()) return form;
  form.query_offsets = names.first({"cu_seqlens_q"});
  form.key_offsets = names.first({"cu_seqlens_k"});
  return form;
}

[[noreturn]] void refuse_unknown(const TraceDefinition& definition) {
  std::vector<std::string> found;
  for (const TraceTensor& input : definition.inputs) found.push_back(input.name);
  fail(
      ErrorKind::kValue,
      "{}: {} is no attention that can be imported: expected the inputs q_nope, q_pe, ckv_cache, "
      "kpe_cache, sparse_indices; or q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices; or "
      "q, k_cache, v_cache, kv_indptr, kv_indices; or q, k, v, kv_indptr; or q_index_fp8, "
      "k_index_cache_fp8, weights, seq_lens, block_table; or those of another attention of "
      "FlashInfer (docs/interop.md); found {}",
      definition.path, definition.name, fmt::join(found, ", "));
}

void refuse_known(const TraceDefinition& definition, const Names& names) {
  const auto refuse = [&](const std::string& reason) {
    fail(ErrorKind::kValue, "{}: {} is no attention that can be imported: {}", definition.path,
         definition.name, reason);
  };
  for (const RefusalRow& row : refusal_rows()) {
    const bool by_input = row.input != nullptr && names.has(row.input);
    if (by_input || (row.op_type != nullptr && names.is_type(row.op_type))) refuse(row.reason);
  }
  if (names.num_axes("block_tables") == 3 &&
      names.axis("block_tables", {"sparse_mla_top_k"}) >= 0) {
    const std::int64_t page = axis_size(definition, {}, "page_size").value_or(0);
    refuse(
        fmt::format("its block_tables list keys or pages of {} for each token, which the "
                    "definition does not tell apart; sparse_indices of dsa_paged are keys",
                    page));
  }
  if (names.is_type("block_sparse") && !names.has("block_indptr")) {
    refuse(
        "block-sparse attention whose mask is an argument of plan(), which the definition does not "
        "have");
  }
  if (names.is_type("gqa_paged") && names.num_axes("kv_cache") == 3) {
    refuse("the sizes of its cache are arguments of plan(), which the definition does not have");
  }
}

}  // namespace

TraceForm trace_form(const TraceDefinition& definition) {
  const Names names(definition);
  refuse_known(definition, names);
  TraceForm form;
  if (names.has_all({"q_index_fp8", "k_index_cache_fp8", "weights", "seq_lens", "block_table"})) {
    form.kind = TraceKind::kIndexer;
    form.query = "q_index_fp8";
    form.key = "k_index_cache_fp8";
    form.head_axis = -1;
    form.has_solutions = false;
    find_batch(names, form);
    form.tells_mask = true;  // each request has one token
    return form;
  }
  if (names.has("q2k_indices") || names.has("block_indptr") || is_head_table(names)) {
    return head_lists_form(names);
  }
  const bool is_split_mla = names.has_all({"q_nope", "q_pe", "ckv_cache", "kpe_cache"});
  const bool is_listed_mla =
      names.has("sparse_indices") || names.has_all({"kv_indptr", "kv_indices"});
  if (is_split_mla && is_listed_mla) {
    form = mla_form(names);
  } else if (names.has_all({"q", "kv_cache", "indices"}) && names.is_bytes("kv_cache")) {
    form = packed_mla_form(definition, names);
  } else if (!names.first({"q", "query"}).empty() && is_joined_mla(names)) {
    form = joined_mla_form(names);
  } else if (is_paged_cache(names)) {
    form = paged_form(names);
  } else if ((names.has_all({"q", "k", "v"}) || names.has_all({"query", "key", "value"})) &&
             !names.first({"kv_indptr", "cum_seq_lens_kv"}).empty()) {
    form = ragged_form(names);
  } else if (is_unlisted_ragged(names)) {
    form = ragged_form(names);
    form.is_single = form.page_axis == 0;
    form.is_causal = !names.is_type("single_prefill");  // causal=False is FlashInfer's default
    form.has_solutions = false;
  } else {
    refuse_unknown(definition);
  }
  find_batch(names, form);
  // What attnbench.solutions can hand over: whole caches of tokens first, lists of pages.
  const bool is_plain = form.table.empty() && form.plane_axis < 0 && !form.is_heads_first() &&
                        names.num_axes(form.query) == 3 && form.query != "query";
  form.has_solutions = form.has_solutions && is_plain;
  return form;
}

}  // namespace attnbench
