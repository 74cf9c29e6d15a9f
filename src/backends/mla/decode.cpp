// One class that adds the steps, for one rank or for several. With ranks every token becomes a
// request of its own, because a rank's share of a request's keys differs from token to token.
#include "backends/mla/decode.h"

#include <memory>
#include <numeric>

#include "backends/mla/query.h"
#include "backends/ranks/exchange.h"
#include "core/error.h"
#include "metadata/int_math.h"
#include "metadata/parts/dcp.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

using attn::i64;

/// Rows of queries with the keys that they see, as one rank's attention takes them.
struct DecodeRows {
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
};

class MlaDecode {
 public:
  explicit MlaDecode(MlaWork& work)
      : work_(work),
        tokens_(work.plan.batch.num_decode_tokens),
        padded_heads_(work.padded_heads()) {}

  void add_steps() {
    if (work_.has_ranks()) {
      const std::vector<const void*> all = gather_heads(add_latent_query(work_, tokens_));
      add_rank_attention(add_padded_heads(work_, all, tokens_, padded_heads_));
    } else {
      const LatentQuery query =
          add_joined_query(work_, tokens_, work_.plan.quantised_query, padded_heads_);
      add_attention(query.data, query.element);
    }
  }

 private:
  void add_attention(const void* query, attn::Element element) {
    DecodeRows rows;
    const auto decodes = static_cast<std::size_t>(work_.plan.batch.num_decodes);
    rows.query_start_loc.assign(
        work_.inputs.query_start_loc.begin(),
        work_.inputs.query_start_loc.begin() + static_cast<std::ptrdiff_t>(decodes + 1));
    rows.seq_lens.assign(work_.inputs.seq_lens.begin(),
                         work_.inputs.seq_lens.begin() + static_cast<std::ptrdiff_t>(decodes));
    const MlaRank& rank = work_.ranks.front();
    attn::AttendParams attend = attend_params(rows, query, element);
    attend.kv = paged_kv(rank, work_.block_table);
    attend.output_element = work_.element;
    attend.output =
        work_.workspace(tokens_ * padded_heads_ * work_.sizes.latent, work_.element, "o_l");
    attend.lse = work_.lse;
    attend.lse_stride = work_.num_rows;
    add_parts({attend}, {rows});
    add_value_projection(work_, {{attend.output, attend.output_token_stride}}, tokens_);
  }

  /// all_gather(q, head dim): every rank attends with all heads to its own keys.
  std::vector<const void*> gather_heads(const std::vector<const void*>& own) {
    const auto gather = std::make_shared<DcpQueryGather>(
        *work_.comm, work_.memory, work_.element, tokens_,
        static_cast<int>(work_.ranks.front().heads), static_cast<int>(work_.sizes.entry()));
    work_.add_step(side_step(
        "all_gather_query", [gather, own] { gather->run(own); },
        work_.is_real_rank() ? gather->received_bytes() : 0));
    std::vector<const void*> all;
    for (const MlaRank& rank : work_.ranks) all.push_back(gather->query_of_all(rank.index));
    return all;
  }

  void add_rank_attention(const std::vector<const void*>& queries) {
    const int own_heads = static_cast<int>(work_.ranks.front().heads);
    const auto exchange = std::make_shared<DcpExchange>(
        work_.problem.dcp.comm, *work_.comm, work_.memory,
        DcpExchangeShape{tokens_, own_heads, static_cast<int>(padded_heads_),
                         static_cast<int>(work_.sizes.latent)});
    const int* table = token_block_table();
    std::vector<attn::AttendParams> attends;
    std::vector<DecodeRows> rows;
    for (const MlaRank& rank : work_.ranks) {
      rows.push_back(local_rows(rank.number));
      attn::AttendParams attend =
          attend_params(rows.back(), queries[static_cast<std::size_t>(rank.index)], work_.element);
      attend.kv = paged_kv(rank, table);
      attend.output_element = attn::Element::kF32;
      attend.output = exchange->partial(rank.index);
      attend.lse = exchange->partial_lse(rank.index);
      attend.lse_stride = tokens_;
      attends.push_back(attend);
      work_.partials.emplace_back(exchange->partial(rank.index), exchange->partial_lse(rank.index));
    }
    add_parts(attends, rows);
    for (DcpStage& stage : exchange->stages()) {
      // The stage needs the exchange, which nobody else keeps.
      const auto run = [exchange, run = std::move(stage.run)] { run(); };
      work_.add_step(side_step(stage.name, run, work_.is_real_rank() ? stage.received_bytes : 0));
    }
    add_rounded_outputs(*exchange);
  }

  /// Every token is a request of its own that ends at its last visible key: key j of rank r stands
  /// at position p(j, r), and those up to position p are the first local_r(p + 1) ones (§7.7).
  DecodeRows local_rows(int rank) const {
    DecodeRows rows;
    rows.query_start_loc.resize(static_cast<std::size_t>(tokens_) + 1);
    std::iota(rows.query_start_loc.begin(), rows.query_start_loc.end(), 0);
    for_each_token([&](int, std::int64_t position) {
      rows.seq_lens.push_back(dcp_local_seq_len(static_cast<std::int32_t>(position + 1), rank,
                                                DcpGroup::of(work_.problem)));
    });
    return rows;
  }

  /// The row of its request for every token, [Td, columns].
  const int* token_block_table() {
    const Tensor& table = work_.cache_before.block_table;
    const i64 columns = work_.block_table_columns();
    std::vector<int> rows;
    for_each_token([&](int request, std::int64_t) {
      const int* row = table.data<std::int32_t>() + request * columns;
      rows.insert(rows.end(), row, row + columns);
    });
    // Rows are repeated, not pointed to: kernels find a table by the number of its request.
    return work_.memory.upload(rows, "block_table of tokens");
  }

  /// Calls body(request, absolute position) for the decode tokens.
  template <typename Body>
  void for_each_token(const Body& body) const {
    for (int b = 0; b < work_.plan.batch.num_decodes; ++b) {
      const Request& request = work_.problem.batch[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i < request.query_len; ++i) {
        body(b, request.seq_len - request.query_len + i);
      }
    }
  }

  /// The one rounding of the combined latents, and their LSE beside those of the other heads.
  void add_rounded_outputs(const DcpExchange& exchange) {
    std::vector<attn::CopyParams> copies;
    std::vector<LatentOutput> outputs;
    for (const MlaRank& rank : work_.ranks) {
      const i64 row = rank.heads * work_.sizes.latent;
      void* rounded = work_.workspace(tokens_ * row, work_.element, "combined o_l");
      attn::CopyParams output{};
      output.source_element = attn::Element::kF32;
      output.output_element = work_.element;
      output.source = exchange.output(rank.index);
      output.output = rounded;
      output.source_strides[1] = output.output_strides[1] = row;
      output.extents[0] = output.extents[2] = 1;
      output.extents[1] = tokens_;
      output.width = row;
      copies.push_back(output);
      attn::CopyParams lse{};
      lse.source_element = lse.output_element = attn::Element::kF32;
      lse.source = exchange.lse(rank.index);
      lse.output = work_.lse + rank.first_head * work_.num_rows;
      lse.source_strides[1] = tokens_;
      lse.output_strides[1] = work_.num_rows;
      lse.extents[0] = lse.extents[2] = 1;
      lse.extents[1] = rank.heads;
      lse.width = tokens_;
      copies.push_back(lse);
      outputs.push_back({rounded, row});
    }
    work_.add_each("round_output", false, &Ops::copy, std::move(copies));
    add_value_projection(work_, outputs, tokens_);
  }

  attn::AttendParams attend_params(const DecodeRows& rows, const void* query,
                                   attn::Element element) {
    const bool quantised = element == attn::Element::kE4M3;
    attn::AttendParams p{};
    p.query_element = element;
    p.query = query;
    p.query_token_stride = padded_heads_ * work_.sizes.entry();
    p.query_head_stride = work_.sizes.entry();
    p.output_token_stride = padded_heads_ * work_.sizes.latent;
    p.output_head_stride = work_.sizes.latent;
    p.query_start_loc = work_.memory.upload(rows.query_start_loc, "query_start_loc");
    p.seq_lens = work_.memory.upload(rows.seq_lens, "seq_lens");
    p.num_requests = static_cast<int>(rows.seq_lens.size());
    p.max_query_len = longest_query(rows.query_start_loc);
    p.num_heads = static_cast<int>(padded_heads_);
    p.num_kv_heads = 1;
    p.head_size = static_cast<int>(work_.sizes.entry());
    p.v_head_size = static_cast<int>(work_.sizes.latent);
    const double q_scale = quantised ? work_.problem.kv_cache.q_scale : 1.0;
    p.score.softmax_scale = static_cast<float>(work_.problem.attention.scale * q_scale);
    p.score.window_left = -1;
    p.score.window_right = 0;
    const bool rounds = work_.problem.attention.probability_dtype == ProbabilityDtype::kFp8E4M3;
    p.e4m3_probability = quantised && rounds ? 1 : 0;
    return p;
  }

  /// The value of a key is the first part of its entry.
  attn::KvParams paged_kv(const MlaRank& rank, const int* table) const {
    const attn::MlaEntries entries = work_.entries(rank, 0);
    attn::KvParams kv{};
    kv.element = entries.element;
    kv.key = kv.value = entries.cache;
    kv.token_stride_key = kv.token_stride_value = entries.slot_stride;
    kv.block_stride = entries.block_stride;
    kv.block_table = table;
    kv.block_table_stride = entries.block_table_stride;
    kv.block_size = entries.block_size;
    if (work_.entry_format() == attn::MlaEntry::kE4M3) kv.k_scale = kv.v_scale = work_.k_scale;
    return kv;
  }

  /// The attention of every rank, in one pass or in parts that are combined.
  void add_parts(const std::vector<attn::AttendParams>& attends,
                 const std::vector<DecodeRows>& rows) {
    if (work_.plan.num_parts <= 1) {
      work_.add_attend_step("attend_decode", [&ops = work_.ops, attends] {
        for (const attn::AttendParams& attend : attends) ops.attend(attend);
      });
    } else if (work_.capability.split == MlaDecodeSplit::kPlan) {
      add_planned_steps(attends, rows);
    } else {
      std::vector<attn::SplitParams> splits;
      for (std::size_t i = 0; i < attends.size(); ++i) splits.push_back(split_params());
      add_two_steps(attends, splits, &Ops::attend_splits, &Ops::combine_splits);
    }
  }

  template <typename Parts>
  void add_two_steps(const std::vector<attn::AttendParams>& attends,
                     const std::vector<Parts>& parts,
                     void (Ops::*attend)(const attn::AttendParams&, const Parts&),
                     void (Ops::*combine)(const attn::AttendParams&, const Parts&)) {
    const auto each = [&ops = work_.ops, attends, parts](auto operation) {
      for (std::size_t i = 0; i < attends.size(); ++i) (ops.*operation)(attends[i], parts[i]);
    };
    work_.add_attend_step("attend_decode", [each, attend] { each(attend); });
    work_.add_step(counted_step("combine_decode", [each, combine] { each(combine); }));
  }

  /// Nothing is combined where the attention finishes all requests itself. Why always over ranks:
  /// each of them splits its own lengths, and all need the same steps.
  void add_planned_steps(const std::vector<attn::AttendParams>& attends,
                         const std::vector<DecodeRows>& rows) {
    std::vector<attn::PlanParams> plans;
    bool is_split = work_.has_ranks();
    for (const DecodeRows& of_rank : rows) {
      const DecodePlan plan = plan_dense_decode(of_rank.seq_lens, work_.plan.num_parts);
      is_split = is_split || plan.is_split();
      plans.push_back(work_.plan_params(plan, of_rank.query_start_loc, padded_heads_));
    }
    if (is_split) return add_two_steps(attends, plans, &Ops::attend_plan, &Ops::combine_plan);
    work_.add_attend_step("attend_decode", [&ops = work_.ops, attends, plans] {
      for (std::size_t i = 0; i < attends.size(); ++i) ops.attend_plan(attends[i], plans[i]);
    });
  }

  attn::SplitParams split_params() {
    attn::SplitParams split{};
    split.num_splits = work_.plan.num_parts;
    split.num_tokens = tokens_;
    const i64 rows = i64{split.num_splits} * tokens_ * padded_heads_;
    split.partial_output =
        work_.memory.workspace_of<float>(rows * work_.sizes.latent, "partial output");
    split.partial_lse = work_.memory.workspace_of<float>(rows, "partial lse");
    return split;
  }

  MlaWork& work_;
  i64 tokens_;
  i64 padded_heads_;
};

}  // namespace

void add_mla_decode(MlaWork& work) { MlaDecode(work).add_steps(); }

}  // namespace attnbench
