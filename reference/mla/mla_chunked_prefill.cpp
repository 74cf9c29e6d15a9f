#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "metadata/mla/chunks.h"
#include "reference/mla/mla_batch.h"
#include "reference/mla/mla_forms.h"
#include "reference/mla/mla_literal.h"
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

}  // namespace

std::optional<ReferenceOutput> mla_chunked_prefill(const MlaReferenceInputs& inputs,
                                                   std::span<const std::int32_t> rows,
                                                   const MlaChunking& chunking,
                                                   const ReferenceOptions& options) {
  return ChunkedPrefill(inputs, rows, chunking, options).run();
}

}  // namespace attnbench
