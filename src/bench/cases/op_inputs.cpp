// Operands by kind of operation: K and V, rotations, latents, partial results, quantisation. Each
// maker fills in what its operation needs and leaves the rest of OpInputs empty.
#include "bench/cases/op_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "backends/op/facts.h"
#include "bench/cases/op_index_inputs.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/poison.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/draw_rows.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/random.h"
#include "inputs/redraw.h"
#include "metadata/batch.h"
#include "metadata/slots.h"
#include "reference/mla/cache_entry.h"
#include "reference/ops/rope.h"

namespace attnbench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr auto kPadding = static_cast<std::int64_t>(kPaddingSlots.size());
constexpr TensorStreams kQueryStreams{StreamId::kQuery, StreamId::kQuery, StreamId::kQueryChannels,
                                      StreamId::kQueryTokens, StreamId::kQueryTokens};
constexpr TensorStreams kPartialStreams{StreamId::kOpOutput, StreamId::kOpOutput,
                                        StreamId::kOpChannels, StreamId::kOpTokens,
                                        StreamId::kOpTokens};

/// The attention that the operation is a part of, as the makers of inputs know it.
Problem base_of(const Problem& problem) {
  Problem base = problem;
  AttentionSpec& a = base.attention;
  a.type = problem.op.mla ? AttentionType::kMla : AttentionType::kDecoder;
  a.sinks = SinksKind::kNone;
  a.alibi = AlibiKind::kNone;
  base.mla.sparse_topk.reset();
  // Why: the entries of a cache do not depend on the weights, which are drawn for every head.
  if (problem.op.mla) a.num_heads = 1;
  return base;
}

/// Only the new tokens: what they stand behind is not looked at.
void forget_context(Problem& base) {
  for (Request& request : base.batch) request.seq_len = request.query_len;
}

/// Rows of [S, ...] that belong to the new tokens.
std::vector<std::int64_t> new_rows(const Problem& base) {
  std::vector<std::int64_t> rows;
  const std::vector<std::int64_t> starts = first_rows(base);
  const std::vector<PositionRange> fresh = new_key_ranges(base);
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) rows.push_back(starts[b] + p);
  }
  return rows;
}

/// The rows, and `padding` rows of poison behind them.
Tensor gather(const Tensor& source, const std::vector<std::int64_t>& rows, std::int64_t padding) {
  std::vector<std::int64_t> shape = source.shape();
  shape[0] = static_cast<std::int64_t>(rows.size()) + padding;
  Tensor result = poisoned_tensor(source.dtype(), shape);
  if (rows.empty()) return result;
  const std::size_t bytes = source.size_bytes() / static_cast<std::size_t>(source.dim(0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(result.bytes() + i * bytes,
                source.bytes() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
  return result;
}

/// Rows [0, count) of the streams into a tensor of poison with `padding` rows more.
Tensor draw_tensor(const Problem& problem, const TensorStreams& streams, std::int64_t first,
                   std::vector<std::int64_t> shape, std::int64_t padding = 0) {
  const std::int64_t count = shape[0];
  std::int64_t width = 1;
  for (std::size_t axis = 1; axis < shape.size(); ++axis) width *= shape[axis];
  shape[0] += padding;
  Tensor tensor = poisoned_tensor(problem.attention.dtype, std::move(shape));
  std::vector<SourceRow> rows(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) rows[static_cast<std::size_t>(i)].index = first + i;
  fill_rows(problem.inputs, streams, rows, width, tensor);
  return tensor;
}

/// The rows, then `padding` of the first ones again where there are any.
std::vector<std::int64_t> with_repeated_rows(std::vector<std::int64_t> rows, std::int64_t padding) {
  const std::size_t count = rows.size();
  for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(padding); ++i) {
    rows.push_back(rows[i % count]);
  }
  return rows;
}

// ---- K and V ----------------------------------------------------------------------------------

/// In which the operation writes K and V; only for those that do.
CacheLayoutKind layout_of(const Problem& problem) {
  switch (problem.op.cache_layout) {
    case OpCacheLayout::kIx:
      return CacheLayoutKind::kIx;
    case OpCacheLayout::kTr:
      return CacheLayoutKind::kTr;
    case OpCacheLayout::kAuto:
    case OpCacheLayout::kFa:
      break;
  }
  return CacheLayoutKind::kFa;
}

void add_paged_cache(const Problem& problem, OpInputs& inputs) {
  inputs.store_rule = resolve_store_rule(inputs.base, op_kernel_rules(problem));
  inputs.stored = store_kv(inputs.attention, inputs.store_rule);
  inputs.cache = make_paged_cache(inputs.base, inputs.attention, inputs.stored, layout_of(problem));
  inputs.add("slot_mapping", inputs.cache.slot_mapping);
}

void add_new_codes(OpInputs& inputs) {
  const std::vector<std::int64_t> rows = new_rows(inputs.base);
  inputs.add("new_key_codes", gather(inputs.stored.key_codes, rows, kPadding));
  inputs.add("new_value_codes", gather(inputs.stored.value_codes, rows, kPadding));
  inputs.add("new_key_scales", gather(inputs.stored.key_scales, rows, kPadding));
}

void make_cache_write(const Problem& problem, OpInputs& inputs) {
  inputs.attention = make_inputs(inputs.base);
  add_paged_cache(problem, inputs);
  if (problem.kv_cache.int8_level > 0) return add_new_codes(inputs);
  // Why not only poison (§18.1): written to an unused slot, which holds poison, it would not show.
  const std::vector<std::int64_t> rows = with_repeated_rows(new_rows(inputs.base), kPadding - 1);
  const std::int64_t missing = inputs.cache.new_key.dim(0) - std::ssize(rows);
  inputs.add("new_key", gather(inputs.attention.key, rows, missing));
  inputs.add("new_value", gather(inputs.attention.value, rows, missing));
}

// ---- Rotation ---------------------------------------------------------------------------------

/// Positions of the new tokens; rows of padding stand at 0.
void add_rotation(const Problem& problem, std::int64_t padding, OpInputs& inputs) {
  std::vector<std::int64_t> positions;
  for (const Request& request : problem.batch) {
    for (std::int64_t p = request.seq_len - request.query_len; p < request.seq_len; ++p) {
      positions.push_back(p);
    }
  }
  positions.insert(positions.end(), static_cast<std::size_t>(padding), 0);
  inputs.add("positions", Tensor::from_i64(positions));
  const Dtype dtype =
      problem.op.cos_sin_dtype == CosSinDtype::kFloat32 ? Dtype::kF32 : problem.attention.dtype;
  inputs.add("cos_sin_cache",
             make_cos_sin_cache(std::max<std::int64_t>(1, problem.max_seq_len()),
                                *problem.op.rotary_dim, dtype, problem.op.rope_base));
}

/// Rows as a projection leaves them: [query heads | key heads | value heads when `with_value`].
/// Rows of padding repeat the first ones: a token without a slot is rotated like any other.
Tensor projection_rows(const OpInputs& inputs, bool with_value, std::int64_t padding) {
  const AttentionInputs& source = inputs.attention;
  const std::vector<std::int64_t> rows = new_rows(inputs.base);
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto row_bytes = [](const Tensor& tensor) {
    return tensor.size_bytes() / static_cast<std::size_t>(std::max<std::int64_t>(1, tensor.dim(0)));
  };
  const std::int64_t heads = source.query.dim(1) + (with_value ? 2 : 1) * source.key.dim(1);
  Tensor result =
      poisoned_tensor(source.query.dtype(), {count + padding, heads, source.query.dim(2)});
  std::byte* next = result.bytes();
  const auto append = [&](const Tensor& tensor, std::int64_t row) {
    const std::size_t bytes = row_bytes(tensor);
    std::memcpy(next, tensor.bytes() + static_cast<std::size_t>(row) * bytes, bytes);
    next += bytes;
  };
  for (std::int64_t i = 0; count > 0 && i < count + padding; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i % count)];
    append(source.query, i % count);
    append(source.key, row);
    if (with_value) append(source.value, row);
  }
  return result;
}

void make_rope(const Problem& problem, bool writes, OpInputs& inputs) {
  const std::int64_t padding = writes ? kPadding : 0;
  if (!writes) forget_context(inputs.base);
  inputs.attention = make_inputs(inputs.base);
  if (writes) add_paged_cache(problem, inputs);
  inputs.add("projection", projection_rows(inputs, writes, padding));
  add_rotation(problem, padding, inputs);
}

// ---- Latents ----------------------------------------------------------------------------------

void store_latents(OpInputs& inputs) {
  const auto k_scale = static_cast<float>(inputs.base.kv_cache.k_scale.at(0));
  inputs.entries =
      store_mla_cache(inputs.latents.kv_c, inputs.latents.k_pe, inputs.base.kv_cache.dtype, k_scale)
          .codes;
  inputs.mla_cache = make_mla_cache(inputs.base, inputs.latents, inputs.entries);
}

void make_mla_cache_write(OpInputs& inputs) {
  inputs.latents = make_mla_inputs(inputs.base);
  store_latents(inputs);
  inputs.add("new_kv_c", inputs.mla_cache.new_kv_c);
  inputs.add("new_k_pe", inputs.mla_cache.new_k_pe);
  inputs.add("slot_mapping", inputs.mla_cache.slot_mapping);
}

void make_mla_rope(const Problem& problem, bool writes, OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t padding = writes ? kPadding : 0;
  if (!writes) forget_context(inputs.base);
  inputs.latents = make_mla_inputs(inputs.base);
  const std::vector<std::int64_t> own_rows = new_rows(inputs.base);
  const std::size_t count = own_rows.size();
  const std::vector<std::int64_t> rows = with_repeated_rows(own_rows, padding);
  std::vector<std::int64_t> query_rows(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    query_rows[i] = static_cast<std::int64_t>(i % count);
  const Tensor query =
      draw_tensor(problem, kQueryStreams, 0, {problem.num_tokens(), a.num_heads, a.head_size});
  if (writes) {
    store_latents(inputs);
    inputs.add("slot_mapping", inputs.mla_cache.slot_mapping);
    inputs.add("new_kv_c", gather(inputs.latents.kv_c, rows, count > 0 ? 0 : padding));
  }
  inputs.add("query", gather(query, query_rows, count > 0 ? 0 : (writes ? padding : 0)));
  const Tensor k_pe = gather(inputs.latents.k_pe, rows, count > 0 ? 0 : (writes ? padding : 0));
  Tensor key(k_pe.dtype(), {k_pe.dim(0), 1, k_pe.dim(1)});
  if (!key.empty()) std::memcpy(key.bytes(), k_pe.bytes(), k_pe.size_bytes());
  inputs.add("k_pe", std::move(key));
  add_rotation(problem, padding, inputs);
}

/// All positions are in the cache; a request gathers those of its new tokens.
void make_gather(const Problem& problem, OpInputs& inputs) {
  for (Request& request : inputs.base.batch) request.query_len = 0;
  inputs.latents = make_mla_inputs(inputs.base);
  store_latents(inputs);
  std::vector<std::int32_t> cu_seq_lens{0}, token_to_seq, seq_starts, lens;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    const auto len = static_cast<std::int32_t>(request.query_len);
    lens.push_back(len);
    cu_seq_lens.push_back(cu_seq_lens.back() + len);
    seq_starts.push_back(static_cast<std::int32_t>(request.seq_len - request.query_len));
    token_to_seq.insert(token_to_seq.end(), static_cast<std::size_t>(len),
                        static_cast<std::int32_t>(b));
  }
  // Rows of padding name the first request and lie beyond its end: they are skipped (§8.5).
  if (!lens.empty()) token_to_seq.insert(token_to_seq.end(), kPaddingSlots.size(), 0);
  inputs.add("block_table", inputs.mla_cache.block_table);
  inputs.add("cu_seq_lens", Tensor::from_i32(cu_seq_lens));
  inputs.add("token_to_seq", Tensor::from_i32(token_to_seq));
  inputs.add("seq_starts", Tensor::from_i32(seq_starts));
  inputs.add("seq_lens", Tensor::from_i32(lens));
}

// ---- Partial results --------------------------------------------------------------------------

/// Makes (token, head) of one part empty: NaN data under an LSE that says that no key was seen.
void empty_state(Tensor& output, std::int64_t first, std::int64_t width, float& lse, float empty) {
  lse = empty;
  for (std::int64_t d = 0; d < width; ++d) output.set(first + d, kNaN);
}

std::vector<float> draw_lses(const Problem& problem, std::int64_t first, std::int64_t count) {
  std::vector<float> lses(static_cast<std::size_t>(count));
  draw({problem.inputs.seed, StreamId::kOpLse}, Distribution::kNormal, 2.0,
       static_cast<std::uint64_t>(first), lses);
  return lses;
}

void make_merge(const Problem& problem, OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t heads = a.num_heads;
  const std::int64_t stride = std::max(a.head_size, a.v_head_size);
  Tensor prefix = draw_tensor(problem, kPartialStreams, 0, {tokens, heads, stride});
  Tensor suffix = draw_tensor(problem, kPartialStreams, tokens, {tokens, heads, a.v_head_size});
  std::vector<float> prefix_lse = draw_lses(problem, 0, heads * tokens);
  std::vector<float> suffix_lse = draw_lses(problem, heads * tokens, heads * tokens);
  const std::int64_t num_merged = problem.op.tokens_with_context.value_or(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t state = t * heads + h;
      float& p = prefix_lse[static_cast<std::size_t>(h * tokens + t)];
      float& s = suffix_lse[static_cast<std::size_t>(h * tokens + t)];
      const std::int64_t kind = state % 17;
      if (kind == 2) p += 200.0f;  // the suffix underflows to weight 0
      if (kind == 3 || kind == 5 || kind == 7) {
        empty_state(prefix, state * stride, stride, p, kind == 3 ? kInf : -kInf);
      }
      if (kind == 7 || kind == 11) {
        empty_state(suffix, state * a.v_head_size, t < num_merged ? a.v_head_size : 0, s, -kInf);
      }
      for (std::int64_t d = a.v_head_size; d < stride; ++d) prefix.set(state * stride + d, kNaN);
      if (t >= num_merged) empty_state(prefix, state * stride, stride, p, kNaN);
    }
  }
  inputs.add("prefix_output", std::move(prefix));
  inputs.add("prefix_lse", Tensor::from_f32(prefix_lse, {heads, tokens}));
  inputs.add("suffix_output", std::move(suffix));
  inputs.add("suffix_lse", Tensor::from_f32(suffix_lse, {heads, tokens}));
}

void make_dcp_correct(const Problem& problem, OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t heads = a.num_heads;
  const std::int64_t width = problem.op.mla ? problem.mla.kv_lora_rank : a.v_head_size;
  const std::int64_t ranks = problem.dcp.world_size;
  Tensor partial = draw_tensor(problem, kPartialStreams, 0, {ranks * tokens, heads, width});
  std::vector<float> lses = draw_lses(problem, 0, ranks * heads * tokens);
  constexpr std::array<float, 3> kEmpty{-kInf, kInf, kNaN};
  for (std::int64_t r = 0; ranks > 1 && r < ranks; ++r) {
    for (std::int64_t state = 0; state < tokens * heads; ++state) {
      const bool in_no_rank = state % 29 == 11;
      if (!in_no_rank && (state + r) % 8 != 3) continue;
      const std::int64_t lse = (r * heads + state % heads) * tokens + state / heads;
      empty_state(partial, (r * tokens * heads + state) * width, width,
                  lses[static_cast<std::size_t>(lse)],
                  kEmpty[static_cast<std::size_t>((state / 8 + r) % 3)]);
    }
  }
  Tensor shaped(partial.dtype(), {ranks, tokens, heads, width});
  std::copy_n(partial.bytes(), partial.size_bytes(), shaped.bytes());
  inputs.add("partial_output", std::move(shaped));
  inputs.add("partial_lse", Tensor::from_f32(lses, {ranks, heads, tokens}));
}

// ---- Quantisation -----------------------------------------------------------------------------

/// Rows of attention output; the first group of the first row is zero.
void make_output_rows(const Problem& problem, OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  Tensor rows = draw_tensor(problem, kPartialStreams, 0,
                            {problem.num_tokens(), a.num_heads, a.v_head_size}, kPadding);
  const std::int64_t columns = std::int64_t{a.num_heads} * a.v_head_size;
  for (std::int64_t i = 0; problem.num_tokens() > 0 && i < std::min<std::int64_t>(128, columns);
       ++i)
    rows.set(i, 0.0f);
  inputs.add("input", std::move(rows));
}

void make_latent_query(const Problem& problem, OpInputs& inputs) {
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t heads = problem.attention.num_heads;
  inputs.add("ql_nope", draw_tensor(problem, kPartialStreams, 0,
                                    {tokens, heads, problem.mla.kv_lora_rank}, kPadding));
  inputs.add("q_pe", draw_tensor(problem, kQueryStreams, 0,
                                 {tokens, heads, problem.mla.qk_rope_head_dim}, kPadding));
}

void make_projection(OpInputs& inputs) {
  forget_context(inputs.base);
  inputs.attention = make_inputs(inputs.base);
  inputs.add("projection", projection_rows(inputs, true, 0));
}

// ---- Metadata ---------------------------------------------------------------------------------

/// A block table of the batch, and the slots of the new tokens through it.
void add_table(const Problem& problem, const std::string& prefix, OpInputs& inputs) {
  const Tensor table = make_block_table(problem, new_key_ranges(problem));
  const std::vector<std::int32_t> starts = query_start_loc_of(problem);
  const std::vector<std::int32_t> seq_lens = seq_lens_of(problem);
  const SlotGeometry geometry{problem.kv_cache.block_size, physical_blocks(problem), {}, 0};
  const std::span<const std::int32_t> entries{table.data<std::int32_t>(),
                                              static_cast<std::size_t>(table.num_elements())};
  inputs.add(prefix + "slot_mapping", Tensor::from_i64(compute_slot_mapping(
                                          starts, token_positions(starts, seq_lens), entries,
                                          table.dim(1), geometry, problem.num_tokens())));
  inputs.add(prefix + "block_table", table);
}

/// The arrays of a batch, and the table and slots that another step of it has.
void make_metadata(OpInputs& inputs) {
  inputs.add("query_start_loc", Tensor::from_i32(query_start_loc_of(inputs.base)));
  inputs.add("seq_lens", Tensor::from_i32(seq_lens_of(inputs.base)));
  add_table(inputs.base, "", inputs);
  Problem later = inputs.base;
  later.inputs.seed = later.inputs.seed + 1;
  later.kv_cache.shuffle_blocks = true;
  add_table(later, "new_", inputs);
}

/// Rows of the new tokens of `all` [S, ...] become the first rows of `fresh` [T or more, ...].
void replace_new_rows(const OpInputs& inputs, const Tensor& fresh, Tensor& all) {
  const std::vector<std::int64_t> rows = new_rows(inputs.base);
  if (rows.empty()) return;
  const std::size_t bytes = all.size_bytes() / static_cast<std::size_t>(all.dim(0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(all.bytes() + static_cast<std::size_t>(rows[i]) * bytes, fresh.bytes() + i * bytes,
                bytes);
  }
}

/// `count` heads of the rows of a projection, from `first` on.
Tensor heads_of(const Tensor& projection, std::int64_t first, std::int64_t count) {
  Tensor heads(projection.dtype(), {projection.dim(0), count, projection.dim(2)});
  const std::size_t head =
      static_cast<std::size_t>(projection.dim(2)) * dtype_size(projection.dtype());
  const auto from = static_cast<std::size_t>(projection.dim(1)) * head;
  const auto to = static_cast<std::size_t>(count) * head;
  for (std::size_t row = 0; row < static_cast<std::size_t>(projection.dim(0)); ++row) {
    std::memcpy(heads.bytes() + row * to,
                projection.bytes() + row * from + static_cast<std::size_t>(first) * head, to);
  }
  return heads;
}

/// What a write of K and V stores of redrawn rows.
void store_redrawn(const Problem& problem, OpInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  if (problem.kv_cache.int8_level > 0) {
    replace_new_rows(inputs, inputs.at("new_key_scales"), inputs.stored.key_scales);
    if (problem.kv_cache.int8_level == 2) {
      replace_new_rows(inputs, inputs.at("new_value_codes"), inputs.stored.value_codes);
    }
    return;
  }
  if (problem.op.name == OpKind::kReshapeAndCache) {
    replace_new_rows(inputs, inputs.at("new_key"), inputs.attention.key);
    replace_new_rows(inputs, inputs.at("new_value"), inputs.attention.value);
  } else {
    const Tensor& rows = inputs.at("projection");
    replace_new_rows(inputs, heads_of(rows, a.num_heads + a.num_kv_heads, a.num_kv_heads),
                     inputs.attention.value);
  }
  inputs.stored = store_kv(inputs.attention, inputs.store_rule);
}

/// The same of latents.
void store_redrawn_latents(const Problem& problem, OpInputs& inputs) {
  replace_new_rows(inputs, inputs.at("new_kv_c"), inputs.latents.kv_c);
  if (problem.op.name == OpKind::kReshapeAndCache) {
    replace_new_rows(inputs, inputs.at("new_k_pe"), inputs.latents.k_pe);
  }
  const auto k_scale = static_cast<float>(inputs.base.kv_cache.k_scale.at(0));
  inputs.entries =
      store_mla_cache(inputs.latents.kv_c, inputs.latents.k_pe, inputs.base.kv_cache.dtype, k_scale)
          .codes;
}

}  // namespace

void redraw_operands(const Problem& problem, std::uint64_t nonce, OpInputs& inputs) {
  std::int64_t first_index = 0;
  const std::vector<std::string> names = redrawn_operands(problem);
  for (const std::string& name : names) {
    for (auto& [known, tensor] : inputs.tensors) {
      if (known != name) continue;
      redraw_signs(tensor, nonce, tensor.num_elements(), first_index);
      first_index += tensor.num_elements();
    }
  }
  const bool writes =
      problem.op.name == OpKind::kReshapeAndCache || problem.op.name == OpKind::kRopeAndCache;
  if (!writes || names.empty()) return;
  problem.op.mla ? store_redrawn_latents(problem, inputs) : store_redrawn(problem, inputs);
}

OpInputs make_op_inputs(const Problem& problem) {
  OpInputs inputs;
  inputs.base = base_of(problem);
  const OpKind op = *problem.op.name;
  switch (op) {
    case OpKind::kReshapeAndCache:
      problem.op.mla ? make_mla_cache_write(inputs) : make_cache_write(problem, inputs);
      break;
    case OpKind::kMerge:
      make_merge(problem, inputs);
      break;
    case OpKind::kGather:
      make_gather(problem, inputs);
      break;
    case OpKind::kRope:
    case OpKind::kRopeAndCache:
      problem.op.mla ? make_mla_rope(problem, op == OpKind::kRopeAndCache, inputs)
                     : make_rope(problem, op == OpKind::kRopeAndCache, inputs);
      break;
    case OpKind::kQuantize:
      problem.op.mla ? make_latent_query(problem, inputs) : make_projection(inputs);
      break;
    case OpKind::kDcpCorrect:
      make_dcp_correct(problem, inputs);
      break;
    case OpKind::kOutputQuant:
      make_output_rows(problem, inputs);
      break;
    case OpKind::kMmQuant:
      make_projection(inputs);
      break;
    case OpKind::kMetadata:
      make_metadata(inputs);
      break;
    case OpKind::kIndexKeyCache:
      make_index_key_cache(inputs.base, inputs);
      break;
    case OpKind::kIndexLogits:
      make_index_logits(inputs.base, inputs);
      break;
    case OpKind::kIndexTopk:
      make_index_topk(inputs.base, inputs);
      break;
  }
  inputs.notices.insert(inputs.notices.end(), inputs.attention.notices.begin(),
                        inputs.attention.notices.end());
  inputs.notices.insert(inputs.notices.end(), inputs.latents.notices.begin(),
                        inputs.latents.notices.end());
  return inputs;
}

}  // namespace attnbench
