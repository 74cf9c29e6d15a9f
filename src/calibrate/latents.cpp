// A sampled row becomes a request of one query token that sees what the row sees: requests may
// share keys, so nothing but the query is copied for it.
#include "calibrate/latents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "calibrate/magnitudes.h"
#include "calibrate/role_statistics.h"
#include "calibrate/sample_rows.h"
#include "core/error.h"
#include "inputs/make_inputs.h"
#include "reference/mla/cache_entry.h"
#include "reference/mla/kv_b_proj.h"
#include "reference/mla/latent_query.h"
#include "reference/mla/mla_reference.h"
#include "reference/row_selection.h"

namespace attnbench {
namespace {

/// Checks the tensors of one forward against each other.
class LatentShapes {
 public:
  LatentShapes(const std::string& name, const LatentTensors& tensors)
      : name_(name), tensors_(tensors) {
    require_rank("query", tensors.query, 3, "[tokens, N, P + R]");
    require_rank("kv_c", tensors.kv_c, 2, "[keys, Lkv]");
    require_rank("k_pe", tensors.k_pe, 2, "[keys, R]");
    if (tensors.kv_c.dim(0) != tensors.k_pe.dim(0)) {
      wrong("k_pe", tensors.k_pe, fmt::format("{} rows as in kv_c", tensors.kv_c.dim(0)));
    }
    latent = tensors.kv_c.dim(1);
    rope = tensors.k_pe.dim(1);
    heads = tensors.query.dim(1);
    nope = tensors.query.dim(2) - rope;
    constexpr std::int64_t kMostExtent = 1 << 20;
    if (heads < 1 || heads > kMostExtent || nope < 0 || latent < 1 || latent > kMostExtent ||
        nope > kMostExtent) {
      wrong("query", tensors.query, fmt::format("1 to 2^20 heads of at least R = {}", rope));
    }
  }

  MlaWeights joined_weights() const {
    const Tensor& joined = *tensors_.kv_b_proj;
    require_rank("kv_b_proj", joined, 2, "[N * (P + V), Lkv]");
    const std::int64_t value = joined.dim(0) / heads - nope;
    if (joined.dim(0) % heads != 0 || joined.dim(1) != latent || value < 1 || nope < 1) {
      wrong("kv_b_proj", joined,
            fmt::format("[N * (P + V), Lkv] with N {}, P {} and Lkv {}", heads, nope, latent));
    }
    return split_kv_b_proj(in_model_type(joined), heads, latent, nope, value);
  }

  MlaWeights weights() const {
    const std::vector<std::int64_t> wanted{heads, nope, latent};
    if (tensors_.w_uk->shape() != wanted) {
      wrong("w_uk", *tensors_.w_uk, fmt::format("[{}]", fmt::join(wanted, ", ")));
    }
    require_rank("w_uv", *tensors_.w_uv, 3, "[N, Lkv, V]");
    if (tensors_.w_uv->dim(0) != heads || tensors_.w_uv->dim(1) != latent) {
      wrong("w_uv", *tensors_.w_uv, fmt::format("[{}, {}, V]", heads, latent));
    }
    return {in_model_type(*tensors_.w_uk), in_model_type(*tensors_.w_uv)};
  }

  [[noreturn]] void wrong(const char* tensor, const Tensor& found,
                          const std::string& expected) const {
    fail(ErrorKind::kShape, "{}: tensor {}: expected {}, got {}", name_, tensor, expected,
         shape_text(found));
  }

  std::int64_t heads = 0;
  std::int64_t latent = 0;
  std::int64_t nope = 0;
  std::int64_t rope = 0;

 private:
  void require_rank(const char* tensor, const Tensor& found, std::size_t rank,
                    const char* expected) const {
    if (found.shape().size() != rank) wrong(tensor, found, expected);
  }

  const std::string& name_;
  const LatentTensors& tensors_;
};

/// Each by itself: an entry has latents and a rope part, so one of them may hide that the other is
/// all zeros, as a product hides which factor was not finite.
void check_values(const std::string& name, const LatentTensors& tensors, int num_threads) {
  const auto check = [&](const char* tensor, const Tensor& values) {
    if (values.empty()) return;  // it is refused by its shape
    std::vector<Magnitudes> all(1);
    add_magnitudes(values, ScaleGroups::kTensor, num_threads, all);
    check_elements(fmt::format("{}: tensor {}", name, tensor), all);
  };
  check("query", tensors.query);
  check("kv_c", tensors.kv_c);
  check("k_pe", tensors.k_pe);
  if (tensors.kv_b_proj) return check("kv_b_proj", *tensors.kv_b_proj);
  if (tensors.w_uk) check("w_uk", *tensors.w_uk);
  if (tensors.w_uv) check("w_uv", *tensors.w_uv);
}

}  // namespace

std::string shape_text(const Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape(), ", "));
}

void set_latents(const std::string& name, LatentTensors tensors, int num_threads,
                 Observation& observation) {
  const LatentShapes shapes(name, tensors);
  check_values(name, tensors, num_threads);
  LatentLayer layer;
  layer.kv_lora_rank = shapes.latent;
  const bool has_weights = tensors.w_uk && tensors.w_uv;
  if (tensors.kv_b_proj || has_weights) {
    MlaWeights weights = tensors.kv_b_proj ? shapes.joined_weights() : shapes.weights();
    layer.w_uk = std::move(weights.w_uk_t);
    layer.w_uv = std::move(weights.w_uv);
    layer.query = in_model_type(std::move(tensors.query));
    observation.tensors[kQueryRole] = side_by_side(
        project_mla_query(layer.query, layer.w_uk, layer.query.dim(0), num_threads),
        columns_of(layer.query, shapes.nope, {layer.query.dim(0), shapes.heads, shapes.rope}),
        layer.query.shape());
  } else if (shapes.nope == shapes.latent) {
    observation.no_attention = "there are no w_uk and w_uv";
    observation.tensors[kQueryRole] = std::move(tensors.query);
  } else {
    fail(ErrorKind::kFormat,
         "{}: expected w_uk and w_uv, or kv_b_proj, or a query of Lkv + R = {} columns; the query "
         "has {}",
         name, shapes.latent + shapes.rope, shapes.nope + shapes.rope);
  }
  const Tensor k_pe = convert(tensors.k_pe, tensors.kv_c.dtype());
  observation.tensors[kKeyRole] =
      side_by_side(tensors.kv_c, k_pe, {tensors.kv_c.dim(0), 1, shapes.latent + shapes.rope});
  if (tensors.topk_indices) layer.topk_indices = *std::move(tensors.topk_indices);
  observation.latents = std::move(layer);
}

LatentSample::LatentSample(Observation observation, const SampleOptions& options)
    : layer_(*std::move(observation.latents)) {
  Problem problem = observation.problem;
  const std::vector<Request> batch = problem.batch;
  const std::vector<std::size_t> chosen = sample_requests(batch, options.seed);
  problem.batch.clear();
  for (const std::size_t b : chosen) problem.batch.push_back(batch[b]);
  const Tensor entries = rows_of_requests(*std::exchange(observation.tensors[kKeyRole], {}), batch,
                                          chosen, &Request::seq_len);
  const std::int64_t latent = layer_.kv_lora_rank;
  kv_c_ = columns_of(entries, 0, {entries.dim(0), latent});
  k_pe_ = columns_of(entries, latent, {entries.dim(0), entries.dim(2) - latent});
  problem.validation.max_rows = options.max_rows;
  options_.num_threads = options.num_threads;
  softmax_scale_ = problem.attention.scale;
  // Rows of the whole forward, in the order of those of the sample.
  std::vector<std::int32_t> sources;
  const BatchLengths lengths = batch_lengths(problem);
  const BatchLengths all = batch_lengths(observation.problem);
  const std::vector<std::int32_t> rows = select_rows(problem, options.seed);
  const bool is_sparse = !layer_.topk_indices.empty();
  for (const std::int32_t row : rows) {
    const auto next =
        std::upper_bound(lengths.query_start_loc.begin(), lengths.query_start_loc.end(), row);
    const auto b = static_cast<std::size_t>(next - lengths.query_start_loc.begin() - 1);
    const std::int32_t of_request = row - lengths.query_start_loc[b];
    const Request& request = problem.batch[b];
    const std::int64_t visible = request.seq_len - request.query_len + of_request + 1;
    sources.push_back(all.query_start_loc[chosen[b]] + of_request);
    seq_lens_.push_back(static_cast<std::int32_t>(is_sparse ? request.seq_len : visible));
    key_start_loc_.push_back(lengths.key_start_loc[b]);
  }
  query_start_loc_.resize(rows.size() + 1);
  std::iota(query_start_loc_.begin(), query_start_loc_.end(), 0);
  rows_.assign(query_start_loc_.begin(), query_start_loc_.end() - 1);
  layer_.query = pick_rows(layer_.query, sources);
  if (is_sparse) layer_.topk_indices = pick_rows(layer_.topk_indices, sources);
  exact_ = attend(kv_c_, k_pe_, nullptr);
}

ReferenceOutput LatentSample::attend(const Tensor& kv_c, const Tensor& k_pe,
                                     const Tensor* latent_query) const {
  MlaReferenceInputs inputs;
  inputs.query = &layer_.query;
  inputs.kv_c = &kv_c;
  inputs.k_pe = &k_pe;
  inputs.w_uk = &layer_.w_uk;
  inputs.w_uv = &layer_.w_uv;
  if (!layer_.topk_indices.empty()) inputs.topk_indices = &layer_.topk_indices;
  inputs.latent_query = latent_query;
  inputs.num_decode_tokens = static_cast<std::int64_t>(rows_.size());
  inputs.query_start_loc = query_start_loc_;
  inputs.seq_lens = seq_lens_;
  inputs.key_start_loc = key_start_loc_;
  inputs.softmax_scale = softmax_scale_;
  return *mla_reference_mqa(inputs, rows_, options_);
}

OutputError LatentSample::error(ScaleFormat format,
                                const std::array<std::vector<double>, kNumRoles>& scales) {
  const auto k_scale = static_cast<float>(scales[kKeyRole].at(0));
  const StoredMlaCache stored = store_mla_cache(kv_c_, k_pe_, KvCacheDtype::kFp8E4M3, k_scale);
  std::optional<MlaLatentQuery> query;
  if (format == ScaleFormat::kKvCache) {
    // In float32, so that nothing but the codes rounds.
    query =
        quantise_latent_query(convert(layer_.query, Dtype::kF32), layer_.w_uk, layer_.query.dim(0),
                              static_cast<float>(scales[kQueryRole].at(0)), options_.num_threads);
  }
  const ReferenceOutput output = attend(stored.kv_c_dequantized, stored.k_pe_dequantized,
                                        query ? &query->dequantized : nullptr);
  return output_error(output, exact_);
}

}  // namespace attnbench
