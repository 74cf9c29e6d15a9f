// A product with kv_b_proj makes [k_nope | v] of every head. Attention reads k_nope there, and
// k_pe, which all heads share, from the latents; where its kernel cannot, both are copied to whole
// keys. Why not always: with 128 heads that copy is 6 % of a chunk's time. The functions give back
// closures, so that prefill can put those of all ranks into one step.
#include "backends/mla/expand.h"

#include <utility>

#include "metadata/int_math.h"
#include "reference/mla/kv_b_proj.h"

namespace attnbench {
namespace {

using attn::i64;

std::vector<std::int32_t> prefill_starts(const MlaWork& work) {
  return query_start_loc_of(work.problem, work.plan.batch.num_decodes);
}

}  // namespace

std::function<void()> run_all(std::vector<std::function<void()>> all) {
  return [all = std::move(all)] {
    for (const auto& run : all) run();
  };
}

MlaExpand::MlaExpand(MlaWork& work)
    : work_(work),
      element_(work.plan.fp8_prefill ? attn::Element::kE4M3 : work.element),
      kv_b_proj_(
          work.memory.upload(join_kv_b_proj(work.inputs.w_uk, work.inputs.w_uv), "kv_b_proj")),
      query_(MlaWork::at(work.query, first_token() * work.sizes.heads * work.sizes.qk(),
                         work.element)),
      query_start_loc_(work.memory.upload(prefill_starts(work), "prefill query_start_loc")),
      one_(work.memory.upload(std::vector<float>{1.0f}, "unit scale")) {
  if (!is_fp8()) return;
  const i64 row = work.sizes.heads * work.sizes.qk();
  auto* codes = work.memory.workspace_of<unsigned char>(tokens() * row, "e4m3 query");
  work.add_each("cast_query", false, &Ops::quantise_fp8,
                std::vector{cast(query_, tokens(), row, codes)});
  query_ = codes;
}

double MlaExpand::flops(i64 rows) const {
  return 2.0 * static_cast<double>(rows * work_.sizes.latent) *
         static_cast<double>(work_.sizes.heads * work_.sizes.kv());
}

attn::StaticQuantiseParams MlaExpand::cast(const void* source, i64 rows, i64 columns,
                                           unsigned char* codes) const {
  attn::StaticQuantiseParams cast{};
  cast.source_element = work_.element;
  cast.source = source;
  cast.source_row_stride = columns;
  cast.codes = codes;
  cast.code_row_stride = columns;
  cast.scale = one_;
  cast.num_rows = rows;
  cast.num_columns = columns;
  return cast;
}

const void* MlaExpand::add_new_rope(const void* k_pe) {
  if (!is_fp8()) return k_pe;
  auto* codes = work_.memory.workspace_of<unsigned char>(tokens() * work_.sizes.rope, "e4m3 k_pe");
  work_.add_each("cast_k_pe", false, &Ops::quantise_fp8,
                 std::vector{cast(k_pe, tokens(), work_.sizes.rope, codes)});
  return codes;
}

Expanded MlaExpand::make_expanded(const MlaRank& rank, const Latents& latents,
                                  const std::string& name) {
  const i64 heads = latents.rows * rank.heads;
  Expanded e;
  e.projected = e.kv = work_.workspace(heads * work_.sizes.kv(), work_.element, name + " kv");
  if (is_fp8()) e.kv = work_.workspace(heads * work_.sizes.kv(), element_, name + " e4m3 kv");
  e.value = work_.plan.pad_v ? work_.workspace(heads * work_.sizes.qk(), element_, name + " value")
                             : MlaWork::at(e.kv, work_.sizes.nope, element_);
  e.k_pe = latents.k_pe;
  e.k_pe_stride = latents.k_pe_stride;
  if (!reads_key_apart(rank, e)) {
    e.key = work_.workspace(heads * work_.sizes.qk(), element_, name + " key");
  }
  return e;
}

bool MlaExpand::reads_key_apart(const MlaRank& rank, const Expanded& kv) const {
  // Users' kernels take whole keys, and kernels that want V padded have one head size.
  if (!work_.problem.mla.fused_steps || work_.plan.pad_v || work_.users_prefill) return false;
  return work_.ops.takes_rope_apart(attend_operands(rank, kv));
}

std::function<void()> MlaExpand::expansion(const MlaRank& rank, const Latents& latents,
                                           const Expanded& to) const {
  const MlaSizes& n = work_.sizes;
  attn::MatmulParams product{};
  product.element = product.output_element = work_.element;
  product.a = latents.kv_c;
  product.a_row_stride = latents.kv_c_stride;
  product.b = MlaWork::at(kv_b_proj_, rank.first_head * n.kv() * n.latent, work_.element);
  product.b_row_stride = n.latent;
  product.b_transposed = 1;
  product.c = to.projected;
  product.c_row_stride = rank.heads * n.kv();
  product.num_batches = 1;
  product.m = latents.rows;
  product.n = rank.heads * n.kv();
  product.k = n.latent;
  product.batch_invariant = work_.problem.attention.batch_invariant ? 1 : 0;
  work_.ops.prepare_matmul(product);

  attn::ConcatParams key{};
  key.element = element_;
  key.first = to.kv;
  key.first_token_stride = rank.heads * n.kv();
  key.first_head_stride = n.kv();
  key.second = to.k_pe;
  key.second_token_stride = to.k_pe_stride;
  key.second_head_stride = 0;
  key.output = to.key;
  key.output_token_stride = rank.heads * n.qk();
  key.output_head_stride = n.qk();
  key.num_tokens = latents.rows;
  key.num_heads = static_cast<int>(rank.heads);
  key.first_size = static_cast<int>(n.nope);
  key.second_size = static_cast<int>(n.rope);

  // V padded with zeros to the width of K, for kernels that take one head size only.
  attn::ConcatParams value = key;
  value.first = MlaWork::at(to.kv, n.nope, element_);
  value.second = nullptr;
  value.output = to.value;
  value.first_size = static_cast<int>(n.value);
  value.second_size = static_cast<int>(n.qk() - n.value);
  const attn::StaticQuantiseParams to_e4m3 =
      cast(to.projected, latents.rows, rank.heads * n.kv(), static_cast<unsigned char*>(to.kv));
  return [&ops = work_.ops, fp8 = is_fp8(), pad = work_.plan.pad_v, product, to_e4m3, key, value] {
    ops.matmul(product);
    if (fp8) ops.quantise_fp8(to_e4m3);
    if (key.output != nullptr) ops.concat(key);
    if (pad) ops.concat(value);
  };
}

attn::AttendParams MlaExpand::attend_operands(const MlaRank& rank, const Expanded& kv) const {
  const MlaSizes& n = work_.sizes;
  attn::AttendParams p{};
  p.query_element = element_;
  p.query = MlaWork::at(query_, rank.first_head * n.qk(), element_);
  p.query_token_stride = n.heads * n.qk();
  p.query_head_stride = n.qk();
  p.query_start_loc = query_start_loc_;
  p.max_query_len = checked_int32(work_.problem.max_query_len(), "query_len");
  p.num_heads = p.num_kv_heads = static_cast<int>(rank.heads);
  p.head_size = static_cast<int>(n.qk());
  p.v_head_size = static_cast<int>(work_.plan.pad_v ? n.qk() : n.value);
  p.score.softmax_scale = static_cast<float>(work_.problem.attention.scale);
  p.score.window_left = p.score.window_right = -1;
  p.kv.element = element_;
  p.kv.key = kv.key;
  p.kv.head_stride_key = n.qk();
  if (kv.key == nullptr) {
    p.kv.key = kv.kv;
    p.kv.head_stride_key = n.kv();
    p.kv.rope = kv.k_pe;
    p.kv.rope_token_stride = kv.k_pe_stride;
    p.kv.rope_size = static_cast<int>(n.rope);
  }
  p.kv.token_stride_key = rank.heads * p.kv.head_stride_key;
  p.kv.value = kv.value;
  p.kv.head_stride_value = work_.plan.pad_v ? n.qk() : n.kv();
  p.kv.token_stride_value = rank.heads * p.kv.head_stride_value;
  return p;
}

attn::AttendParams MlaExpand::attend_params(const MlaRank& rank, const Expanded& kv,
                                            const std::vector<std::int32_t>& key_lens,
                                            bool causal) {
  attn::AttendParams p = attend_operands(rank, kv);
  p.seq_lens = work_.memory.upload(key_lens, "key lengths");
  p.num_requests = static_cast<int>(key_lens.size());
  if (!key_lens.empty()) p.max_seq_len = *std::ranges::max_element(key_lens);
  if (causal) p.score.window_right = 0;
  std::vector<i64> starts{0};
  for (const std::int32_t len : key_lens) starts.push_back(starts.back() + len);
  p.kv.kv_start_loc = work_.memory.upload(starts, "key starts");
  return p;
}

void MlaExpand::add_widening_step() {
  if (widened_.empty()) return;
  work_.add_each("widen_partials", false, &Ops::copy, std::exchange(widened_, {}));
}

std::function<void()> MlaExpand::attend_into(const MlaRank& rank, attn::AttendParams p,
                                             const std::vector<std::int32_t>& key_lens,
                                             void* output, attn::Element output_element,
                                             i64 token_stride) {
  p.output_element = output_element;
  if (work_.users_prefill) {
    p.output_head_stride = work_.sizes.value;
    p.output_element = work_.element;
    p.output = output;
    p.output_token_stride = token_stride;
    if (output_element != work_.element) {
      const i64 row = rank.heads * work_.sizes.value;
      p.output = work_.workspace(tokens() * row, work_.element, "output of a call");
      p.output_token_stride = row;
      attn::CopyParams wide{};
      wide.source_element = work_.element;
      wide.output_element = output_element;
      wide.source = p.output;
      wide.output = output;
      wide.source_strides[1] = row;
      wide.output_strides[1] = token_stride;
      wide.extents[0] = wide.extents[2] = 1;
      wide.extents[1] = tokens();
      wide.width = row;
      widened_.push_back(wide);
    }
    return work_.users_prefill(p, key_lens);
  }
  p.output = output;
  p.output_token_stride = token_stride;
  p.output_head_stride = work_.sizes.value;
  if (!work_.plan.pad_v) return [&ops = work_.ops, p] { ops.attend(p); };
  p.output =
      work_.workspace(tokens() * rank.heads * work_.sizes.qk(), output_element, "padded output");
  p.output_token_stride = rank.heads * work_.sizes.qk();
  p.output_head_stride = work_.sizes.qk();
  attn::CopyParams slice{};
  slice.source_element = slice.output_element = output_element;
  slice.source = p.output;
  slice.source_strides[1] = p.output_token_stride;
  slice.source_strides[2] = p.output_head_stride;
  slice.output = output;
  slice.output_strides[1] = token_stride;
  slice.output_strides[2] = work_.sizes.value;
  slice.extents[0] = 1;
  slice.extents[1] = tokens();
  slice.extents[2] = rank.heads;
  slice.width = work_.sizes.value;
  return [&ops = work_.ops, p, slice] {
    ops.attend(p);
    ops.copy(slice);
  };
}

Partial MlaExpand::make_partial(const MlaRank& rank, const std::string& name) {
  const i64 rows = tokens() * rank.heads;
  return {work_.memory.workspace_of<float>(rows * work_.sizes.value, name),
          work_.memory.workspace_of<float>(rows, name + " lse")};
}

attn::MergeParams MlaExpand::merge_params(const MlaRank& rank, const Partial& prefix,
                                          const Partial& suffix) const {
  attn::MergeParams m{};
  m.element = m.output_element = attn::Element::kF32;
  m.prefix_output = prefix.output;
  m.prefix_lse = prefix.lse;
  m.suffix_output = suffix.output;
  m.suffix_lse = suffix.lse;
  m.num_tokens = m.num_merged = tokens();
  m.num_heads = static_cast<int>(rank.heads);
  m.head_size = static_cast<int>(work_.sizes.value);
  m.prefix_head_stride = work_.sizes.value;
  return m;
}

}  // namespace attnbench
