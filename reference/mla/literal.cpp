// Chunked prefill walks a chunk plan with its workspace rows; decode in parts builds, for every
// split or rank, the batch of entries that it holds, and combines what comes out.
#include "reference/mla/literal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "metadata/mla/prefill.h"
#include "metadata/parts/decode_plan.h"
#include "reference/mla/batch.h"
#include "reference/mla/forms.h"
#include "reference/mla/partial_states.h"

namespace attnbench {
namespace {

class ChunkedPrefill {
 public:
  ChunkedPrefill(const MlaReferenceInputs& inputs, std::span<const std::int32_t> rows,
                 const MlaChunking& chunking, const ReferenceOptions& options)
      : inputs_(inputs),
        rows_(rows),
        dims_(check_mla_inputs(inputs, rows)),
        first_request_(num_mla_decodes(inputs)),
        requests_(requests_of_rows(inputs.query_start_loc, rows)),
        reader_(inputs, dims_),
        forms_(inputs, dims_, nullptr, options),
        heads_(forms_.all_heads()) {
    if (!requests_.empty() && requests_.front() < first_request_) {
      fail(ErrorKind::kValue, "rows: expected prefill rows only, got row {} of request {}",
           rows.front(), requests_.front());
    }
    const auto skipped = static_cast<std::size_t>(first_request_);
    for (const std::int32_t start : inputs.query_start_loc.subspan(skipped)) {
      query_start_loc_.push_back(start - inputs.query_start_loc[skipped]);
    }
    seq_lens_ = inputs.seq_lens.subspan(skipped);
    if (seq_lens_.empty()) return;
    plan_ = plan_mla_chunks(query_start_loc_, seq_lens_, chunking.workspace_tokens,
                            chunking.block_size, chunking.group);
  }

  std::optional<ReferenceOutput> run() {
    std::optional<ReferenceOutput> suffix = attend_new_tokens();
    if (!suffix || !plan_) return suffix;
    std::optional<ReferenceOutput> context;
    for (std::size_t i = 0; i < plan_->chunks.size(); ++i) {
      std::optional<ReferenceOutput> chunk = attend_chunk(i);
      if (!chunk) return std::nullopt;
      context = context ? merge_partials(*context, *chunk, inputs_.query_start_loc.back())
                        : std::move(chunk);
    }
    const std::int32_t first_token =
        inputs_.query_start_loc[static_cast<std::size_t>(first_request_)];
    return merge_partials(*context, *suffix, first_token + plan_->prefill_tokens_with_context);
  }

 private:
  std::int32_t query_len(std::size_t prefill) const {
    return query_start_loc_[prefill + 1] - query_start_loc_[prefill];
  }
  std::int32_t context_len(std::size_t prefill) const {
    return seq_lens_[prefill] - query_len(prefill);
  }

  std::optional<ReferenceOutput> attend_new_tokens() {
    MlaBatch batch;
    batch.entries = reader_.make_entries(query_start_loc_.back());
    for (std::size_t b = 0; b < seq_lens_.size(); ++b) {
      for (std::int32_t i = 0; i < query_len(b); ++i) {
        reader_.copy(first_request_ + static_cast<std::int64_t>(b), context_len(b) + i,
                     batch.entries, query_start_loc_[b] + i);
      }
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto request = static_cast<std::size_t>(requests_[i]);
      const std::int32_t start = inputs_.query_start_loc[request];
      const auto prefill = request - static_cast<std::size_t>(first_request_);
      batch.add_row(rows_[i], query_start_loc_[prefill], rows_[i] - start + 1);
    }
    return forms_.mha(batch, heads_);
  }

  std::optional<ReferenceOutput> attend_chunk(std::size_t index) {
    const MlaChunk& chunk = plan_->chunks[index];
    MlaBatch batch;
    batch.entries = plan_->group.world_size > 1 ? gather_from_ranks(index) : gather(chunk);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto prefill = static_cast<std::size_t>(requests_[i] - first_request_);
      batch.add_row(rows_[i], chunk.cu_seq_lens[prefill], chunk.lens[prefill]);
    }
    return forms_.mha(batch, heads_);
  }

  /// gather_and_maybe_dequant_cache (§8.4.2).
  Tensor gather(const MlaChunk& chunk) const {
    Tensor workspace = reader_.make_entries(chunk.num_tokens);
    for (std::int32_t t = 0; t < chunk.num_tokens; ++t) {
      const std::int32_t b = chunk.token_to_seq[static_cast<std::size_t>(t)];
      const auto prefill = static_cast<std::size_t>(b);
      const std::int64_t position = t - chunk.cu_seq_lens[prefill] + chunk.starts[prefill];
      reader_.copy(first_request_ + b, position, workspace, t);
    }
    return workspace;
  }

  /// cp_gather_cache of every rank, all-gather and reorg_kvcache (§8.6).
  Tensor gather_from_ranks(std::size_t index) const {
    const MlaChunk& chunk = plan_->chunks[index];
    const DcpGroup& group = plan_->group;
    Tensor gathered = reader_.make_entries(std::int64_t{group.world_size} * chunk.num_local_tokens);
    for (int rank = 0; rank < group.world_size; ++rank) {
      for (std::size_t b = 0; b < seq_lens_.size(); ++b) {
        const std::int32_t held = dcp_local_seq_len(context_len(b), rank, group);
        const std::int64_t first =
            std::int64_t{rank} * chunk.num_local_tokens + chunk.padded_local_cu[b];
        for (std::int32_t i = 0; i < chunk.padded_local_lens[b]; ++i) {
          const std::int32_t local = chunk.local_starts[b] + i;
          if (local >= held) break;  // padding: stays NaN
          reader_.copy(first_request_ + static_cast<std::int64_t>(b),
                       dcp_global_position(local, rank, group), gathered, first + i);
        }
      }
    }
    const std::vector<std::int64_t> sources = reorg_source_rows(*plan_, index);
    Tensor workspace = reader_.make_entries(static_cast<std::int64_t>(sources.size()));
    const std::size_t row_bytes =
        static_cast<std::size_t>(dims_.entry_size()) * dtype_size(gathered.dtype());
    for (std::size_t row = 0; row < sources.size(); ++row) {
      std::copy_n(gathered.bytes() + static_cast<std::size_t>(sources[row]) * row_bytes, row_bytes,
                  workspace.bytes() + row * row_bytes);
    }
    return workspace;
  }

  const MlaReferenceInputs& inputs_;
  std::span<const std::int32_t> rows_;
  MlaDims dims_;
  std::int64_t first_request_;
  std::vector<std::int64_t> requests_;  // of each row
  MlaEntryReader reader_;
  MlaForms<double> forms_;
  std::vector<int> heads_;
  std::vector<std::int32_t> query_start_loc_;  // of the prefills, from 0
  std::span<const std::int32_t> seq_lens_;     // of the prefills
  std::optional<MlaChunkPlan> plan_;
};

/// Rows [begin, end) of the list belong to one request.
struct RequestRows {
  std::int64_t request = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Real and rule as of MlaForms.
template <typename Real>
class PartedDecode {
 public:
  PartedDecode(const MlaReferenceInputs& inputs, const EmulationRule* rule,
               std::span<const std::int32_t> rows, const ReferenceOptions& options)
      : inputs_(inputs),
        rows_(rows),
        dims_(check_mla_inputs(inputs, rows)),
        reader_(inputs, dims_),
        forms_(inputs, dims_, rule, options),
        heads_(forms_.all_heads()) {
    if (inputs.topk_indices != nullptr) {
      fail(ErrorKind::kConfig, "decode in parts: expected dense attention, got topk_indices");
    }
    const std::vector<std::int64_t> requests = requests_of_rows(inputs.query_start_loc, rows);
    if (!requests.empty() && requests.back() >= num_mla_decodes(inputs)) {
      fail(ErrorKind::kValue, "rows: expected decode rows only, got row {} of request {}",
           rows.back(), requests.back());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (groups_.empty() || groups_.back().request != requests[i]) {
        groups_.push_back({requests[i], i, i});
      }
      groups_.back().end = i + 1;
    }
  }

  std::optional<ReferenceOutput> by_plan(int num_parts, int fixed_overhead) {
    const auto num_decodes = static_cast<std::size_t>(num_mla_decodes(inputs_));
    const DecodePlan plan =
        plan_decode(inputs_.seq_lens.first(num_decodes), num_parts, fixed_overhead);
    ReferenceOutput result = empty_output(rows_, dims_.num_heads, dims_.v_head_dim);
    for (const RequestRows& group : groups_) {
      std::vector<ReferenceOutput> splits;
      for (const DecodePart& part : plan.parts) {
        if (group.request < part.begin_req || group.request > part.end_req) continue;
        std::optional<ReferenceOutput> split =
            forms_.attend_latent(keys_of_split(plan, part, group), heads_);
        if (!split) return std::nullopt;
        splits.push_back(std::move(*split));
      }
      const auto b = static_cast<std::size_t>(group.request);
      if (static_cast<std::int32_t>(splits.size()) != plan.num_splits[b + 1] - plan.num_splits[b]) {
        fail(ErrorKind::kInternal, "decode plan: expected {} splits of request {}, got {}",
             plan.num_splits[b + 1] - plan.num_splits[b], b, splits.size());
      }
      place_part(forms_.up_project(combine_partials(splits), heads_), heads_,
                 static_cast<std::int64_t>(group.begin), result);
    }
    return result;
  }

  /// Attention of all heads over the keys of one rank, in the latent space.
  std::optional<ReferenceOutput> of_rank(const DcpGroup& group, int rank) {
    check_token_counts(group);
    return forms_.attend_latent(keys_of_rank(group, rank), heads_);
  }

  std::optional<ReferenceOutput> by_ranks(const DcpGroup& group) {
    ReferenceOutput result = empty_output(rows_, dims_.num_heads, dims_.v_head_dim);
    std::vector<ReferenceOutput> partials;
    for (int rank = 0; rank < group.world_size; ++rank) {
      std::optional<ReferenceOutput> partial = of_rank(group, rank);
      if (!partial) return std::nullopt;
      partials.push_back(std::move(*partial));
    }
    const ReferenceOutput combined = combine_partials(partials);
    for (int rank = 0; rank < group.world_size; ++rank) {
      const HeadSpan own =
          dcp_heads_of_rank(static_cast<int>(dims_.num_heads), rank, group.world_size);
      const auto own_heads = std::span<const int>(heads_).subspan(
          static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.end - own.begin));
      place_part(forms_.up_project(slice_heads(combined, own.begin, own.end), own_heads), own_heads,
                 0, result);
    }
    return result;
  }

 private:
  MlaBatch keys_of_split(const DecodePlan& plan, const DecodePart& part,
                         const RequestRows& group) const {
    const auto b = static_cast<std::size_t>(group.request);
    const std::int64_t seq_len = inputs_.seq_lens[b];
    const bool is_first = group.request == part.begin_req;
    const bool is_last = group.request == part.end_req;
    const std::int64_t begin = (is_first ? part.begin_block : 0) * kDecodePlanBlock;
    const std::int64_t end = std::min<std::int64_t>(
        seq_len, (is_last ? part.end_block : plan.num_blocks[b]) * kDecodePlanBlock);
    MlaBatch batch;
    batch.is_decode = true;
    batch.entries = reader_.make_entries(end - begin);
    for (std::int64_t position = begin; position < end; ++position) {
      reader_.copy(group.request, position, batch.entries, position - begin);
    }
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const std::int64_t visible = num_causal_keys(inputs_, group.request, rows_[i]);
      batch.add_row(rows_[i], 0, std::clamp<std::int64_t>(visible - begin, 0, end - begin));
    }
    return batch;
  }

  void check_token_counts(const DcpGroup& group) const {
    if (group.interleave_size == 1) return;
    for (const RequestRows& rows : groups_) {
      const auto b = static_cast<std::size_t>(rows.request);
      const std::int32_t query_len = inputs_.query_start_loc[b + 1] - inputs_.query_start_loc[b];
      if (query_len > 1) {
        fail(ErrorKind::kConfig,
             "dcp interleave_size: expected 1 for decode requests of several query tokens, got {} "
             "for request {} of {} tokens",
             group.interleave_size, b, query_len);
      }
    }
  }

  MlaBatch keys_of_rank(const DcpGroup& group, int rank) const {
    MlaBatch batch;
    batch.is_decode = true;
    std::int64_t num_entries = 0;
    for (const RequestRows& rows : groups_) {
      num_entries +=
          dcp_local_seq_len(inputs_.seq_lens[static_cast<std::size_t>(rows.request)], rank, group);
    }
    batch.entries = reader_.make_entries(num_entries);
    std::int64_t first = 0;
    for (const RequestRows& rows : groups_) {
      const auto b = static_cast<std::size_t>(rows.request);
      const std::int64_t held = dcp_local_seq_len(inputs_.seq_lens[b], rank, group);
      for (std::int64_t local = 0; local < held; ++local) {
        reader_.copy(rows.request, dcp_global_position(local, rank, group), batch.entries,
                     first + local);
      }
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        batch.add_row(rows_[i], first, visible_on_rank(group, rank, rows.request, rows_[i], held));
      }
      first += held;
    }
    return batch;
  }

  /// Several tokens: local key j stands at j * W + r and is seen up to i + tot - Sq. One token sees
  /// whatever its rank holds.
  std::int64_t visible_on_rank(const DcpGroup& group, int rank, std::int64_t request,
                               std::int32_t token, std::int64_t held) const {
    const auto b = static_cast<std::size_t>(request);
    const std::int64_t query_len = inputs_.query_start_loc[b + 1] - inputs_.query_start_loc[b];
    if (query_len == 1) return held;
    const std::int64_t i = token - inputs_.query_start_loc[b];
    const std::int64_t last = i + inputs_.seq_lens[b] - query_len;
    std::int64_t visible = 0;
    while (visible < held && visible * group.world_size + rank <= last) ++visible;
    return visible;
  }

  const MlaReferenceInputs& inputs_;
  std::span<const std::int32_t> rows_;
  MlaDims dims_;
  MlaEntryReader reader_;
  MlaForms<Real> forms_;
  std::vector<int> heads_;
  std::vector<RequestRows> groups_;
};

}  // namespace

std::optional<ReferenceOutput> mla_chunked_prefill(const MlaReferenceInputs& inputs,
                                                   std::span<const std::int32_t> rows,
                                                   const MlaChunking& chunking,
                                                   const ReferenceOptions& options) {
  return ChunkedPrefill(inputs, rows, chunking, options).run();
}

std::optional<ReferenceOutput> mla_split_decode(const MlaReferenceInputs& inputs,
                                                std::span<const std::int32_t> rows, int num_parts,
                                                int fixed_overhead,
                                                const ReferenceOptions& options) {
  return PartedDecode<double>(inputs, nullptr, rows, options).by_plan(num_parts, fixed_overhead);
}

std::optional<ReferenceOutput> mla_dcp_decode(const MlaReferenceInputs& inputs,
                                              std::span<const std::int32_t> rows,
                                              const DcpGroup& group,
                                              const ReferenceOptions& options) {
  return PartedDecode<double>(inputs, nullptr, rows, options).by_ranks(group);
}

std::optional<ReferenceOutput> mla_rank_partial(const MlaReferenceInputs& inputs,
                                                std::span<const std::int32_t> rows,
                                                const DcpGroup& group, int rank,
                                                const ReferenceOptions& options) {
  return PartedDecode<double>(inputs, nullptr, rows, options).of_rank(group, rank);
}

std::optional<ReferenceOutput> emulate_mla_rank(const MlaReferenceInputs& inputs,
                                                const EmulationRule& rule,
                                                std::span<const std::int32_t> rows,
                                                const DcpGroup& group, int rank,
                                                const ReferenceOptions& options) {
  return PartedDecode<float>(inputs, &rule, rows, options).of_rank(group, rank);
}

}  // namespace attnbench
