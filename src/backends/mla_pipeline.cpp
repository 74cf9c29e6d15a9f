// The pipeline of the MLA backends: write the cache, decode over the latents, prefill over expanded
// heads with the context in chunks (semantics §8.4 to §8.9).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backends/device_buffers.h"
#include "backends/mla_backend.h"
#include "core/error.h"
#include "inputs/mla_inputs.h"
#include "metadata/decode_plan.h"
#include "metadata/int_math.h"
#include "metadata/sparse_index.h"
#include "ops/plan_rows.h"
#include "reference/mla/kv_b_proj.h"

namespace attnbench {
namespace {

using attn::i64;

attn::Element element_of(Dtype dtype) { return static_cast<attn::Element>(dtype); }

const char* at(const void* base, i64 elements, std::size_t size) {
  return static_cast<const char*>(base) + elements * static_cast<i64>(size);
}

/// Dimensions, in the letters of §8.1.
struct Dims {
  i64 heads, padded_heads, latent, nope, rope, value;
  i64 entry() const { return latent + rope; }
  i64 qk() const { return nope + rope; }
};

class MlaPipeline final : public Pipeline {
 public:
  MlaPipeline(const MlaCapability& capability, const Problem& problem, const BackendInputs& inputs,
              Ops& ops)
      : capability_(capability),
        problem_(problem),
        inputs_(*inputs.mla),
        before_(*inputs.mla_cache),
        plan_(plan_mla(capability, problem)),
        ops_(ops),
        memory_(ops),
        size_(dtype_size(problem.attention.dtype)),
        element_(element_of(problem.attention.dtype)) {
    set_dims();
    set_memory();
    add_write_step();
    if (plan_.batch.num_decode_tokens > 0 || plan_.batch.num_decodes > 0) add_decode_steps();
    if (plan_.batch.num_prefills > 0) add_prefill_steps();
  }

  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override { memory_.poison(); }

  PipelineOutput read_output() override {
    ops_.synchronize();
    PipelineOutput result;
    Tensor padded(problem_.attention.dtype, {num_rows_, dims_.heads, dims_.value});
    ops_.download(padded.bytes(), *output_, padded.size_bytes());
    result.output = Tensor(padded.dtype(), {num_tokens_, dims_.heads, dims_.value});
    if (!result.output.empty()) {
      std::memcpy(result.output.bytes(), padded.bytes(), result.output.size_bytes());
    }
    std::byte* end = padded.bytes() + padded.size_bytes();
    if (std::any_of(padded.bytes() + result.output.size_bytes(), end,
                    [](std::byte b) { return b != std::byte{0xFF}; })) {
      result.defect = "an output row past the last token was written";
    }
    result.lse = read_lse();
    result.cache = Tensor(before_.data.dtype(), before_.data.shape());
    ops_.download(result.cache->bytes(), *cache_, result.cache->size_bytes());
    return result;
  }

 private:
  void set_dims() {
    const MlaSpec& mla = problem_.mla;
    const i64 heads = problem_.attention.num_heads;
    dims_ = {heads,
             mla.q_pad_num_heads ? std::max<i64>(heads, *mla.q_pad_num_heads) : heads,
             mla.kv_lora_rank,
             mla.qk_nope_head_dim,
             mla.qk_rope_head_dim,
             mla.v_head_dim};
    num_tokens_ = inputs_.num_tokens();
    num_rows_ = inputs_.query.dim(0);
  }

  void set_memory() {
    query_ = memory_.upload(inputs_.query, "query");
    w_uk_ = memory_.upload(inputs_.w_uk, "w_uk");
    w_uv_ = memory_.upload(inputs_.w_uv, "w_uv");
    new_kv_c_ = memory_.upload(before_.new_kv_c, "kv_c");
    new_k_pe_ = memory_.upload(before_.new_k_pe, "k_pe");
    block_table_ = static_cast<const int*>(memory_.upload(before_.block_table, "block_table"));
    memory_.upload(before_.data, "kv_cache");
    cache_ = memory_.last();
    k_scale_ = memory_.upload(
        std::vector<float>{static_cast<float>(problem_.kv_cache.k_scale.at(0))}, "k_scale");
    q_scale_ = memory_.upload(std::vector<float>{static_cast<float>(problem_.kv_cache.q_scale)},
                              "q_scale");
    memory_.workspace(num_rows_ * dims_.heads * dims_.value * static_cast<i64>(size_), "output");
    output_ = memory_.last();
    // Padded heads have an LSE too; nobody reads it.
    lse_ = memory_.workspace_of<float>(num_rows_ * dims_.padded_heads, "lse");
    lse_buffer_ = memory_.last();
  }

  attn::MlaEntry entry_format() const {
    const KvCacheDtype dtype = mla_cache_dtype(capability_, problem_);
    if (dtype == KvCacheDtype::kFp8DsMla) return attn::MlaEntry::kDsMla;
    return is_quantised(dtype) ? attn::MlaEntry::kE4M3 : attn::MlaEntry::kCopy;
  }

  void add_step(std::string name, bool in_median, std::function<void()> run, double bytes = 0,
                double flops = 0) {
    steps_.push_back({std::move(name), in_median, bytes, flops, std::move(run)});
  }

  /// The first attention step of a run carries the work of all of them.
  void add_attend_step(std::string name, std::function<void()> run) {
    const bool first = !has_attention_step_;
    has_attention_step_ = true;
    add_step(std::move(name), true, std::move(run),
             first ? mla_traffic(problem_, capability_.name).unique_bytes : 0,
             first ? mla_flops(problem_, capability_.name) : 0);
  }

  void add_write_step() {
    attn::MlaCacheWriteParams write{};
    write.format = entry_format();
    write.source_element = element_;
    write.kv_c = new_kv_c_;
    write.kv_c_token_stride = dims_.latent;
    write.k_pe = new_k_pe_;
    write.k_pe_token_stride = dims_.rope;
    write.cache = cache_->data();
    write.slot_stride = before_.data.dim(2);
    write.block_stride = before_.data.dim(1) * before_.data.dim(2);
    write.slot_mapping =
        static_cast<const i64*>(memory_.upload(before_.slot_mapping, "slot_mapping"));
    write.num_slots = before_.slot_mapping.num_elements();
    write.block_size = problem_.kv_cache.block_size;
    write.kv_lora_rank = static_cast<int>(dims_.latent);
    write.rope_head_dim = static_cast<int>(dims_.rope);
    write.k_scale = k_scale_;
    const double bytes =
        static_cast<double>(write.num_slots) *
        static_cast<double>(dims_.entry() * static_cast<i64>(size_) +
                            before_.data.dim(2) *
                                static_cast<i64>(dtype_size(before_.data.dtype())));
    add_step(
        "write_cache", false, [this, write] { ops_.write_mla_cache(write); }, bytes);
  }

  /// A product of `num_batches` heads; bytes are not counted.
  void add_matmul(std::string name, const attn::MatmulParams& product) {
    const double flops = 2.0 * static_cast<double>(product.num_batches * product.m) *
                         static_cast<double>(product.n * product.k);
    add_step(
        std::move(name), false, [this, product] { ops_.matmul(product); }, 0, flops);
  }

  // ---- Decode: data-movement-friendly form --------------------------------------------------

  void add_decode_steps() {
    const i64 tokens = plan_.batch.num_decode_tokens;
    const void* latent_query = add_latent_query(tokens);
    attn::AttendParams attend = decode_params(latent_query, tokens);
    if (capability_.sparse) {
      add_sparse(attend);
    } else if (plan_.num_parts <= 1) {
      add_attend_step("attend_decode", [this, attend] { ops_.attend(attend); });
    } else if (capability_.split == MlaDecodeSplit::kPlan) {
      add_planned(attend);
    } else {
      add_split(attend, tokens);
    }
    // o = o_l @ W_UV of each head.
    attn::MatmulParams up{};
    up.element = up.output_element = element_;
    up.a = attend.output;
    up.a_batch_stride = dims_.latent;
    up.a_row_stride = attend.output_token_stride;
    up.b = w_uv_;
    up.b_batch_stride = dims_.latent * dims_.value;
    up.b_row_stride = dims_.value;
    up.c = output_->data();
    up.c_batch_stride = dims_.value;
    up.c_row_stride = dims_.heads * dims_.value;
    up.num_batches = dims_.heads;
    up.m = tokens;
    up.n = dims_.value;
    up.k = dims_.latent;
    add_matmul("project_value", up);
  }

  /// [tokens, padded heads, Lkv + R]: q_nope @ W_UK_T beside q_pe, quantised where the backend
  /// does.
  const void* add_latent_query(i64 tokens) {
    const i64 row = dims_.heads * dims_.entry();
    void* latent = memory_.workspace(tokens * dims_.heads * dims_.latent * i64(size_), "ql_nope");
    attn::MatmulParams project{};
    project.element = project.output_element = element_;
    project.a = query_;
    project.a_batch_stride = dims_.qk();
    project.a_row_stride = dims_.heads * dims_.qk();
    project.b = w_uk_;
    project.b_batch_stride = dims_.nope * dims_.latent;
    project.b_row_stride = dims_.latent;
    project.c = latent;
    project.c_batch_stride = dims_.latent;
    project.c_row_stride = dims_.heads * dims_.latent;
    project.num_batches = dims_.heads;
    project.m = tokens;
    project.n = dims_.latent;
    project.k = dims_.nope;
    add_matmul("project_query", project);

    void* joined = memory_.workspace(tokens * row * i64(size_), "latent query");
    attn::ConcatParams concat{};
    concat.element = element_;
    concat.first = latent;
    concat.first_token_stride = dims_.heads * dims_.latent;
    concat.first_head_stride = dims_.latent;
    concat.second = at(query_, dims_.nope, size_);
    concat.second_token_stride = dims_.heads * dims_.qk();
    concat.second_head_stride = dims_.qk();
    concat.output = joined;
    concat.output_token_stride = row;
    concat.output_head_stride = dims_.entry();
    concat.num_tokens = tokens;
    concat.num_heads = static_cast<int>(dims_.heads);
    concat.first_size = static_cast<int>(dims_.latent);
    concat.second_size = static_cast<int>(dims_.rope);
    add_step("concat_query", false, [this, concat] { ops_.concat(concat); });
    const void* query = joined;
    attn::Element element = element_;
    if (plan_.quantised_query) {
      query = add_quantised_query(joined, tokens, row);
      element = attn::Element::kE4M3;
    }
    return dims_.padded_heads > dims_.heads ? add_padded_heads(query, element, tokens) : query;
  }

  const void* add_quantised_query(const void* joined, i64 tokens, i64 row) {
    attn::StaticQuantiseParams quantise{};
    quantise.source_element = element_;
    quantise.source = joined;
    quantise.source_row_stride = row;
    quantise.codes = memory_.workspace_of<unsigned char>(tokens * row, "quantised query");
    quantise.code_row_stride = row;
    quantise.scale = q_scale_;
    quantise.num_rows = tokens;
    quantise.num_columns = row;
    add_step("quantise_query", false, [this, quantise] { ops_.quantise_fp8(quantise); });
    return quantise.codes;
  }

  /// Heads of zeros behind the real ones.
  const void* add_padded_heads(const void* query, attn::Element element, i64 tokens) {
    const i64 row = dims_.heads * dims_.entry();
    const i64 padded_row = dims_.padded_heads * dims_.entry();
    const auto size = static_cast<i64>(dtype_size(static_cast<Dtype>(element)));
    attn::ConcatParams pad{};
    pad.element = element;
    pad.first = query;
    pad.first_token_stride = row;
    pad.output = memory_.workspace(tokens * padded_row * size, "padded query");
    pad.output_token_stride = padded_row;
    pad.num_tokens = tokens;
    pad.num_heads = 1;
    pad.first_size = checked_int32(row, "heads of the query");
    pad.second_size = checked_int32(padded_row - row, "padding heads");
    add_step("pad_query_heads", false, [this, pad] { ops_.concat(pad); });
    return pad.output;
  }

  attn::AttendParams decode_params(const void* latent_query, i64 tokens) {
    const bool quantised = plan_.quantised_query;
    attn::AttendParams p{};
    p.query_element = quantised ? attn::Element::kE4M3 : element_;
    p.output_element = element_;
    p.query = latent_query;
    p.query_token_stride = dims_.padded_heads * dims_.entry();
    p.query_head_stride = dims_.entry();
    p.output =
        memory_.workspace(tokens * dims_.padded_heads * dims_.latent * i64(size_), "latent output");
    p.output_token_stride = dims_.padded_heads * dims_.latent;
    p.output_head_stride = dims_.latent;
    p.lse = lse_;
    p.lse_stride = num_rows_;
    p.query_start_loc = memory_.upload(inputs_.query_start_loc, "query_start_loc");
    p.seq_lens = memory_.upload(inputs_.seq_lens, "seq_lens");
    p.num_requests = plan_.batch.num_decodes;
    p.max_query_len = static_cast<int>(problem_.max_query_len());
    p.num_heads = static_cast<int>(dims_.padded_heads);
    p.num_kv_heads = 1;
    p.head_size = static_cast<int>(dims_.entry());
    p.v_head_size = static_cast<int>(dims_.latent);
    const double q_scale = quantised ? problem_.kv_cache.q_scale : 1.0;
    p.score.softmax_scale = static_cast<float>(problem_.attention.scale * q_scale);
    p.score.window_left = -1;
    p.score.window_right = 0;
    p.kv.element = element_of(before_.data.dtype());
    // The value of a key is the first part of its entry.
    p.kv.key = p.kv.value = cache_->data();
    p.kv.token_stride_key = p.kv.token_stride_value = before_.data.dim(2);
    p.kv.block_stride = before_.data.dim(1) * before_.data.dim(2);
    p.kv.block_table = block_table_;
    p.kv.block_table_stride = before_.block_table.dim(1);
    p.kv.block_size = problem_.kv_cache.block_size;
    if (entry_format() == attn::MlaEntry::kE4M3) p.kv.k_scale = p.kv.v_scale = k_scale_;
    return p;
  }

  void add_planned(const attn::AttendParams& attend) {
    const std::span<const std::int32_t> lens(inputs_.seq_lens.data(),
                                             static_cast<std::size_t>(plan_.batch.num_decodes));
    const DecodePlan plan = plan_decode(lens, plan_.num_parts, kDecodePlanDenseOverhead);
    const std::span<const std::int32_t> starts(
        inputs_.query_start_loc.data(), static_cast<std::size_t>(plan_.batch.num_decodes) + 1);
    const std::vector<i64> rows = plan_partial_start_loc(plan.num_splits, starts);
    attn::PlanParams params{};
    params.num_parts = plan_.num_parts;
    params.parts = static_cast<const int*>(
        memory_.upload(plan.parts.data(), plan.parts.size() * sizeof(DecodePart), "decode plan"));
    params.num_splits = memory_.upload(plan.num_splits, "num_splits");
    params.partial_start_loc = memory_.upload(rows, "partial rows");
    const i64 partials = std::max<i64>(1, rows.back()) * dims_.padded_heads;
    params.partial_output = memory_.workspace_of<float>(partials * dims_.latent, "partial output");
    params.partial_lse = memory_.workspace_of<float>(partials, "partial lse");
    add_attend_step("attend_decode", [this, attend, params] { ops_.attend_plan(attend, params); });
    add_step("combine_decode", true, [this, attend, params] { ops_.combine_plan(attend, params); });
  }

  void add_split(const attn::AttendParams& attend, i64 tokens) {
    attn::SplitParams split{};
    split.num_splits = plan_.num_parts;
    split.num_tokens = tokens;
    const i64 rows = i64{split.num_splits} * tokens * dims_.padded_heads;
    split.partial_output = memory_.workspace_of<float>(rows * dims_.latent, "partial output");
    split.partial_lse = memory_.workspace_of<float>(rows, "partial lse");
    add_attend_step("attend_decode", [this, attend, split] { ops_.attend_splits(attend, split); });
    add_step("combine_decode", true, [this, attend, split] { ops_.combine_splits(attend, split); });
  }

  void add_sparse(const attn::AttendParams& attend) {
    std::vector<std::int32_t> requests;
    for (std::size_t b = 0; b < problem_.batch.size(); ++b) {
      requests.insert(requests.end(), static_cast<std::size_t>(problem_.batch[b].query_len),
                      static_cast<std::int32_t>(b));
    }
    const Tensor& table = before_.block_table;
    const Tensor& topk = inputs_.topk_indices;
    SparseIndexArgs args;
    args.request_ids = requests;
    args.topk_indices = {topk.data<std::int32_t>(), static_cast<std::size_t>(topk.num_elements())};
    args.topk = topk.dim(1);
    args.block_table = {table.data<std::int32_t>(), static_cast<std::size_t>(table.num_elements())};
    args.columns = table.dim(1);
    args.block_size = problem_.kv_cache.block_size;
    const SparseSlots slots = convert_request_indices(args);
    attn::SparseParams sparse{};
    sparse.format = entry_format();
    sparse.slots = memory_.upload(slots.slots, "slots");
    sparse.slots_stride = topk.dim(1);
    sparse.topk = static_cast<int>(topk.dim(1));
    sparse.num_slots = before_.data.dim(0) * before_.data.dim(1);
    add_attend_step("attend_sparse",
                    [this, attend, sparse] { ops_.attend_sparse(attend, sparse); });
  }

  // ---- Prefill: compute-friendly form -------------------------------------------------------

  /// Keys and values of rows of latents, expanded to all heads.
  struct Expanded {
    void* kv;     // [rows, N, P + V]
    void* key;    // [rows, N, P + R]
    void* value;  // [rows, N, P + R] with padding of V, else inside kv
  };

  Expanded make_expanded(i64 rows, const std::string& name) {
    const i64 heads = rows * dims_.heads * i64(size_);
    Expanded e{};
    e.kv = memory_.workspace(heads * (dims_.nope + dims_.value), name + " kv");
    e.key = memory_.workspace(heads * dims_.qk(), name + " key");
    e.value = plan_.pad_v ? memory_.workspace(heads * dims_.qk(), name + " value")
                          : static_cast<char*>(e.kv) + dims_.nope * i64(size_);
    return e;
  }

  i64 kv_head() const { return dims_.nope + dims_.value; }

  /// [k_nope | v] = kv_c @ kv_b_proj, k = [k_nope | k_pe], and V padded to the width of K.
  void expand(const void* kv_c, i64 kv_c_stride, const void* k_pe, i64 k_pe_stride, i64 rows,
              const Expanded& to) {
    attn::MatmulParams product{};
    product.element = product.output_element = element_;
    product.a = kv_c;
    product.a_row_stride = kv_c_stride;
    product.b = kv_b_proj_;
    product.b_row_stride = dims_.latent;
    product.b_transposed = 1;
    product.c = to.kv;
    product.c_row_stride = dims_.heads * kv_head();
    product.num_batches = 1;
    product.m = rows;
    product.n = dims_.heads * kv_head();
    product.k = dims_.latent;
    ops_.matmul(product);

    attn::ConcatParams key{};
    key.element = element_;
    key.first = to.kv;
    key.first_token_stride = dims_.heads * kv_head();
    key.first_head_stride = kv_head();
    key.second = k_pe;
    key.second_token_stride = k_pe_stride;
    key.second_head_stride = 0;
    key.output = to.key;
    key.output_token_stride = dims_.heads * dims_.qk();
    key.output_head_stride = dims_.qk();
    key.num_tokens = rows;
    key.num_heads = static_cast<int>(dims_.heads);
    key.first_size = static_cast<int>(dims_.nope);
    key.second_size = static_cast<int>(dims_.rope);
    ops_.concat(key);
    if (!plan_.pad_v) return;
    attn::ConcatParams value = key;
    value.first = at(to.kv, dims_.nope, size_);
    value.second = nullptr;
    value.output = to.value;
    value.first_size = static_cast<int>(dims_.value);
    value.second_size = static_cast<int>(dims_.qk() - dims_.value);
    ops_.concat(value);
  }

  i64 attended_width() const { return plan_.pad_v ? dims_.qk() : dims_.value; }

  attn::AttendParams prefill_params(const Expanded& kv, const std::vector<std::int32_t>& key_lens,
                                    bool causal) {
    attn::AttendParams p{};
    p.query_element = element_;
    p.query = at(query_, first_token() * dims_.heads * dims_.qk(), size_);
    p.query_token_stride = dims_.heads * dims_.qk();
    p.query_head_stride = dims_.qk();
    p.query_start_loc = prefill_start_loc_;
    p.seq_lens = memory_.upload(key_lens, "key lengths");
    p.num_requests = static_cast<int>(key_lens.size());
    p.max_query_len = static_cast<int>(problem_.max_query_len());
    p.num_heads = p.num_kv_heads = static_cast<int>(dims_.heads);
    p.head_size = static_cast<int>(dims_.qk());
    p.v_head_size = static_cast<int>(attended_width());
    p.score.softmax_scale = static_cast<float>(problem_.attention.scale);
    p.score.window_left = -1;
    p.score.window_right = causal ? 0 : -1;
    p.kv.element = element_;
    p.kv.key = kv.key;
    p.kv.token_stride_key = dims_.heads * dims_.qk();
    p.kv.head_stride_key = dims_.qk();
    p.kv.value = kv.value;
    p.kv.token_stride_value = dims_.heads * (plan_.pad_v ? dims_.qk() : kv_head());
    p.kv.head_stride_value = plan_.pad_v ? dims_.qk() : kv_head();
    std::vector<i64> starts{0};
    for (const std::int32_t len : key_lens) starts.push_back(starts.back() + len);
    p.kv.kv_start_loc = memory_.upload(starts, "key starts");
    return p;
  }

  /// A float32 result [tokens, N, V] with LSE [N, tokens].
  struct Partial {
    float* output;
    float* lse;
  };
  Partial make_partial(i64 tokens, const std::string& name) {
    return {memory_.workspace_of<float>(tokens * dims_.heads * dims_.value, name),
            memory_.workspace_of<float>(tokens * dims_.heads, name + " lse")};
  }

  /// Makes the attention write `tokens` rows of V columns: with padding through a wide buffer whose
  /// last columns are cut off (§8.6).
  std::function<void()> attend_into(attn::AttendParams p, void* output, attn::Element element,
                                    i64 token_stride, i64 tokens) {
    p.output_element = element;
    p.output = output;
    p.output_token_stride = token_stride;
    p.output_head_stride = dims_.value;
    if (!plan_.pad_v) return [this, p] { ops_.attend(p); };
    const auto size = static_cast<i64>(dtype_size(static_cast<Dtype>(element)));
    p.output = memory_.workspace(tokens * dims_.heads * dims_.qk() * size, "padded output");
    p.output_token_stride = dims_.heads * dims_.qk();
    p.output_head_stride = dims_.qk();
    attn::CopyParams slice{};
    slice.source_element = slice.output_element = element;
    slice.source = p.output;
    slice.source_strides[1] = p.output_token_stride;
    slice.source_strides[2] = p.output_head_stride;
    slice.output = output;
    slice.output_strides[1] = token_stride;
    slice.output_strides[2] = dims_.value;
    slice.extents[0] = 1;
    slice.extents[1] = tokens;
    slice.extents[2] = dims_.heads;
    slice.width = dims_.value;
    return [this, p, slice] {
      ops_.attend(p);
      ops_.copy(slice);
    };
  }

  i64 first_token() const { return plan_.batch.num_decode_tokens; }
  void* final_output() const {
    return static_cast<char*>(output_->data()) +
           first_token() * dims_.heads * dims_.value * i64(size_);
  }

  void add_prefill_steps() {
    kv_b_proj_ = memory_.upload(join_kv_b_proj(inputs_.w_uk, inputs_.w_uv), "kv_b_proj");
    std::vector<std::int32_t> starts{0};
    std::vector<std::int32_t> lens;
    for (std::size_t b = static_cast<std::size_t>(plan_.batch.num_decodes);
         b < problem_.batch.size(); ++b) {
      lens.push_back(checked_int32(problem_.batch[b].query_len, "query_len"));
      starts.push_back(starts.back() + lens.back());
    }
    prefill_start_loc_ = memory_.upload(starts, "prefill query_start_loc");
    const i64 tokens = plan_.batch.num_prefill_tokens;
    const Expanded fresh = make_expanded(tokens, "new");
    const void* kv_c = at(new_kv_c_, first_token() * dims_.latent, size_);
    const void* k_pe = at(new_k_pe_, first_token() * dims_.rope, size_);
    add_step(
        "project_new_tokens", false,
        [this, kv_c, k_pe, tokens, fresh] {
          expand(kv_c, dims_.latent, k_pe, dims_.rope, tokens, fresh);
        },
        0, expand_flops(tokens));
    attn::AttendParams attend = prefill_params(fresh, lens, true);
    const i64 row = dims_.heads * dims_.value;
    if (!plan_.chunks) {
      attend.lse = lse_ + first_token();
      attend.lse_stride = num_rows_;
      add_attend_step("attend_new_tokens",
                      attend_into(attend, final_output(), element_, row, tokens));
      return;
    }
    const Partial suffix = make_partial(tokens, "new tokens");
    attend.lse = suffix.lse;
    attend.lse_stride = tokens;
    add_attend_step("attend_new_tokens",
                    attend_into(attend, suffix.output, attn::Element::kF32, row, tokens));
    const Partial context = add_context_steps();
    attn::MergeParams merged = merge_params(context, suffix, tokens);
    merged.num_merged = plan_.chunks->prefill_tokens_with_context;
    merged.output_element = element_;
    merged.output = final_output();
    merged.output_lse = lse_ + first_token();
    merged.output_lse_stride = num_rows_;
    add_step("merge_context", true, [this, merged] { ops_.merge(merged); });
  }

  double expand_flops(i64 rows) const {
    return 2.0 * static_cast<double>(rows * dims_.latent) *
           static_cast<double>(dims_.heads * kv_head());
  }

  attn::MergeParams merge_params(const Partial& prefix, const Partial& suffix, i64 tokens) const {
    attn::MergeParams m{};
    m.element = m.output_element = attn::Element::kF32;
    m.prefix_output = prefix.output;
    m.prefix_lse = prefix.lse;
    m.suffix_output = suffix.output;
    m.suffix_lse = suffix.lse;
    m.num_tokens = m.num_merged = tokens;
    m.num_heads = static_cast<int>(dims_.heads);
    m.head_size = static_cast<int>(dims_.value);
    m.prefix_head_stride = dims_.value;
    return m;
  }

  /// Every chunk of the context: gather, expand, attend, merge into the running partial.
  Partial add_context_steps() {
    const MlaChunkPlan& plan = *plan_.chunks;
    const i64 tokens = plan_.batch.num_prefill_tokens;
    std::int64_t most = 0;
    for (const MlaChunk& chunk : plan.chunks) most = std::max<i64>(most, chunk.num_tokens);
    void* gathered = memory_.workspace(most * dims_.entry() * i64(size_), "workspace");
    const Expanded expanded = make_expanded(most, "context");
    Partial running = make_partial(tokens, "context");
    Partial spare = make_partial(tokens, "merged context");
    const Partial chunk_result = make_partial(tokens, "chunk");
    for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
      const Partial to = i == 0 ? running : chunk_result;
      add_chunk_steps(plan.chunks[i], gathered, expanded, to);
      if (i == 0) continue;
      attn::MergeParams merged = merge_params(running, chunk_result, tokens);
      merged.output = spare.output;
      merged.output_lse = spare.lse;
      merged.output_lse_stride = tokens;
      add_step("merge_chunk", true, [this, merged] { ops_.merge(merged); });
      std::swap(running, spare);
    }
    return running;
  }

  void add_chunk_steps(const MlaChunk& chunk, void* gathered, const Expanded& expanded,
                       const Partial& to) {
    const i64 rows = chunk.num_tokens;
    const i64 tokens = plan_.batch.num_prefill_tokens;
    attn::MlaGatherParams gather{};
    gather.entries.element = element_of(before_.data.dtype());
    gather.entries.cache = cache_->data();
    gather.entries.slot_stride = before_.data.dim(2);
    gather.entries.block_stride = before_.data.dim(1) * before_.data.dim(2);
    gather.entries.block_table =
        block_table_ + i64{plan_.batch.num_decodes} * before_.block_table.dim(1);
    gather.entries.block_table_stride = before_.block_table.dim(1);
    gather.entries.block_size = problem_.kv_cache.block_size;
    gather.entries.entry_size = static_cast<int>(dims_.entry());
    gather.output_element = element_;
    gather.output = gathered;
    gather.output_token_stride = dims_.entry();
    gather.cu_seq_lens = memory_.upload(chunk.cu_seq_lens, "chunk cu_seq_lens");
    gather.token_to_seq = memory_.upload(chunk.token_to_seq, "token_to_seq");
    gather.seq_starts = memory_.upload(chunk.starts, "chunk starts");
    gather.num_tokens = rows;
    if (entry_format() == attn::MlaEntry::kE4M3) gather.k_scale = k_scale_;
    add_step("gather_context", false, [this, gather] { ops_.gather_mla(gather); });
    const void* k_pe = at(gathered, dims_.latent, size_);
    add_step(
        "project_context", false,
        [this, gathered, k_pe, rows, expanded] {
          expand(gathered, dims_.entry(), k_pe, dims_.entry(), rows, expanded);
        },
        0, expand_flops(rows));
    attn::AttendParams attend = prefill_params(expanded, chunk.lens, false);
    attend.lse = to.lse;
    attend.lse_stride = tokens;
    add_attend_step("attend_context", attend_into(attend, to.output, attn::Element::kF32,
                                                  dims_.heads * dims_.value, tokens));
  }

  Tensor read_lse() {
    std::vector<float> padded(static_cast<std::size_t>(dims_.padded_heads * num_rows_));
    ops_.download(padded.data(), *lse_buffer_, padded.size() * sizeof(float));
    Tensor lse(Dtype::kF32, {dims_.heads, num_tokens_});
    for (i64 head = 0; head < dims_.heads; ++head) {
      std::copy_n(padded.data() + head * num_rows_, num_tokens_,
                  lse.data<float>() + head * num_tokens_);
    }
    return lse;
  }

  const MlaCapability& capability_;
  Problem problem_;
  const MlaInputs& inputs_;
  const MlaCache& before_;
  MlaPlan plan_;
  Ops& ops_;
  DeviceBuffers memory_;
  std::size_t size_;
  attn::Element element_;
  Dims dims_{};
  i64 num_tokens_ = 0;
  i64 num_rows_ = 0;
  bool has_attention_step_ = false;
  std::vector<Step> steps_;
  const void* query_ = nullptr;      // [T_pad, N, P + R]
  const void* w_uk_ = nullptr;       // [N, P, Lkv]
  const void* w_uv_ = nullptr;       // [N, Lkv, V]
  const void* kv_b_proj_ = nullptr;  // [N * (P + V), Lkv]
  const void* new_kv_c_ = nullptr;   // [T + padding, Lkv]
  const void* new_k_pe_ = nullptr;   // [T + padding, R]
  const int* block_table_ = nullptr;
  const int* prefill_start_loc_ = nullptr;
  const float* k_scale_ = nullptr;
  const float* q_scale_ = nullptr;
  float* lse_ = nullptr;  // [padded heads, T_pad]
  Buffer* lse_buffer_ = nullptr;
  Buffer* output_ = nullptr;
  Buffer* cache_ = nullptr;
};

}  // namespace

std::unique_ptr<Pipeline> make_mla_pipeline(const MlaCapability& capability, const Problem& problem,
                                            const BackendInputs& inputs, Ops& ops) {
  if (inputs.mla == nullptr || inputs.mla_cache == nullptr) {
    fail(ErrorKind::kInternal, "{}: no MLA inputs were given", capability.name);
  }
  return std::make_unique<MlaPipeline>(capability, problem, inputs, ops);
}

}  // namespace attnbench
