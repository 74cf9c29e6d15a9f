// The prefill stage of MLA (semantics §8.6): many query rows, so keys and values are expanded from
// latents to all heads of a rank (mla/expand.h) and attended as usual. New tokens attend to each
// other causally; the context behind them is taken out of the cache in chunks that fit a workspace,
// of one rank or gathered from all, and the float32 partial results are merged. Only the last merge
// rounds to the type of the output.
#pragma once

#include <vector>

#include "backends/mla/expand.h"

namespace attnbench {

/// Queues the steps for the requests behind the decodes; they write the rows of MlaWork::output and
/// LSE from num_decode_tokens on. The plan has at least one prefill.
void add_mla_prefill(MlaWork& work);

/// The part of it that attends to the context. `work` and `expand` must outlive it.
class MlaContext {
 public:
  MlaContext(MlaWork& work, MlaExpand& expand) : work_(work), expand_(expand) {}

  /// Needs a chunk plan. The partial of every rank's heads over the whole context.
  std::vector<Partial> add_steps();

 private:
  /// Buffers of a rank, for the longest chunk.
  struct Workspace {
    void* local = nullptr;     // its own rows; the whole chunk without DCP
    void* gathered = nullptr;  // DCP: [W, local rows, entry]
    void* rows = nullptr;      // [chunk rows, entry] in the order of the requests
    void* kv_c = nullptr;      // [chunk rows, Lkv] in the activation type, cast from rows; or null
    Expanded expanded;
  };

  void make_workspaces();
  /// The first `rows` rows.
  Latents latents_of(const Workspace& w, attn::i64 rows) const;
  void add_chunk(std::size_t index, const std::vector<Partial>& to);
  /// One rank: rows come dequantised, or as they are stored where prefill runs in e4m3.
  void add_gather(const MlaChunk& chunk);
  /// Every rank copies its padded rows, receives those of all and undoes the striping.
  void add_gather_from_ranks(std::size_t index);
  void add_cast(const MlaChunk& chunk);
  attn::CpGatherParams cp_gather(const MlaRank& rank, const std::vector<std::int32_t>& lens_cu,
                                 const std::vector<std::int32_t>& starts, attn::i64 num_tokens,
                                 void* output);
  attn::Element row_element() const;
  Workspace& workspace_of(const MlaRank& rank) {
    return workspaces_[static_cast<std::size_t>(rank.index)];
  }

  MlaWork& work_;
  MlaExpand& expand_;
  std::vector<Workspace> workspaces_;
};

}  // namespace attnbench
