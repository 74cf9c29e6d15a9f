#include "edge_entries.h"

#include <fmt/format.h>

namespace attnbench::matrix {
namespace {

using Variations = std::vector<Variation>;

constexpr const char* kMlaMath =
    "FlashMLAImpl does not support one of the following: alibi_slopes, sliding_window, "
    "logits_soft_cap";
constexpr const char* kDense = "one length for every row of the form without cu_seqlens";
constexpr const char* kNoPages = "keys and values are tensors, not pages";

constexpr const char* kNoScores = "the operation computes no scores";
constexpr const char* kIntegersAlone = "the operation moves arrays of integers";
constexpr const char* kTokensAlone = "a batch is a number of tokens to the operation";

/// An entry about scores is none for an operation without them.
std::function<Cell(const Target&)> of_scores(Cell (*cell)(const Target&)) {
  return [cell](const Target& target) -> Cell {
    if (target.op) return NotApplicable{kNoScores};
    return cell(target);
  };
}

/// The name that reasons of an encoder backend carry.
std::string upstream_name(const Target& target) {
  return target.backend.starts_with("MM_") ? target.backend.substr(3) : target.backend;
}

/// One batch, for all that have batches of their own.
Cell of_batch(const Target& target, const std::string& label,
              const std::vector<Request>& requests) {
  if (target.dense) return NotApplicable{kDense};
  if (target.only_tokens()) return NotApplicable{kTokensAlone};
  return Variations{{.label = label, .settings = {batch_setting(target, requests)}}};
}

Cell no_requests(const Target&) {
  return Variations{{.label = "B = 0", .edit = [](Problem& problem) { problem.batch.clear(); }}};
}

Cell no_tokens(const Target& target) {
  if (target.dense) {
    return Variations{{.label = "T = 0", .settings = {{"mm_encoder.kv_len", "0"}}},
                      {.label = "queries without keys",
                       .settings = {{"mm_encoder.kv_len", "0"},
                                    {"batch", "[{count: 3, query_len: 4, seq_len: 0}]"}}}};
  }
  return Variations{
      {.label = "no request has a token", .settings = {batch_setting(target, {{0, 0}, {0, 0}})}},
      {.label = "context but no token",
       .settings = {batch_setting(target, {{0, 33}, {0, 0}, {0, 70}})}}};
}

Cell empty_query(const Target& target) {
  return of_batch(target, "between others and last", {{1, 33}, {0, 40}, {5, 37}, {0, 20}});
}

Cell empty_request(const Target& target) {
  if (target.dense) return NotApplicable{kDense};
  if (target.only_tokens()) return NotApplicable{kTokensAlone};
  Variation between{.label = "between others and last",
                    .settings = {batch_setting(target, {{1, 33}, {0, 0}, {5, 37}, {0, 0}})}};
  // §1.3 counts a row that is not as long as the first one as a prefill, and §1.4 wants those
  // without context last.
  const bool uniform = target.backend == "MLA" || target.backend == "CUTLASS_MLA" ||
                       target.backend == "FLASHMLA" || target.is_reference();
  if (uniform && !target.decode_only) {
    between.refusal =
        "prefill order: expected prefills with context before those without, got context 32 at "
        "prefill 1";
  }
  if (target.family == Family::kCross) {
    return Variations{between,
                      {.label = "queries without keys",
                       .settings = {batch_setting(target, {{1, 0}, {1, 33}, {3, 0}, {7, 20}})}}};
  }
  return Variations{
      between,
      {.label = "last", .settings = {batch_setting(target, {{1, 33}, {5, 37}, {0, 0}, {0, 0}})}},
      {.label = "first", .settings = {batch_setting(target, {{0, 0}, {1, 33}, {1, 70}})}}};
}

Cell no_context(const Target& target) {
  if (target.cascade) return NotApplicable{"a shared prefix is context of every request"};
  return of_batch(target, "one token and more", {{1, 1}, {7, 7}, {20, 20}});
}

Cell partial_page(const Target& target) {
  if (!target.has_pages()) return NotApplicable{kNoPages};
  const std::int64_t page = target.block_size();
  return Variations{
      {.label = "one past, one short, in the middle",
       .settings = {batch_setting(target, {{1, page + 1}, {1, 2 * page - 1}, {5, page + 7}})}},
      {.label = "whole pages",
       .settings = {batch_setting(target, {{1, page}, {1, 2 * page}, {5, 2 * page}})}}};
}

Cell poisoned_page(const Target& target) {
  if (!target.has_pages()) return NotApplicable{kNoPages};
  const std::int64_t page = target.block_size();
  return of_batch(target, "one to three live slots", {{1, 1}, {1, 2}, {3, page + 2}, {2, 3}});
}

Cell pages(const Target& target) {
  if (!target.has_pages()) return NotApplicable{kNoPages};
  Variation ordered{.label = "in order", .settings = {{"kv_cache.shuffle_blocks", "false"}}};
  Variation shuffled{.label = "shuffled", .settings = {{"kv_cache.shuffle_blocks", "true"}}};
  // Every request of cross attention has an encoder output of its own.
  // What is gathered from the first token on has no context to share.
  if (target.family == Family::kCross || target.whole) return Variations{ordered, shuffled};
  // Whole pages of every rank; those of CUTLASS_MLA have 128 positions.
  const bool is_wide = target.backend == "CUTLASS_MLA" || target.dcp;
  const std::int64_t prefix = target.family == Family::kMla && is_wide ? 128 : 64;
  const Setting batch =
      batch_setting(target, {{1, prefix + 6}, {1, prefix + 66}, {4, prefix + 26}});
  for (const char* shuffle : {"false", "true"}) {
    Variation& shared = shuffle[0] == 'f' ? ordered : shuffled;
    shared.label += ", shared";
    shared.settings = {batch, {"kv_cache.shuffle_blocks", shuffle}};
    if (!target.cascade) {
      shared.settings.push_back({"cascade.common_prefix_len", std::to_string(prefix)});
    }
    if (!target.cascade && !target.op) shared.settings.push_back({"cascade.mode", "never"});
    // The pipeline of a cascade checks the pages itself; its suffixes share none.
    // An operation touches only new tokens.
    if (!target.cascade && !target.op) shared.demand = Demand::kSharedPage;
  }
  return Variations{ordered, shuffled, {.label = "not shared, shuffled", .settings = {batch}}};
}

Cell negative_slots(const Target& target) {
  if (!target.has_pages()) return NotApplicable{kNoPages};
  if (target.op == OpKind::kGather) return NotApplicable{"a gather goes by positions, not slots"};
  if (target.int8_level > 0 && target.decode_only) {
    return NotApplicable{"decodes of int8 attention are saved through the block table"};
  }
  // A chunk keeps int8 attention from doing so.
  if (target.decode_only) {
    return Variations{{.label = "behind the tokens", .demand = Demand::kNegativeSlot}};
  }
  return Variations{{.label = "behind the tokens",
                     .settings = {batch_setting(target, {{1, 33}, {5, 37}})},
                     .demand = Demand::kNegativeSlot}};
}

Cell groups(const Target& target) {
  const bool has_groups = target.op == OpKind::kReshapeAndCache || target.rotates() ||
                          target.op == OpKind::kQuantize || target.op == OpKind::kMmQuant;
  if (target.op && (!has_groups || target.latents)) {
    return NotApplicable{"the operation has no KV heads"};
  }
  Variations all;
  for (const int group : {1, 2, 4, 7, 8, 16}) {
    // The latent is one head, which all query heads share.
    const int kv_heads = target.family == Family::kMla ? target.least_heads : 2;
    Variation variation{.label = fmt::format("G = {}", group),
                        .settings = {{"attention.num_heads", std::to_string(group * kv_heads)}}};
    all.push_back(variation);
  }
  return all;
}

/// P, R and Lkv of a head of P + R. The entry keeps the size that the backends know.
std::vector<Setting> mla_head(const Target& target, int size) {
  const int rope = size >= 80 ? 64 : (size == 64 ? 32 : 16);
  const int entry = target.sparse || target.ds_mla ? 576 : 320;
  return {{"mla.qk_nope_head_dim", std::to_string(size - rope)},
          {"mla.qk_rope_head_dim", std::to_string(rope)},
          {"mla.kv_lora_rank", std::to_string(entry - rope)}};
}

Cell head_sizes(const Target& target) {
  Variations all;
  for (const int size : {32, 40, 64, 80, 96, 128, 160, 192, 256}) {
    Variation variation{.label = fmt::format("D = {}", size),
                        .settings = {{"attention.head_size", std::to_string(size)}}};
    if (target.family == Family::kMla || target.latents) {
      // The 656-byte entry holds 64 rotary values, so a head is larger.
      if (target.ds_mla && size < 80) continue;
      // Its kernel takes P of 128 and 192, beside 64 rotary values.
      if (target.backend == "FLASHINFER_MLA_SPARSE" && size < 192) continue;
      variation.settings = mla_head(target, size);
    }
    all.push_back(variation);
  }
  return all;
}

Cell windows(const Target& target) {
  std::string refusal;
  if (target.cascade) refusal = "Cascade attention does not support sliding window.";
  if (target.family == Family::kMla) refusal = kMlaMath;
  if (target.family == Family::kMm) {
    refusal = fmt::format("{} encoder attention ignores window", upstream_name(target));
  }
  Variations all;
  for (const int window : {1, 16, 70, 1000}) {
    all.push_back({.label = fmt::format("window {}", window),
                   .settings = {{"attention.sliding_window", std::to_string(window)}},
                   .refusal = refusal});
  }
  return all;
}

Cell soft_caps(const Target& target) {
  std::string refusal;
  if (target.family == Family::kMla) refusal = kMlaMath;
  if (target.family == Family::kMm || (target.family == Family::kEncoder && target.is_triton())) {
    refusal = fmt::format("{} encoder attention ignores softcap", upstream_name(target));
  }
  Variations all;
  for (const int cap : {30, 50}) {
    // Scores of a standard deviation near the cap, so that it bites.
    all.push_back(
        {.label = fmt::format("cap {}", cap),
         .settings = {{"attention.logits_soft_cap", std::to_string(cap)}, {"attention.scale", "6"}},
         .refusal = refusal});
  }
  return all;
}

Cell large_scores(const Target& target) {
  if (target.family == Family::kMla) {
    return Variations{{.label = "by the rotary part", .scores = Scores::kLarge}};
  }
  return Variations{{.label = "scale 20", .settings = {{"attention.scale", "20"}}}};
}

Cell equal_scores(const Target&) {
  return Variations{{.label = "equal keys", .scores = Scores::kEqual},
                    {.label = "queries of zeros", .scores = Scores::kZero}};
}

Cell dominating_score(const Target& target) {
  if (target.rounds_context) {
    return NotApplicable{"a score of 100 magnifies the rounding of the gathered context (§8.4.2)"};
  }
  return Variations{{.label = "the first key", .scores = Scores::kFirstDominates},
                    {.label = "the last key", .scores = Scores::kLastDominates}};
}

Cell sinks(const Target& target) {
  std::string refusal;
  if (target.int8_level > 0) refusal = "attention sinks with int8 attention";
  if (target.cascade && target.is_ix()) refusal = "attention sinks with ixformer cascade attention";
  if (target.dcp) refusal = "DCP with sinks";
  if (target.family == Family::kEncoder) {
    refusal = fmt::format("{} encoder attention ignores sinks",
                          target.is_triton() ? "TRITON_ATTN" : "FLASH_ATTN");
  }
  const bool is_flashmla_sparse = target.sparse && target.backend == "FLASHMLA_SPARSE";
  if ((target.family == Family::kMla && !is_flashmla_sparse) || target.family == Family::kMm) {
    refusal = "attention sinks not supported";
  }
  const int heads = target.family == Family::kMla ? 2 : 4;
  Variations all;
  const std::string of_infinity =
      target.cascade && refusal.empty() ? "cascade attention with an infinite sink" : refusal;
  for (const std::string sink : {"-.inf", "0", "50", ".inf"}) {
    // P in e4m3 is a share of the sink too: e^-50 of it is none.
    if (target.e4m3_probability && sink == "50") continue;
    std::string list = sink;
    for (int h = 1; h < heads; ++h) list += ", " + sink;
    all.push_back({.label = "sink " + sink,
                   .settings = {{"attention.sinks", "[" + list + "]"}},
                   .refusal = sink == ".inf" ? of_infinity : refusal});
  }
  all.push_back(
      {.label = "all four",
       .settings = {{"attention.sinks", heads == 4 ? "[-.inf, 0, 50, .inf]" : "[0, .inf]"}},
       .refusal = of_infinity});
  if (target.family == Family::kPaged || target.family == Family::kCross) {
    // Only the keys of cross attention can be fewer than the queries.
    const std::int64_t without_keys = target.family == Family::kCross ? 0 : 2;
    all.push_back({.label = "a finite one, rows without keys",
                   .settings = {{"attention.sinks", "[0, 1, 2, 3]"},
                                batch_setting(target, {{1, 33}, {0, 0}, {2, without_keys}})},
                   .refusal = refusal});
  }
  return all;
}

Cell mixed_batch(const Target& target) {
  if (target.is_encoder()) return NotApplicable{"an encoder has no decodes"};
  if (target.only_tokens()) return NotApplicable{kTokensAlone};
  if (target.decode_only) return NotApplicable{"its queries have one token"};
  Variations all{{.label = "decodes, a chunk, a prompt",
                  .settings = {batch_setting(target, {{1, 33}, {1, 70}, {5, 37}, {20, 20}})}}};
  // What these count as a decode is longer than their thresholds elsewhere.
  if (target.backend == "FLASHMLA") {
    all.push_back({.label = "a prompt past the threshold",
                   .settings = {batch_setting(target, {{1, 33}, {130, 150}, {129, 129}})}});
  }
  if (target.backend == "FLASH_ATTN_MLA") {
    all.push_back({.label = "a prompt past the threshold",
                   .settings = {batch_setting(target, {{1, 33}, {514, 530}})}});
  }
  return all;
}

Cell speculative_queries(const Target& target) {
  if (target.is_encoder()) return NotApplicable{"an encoder has no decodes"};
  if (target.only_tokens()) return NotApplicable{kTokensAlone};
  if (target.decode_only) return NotApplicable{"its queries have one token"};
  Variation uneven{.label = "2 to 4 tokens",
                   .settings = {batch_setting(target, {{2, 35}, {3, 20}, {4, 70}, {2, 2}})}};
  Variation uniform{.label = "3 tokens each, then a prompt",
                    .settings = {batch_setting(target, {{3, 40}, {3, 21}, {3, 70}, {20, 20}})}};
  for (Variation* variation : {&uneven, &uniform}) {
    // To an operation they are tokens like others, but where it divides the batch.
    if (!target.op || target.op == OpKind::kMetadata)
      variation->settings.push_back({"attention.num_speculative_tokens", "3"});
  }
  if (target.dcp && !target.name.ends_with("DCP ag_rs")) {
    uneven.refusal = uniform.refusal = "MTP with cp_kv_cache_interleave_size > 1 is not supported";
  }
  return Variations{uneven, uniform};
}

Cell padding_rows(const Target& target) {
  if (target.op == OpKind::kMerge || target.op == OpKind::kDcpCorrect) {
    return NotApplicable{"partial results have a row for each token"};
  }
  if (target.op == OpKind::kGather) {
    return NotApplicable{"what is gathered are tokens of requests"};
  }
  if (target.op == OpKind::kMetadata) return NotApplicable{kIntegersAlone};
  if (target.op == OpKind::kIndexLogits || target.op == OpKind::kIndexTopk) {
    return NotApplicable{"index queries and logits have a row for each token"};
  }
  const bool from_projection =
      target.op == OpKind::kMmQuant || (target.op == OpKind::kQuantize && !target.latents);
  if (target.rotates() || from_projection) {
    return NotApplicable{"a projection has a row for each token"};
  }
  return Variations{{.label = "NaN behind the last token", .demand = Demand::kPaddingRows}};
}

Cell strided_views(const Target& target) {
  if (target.is_reference()) return NotApplicable{"the reference takes whole tensors"};
  if (target.rotates()) {
    return NotApplicable{"rotates in place inside the rows of a projection, which are such views"};
  }
  if (target.op == OpKind::kMerge) {
    return NotApplicable{"partial results have no token strides (section 6.3)"};
  }
  if (target.op == OpKind::kGather) return NotApplicable{"reads pages, not rows"};
  if (target.op == OpKind::kMetadata) return NotApplicable{kIntegersAlone};
  return Variations{{.label = "NaN between the rows", .demand = Demand::kStridedViews}};
}

Cell far_offsets(const Target& target) {
  if (target.is_reference()) return NotApplicable{"the reference takes whole tensors"};
  if (target.op && !target.has_pages()) return NotApplicable{"the operation reads no cache"};
  return Variations{{.label = "every key past 2^31 elements", .demand = Demand::kFarOffsets}};
}

}  // namespace

const std::vector<Entry>& edge_entries() {
  static const std::vector<Entry> entries{
      {"B = 0", no_requests},
      {"T = 0", no_tokens},
      {"a request with query_len 0", empty_query},
      {"a padding row of seq_len 0", empty_request},
      {"seq_len = query_len", no_context},
      {"seq_len not a multiple of the page", partial_page},
      {"last page partly filled, NaN elsewhere", poisoned_page},
      {"shared and shuffled pages", pages},
      {"rows of slot -1", negative_slots},
      {"G of 1 to 16", groups},
      {"D of 32 to 256", head_sizes},
      {"windows", of_scores(windows)},
      {"soft-cap 30 and 50", of_scores(soft_caps)},
      {"scores beyond 80", of_scores(large_scores)},
      {"all scores equal", of_scores(equal_scores)},
      {"one dominating score", of_scores(dominating_score)},
      {"sinks -inf, 0, 50, +inf", of_scores(sinks)},
      {"mixed decodes and prefills", mixed_batch},
      {"queries of 2 to 4 tokens", speculative_queries},
      {"T_pad > T", padding_rows},
      {"non-contiguous views", strided_views},
      {"64-bit offsets", far_offsets},
  };
  return entries;
}

}  // namespace attnbench::matrix
