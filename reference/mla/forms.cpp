// The products with the weights go head by head over the threads. Expanded keys and values of all
// heads would take many times the size of the cache, so the MHA form takes as many heads at a time
// as fit into kMaxExpandedBytes.
#include "reference/mla/forms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "core/system/parallel.h"
#include "reference/vector_math.h"

namespace attnbench {
namespace {

constexpr std::int64_t kTileEntries = 512;
// Expanded keys and values of some heads.
constexpr std::int64_t kMaxExpandedBytes = std::int64_t{128} << 20;

template <typename Real>
constexpr Dtype kRealDtype = std::is_same_v<Real, double> ? Dtype::kF64 : Dtype::kF32;

/// Rows of a batch as requests of the attention reference, whose last query row sees all of a
/// request's keys and every earlier row one key fewer: neighbours like that share a request, any
/// other row is a request of its own.
struct RowRequests {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc;

  explicit RowRequests(const MlaBatch& batch) {
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      const bool continues = i > 0 && batch.first_entry[i] == batch.first_entry[i - 1] &&
                             batch.num_entries[i] == batch.num_entries[i - 1] + 1;
      if (!continues) {
        query_start_loc.push_back(query_start_loc.back());
        seq_lens.push_back(0);
        key_start_loc.push_back(batch.first_entry[i]);
      }
      ++query_start_loc.back();
      seq_lens.back() = static_cast<std::int32_t>(batch.num_entries[i]);
    }
  }
};

/// The values of the MQA form: the first `latent` elements of every entry, [K, 1, Lkv].
Tensor latent_part(const Tensor& entries, std::int64_t latent) {
  Tensor part(entries.dtype(), {entries.dim(0), 1, latent});
  const std::size_t size = dtype_size(entries.dtype());
  const std::size_t from_bytes = static_cast<std::size_t>(entries.dim(2)) * size;
  const std::size_t to_bytes = static_cast<std::size_t>(latent) * size;
  for_each_chunk(part.dim(0), kTileEntries, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
      std::memcpy(part.bytes() + row * to_bytes, entries.bytes() + row * from_bytes, to_bytes);
    }
  });
  return part;
}

}  // namespace

template <typename Real>
MlaForms<Real>::MlaForms(const MlaReferenceInputs& inputs, const MlaDims& dims,
                         const EmulationRule* rule, const ReferenceOptions& options)
    : inputs_(inputs), dims_(dims), rule_(rule), options_(options), pool_(options.num_threads) {}

template <typename Real>
std::vector<int> MlaForms<Real>::all_heads() const {
  std::vector<int> heads(static_cast<std::size_t>(dims_.num_heads));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

template <typename Real>
void MlaForms<Real>::round_stored(Real* values, std::int64_t count) const {
  if constexpr (std::is_same_v<Real, float>) {
    if (rule_ != nullptr) round_values(rule_->storage, values, count);
  }
}

template <typename Real>
void MlaForms<Real>::round_to_e4m3(Real* values, std::int64_t count) const {
  const Dtype activation = inputs_.query->dtype();
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<Real>(
        round_to(Dtype::kE4M3, round_to(activation, static_cast<float>(values[i]))));
  }
}

template <typename Real>
std::optional<ReferenceOutput> MlaForms<Real>::attend(const Tensor& query, const Tensor& key,
                                                      const Tensor& value,
                                                      const MlaBatch& batch) const {
  const RowRequests requests(batch);
  ReferenceInputs inputs;
  inputs.query = &query;
  inputs.key = &key;
  inputs.value = &value;
  inputs.query_start_loc = requests.query_start_loc;
  inputs.seq_lens = requests.seq_lens;
  inputs.key_start_loc = requests.key_start_loc;
  AttentionMath math;
  math.softmax_scale = inputs_.softmax_scale;
  math.causal = true;
  math.window_right = 0;
  std::vector<std::int32_t> rows(batch.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::optional<ReferenceOutput> result;
  if (rule_ == nullptr) {
    result = reference_attention(math, inputs, rows, options_);
  } else {
    EmulationRule rule = *rule_;
    if (batch.is_decode) {
      rule.e4m3_products = rule.e4m3_products && inputs_.latent_query != nullptr;
      inputs.query_scale = inputs_.latent_query_scale;
      inputs.key_scales = {&inputs_.entry_scale, 1};
    } else {
      rule.e4m3_products = rule.e4m3_products && inputs_.fp8_prefill;  // without scales
    }
    result = emulate_attention(math, inputs, rule, rows, options_);
  }
  if (result) result->rows = batch.tokens;
  return result;
}

/// ql = q_nope * W_UK_T of one head, rows of `stride` elements.
template <typename Real>
void MlaForms<Real>::project_queries(const MlaBatch& batch, int head, Real* destination,
                                     std::int64_t stride) {
  const Tensor& query = *inputs_.query;
  const auto num_rows = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t width = dims_.qk_nope_head_dim;
  MlaBuffer<Real> nope(static_cast<std::size_t>(num_rows * width));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t token = batch.tokens[static_cast<std::size_t>(row)];
    const std::int64_t first = (token * dims_.num_heads + head) * dims_.qk_head_dim();
    load_values(query.dtype(), query.bytes(), first, width, nope.data() + row * width);
    load_values(query.dtype(), query.bytes(), first + width, dims_.qk_rope_head_dim,
                destination + row * stride + dims_.kv_lora_rank);
  }
  const MlaBuffer<Real> w_uk = load_slice<Real>(*inputs_.w_uk, head);
  multiply<Real>({nope.data(), num_rows, width, width},
                 {w_uk.data(), width, dims_.kv_lora_rank, dims_.kv_lora_rank},
                 {destination, num_rows, dims_.kv_lora_rank, stride});
  for (std::int64_t row = 0; row < num_rows; ++row) {
    round_stored(destination + row * stride, dims_.kv_lora_rank);
  }
}

template <typename Real>
Tensor MlaForms<Real>::latent_queries(const MlaBatch& batch, std::span<const int> heads) {
  const auto num_rows = static_cast<std::int64_t>(batch.tokens.size());
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  const std::int64_t width = dims_.entry_size();
  Tensor result(kRealDtype<Real>, {num_rows, num_heads, width});
  Real* const values = result.data<Real>();
  const Tensor* const given = batch.is_decode ? inputs_.latent_query : nullptr;
  pool_.parallel_for(num_heads, [&](std::int64_t i, int) {
    const int head = heads[static_cast<std::size_t>(i)];
    if (given == nullptr)
      return project_queries(batch, head, values + i * width, num_heads * width);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::int64_t token = batch.tokens[static_cast<std::size_t>(row)];
      load_values(given->dtype(), given->bytes(), (token * dims_.num_heads + head) * width, width,
                  values + (row * num_heads + i) * width);
    }
  });
  return result;
}

template <typename Real>
void MlaForms<Real>::load_entry_rows(const MlaBatch& batch, std::int64_t begin, std::int64_t end,
                                     Real* destination) const {
  const std::int64_t count = (end - begin) * dims_.entry_size();
  load_values(batch.entries.dtype(), batch.entries.bytes(), begin * dims_.entry_size(), count,
              destination);
  if (!batch.is_decode) round_stored(destination, count);
}

template <typename Real>
MlaBuffer<Real> MlaForms<Real>::load_entries(const MlaBatch& batch) const {
  MlaBuffer<Real> entries(static_cast<std::size_t>(batch.entries.num_elements()));
  for_each_chunk(batch.entries.dim(0), kTileEntries, [&](std::int64_t begin, std::int64_t end) {
    load_entry_rows(batch, begin, end, entries.data() + begin * dims_.entry_size());
  });
  return entries;
}

template <typename Real>
std::optional<ReferenceOutput> MlaForms<Real>::attend_latent(const MlaBatch& batch,
                                                             std::span<const int> heads) {
  const Tensor query = latent_queries(batch, heads);
  const bool as_loaded = rule_ == nullptr || batch.is_decode;
  if (as_loaded) {
    return attend(query, batch.entries, latent_part(batch.entries, dims_.kv_lora_rank), batch);
  }
  Tensor entries(kRealDtype<Real>, batch.entries.shape());
  for_each_chunk(entries.dim(0), kTileEntries, [&](std::int64_t begin, std::int64_t end) {
    load_entry_rows(batch, begin, end, entries.data<Real>() + begin * dims_.entry_size());
  });
  return attend(query, entries, latent_part(entries, dims_.kv_lora_rank), batch);
}

template <typename Real>
void MlaForms<Real>::project_sizes(const ReferenceOutput& latent, std::span<const int> heads,
                                   ReferenceOutput& result) const {
  if (latent.row_size.empty()) return;
  result.row_size = latent.row_size;
  result.output_loss = latent.output_loss;
  result.lse_loss = latent.lse_loss;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    double square = 0;
    for (const Real weight : load_slice<Real>(*inputs_.w_uv, heads[i])) {
      if (std::isfinite(weight)) square += static_cast<double>(weight * weight);
    }
    const double growth = std::sqrt(square / static_cast<double>(dims_.kv_lora_rank));
    for (std::size_t row = 0; row < latent.rows.size(); ++row) {
      const std::size_t at = row * heads.size() + i;
      const double* const output =
          result.output.data() + at * static_cast<std::size_t>(result.v_head_size);
      double norm = 0;
      for (int v = 0; v < result.v_head_size; ++v) {
        if (std::isfinite(output[v])) norm += output[v] * output[v];
      }
      result.row_size[at] = std::max(std::sqrt(norm), growth * latent.row_size[at]);
      result.output_loss[at] *= growth;
    }
  }
}

template <typename Real>
ReferenceOutput MlaForms<Real>::up_project(const ReferenceOutput& latent,
                                           std::span<const int> heads) {
  const auto num_rows = static_cast<std::int64_t>(latent.rows.size());
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  ReferenceOutput result = empty_output(latent.rows, num_heads, dims_.v_head_dim);
  result.lse = latent.lse;
  const MlaBuffer<Real> values(latent.output.begin(), latent.output.end());
  MlaBuffer<Real> output(result.output.size());
  pool_.parallel_for(num_heads, [&](std::int64_t i, int) {
    const MlaBuffer<Real> w_uv =
        load_slice<Real>(*inputs_.w_uv, heads[static_cast<std::size_t>(i)]);
    multiply<Real>({values.data() + i * dims_.kv_lora_rank, num_rows, dims_.kv_lora_rank,
                    num_heads * dims_.kv_lora_rank},
                   {w_uv.data(), dims_.kv_lora_rank, dims_.v_head_dim, dims_.v_head_dim},
                   {output.data() + i * dims_.v_head_dim, num_rows, dims_.v_head_dim,
                    num_heads * dims_.v_head_dim});
  });
  round_stored(output.data(), static_cast<std::int64_t>(output.size()));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t i = 0; i < num_heads; ++i) {
      const double lse = latent.lse[static_cast<std::size_t>(i * num_rows + row)];
      // Why: zero times an infinite weight would be NaN.
      if (lse == -std::numeric_limits<double>::infinity()) continue;
      const std::int64_t first = (row * num_heads + i) * dims_.v_head_dim;
      std::copy_n(output.data() + first, dims_.v_head_dim, result.output.data() + first);
    }
  }
  project_sizes(latent, heads, result);
  return result;
}

template <typename Real>
std::optional<ReferenceOutput> MlaForms<Real>::mqa(const MlaBatch& batch,
                                                   std::span<const int> heads) {
  const std::optional<ReferenceOutput> latent = attend_latent(batch, heads);
  if (!latent) return std::nullopt;
  return up_project(*latent, heads);
}

template <typename Real>
Tensor MlaForms<Real>::head_queries(const MlaBatch& batch, std::span<const int> heads) const {
  const Tensor& query = *inputs_.query;
  const auto num_rows = static_cast<std::int64_t>(batch.tokens.size());
  const std::int64_t width = dims_.qk_head_dim();
  Tensor result(kRealDtype<Real>, {num_rows, static_cast<std::int64_t>(heads.size()), width});
  Real* destination = result.data<Real>();
  for (const std::int64_t token : batch.tokens) {
    for (const int head : heads) {
      load_values(query.dtype(), query.bytes(), (token * dims_.num_heads + head) * width, width,
                  destination);
      destination += width;
    }
  }
  if (inputs_.fp8_prefill && !batch.is_decode) {
    round_to_e4m3(result.data<Real>(), result.num_elements());
  }
  return result;
}

/// [k_nope | v] = kv_c * W_{UK|UV} for each head, k = [k_nope | k_pe].
template <typename Real>
MlaKeyValue MlaForms<Real>::expand(const MlaBuffer<Real>& entries, std::span<const int> heads,
                                   bool to_e4m3) {
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  const std::int64_t latent = dims_.kv_lora_rank;
  const std::int64_t entry = dims_.entry_size();
  const std::int64_t nope = dims_.qk_nope_head_dim;
  const auto num_entries = static_cast<std::int64_t>(entries.size()) / entry;
  const std::int64_t key_stride = num_heads * dims_.qk_head_dim();
  const std::int64_t value_stride = num_heads * dims_.v_head_dim;
  MlaKeyValue result;
  result.key = Tensor(kRealDtype<Real>, {num_entries, num_heads, dims_.qk_head_dim()});
  result.value = Tensor(kRealDtype<Real>, {num_entries, num_heads, dims_.v_head_dim});
  const std::int64_t num_tiles = (num_entries + kTileEntries - 1) / kTileEntries;
  pool_.parallel_for(num_tiles * num_heads, [&](std::int64_t task, int) {
    const std::int64_t i = task % num_heads;
    const std::int64_t head = heads[static_cast<std::size_t>(i)];
    const std::int64_t begin = task / num_heads * kTileEntries;
    const std::int64_t count = std::min(kTileEntries, num_entries - begin);
    const StridedMatrix<const Real> kv_c{entries.data() + begin * entry, count, latent, entry};
    Real* const key = result.key.data<Real>() + begin * key_stride + i * dims_.qk_head_dim();
    Real* const value = result.value.data<Real>() + begin * value_stride + i * dims_.v_head_dim;
    const MlaBuffer<Real> w_uk = load_slice<Real>(*inputs_.w_uk, head);
    const MlaBuffer<Real> w_uv = load_slice<Real>(*inputs_.w_uv, head);
    multiply_transposed<Real>(kv_c, {w_uk.data(), nope, latent, latent},
                              {key, count, nope, key_stride});
    multiply<Real>(kv_c, {w_uv.data(), latent, dims_.v_head_dim, dims_.v_head_dim},
                   {value, count, dims_.v_head_dim, value_stride});
    for (std::int64_t row = 0; row < count; ++row) {
      Real* const key_row = key + row * key_stride;
      Real* const value_row = value + row * value_stride;
      std::copy_n(kv_c.data + row * entry + latent, dims_.qk_rope_head_dim, key_row + nope);
      round_stored(key_row, dims_.qk_head_dim());
      round_stored(value_row, dims_.v_head_dim);
      if (!to_e4m3) continue;
      round_to_e4m3(key_row, dims_.qk_head_dim());
      round_to_e4m3(value_row, dims_.v_head_dim);
    }
  });
  return result;
}

template <typename Real>
std::optional<ReferenceOutput> MlaForms<Real>::mha(const MlaBatch& batch,
                                                   std::span<const int> heads) {
  const MlaBuffer<Real> entries = load_entries(batch);
  const std::int64_t head_bytes = batch.entries.dim(0) * (dims_.qk_head_dim() + dims_.v_head_dim) *
                                  static_cast<std::int64_t>(sizeof(Real));
  const auto step = static_cast<std::size_t>(std::clamp<std::int64_t>(
      kMaxExpandedBytes / std::max<std::int64_t>(1, head_bytes), 1, dims_.num_heads));
  ReferenceOutput result =
      empty_output(batch.tokens, static_cast<std::int64_t>(heads.size()), dims_.v_head_dim);
  std::vector<int> places(heads.size());
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t first = 0; first < heads.size(); first += step) {
    const std::size_t count = std::min(step, heads.size() - first);
    const auto chosen = heads.subspan(first, count);
    const MlaKeyValue expanded = expand(entries, chosen, inputs_.fp8_prefill && !batch.is_decode);
    const std::optional<ReferenceOutput> part =
        attend(head_queries(batch, chosen), expanded.key, expanded.value, batch);
    if (!part) return std::nullopt;
    place_part(*part, std::span<const int>(places).subspan(first, count), 0, result);
  }
  return result;
}

template class MlaForms<double>;
template class MlaForms<float>;

void place_part(const ReferenceOutput& part, std::span<const int> heads, std::int64_t row_begin,
                ReferenceOutput& whole) {
  const auto part_rows = static_cast<std::int64_t>(part.rows.size());
  const auto whole_rows = static_cast<std::int64_t>(whole.rows.size());
  const auto part_heads = static_cast<std::int64_t>(heads.size());
  const bool measured = !part.row_size.empty();
  if (measured) {
    for (auto* values : {&whole.row_size, &whole.output_loss, &whole.lse_loss}) {
      values->resize(whole.rows.size() * static_cast<std::size_t>(whole.num_heads));
    }
  }
  for (std::int64_t row = 0; row < part_rows; ++row) {
    for (std::int64_t i = 0; i < part_heads; ++i) {
      const std::int64_t head = heads[static_cast<std::size_t>(i)];
      const std::int64_t to = row_begin + row;
      if (measured) {
        const auto from_place = static_cast<std::size_t>(row * part_heads + i);
        const auto to_place = static_cast<std::size_t>(to * whole.num_heads + head);
        whole.row_size[to_place] = part.row_size[from_place];
        whole.output_loss[to_place] = part.output_loss[from_place];
        whole.lse_loss[to_place] = part.lse_loss[from_place];
      }
      std::copy_n(part.output.data() + (row * part_heads + i) * part.v_head_size, part.v_head_size,
                  whole.output.data() + (to * whole.num_heads + head) * whole.v_head_size);
      whole.lse[static_cast<std::size_t>(head * whole_rows + to)] =
          part.lse[static_cast<std::size_t>(i * part_rows + row)];
    }
  }
}

ReferenceOutput empty_output(std::span<const std::int32_t> rows, std::int64_t num_heads,
                             std::int64_t v_head_size) {
  ReferenceOutput output;
  output.rows.assign(rows.begin(), rows.end());
  output.num_heads = static_cast<int>(num_heads);
  output.v_head_size = static_cast<int>(v_head_size);
  const std::size_t row_heads = rows.size() * static_cast<std::size_t>(num_heads);
  output.output.assign(row_heads * static_cast<std::size_t>(v_head_size), 0.0);
  output.lse.assign(row_heads, -std::numeric_limits<double>::infinity());
  return output;
}

}  // namespace attnbench
