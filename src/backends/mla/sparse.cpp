// Lists over a second cache are attended apart and merged, and so are sinks: merge() is exact about
// parts without keys, and no kernel over lists has to know of either.
//
// With 16-bit entries one step attends for all rows; short queries by a plan that deals out their
// lists. With packed entries the batch is cut in two: short queries read the entries in place, by a
// plan too, long ones an upconverted copy in a workspace that several groups of requests use in
// turn.
#include "backends/mla/sparse.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/mla/index_steps.h"
#include "backends/mla/query.h"
#include "metadata/int_math.h"
#include "metadata/mla/sparse_index.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

using attn::i64;

/// Prefills that share the workspace at one time.
struct PrefillGroup {
  int first_request = 0;
  int num_requests = 0;
  i64 rows = 0;
};

/// Slots of the listed positions in the pages of `cache`, or rows of the workspace.
std::vector<std::int32_t> slots_of(const MlaWork& work, const Tensor& topk, const MlaCache& cache,
                                   const std::vector<std::int32_t>& workspace_starts) {
  std::vector<std::int32_t> requests;
  for (std::size_t b = 0; b < work.problem.batch.size(); ++b) {
    requests.insert(requests.end(), static_cast<std::size_t>(work.problem.batch[b].query_len),
                    static_cast<std::int32_t>(b));
  }
  const Tensor& table = cache.block_table;
  SparseIndexArgs args;
  args.request_ids = requests;
  args.topk_indices = {topk.data<std::int32_t>(), static_cast<std::size_t>(topk.num_elements())};
  args.topk = topk.dim(1);
  args.block_table = {table.data<std::int32_t>(), static_cast<std::size_t>(table.num_elements())};
  args.columns = table.dim(1);
  args.block_size = static_cast<int>(cache.data.dim(1));
  args.workspace_starts = workspace_starts;
  return convert_request_indices(args).slots;
}

class MlaSparse {
 public:
  explicit MlaSparse(MlaWork& work)
      : work_(work),
        tokens_(work.num_tokens),
        padded_heads_(work.padded_heads(work.capability.head_tile)),
        workspace_starts_(work.problem.batch.size(), -1) {}

  void add_steps() {
    const LatentQuery query =
        add_joined_query(work_, tokens_, work_.plan.quantised_query, padded_heads_);
    void* output =
        work_.workspace(tokens_ * padded_heads_ * work_.sizes.latent, work_.element, "o_l");
    attn::AttendParams attend = attend_params(query.data, query.element, output);
    const bool has_sinks = !work_.inputs.sinks.empty();
    const bool is_partial = has_sinks || work_.extra_cache != nullptr;
    if (is_partial) make_partial(attend, "o_l of the lists");
    const bool is_fp8 = is_packed(mla_cache_dtype(work_.capability, work_.problem));
    const std::vector<PrefillGroup> groups =
        is_fp8 ? group_prefills() : std::vector<PrefillGroup>{};
    const attn::SparseParams sparse = sparse_params();
    if (is_fp8 || work_.plan.sparse_batch.num_decodes > 0) {
      add_decodes(attend, sparse);
      add_prefills(attend, sparse, groups);
    } else {
      add_attend(attend, sparse);
    }
    if (work_.extra_cache != nullptr) add_extra(attend, has_sinks ? nullptr : output);
    if (has_sinks) add_sinks(attend, output);
    add_value_projection(work_, {{output, attend.output_token_stride}}, tokens_);
  }

  std::function<std::string()> wrong_choice() const {
    if (!indexer_) return {};
    return
        [indexer = indexer_, starts = workspace_starts_] { return indexer->wrong_choice(starts); };
  }

 private:
  i64 num_outputs() const { return tokens_ * padded_heads_ * work_.sizes.latent; }

  /// Output and LSE of `attend` are merged with others behind it: f32 [T, heads, Lkv] and
  /// [heads, T].
  void make_partial(attn::AttendParams& attend, const std::string& name) {
    attend.output_element = attn::Element::kF32;
    attend.output = work_.memory.workspace_of<float>(num_outputs(), name);
    attend.lse = work_.memory.workspace_of<float>(tokens_ * padded_heads_, "lse of " + name);
    attend.lse_stride = tokens_;
  }

  attn::MergeParams merge_params(const attn::AttendParams& partial, void* output) const {
    attn::MergeParams merge{};
    merge.element = attn::Element::kF32;
    merge.output_element = output != nullptr ? work_.element : attn::Element::kF32;
    merge.prefix_output = partial.output;
    merge.prefix_lse = partial.lse;
    merge.num_tokens = merge.num_merged = tokens_;
    merge.num_heads = static_cast<int>(padded_heads_);
    merge.head_size = static_cast<int>(work_.sizes.latent);
    merge.prefix_head_stride = work_.sizes.latent;
    return merge;
  }

  /// The lists over the second cache (§8.9), and both as one: into `output`, or where that is null
  /// into a partial result that `attend` names from then on.
  void add_extra(attn::AttendParams& attend, void* output) {
    const MlaCache& cache = *work_.extra_cache;
    const SparseLists& lists = work_.inputs.extra.lists;
    const Tensor& topk = lists.given();
    attn::AttendParams over = attend;
    make_partial(over, "o_l of the second cache");
    const i64 entry = cache.data.shape().back();
    over.kv.key = work_.memory.upload(cache.data, "second kv_cache");
    over.kv.block_size = checked_int32(cache.data.dim(1), "extra_block_size");
    over.kv.block_stride = over.kv.block_size * entry;
    attn::SparseParams sparse{};
    sparse.format = work_.entry_format();
    sparse.slots = work_.memory.upload(slots_of(work_, topk, cache, {}), "second slots");
    sparse.slots_stride = topk.dim(1);
    sparse.topk = static_cast<int>(topk.dim(1));
    if (!lists.lengths.empty()) {
      sparse.topk_length = work_.memory.upload(lists.lengths, "extra_topk_length");
    }
    sparse.num_slots = cache.data.dim(0) * cache.data.dim(1);
    work_.add_attend_step("attend_extra",
                          [&ops = work_.ops, over, sparse] { ops.attend_sparse(over, sparse); });
    attn::MergeParams merge = merge_params(attend, output);
    merge.suffix_output = over.output;
    merge.suffix_lse = over.lse;
    if (output != nullptr) {
      merge.output = output;
      merge.output_lse = work_.lse;
      merge.output_lse_stride = work_.num_rows;
    } else {
      make_partial(attend, "o_l of both caches");
      merge.output = attend.output;
      merge.output_lse = attend.lse;
      merge.output_lse_stride = attend.lse_stride;
    }
    work_.add_step(counted_step("merge_extra", [&ops = work_.ops, merge] { ops.merge(merge); }));
  }

  /// A sink is one more part, of output 0 and the sink as its LSE (§3.5). The LSE stays without.
  void add_sinks(const attn::AttendParams& attend, void* output) {
    // Why not infinity: to a merge that is a part without keys.
    constexpr float kLargest = 1e30f;
    std::vector<float> lse(static_cast<std::size_t>(tokens_ * padded_heads_),
                           -std::numeric_limits<float>::infinity());
    for (std::size_t head = 0; head < work_.inputs.sinks.size(); ++head) {
      std::fill_n(lse.begin() + static_cast<std::ptrdiff_t>(head) * tokens_, tokens_,
                  std::min(work_.inputs.sinks[head], kLargest));
    }
    attn::MergeParams merge = merge_params(attend, output);
    merge.output = output;
    const std::vector<float> zeros(static_cast<std::size_t>(num_outputs()), 0.0f);
    merge.suffix_output = work_.memory.upload(zeros, "outputs of sinks");
    merge.suffix_lse = work_.memory.upload(lse, "sinks");
    attn::CopyParams copy{};
    copy.source_element = copy.output_element = attn::Element::kF32;
    copy.source = attend.lse;
    copy.output = work_.lse;
    copy.extents[0] = padded_heads_;
    copy.extents[1] = copy.extents[2] = 1;
    copy.source_strides[0] = attend.lse_stride;
    copy.output_strides[0] = work_.num_rows;
    copy.width = tokens_;
    work_.add_step(counted_step("add_sinks", [&ops = work_.ops, merge, copy] {
      ops.merge(merge);
      ops.copy(copy);
    }));
  }

  attn::AttendParams attend_params(const void* query, attn::Element element, void* output) {
    attn::AttendParams p{};
    p.query_element = element;
    p.output_element = work_.element;
    p.query = query;
    p.query_token_stride = padded_heads_ * work_.sizes.entry();
    p.query_head_stride = work_.sizes.entry();
    p.output = output;
    p.output_token_stride = padded_heads_ * work_.sizes.latent;
    p.output_head_stride = work_.sizes.latent;
    p.lse = work_.lse;
    p.lse_stride = work_.num_rows;
    p.query_start_loc = work_.memory.upload(work_.inputs.query_start_loc, "query_start_loc");
    p.num_requests = static_cast<int>(work_.problem.batch.size());
    p.max_query_len = checked_int32(work_.problem.max_query_len(), "query_len");
    p.num_heads = static_cast<int>(padded_heads_);
    p.num_kv_heads = 1;
    p.head_size = static_cast<int>(work_.sizes.entry());
    p.v_head_size = static_cast<int>(work_.sizes.latent);
    const double q_scale = work_.plan.quantised_query ? work_.problem.kv_cache.q_scale : 1.0;
    p.score.softmax_scale = static_cast<float>(work_.problem.attention.scale * q_scale);
    const attn::MlaEntries entries = work_.entries(work_.ranks.front(), 0);
    p.kv.element = entries.element;
    p.kv.key = entries.cache;
    p.kv.block_stride = entries.block_stride;
    p.kv.token_stride_key = entries.slot_stride;
    p.kv.block_size = entries.block_size;
    if (work_.entry_format() == attn::MlaEntry::kE4M3) p.kv.k_scale = work_.k_scale;
    return p;
  }

  /// Slots in the cache, or rows of the workspace for the requests that have a place in it: drawn
  /// ones, or those that the steps of an indexer choose.
  attn::SparseParams sparse_params() {
    const Tensor& topk = work_.inputs.given_topk();
    attn::SparseParams sparse{};
    sparse.format = work_.entry_format();
    if (has_indexer(work_.problem)) {
      indexer_ = std::make_shared<MlaIndexer>(work_);
      sparse.slots = indexer_->add_steps(workspace_starts_);
    } else {
      sparse.slots = work_.memory.upload(
          slots_of(work_, topk, work_.cache_before, workspace_starts_), "slots");
    }
    if (!work_.inputs.topk_lengths.empty()) {
      sparse.topk_length = work_.memory.upload(work_.inputs.topk_lengths, "topk_length");
    }
    sparse.slots_stride = topk.dim(1);
    sparse.topk = static_cast<int>(topk.dim(1));
    sparse.num_slots = work_.cache_before.data.dim(0) * work_.cache_before.data.dim(1);
    return sparse;
  }

  void add_attend(const attn::AttendParams& attend, const attn::SparseParams& sparse) {
    work_.add_attend_step(
        "attend_sparse", [&ops = work_.ops, attend, sparse] { ops.attend_sparse(attend, sparse); });
  }

  /// The plan deals out positions of the lists, which are all of one length.
  void add_decodes(attn::AttendParams attend, const attn::SparseParams& sparse) {
    attend.num_requests = work_.plan.sparse_batch.num_decodes;
    if (attend.num_requests == 0) return;
    const auto decodes = static_cast<std::size_t>(attend.num_requests);
    const auto starts = std::span(work_.inputs.query_start_loc).first(decodes + 1);
    attend.max_query_len = longest_query(starts);
    const DecodePlan plan =
        plan_dense_decode(std::vector<std::int32_t>(decodes, sparse.topk), work_.plan.num_parts);
    const attn::PlanParams params = work_.plan_params(plan, starts, padded_heads_);
    work_.add_attend_step("attend_sparse_decode", [&ops = work_.ops, attend, sparse, params] {
      ops.attend_sparse_plan(attend, sparse, params);
    });
    if (!plan.is_split()) return;
    work_.add_step(counted_step("combine_decode", [&ops = work_.ops, attend, params] {
      ops.combine_plan(attend, params);
    }));
  }

  /// Runs of prefills whose sequences fit into the workspace together; a longer one is a run by
  /// itself.
  std::vector<PrefillGroup> group_prefills() {
    std::vector<PrefillGroup> groups;
    for (std::size_t b = static_cast<std::size_t>(work_.plan.sparse_batch.num_decodes);
         b < work_.problem.batch.size(); ++b) {
      const i64 length = work_.problem.batch[b].seq_len;
      if (groups.empty() || groups.back().rows + length > work_.plan.workspace_tokens) {
        groups.push_back({static_cast<int>(b), 0, 0});
      }
      workspace_starts_[b] = checked_int32(groups.back().rows, "workspace row");
      ++groups.back().num_requests;
      groups.back().rows += length;
    }
    return groups;
  }

  void add_prefills(const attn::AttendParams& attend, const attn::SparseParams& sparse,
                    const std::vector<PrefillGroup>& groups) {
    i64 most = 0;
    for (const PrefillGroup& group : groups) most = std::max(most, group.rows);
    if (most == 0) return;
    void* workspace =
        work_.workspace(most * work_.sizes.entry(), work_.element, "upconverted entries");
    for (const PrefillGroup& group : groups) {
      add_upconvert(group, workspace);
      attn::AttendParams over = attend;
      over.first_request = group.first_request;
      over.num_requests = group.num_requests;
      over.kv.element = work_.element;
      over.kv.key = workspace;
      over.kv.token_stride_key = work_.sizes.entry();
      over.kv.block_size = checked_int32(most, "workspace rows");
      over.kv.block_stride = most * work_.sizes.entry();
      attn::SparseParams rows = sparse;
      rows.format = attn::MlaEntry::kCopy;
      rows.num_slots = group.rows;
      add_attend(over, rows);
    }
  }

  void add_upconvert(const PrefillGroup& group, void* workspace) {
    const auto first = static_cast<std::ptrdiff_t>(group.first_request);
    const auto slice = [&](const std::vector<std::int32_t>& all) {
      return std::vector<std::int32_t>(all.begin() + first,
                                       all.begin() + first + group.num_requests);
    };
    attn::DsMlaUpconvertParams upconvert{};
    upconvert.entries = work_.entries(work_.ranks.front(), group.first_request);
    upconvert.output = workspace;
    upconvert.output_token_stride = work_.sizes.entry();
    upconvert.seq_lens = work_.memory.upload(slice(work_.inputs.seq_lens), "prefill lengths");
    upconvert.workspace_starts = work_.memory.upload(slice(workspace_starts_), "workspace starts");
    upconvert.num_requests = group.num_requests;
    upconvert.num_rows = group.rows;
    upconvert.is_model1 = work_.entry_format() == attn::MlaEntry::kModel1 ? 1 : 0;
    work_.add_each("upconvert_context", false, &Ops::upconvert_ds_mla, std::vector{upconvert});
  }

  MlaWork& work_;
  i64 tokens_;
  i64 padded_heads_;
  std::vector<std::int32_t> workspace_starts_;  // [B]; -1 = read from the cache
  std::shared_ptr<MlaIndexer> indexer_;         // lives as long as who asks it
};

}  // namespace

std::vector<std::int32_t> mla_sparse_slots(const MlaWork& work,
                                           const std::vector<std::int32_t>& workspace_starts) {
  return slots_of(work, work.inputs.topk_indices, work.cache_before, workspace_starts);
}

std::function<std::string()> add_mla_sparse(MlaWork& work) {
  MlaSparse sparse(work);
  sparse.add_steps();
  return sparse.wrong_choice();
}

}  // namespace attnbench
