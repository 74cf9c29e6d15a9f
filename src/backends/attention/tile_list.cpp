#include "backends/attention/tile_list.h"

#include <algorithm>
#include <span>
#include <vector>

#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metadata/parts/cascade.h"
#include "ops/tile_deal.h"

namespace attnbench {
namespace {

/// Each request's tokens and keys, from the end of its prefix on where `cascade`.
std::vector<TileSequence> sequences_of(const Problem& problem, bool cascade) {
  const std::vector<std::int32_t> starts = query_start_loc_of(problem);
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  std::vector<TileSequence> sequences;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    TileSequence sequence;
    sequence.first_token = starts[b];
    sequence.num_tokens = checked_int32(request.query_len, "query_len");
    sequence.context_len = checked_int32(request.seq_len - request.query_len, "context");
    sequence.table_row = static_cast<int>(b);
    sequence.key_begin = cascade ? checked_int32(prefixes[b].num_keys, "prefix") : 0;
    sequence.key_end = checked_int32(request.seq_len, "seq_len");
    if (sequence.num_tokens > 0) sequences.push_back(sequence);
  }
  return sequences;
}

/// The prefixes of all groups, and one of no keys for the requests behind them.
std::vector<SharedKeys> prefixes_of(const Problem& problem) {
  const std::vector<std::int32_t> starts = query_start_loc_of(problem);
  std::vector<SharedKeys> prefixes;
  const auto add = [&](std::int64_t first, std::int64_t count, std::int64_t num_keys) {
    SharedKeys keys;
    keys.first_token = starts[static_cast<std::size_t>(first)];
    keys.num_tokens = starts[static_cast<std::size_t>(first + count)] - keys.first_token;
    keys.num_keys = checked_int32(num_keys, "prefix");
    // Padding (§1.1) has no pages, so the table of the first request that has tokens.
    std::int64_t row = first;
    while (row + 1 < first + count && problem.batch[static_cast<std::size_t>(row)].query_len == 0) {
      ++row;
    }
    keys.table_row = static_cast<int>(row);
    if (keys.num_tokens > 0) prefixes.push_back(keys);
  };
  std::int64_t next = 0;
  for (const PrefixGroup& group : prefix_groups(problem)) {
    add(group.first_request, group.num_requests, group.num_keys);
    next = group.first_request + group.num_requests;
  }
  if (next < problem.num_requests()) add(next, problem.num_requests() - next, 0);
  return prefixes;
}

std::int64_t most_rows(const std::vector<TileSequence>& sequences,
                       const std::vector<SharedKeys>& prefixes, int group) {
  std::int64_t tokens = 0;
  for (const TileSequence& s : sequences) tokens = std::max<std::int64_t>(tokens, s.num_tokens);
  for (const SharedKeys& s : prefixes) tokens = std::max<std::int64_t>(tokens, s.num_tokens);
  return tokens * group;
}

}  // namespace

bool takes_tiles(const Problem& problem) {
  return problem.attention.type == AttentionType::kDecoder && !problem.attention.chunk_size &&
         problem.kv_cache.int8_level == 0 && problem.dcp.world_size == 1 &&
         problem.attention.mm_prefix_ranges.empty() && !problem.attention.batch_invariant &&
         problem.attention.num_splits.value_or(1) == 1 &&
         problem.attention.split_form == SplitForm::kAuto;
}

ApartQuestion apart_question(const Problem& problem, const attn::AttendParams& params,
                             int num_decodes, int num_sms) {
  const std::span<const Request> batch = problem.batch;
  const auto first_prefill = static_cast<std::size_t>(num_decodes);
  ApartQuestion question;
  question.decodes = batch.first(first_prefill);
  question.prefills = batch.subspan(first_prefill);
  question.window = problem.attention.sliding_window;
  question.num_heads = params.num_heads;
  question.num_kv_heads = params.num_kv_heads;
  question.columns = params.head_size + params.v_head_size;
  question.key_bytes = static_cast<int>(element_size(params.kv.element));
  question.tile_rows =
      tile_rows_for(params.head_size, params.v_head_size,
                    std::int64_t{params.max_query_len} * params.num_heads / params.num_kv_heads);
  question.num_sms = num_sms;
  return question;
}

bool goes_by_tiles(const Problem& problem, const attn::AttendParams& params, bool cascade,
                   const Ops& ops) {
  constexpr int kMostColumns = 128;
  if (!takes_tiles(problem)) return false;
  const TileUse use = ops.tile_use(params);
  if (use != TileUse::kWhereItPays) return use == TileUse::kAlways;
  if (params.head_size > kMostColumns || params.v_head_size > kMostColumns) return false;
  // One list over shared prefixes and own keys: on one NVIDIA H200, 2026-11-27, 32 heads on 8 of
  // D128, 4,096 of 4,224 keys shared, by a pass each and by a list: 16 requests 76.6 and 27.1 us,
  // 64 91.2 and 45.0, 128 123.6 and 63.3, 256 150 and 107; 1,024 shared 90.9 and 72.1, 242 and 223,
  // 433 and 420, 811 and 821.
  if (cascade) return true;
  const BatchSplit batch = split_batch(problem, MetadataBuilder::kFlashAttnIx);
  // Tiles of prefills take longer in a list than by themselves, which pays where half of the
  // multiprocessors have a decode to read beside them. One NVIDIA H200, 2026-12-01, 8 KV heads, by
  // a list, with the decodes in a launch of their own, and all as rows of the prefill's launch, us:
  // one decode of 8k keys beside a prefill of 8,192 tokens 794, 752, 744; one of 16k 855, 761, 744;
  // four of 16k 869, 812, 800; 20 of 4k 780, 821, 934; 30 of 1k 747, 770, 987. 12 of 4k beside four
  // chunks of 1,024 303, 346, 350; 12 of 8k beside two prefills of 2,048 189, 228, 230.
  const bool has_many =
      std::int64_t{2} * batch.num_decodes * params.num_kv_heads >= std::int64_t{ops.num_sms()};
  return has_many && batch.num_prefills > 0 &&
         !decode_ends_last(apart_question(problem, params, batch.num_decodes, ops.num_sms()));
}

TileSteps make_tile_steps(const Problem& problem, const attn::AttendParams& params, bool cascade,
                          const Ops& ops, DeviceBuffers& memory) {
  const int num_sms = ops.num_sms();
  TileForm form;
  form.group = params.num_heads / params.num_kv_heads;
  form.num_kv_heads = params.num_kv_heads;
  form.columns = params.head_size + params.v_head_size;
  form.causal = params.score.window_right >= 0;
  std::vector<TileSequence> sequences = sequences_of(problem, cascade);
  const std::vector<SharedKeys> prefixes =
      cascade ? prefixes_of(problem) : std::vector<SharedKeys>{};
  form.tile_rows = tile_rows_for(params.head_size, params.v_head_size,
                                 most_rows(sequences, prefixes, form.group));
  const TileUse beside = ops.beside_use(params);
  form.has_beside = beside == TileUse::kAlways || (beside == TileUse::kWhereItPays &&
                                                   beside_pays(sequences, prefixes, form, num_sms));
  if (form.has_beside) form.tile_rows = 128;
  int parts = 0;
  if (cascade) {
    parts = prefix_parts(prefixes, sequences, form, num_sms);
    sequences =
        cascade_sequences(prefixes, std::move(sequences), parts, problem.kv_cache.block_size);
  }
  const TileDeal deal = deal_tiles(sequences, form, num_sms);
  TileSteps steps{params, {}};
  attn::TileListParams& list = steps.list;
  list.tiles = memory.upload(deal.tiles, "tiles");
  list.bundles = memory.upload(deal.bundles, "bundles of tiles");
  const std::vector<std::int32_t> none{0, 0};
  list.drawn = memory.starting_at(memory.upload(none, "bundles drawn")).as<int>();
  list.num_tiles = checked_int32(std::ssize(deal.tiles), "tiles");
  list.num_bundles = checked_int32(std::ssize(deal.bundles) - 1, "bundles");
  list.num_beside = deal.num_beside;
  list.num_ctas = num_sms;
  list.tile_rows = form.tile_rows;
  list.most_keys = deal.most_keys;
  list.parts.num_splits = parts + 1;
  list.parts.num_tokens = problem.num_tokens();
  if (parts > 0) {
    const std::int64_t rows =
        list.parts.num_splits * list.parts.num_tokens * std::int64_t{params.num_heads};
    list.parts.partial_output =
        memory.workspace_of<float>(rows * params.v_head_size, "partial output");
    list.parts.partial_lse = memory.workspace_of<float>(rows, "partial lse");
  }
  return steps;
}

}  // namespace attnbench
