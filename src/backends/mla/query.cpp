// Both projections are batched products, one for each head, and the joined query is built by one
// concatenation: an engine does the same around the kernels that are compared here.
#include "backends/mla/query.h"

#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

/// ql = q_nope @ W_UK_T of a rank's heads.
attn::MatmulParams project_query(const MlaWork& work, const MlaRank& rank, i64 tokens,
                                 void* latent) {
  const MlaSizes& n = work.sizes;
  attn::MatmulParams product{};
  product.element = product.output_element = work.element;
  product.a = MlaWork::at(work.query, rank.first_head * n.qk(), work.element);
  product.a_batch_stride = n.qk();
  product.a_row_stride = n.heads * n.qk();
  product.b = MlaWork::at(work.w_uk, rank.first_head * n.nope * n.latent, work.element);
  product.b_batch_stride = n.nope * n.latent;
  product.b_row_stride = n.latent;
  product.c = latent;
  product.c_batch_stride = n.latent;
  product.c_row_stride = rank.heads * n.latent;
  product.num_batches = rank.heads;
  product.m = tokens;
  product.n = n.latent;
  product.k = n.nope;
  product.batch_invariant = work.problem.attention.batch_invariant ? 1 : 0;
  return product;
}

/// Latent part and rope part of every head side by side, as cache entries have them.
attn::ConcatParams concat_query(const MlaWork& work, const MlaRank& rank, i64 tokens,
                                const void* latent, void* joined) {
  const MlaSizes& n = work.sizes;
  attn::ConcatParams concat{};
  concat.element = work.element;
  concat.first = latent;
  concat.first_token_stride = rank.heads * n.latent;
  concat.first_head_stride = n.latent;
  concat.second = MlaWork::at(work.query, rank.first_head * n.qk() + n.nope, work.element);
  concat.second_token_stride = n.heads * n.qk();
  concat.second_head_stride = n.qk();
  concat.output = joined;
  concat.output_token_stride = rank.heads * n.entry();
  concat.output_head_stride = n.entry();
  concat.num_tokens = tokens;
  concat.num_heads = static_cast<int>(rank.heads);
  concat.first_size = static_cast<int>(n.latent);
  concat.second_size = static_cast<int>(n.rope);
  return concat;
}

double product_flops(const MlaWork& work, i64 tokens, i64 inner) {
  return 2.0 * static_cast<double>(work.sizes.heads * tokens) *
         static_cast<double>(work.sizes.latent * inner);
}

}  // namespace

std::vector<const void*> add_latent_query(MlaWork& work, i64 tokens) {
  std::vector<const void*> joined;
  std::vector<attn::MatmulParams> products;
  std::vector<attn::ConcatParams> concats;
  for (const MlaRank& rank : work.ranks) {
    void* latent = work.workspace(tokens * rank.heads * work.sizes.latent, work.element, "ql_nope");
    void* whole =
        work.workspace(tokens * rank.heads * work.sizes.entry(), work.element, "latent query");
    products.push_back(project_query(work, rank, tokens, latent));
    work.ops.prepare_matmul(products.back());
    concats.push_back(concat_query(work, rank, tokens, latent, whole));
    joined.push_back(whole);
  }
  work.add_each("project_query", false, &Ops::matmul, std::move(products), 0,
                product_flops(work, tokens, work.sizes.nope));
  work.add_each("concat_query", false, &Ops::concat, std::move(concats));
  return joined;
}

LatentQuery add_joined_query(MlaWork& work, i64 tokens, bool is_quantised, i64 padded_heads,
                             QueryReader reader) {
  const bool is_ours = reader == QueryReader::kOurs;
  const i64 row = padded_heads * work.sizes.entry();
  const i64 own_row = work.sizes.heads * work.sizes.entry();
  const MlaRank& rank = work.ranks.front();
  void* latent =
      work.workspace(tokens * work.sizes.heads * work.sizes.latent, work.element, "ql_nope");
  void* joined = work.workspace(tokens * row, work.element, "latent query");
  attn::LatentQueryParams all{};
  all.project = project_query(work, rank, tokens, latent);
  all.join = concat_query(work, rank, tokens, latent, joined);
  all.join.output_token_stride = row;
  LatentQuery query{joined, work.element};
  void* padding = MlaWork::at(joined, own_row, work.element);
  if (is_quantised) {
    attn::StaticQuantiseParams& quantise = all.quantise;
    quantise.source_element = work.element;
    quantise.source = joined;
    quantise.source_row_stride = quantise.code_row_stride = row;
    quantise.codes = work.memory.workspace_of<unsigned char>(tokens * row, "quantised query");
    quantise.scale = work.q_scale;
    quantise.num_rows = tokens;
    quantise.num_columns = own_row;
    query = {quantise.codes, attn::Element::kE4M3};
    padding = quantise.codes + own_row;
  }
  all.pad.element = query.element;
  all.pad.output = padding;
  all.pad.output_token_stride = row;
  all.pad.output_head_stride = work.sizes.entry();
  all.pad.num_tokens = tokens;
  all.pad.num_heads = checked_int32(padded_heads - work.sizes.heads, "heads of padding");
  all.pad.second_size = checked_int32(work.sizes.entry(), "size of the joined query");
  const attn::MlaCacheWriteParams* const write = is_ours ? work.last_write() : nullptr;
  if (write != nullptr) all.write = *write;
  all.next_waits = is_ours ? 1 : 0;
  const double flops = product_flops(work, tokens, work.sizes.nope);
  if (work.problem.mla.fused_steps && work.ops.fuses(all)) {
    if (write != nullptr) work.steps.pop_back();
    work.add_each("project_query", false, &Ops::make_latent_query, std::vector{all}, 0, flops);
    return query;
  }
  work.ops.prepare_matmul(all.project);
  work.add_each("project_query", false, &Ops::matmul, std::vector{all.project}, 0, flops);
  work.add_each("concat_query", false, &Ops::concat, std::vector{all.join});
  if (is_quantised) {
    work.add_each("quantise_query", false, &Ops::quantise_fp8, std::vector{all.quantise});
  }
  if (all.pad.num_heads > 0) {
    work.add_each("pad_query_heads", false, &Ops::concat, std::vector{all.pad});
  }
  return query;
}

std::vector<const void*> add_padded_heads(MlaWork& work, const std::vector<const void*>& queries,
                                          i64 tokens, i64 padded_heads) {
  if (padded_heads == work.sizes.heads) return queries;
  const i64 row = work.sizes.heads * work.sizes.entry();
  const i64 padded_row = padded_heads * work.sizes.entry();
  std::vector<const void*> padded;
  std::vector<attn::ConcatParams> pads;
  for (const void* query : queries) {
    attn::ConcatParams pad{};
    pad.element = work.element;
    pad.first = query;
    pad.first_token_stride = row;
    pad.output = work.workspace(tokens * padded_row, work.element, "padded query");
    pad.output_token_stride = padded_row;
    pad.num_tokens = tokens;
    pad.num_heads = 1;
    pad.first_size = checked_int32(row, "heads of the query");
    pad.second_size = checked_int32(padded_row - row, "padding heads");
    pads.push_back(pad);
    padded.push_back(pad.output);
  }
  work.add_each("pad_query_heads", false, &Ops::concat, std::move(pads));
  return padded;
}

void add_value_projection(MlaWork& work, const std::vector<LatentOutput>& outputs, i64 tokens) {
  const MlaSizes& n = work.sizes;
  std::vector<attn::MatmulParams> products;
  for (const MlaRank& rank : work.ranks) {
    const LatentOutput& latent = outputs[static_cast<std::size_t>(rank.index)];
    attn::MatmulParams up{};
    up.element = up.output_element = work.element;
    up.a = latent.data;
    up.a_batch_stride = n.latent;
    up.a_row_stride = latent.token_stride;
    up.b = MlaWork::at(work.w_uv, rank.first_head * n.latent * n.value, work.element);
    up.b_batch_stride = n.latent * n.value;
    up.b_row_stride = n.value;
    up.c = MlaWork::at(work.output, rank.first_head * n.value, work.element);
    up.c_batch_stride = n.value;
    up.c_row_stride = n.heads * n.value;
    up.num_batches = rank.heads;
    up.m = tokens;
    up.n = n.value;
    up.k = n.latent;
    up.batch_invariant = work.problem.attention.batch_invariant ? 1 : 0;
    products.push_back(up);
  }
  work.add_projection(std::move(products), product_flops(work, tokens, n.value));
}

}  // namespace attnbench
