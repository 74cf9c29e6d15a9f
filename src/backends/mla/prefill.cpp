// MlaPrefill adds the new tokens and the last merge, MlaContext the chunks before it. With context
// every partial result is float32 until that merge; without it the first attention writes the
// output itself.
#include "backends/mla/prefill.h"

#include <algorithm>
#include <utility>

#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

class MlaPrefill {
 public:
  explicit MlaPrefill(MlaWork& work) : work_(work), expand_(work), context_(work, expand_) {}

  void add_steps() {
    const std::vector<std::int32_t> lens =
        query_lens_of(work_.problem, work_.plan.batch.num_decodes);
    const std::vector<Expanded> fresh = add_new_keys();
    std::vector<std::function<void()>> attends;
    std::vector<Partial> suffixes;
    for (const MlaRank& rank : work_.ranks) {
      attn::AttendParams attend = expand_.attend_params(rank, of(fresh, rank), lens, true);
      if (!work_.plan.chunks) {
        attend.lse = lse_of(rank);
        attend.lse_stride = work_.num_rows;
        attends.push_back(expand_.attend_into(rank, attend, lens, output_of(rank), work_.element,
                                              output_stride()));
        continue;
      }
      suffixes.push_back(expand_.make_partial(rank, "new tokens"));
      attend.lse = suffixes.back().lse;
      attend.lse_stride = tokens();
      attends.push_back(expand_.attend_into(rank, attend, lens, suffixes.back().output,
                                            attn::Element::kF32, rank.heads * work_.sizes.value));
    }
    work_.add_attend_step("attend_new_tokens", run_all(attends));
    expand_.add_widening_step();
    if (work_.plan.chunks) add_merge(context_.add_steps(), suffixes);
  }

 private:
  template <typename T>
  static const T& of(const std::vector<T>& all, const MlaRank& rank) {
    return all[static_cast<std::size_t>(rank.index)];
  }
  i64 tokens() const { return work_.plan.batch.num_prefill_tokens; }
  i64 first_token() const { return work_.plan.batch.num_decode_tokens; }
  i64 output_stride() const { return work_.sizes.heads * work_.sizes.value; }
  float* lse_of(const MlaRank& rank) const {
    return work_.lse + rank.first_head * work_.num_rows + first_token();
  }
  char* output_of(const MlaRank& rank) const {
    return MlaWork::at(work_.output,
                       (first_token() * work_.sizes.heads + rank.first_head) * work_.sizes.value,
                       work_.element);
  }

  /// The new tokens need no cache: their latents are expanded as they come from the projection.
  std::vector<Expanded> add_new_keys() {
    const void* kv_c =
        MlaWork::at(work_.new_kv_c, first_token() * work_.sizes.latent, work_.element);
    const void* k_pe = expand_.add_new_rope(
        MlaWork::at(work_.new_k_pe, first_token() * work_.sizes.rope, work_.element));
    std::vector<Expanded> fresh;
    std::vector<std::function<void()>> expansions;
    for (const MlaRank& rank : work_.ranks) {
      const Latents latents{kv_c, work_.sizes.latent, k_pe, work_.sizes.rope, tokens()};
      fresh.push_back(expand_.make_expanded(rank, latents, "new"));
      expansions.push_back(expand_.expansion(rank, latents, fresh.back()));
    }
    work_.add_step(
        side_step("project_new_tokens", run_all(expansions), 0, expand_.flops(tokens())));
    return fresh;
  }

  /// Context (prefix) with new tokens (suffix). The heads of one of several ranks are merged by
  /// themselves and then put beside the others.
  void add_merge(const std::vector<Partial>& contexts, const std::vector<Partial>& suffixes) {
    std::vector<attn::MergeParams> merges;
    std::vector<attn::CopyParams> places;
    for (const MlaRank& rank : work_.ranks) {
      attn::MergeParams merged = expand_.merge_params(rank, of(contexts, rank), of(suffixes, rank));
      merged.num_merged = work_.plan.chunks->prefill_tokens_with_context;
      merged.output_element = work_.element;
      merged.output = output_of(rank);
      merged.output_lse = lse_of(rank);
      merged.output_lse_stride = work_.num_rows;
      if (work_.has_ranks()) {
        const i64 row = rank.heads * work_.sizes.value;
        merged.output = work_.workspace(tokens() * row, work_.element, "merged");
        attn::CopyParams place{};
        place.source_element = place.output_element = work_.element;
        place.source = merged.output;
        place.source_strides[1] = row;
        place.output = output_of(rank);
        place.output_strides[1] = output_stride();
        place.extents[0] = place.extents[2] = 1;
        place.extents[1] = tokens();
        place.width = row;
        places.push_back(place);
      }
      merges.push_back(merged);
    }
    work_.add_each("merge_context", true, &Ops::merge, std::move(merges));
    if (!places.empty()) work_.add_each("place_heads", false, &Ops::copy, std::move(places));
  }

  MlaWork& work_;
  MlaExpand expand_;
  MlaContext context_;
};

}  // namespace

void add_mla_prefill(MlaWork& work) { MlaPrefill(work).add_steps(); }

attn::Element MlaContext::row_element() const {
  return expand_.is_fp8() ? attn::Element::kE4M3 : work_.element;
}

std::vector<Partial> MlaContext::add_steps() {
  make_workspaces();
  std::vector<Partial> running;
  std::vector<Partial> spare;
  std::vector<Partial> of_chunk;
  for (const MlaRank& rank : work_.ranks) {
    running.push_back(expand_.make_partial(rank, "context"));
    spare.push_back(expand_.make_partial(rank, "merged context"));
    of_chunk.push_back(expand_.make_partial(rank, "chunk"));
  }
  // The results of a user's calls may come to their places only behind the whole step, whose merges
  // then run once more: by then no other call and no merge may have written there. Outputs are
  // safe, as calls have their own, which are widened.
  const auto renew_lse = [&](std::vector<Partial>& partials) {
    if (!work_.users_prefill) return;
    for (const MlaRank& rank : work_.ranks) {
      partials[static_cast<std::size_t>(rank.index)].lse = work_.memory.workspace_of<float>(
          work_.plan.batch.num_prefill_tokens * rank.heads, "LSE of a call");
    }
  };
  for (std::size_t i = 0; i < work_.plan.chunks->chunks.size(); ++i) {
    if (i > 1) renew_lse(of_chunk);
    add_chunk(i, i == 0 ? running : of_chunk);
    // The first chunk is the running result. Later ones are merged with it into the spare one, as a
    // merge cannot write what it reads; the two then change places.
    if (i == 0) continue;
    std::vector<attn::MergeParams> merges;
    for (const MlaRank& rank : work_.ranks) {
      const auto r = static_cast<std::size_t>(rank.index);
      attn::MergeParams merged = expand_.merge_params(rank, running[r], of_chunk[r]);
      merged.output = spare[r].output;
      merged.output_lse = spare[r].lse;
      merged.output_lse_stride = merged.num_tokens;
      merges.push_back(merged);
    }
    work_.add_each("merge_chunk", true, &Ops::merge, std::move(merges));
    std::swap(running, spare);
    if (i == 1) renew_lse(spare);  // of the first call until now
  }
  return running;
}

void MlaContext::make_workspaces() {
  // One set of buffers serves all chunks: they run one after the other on one stream.
  i64 most = 0;
  i64 most_local = 0;
  for (const MlaChunk& chunk : work_.plan.chunks->chunks) {
    most = std::max<i64>(most, chunk.num_tokens);
    most_local = std::max<i64>(most_local, chunk.num_local_tokens);
  }
  const i64 entry = work_.sizes.entry();
  for (const MlaRank& rank : work_.ranks) {
    Workspace w;
    w.rows = work_.workspace(most * entry, row_element(), "context rows");
    if (work_.has_ranks()) {
      const i64 world_size = work_.comm->world_size();
      w.local = work_.workspace(most_local * entry, work_.element, "local context");
      w.gathered =
          work_.workspace(world_size * most_local * entry, work_.element, "gathered context");
    }
    if (expand_.is_fp8()) {
      w.kv_c = work_.workspace(most * work_.sizes.latent, work_.element, "context kv_c");
    }
    w.expanded = expand_.make_expanded(rank, latents_of(w, most), "context");
    workspaces_.push_back(w);
  }
}

Latents MlaContext::latents_of(const Workspace& w, i64 rows) const {
  const i64 entry = work_.sizes.entry();
  Latents latents{w.rows, entry, MlaWork::at(w.rows, work_.sizes.latent, row_element()), entry,
                  rows};
  if (w.kv_c != nullptr) {
    latents.kv_c = w.kv_c;
    latents.kv_c_stride = work_.sizes.latent;
  }
  return latents;
}

void MlaContext::add_chunk(std::size_t index, const std::vector<Partial>& to) {
  const MlaChunk& chunk = work_.plan.chunks->chunks[index];
  if (work_.has_ranks()) {
    add_gather_from_ranks(index);
  } else {
    add_gather(chunk);
  }
  if (expand_.is_fp8()) add_cast(chunk);
  std::vector<std::function<void()>> expansions;
  std::vector<std::function<void()>> attends;
  for (const MlaRank& rank : work_.ranks) {
    const Workspace& w = workspace_of(rank);
    expansions.push_back(expand_.expansion(rank, latents_of(w, chunk.num_tokens), w.expanded));
    const Partial& result = to[static_cast<std::size_t>(rank.index)];
    attn::AttendParams attend = expand_.attend_params(rank, w.expanded, chunk.lens, false);
    attend.lse = result.lse;
    attend.lse_stride = work_.plan.batch.num_prefill_tokens;
    attends.push_back(expand_.attend_into(rank, attend, chunk.lens, result.output,
                                          attn::Element::kF32, rank.heads * work_.sizes.value));
  }
  work_.add_step(side_step("project_context", run_all(std::move(expansions)), 0,
                           expand_.flops(chunk.num_tokens)));
  work_.add_attend_step("attend_context", run_all(std::move(attends)));
  expand_.add_widening_step();
}

/// Dequantised to the activation type, except for e4m3 prefill, which takes the codes as they are
/// stored.
void MlaContext::add_gather(const MlaChunk& chunk) {
  const MlaRank& rank = work_.ranks.front();
  void* rows = workspace_of(rank).rows;
  if (expand_.is_fp8()) {
    work_.add_each(
        "gather_context", false, &Ops::cp_gather,
        std::vector{cp_gather(rank, chunk.cu_seq_lens, chunk.starts, chunk.num_tokens, rows)});
    return;
  }
  attn::MlaGatherParams gather{};
  gather.entries = work_.entries(rank, work_.plan.batch.num_decodes);
  gather.output_element = work_.element;
  gather.output = rows;
  gather.output_token_stride = work_.sizes.entry();
  gather.cu_seq_lens = work_.memory.upload(chunk.cu_seq_lens, "chunk cu_seq_lens");
  gather.token_to_seq = work_.memory.upload(chunk.token_to_seq, "token_to_seq");
  gather.seq_starts = work_.memory.upload(chunk.starts, "chunk starts");
  gather.num_tokens = chunk.num_tokens;
  if (work_.entry_format() == attn::MlaEntry::kE4M3) gather.k_scale = work_.k_scale;
  work_.add_each("gather_context", false, &Ops::gather_mla, std::vector{gather});
}

attn::CpGatherParams MlaContext::cp_gather(const MlaRank& rank,
                                           const std::vector<std::int32_t>& lens_cu,
                                           const std::vector<std::int32_t>& starts, i64 num_tokens,
                                           void* output) {
  attn::CpGatherParams gather{};
  gather.entries = work_.entries(rank, work_.plan.batch.num_decodes);
  gather.output = output;
  gather.output_token_stride = work_.sizes.entry();
  gather.cu_seq_lens = work_.memory.upload(lens_cu, "rows to gather");
  gather.seq_starts = work_.memory.upload(starts, "first rows to gather");
  gather.num_requests = static_cast<int>(starts.size());
  gather.num_tokens = num_tokens;
  return gather;
}

/// A rank's rows are padded to the same number for all, as an all-gather needs it; the
/// reorganisation puts the stripes back into the order of the keys and leaves the padding out.
void MlaContext::add_gather_from_ranks(std::size_t index) {
  const MlaChunk& chunk = work_.plan.chunks->chunks[index];
  const i64 entry = work_.sizes.entry();
  const std::vector<i64> sources = [&] {
    const std::vector<std::int64_t> rows = reorg_source_rows(*work_.plan.chunks, index);
    return std::vector<i64>(rows.begin(), rows.end());
  }();
  const i64* source_rows = work_.memory.upload(sources, "reorg rows");
  std::vector<attn::CpGatherParams> gathers;
  std::vector<attn::GatherRowsParams> reorgs;
  std::vector<const void*> send;
  std::vector<void*> receive;
  for (const MlaRank& rank : work_.ranks) {
    const Workspace& w = workspace_of(rank);
    gathers.push_back(cp_gather(rank, chunk.padded_local_cu, chunk.local_starts,
                                chunk.num_local_tokens, w.local));
    send.push_back(w.local);
    receive.push_back(w.gathered);
    attn::GatherRowsParams reorg{};
    reorg.element = work_.element;
    reorg.source = w.gathered;
    reorg.source_row_stride = entry;
    reorg.output = w.rows;
    reorg.output_row_stride = entry;
    reorg.rows = source_rows;
    reorg.num_rows = static_cast<i64>(sources.size());
    reorg.width = static_cast<int>(entry);
    reorgs.push_back(reorg);
  }
  work_.add_each("gather_context", false, &Ops::cp_gather, std::move(gathers));
  const auto bytes = static_cast<std::size_t>(chunk.num_local_tokens * entry * work_.size);
  const double received =
      work_.is_real_rank() ? static_cast<double>(bytes) * (work_.comm->world_size() - 1) : 0;
  work_.add_step(side_step(
      "all_gather_context",
      [comm = work_.comm, send, receive, bytes] { comm->all_gather(send, receive, bytes); },
      received));
  work_.add_each("reorg_context", false, &Ops::gather_rows, std::move(reorgs));
}

/// kv_b_proj takes 16-bit latents; k_pe goes into the keys as it is stored.
void MlaContext::add_cast(const MlaChunk& chunk) {
  std::vector<attn::CopyParams> casts;
  for (const MlaRank& rank : work_.ranks) {
    const Workspace& w = workspace_of(rank);
    attn::CopyParams cast{};
    cast.source_element = row_element();
    cast.output_element = work_.element;
    cast.source = w.rows;
    cast.source_strides[1] = work_.sizes.entry();
    cast.output = w.kv_c;
    cast.output_strides[1] = work_.sizes.latent;
    cast.extents[0] = cast.extents[2] = 1;
    cast.extents[1] = chunk.num_tokens;
    cast.width = work_.sizes.latent;
    casts.push_back(cast);
  }
  work_.add_each("cast_context", false, &Ops::copy, std::move(casts));
}

}  // namespace attnbench
