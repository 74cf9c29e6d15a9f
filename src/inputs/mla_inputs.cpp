// Inputs of MLA cases. The weights are scaled so that projected keys and values are about as large
// as drawn ones elsewhere; otherwise the softmax of a large latent would be one-hot and hide
// errors.
#include "inputs/mla_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.h"
#include "inputs/draw_rows.h"
#include "inputs/files/input_file.h"
#include "inputs/make_inputs.h"
#include "inputs/place_needles.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr TensorStreams kMlaQueryStreams{StreamId::kQuery, StreamId::kQuery,
                                         StreamId::kQueryChannels, StreamId::kQueryTokens,
                                         StreamId::kQueryTokens};
constexpr TensorStreams kLatentStreams{StreamId::kKvC, StreamId::kKvCPrefix, StreamId::kKvCChannels,
                                       StreamId::kKvCTokens, StreamId::kKvCPrefixTokens};
constexpr TensorStreams kRopeStreams{StreamId::kKPe, StreamId::kKPePrefix, StreamId::kKPeChannels,
                                     StreamId::kKPeTokens, StreamId::kKPePrefixTokens};
constexpr double kValueStd = 0.75;

void draw_weights(const Problem& problem, StreamId stream, double std, Tensor& weights) {
  InputsSpec spec = problem.inputs;
  spec.distribution = Distribution::kNormal;
  spec.std = std;
  std::vector<SourceRow> rows(static_cast<std::size_t>(weights.dim(0)));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row].index = static_cast<std::int64_t>(row);
  }
  fill_rows(spec, {stream, stream, stream, stream, stream}, rows, weights.dim(1) * weights.dim(2),
            weights);
}

constexpr float kLargestCode = 448.0f;

/// kv_b_proj [rows, columns] with the elements of w_uk and w_uv that it consists of.
class Matrix {
 public:
  explicit Matrix(const Problem& problem)
      : nope_(problem.mla.qk_nope_head_dim),
        value_(problem.mla.v_head_dim),
        rows_(std::int64_t{problem.attention.num_heads} * (nope_ + value_)),
        columns_(problem.mla.kv_lora_rank),
        block_(problem.mla.kv_b_proj_block.value_or(0)) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

  std::int64_t scale_of(std::int64_t row, std::int64_t column) const {
    return block_ == 0 ? 0 : row / block_ * ceil_div(columns_, block_) + column / block_;
  }

  /// Which of the two weights has the element, and where.
  std::pair<bool, std::int64_t> place_of(std::int64_t row, std::int64_t column) const {
    const std::int64_t head = row / (nope_ + value_);
    const std::int64_t of_head = row % (nope_ + value_);
    if (of_head < nope_) return {true, (head * nope_ + of_head) * columns_ + column};
    return {false, (head * columns_ + column) * value_ + of_head - nope_};
  }

  /// Calls body(index in the matrix, index of its scale, whether it is of w_uk, index there).
  template <typename Body>
  void for_each(const Body& body) const {
    for (std::int64_t row = 0; row < rows_; ++row) {
      for (std::int64_t column = 0; column < columns_; ++column) {
        const auto [is_uk, at] = place_of(row, column);
        body(row * columns_ + column, scale_of(row, column), is_uk, at);
      }
    }
  }

 private:
  std::int64_t nope_;
  std::int64_t value_;
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t block_;  // 0 = one scale
};

void make_weights(const Problem& problem, MlaInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  inputs.w_uk = Tensor(a.dtype, {a.num_heads, mla.qk_nope_head_dim, mla.kv_lora_rank});
  inputs.w_uv = Tensor(a.dtype, {a.num_heads, mla.kv_lora_rank, mla.v_head_dim});
}

/// Scales of kv_b_proj: {1}, or one for each block as DeepSeek-V3 has them (weight_scale_inv).
std::vector<std::int64_t> kv_b_proj_scale_shape(const Problem& problem) {
  if (!problem.mla.kv_b_proj_block) return {1};
  const Matrix matrix(problem);
  const std::int64_t block = *problem.mla.kv_b_proj_block;
  return {ceil_div(matrix.rows(), block), ceil_div(matrix.columns(), block)};
}

void dequantise_mla_weights(const Problem& problem, MlaInputs& inputs) {
  make_weights(problem, inputs);
  const float* scales = inputs.kv_b_proj_scale.data<float>();
  Matrix(problem).for_each(
      [&](std::int64_t index, std::int64_t scale, bool is_uk, std::int64_t at) {
        const float value = inputs.kv_b_proj.at(index) * scales[scale];
        (is_uk ? inputs.w_uk : inputs.w_uv).set(at, value);
      });
}

/// Makes kv_b_proj (e4m3) and its scales of w_uk and w_uv, which then are what a model makes of
/// them. Nothing for the usual weights. A scale is the largest magnitude / 448, 1 where all is 0.
void quantise_mla_weights(const Problem& problem, MlaInputs& inputs) {
  if (problem.mla.kv_b_proj != WeightFormat::kFp8) return;
  const Matrix matrix(problem);
  inputs.kv_b_proj = Tensor(Dtype::kE4M3, {matrix.rows(), matrix.columns()});
  inputs.kv_b_proj_scale = Tensor(Dtype::kF32, kv_b_proj_scale_shape(problem));
  if (problem.inputs.shapes_only) return;
  const auto weight = [&inputs](bool is_uk, std::int64_t at) {
    return is_uk ? inputs.w_uk.at(at) : inputs.w_uv.at(at);
  };
  float* scales = inputs.kv_b_proj_scale.data<float>();
  std::fill_n(scales, inputs.kv_b_proj_scale.num_elements(), 0.0f);
  matrix.for_each([&](std::int64_t, std::int64_t scale, bool is_uk, std::int64_t at) {
    scales[scale] = std::max(scales[scale], std::fabs(weight(is_uk, at)));
  });
  for (std::int64_t i = 0; i < inputs.kv_b_proj_scale.num_elements(); ++i) {
    scales[i] = scales[i] > 0 ? scales[i] / kLargestCode : 1.0f;
  }
  matrix.for_each([&](std::int64_t index, std::int64_t scale, bool is_uk, std::int64_t at) {
    inputs.kv_b_proj.set(index, weight(is_uk, at) / scales[scale]);
  });
  dequantise_mla_weights(problem, inputs);
}

/// Of a kv_b_proj in attention.dtype.
void split_mla_weights(const Problem& problem, const Tensor& kv_b_proj, MlaInputs& inputs) {
  make_weights(problem, inputs);
  Matrix(problem).for_each([&](std::int64_t index, std::int64_t, bool is_uk, std::int64_t at) {
    (is_uk ? inputs.w_uk : inputs.w_uv).set(at, kv_b_proj.at(index));
  });
}

void draw_tensors(const Problem& problem, MlaInputs& inputs) {
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  Tensor query(a.dtype, {problem.num_tokens(), a.num_heads, a.head_size});
  std::vector<SourceRow> query_sources(static_cast<std::size_t>(problem.num_tokens()));
  for (std::size_t t = 0; t < query_sources.size(); ++t) {
    query_sources[t].index = static_cast<std::int64_t>(t);
  }
  fill_rows(problem.inputs, kMlaQueryStreams, query_sources,
            std::int64_t{a.num_heads} * a.head_size, query);
  inputs.query = FileTensors::pad_query(query);
  const std::vector<SourceRow> sources = key_sources(problem);
  inputs.kv_c = Tensor(a.dtype, {problem.num_keys(), mla.kv_lora_rank});
  inputs.k_pe = Tensor(a.dtype, {problem.num_keys(), mla.qk_rope_head_dim});
  fill_rows(problem.inputs, kLatentStreams, sources, mla.kv_lora_rank, inputs.kv_c,
            value_mean(problem.inputs));
  fill_rows(problem.inputs, kRopeStreams, sources, mla.qk_rope_head_dim, inputs.k_pe);
  inputs.w_uk = Tensor(a.dtype, {a.num_heads, mla.qk_nope_head_dim, mla.kv_lora_rank});
  inputs.w_uv = Tensor(a.dtype, {a.num_heads, mla.kv_lora_rank, mla.v_head_dim});
  const double unit = 1 / std::sqrt(static_cast<double>(mla.kv_lora_rank));
  draw_weights(problem, StreamId::kWUk, unit, inputs.w_uk);
  draw_weights(problem, StreamId::kWUv, kValueStd * unit, inputs.w_uv);
  quantise_mla_weights(problem, inputs);
}

/// One of `count` values by 32 random bits.
std::int64_t pick(const RandomStream& stream, std::uint64_t index, std::int64_t count) {
  return static_cast<std::int64_t>(
      (std::uint64_t{stream.bits(index)} * static_cast<std::uint64_t>(count)) >> 32);
}

/// Distinct positions below `visible`, then repeats of them, then -1; shuffled.
void draw_row(const Problem& problem, std::int64_t token, std::int64_t visible,
              std::span<std::int32_t> row) {
  const RandomStream picks{problem.inputs.seed, StreamId::kTopk};
  const RandomStream order{problem.inputs.seed, StreamId::kTopkOrder};
  const std::uint64_t first = static_cast<std::uint64_t>(token) * row.size();
  const std::int64_t listed = num_listed_keys(problem.mla, visible);
  const auto repeats = std::min<std::int64_t>(
      std::llround(problem.mla.sparse_duplicates * static_cast<double>(listed)),
      std::max<std::int64_t>(0, listed - 1));
  const std::int64_t distinct = listed - repeats;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(visible));
  std::iota(positions.begin(), positions.end(), 0);
  std::fill(row.begin(), row.end(), -1);
  for (std::int64_t i = 0; i < listed; ++i) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(i);
    if (i < distinct) {
      std::swap(positions[static_cast<std::size_t>(i)],
                positions[static_cast<std::size_t>(i + pick(picks, index, visible - i))]);
    }
    const std::int64_t chosen = i < distinct ? i : pick(picks, index, distinct);
    row[static_cast<std::size_t>(i)] = positions[static_cast<std::size_t>(chosen)];
  }
  for (std::size_t i = row.size(); i-- > 1;) {
    std::swap(
        row[i],
        row[static_cast<std::size_t>(pick(order, first + i, static_cast<std::int64_t>(i) + 1))]);
  }
}

/// Calls body(token, request, positions that the token sees).
template <typename Body>
void for_each_token(const Problem& problem, const Body& body) {
  std::int64_t token = 0;
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const Request& request = problem.batch[b];
    for (std::int64_t i = 0; i < request.query_len; ++i) {
      body(token++, b, request.seq_len - request.query_len + i + 1);
    }
  }
}

Tensor draw_topk(const Problem& problem) {
  const std::int64_t topk = *problem.mla.sparse_topk;
  Tensor indices(Dtype::kI32, {problem.num_tokens(), topk});
  if (problem.inputs.shapes_only) return indices;
  for_each_token(problem, [&](std::int64_t token, std::size_t, std::int64_t visible) {
    draw_row(problem, token, visible,
             {indices.data<std::int32_t>() + token * topk, static_cast<std::size_t>(topk)});
  });
  return indices;
}

/// Cuts the lists to their lengths, and draws the second cache and the sinks.
void add_sparse_operands(const Problem& problem, MlaInputs& inputs) {
  inputs.sinks = make_sinks(problem);
  if (!problem.mla.sparse_topk) return;
  SparseLists lists =
      lists_of_lengths(problem, std::move(inputs.topk_indices), problem.mla.sparse_topk_length);
  inputs.topk_indices = std::move(lists.indices);
  inputs.topk_listed = std::move(lists.listed);
  inputs.topk_lengths = std::move(lists.lengths);
  if (!has_extra_keys(problem)) return;
  const MlaSpec& mla = problem.mla;
  const Problem extra = problem_of_extra_keys(problem);
  const std::vector<SourceRow> sources = key_sources(extra);
  MlaExtraKeys& keys = inputs.extra;
  keys.kv_c = Tensor(problem.attention.dtype, {extra.num_keys(), mla.kv_lora_rank});
  keys.k_pe = Tensor(problem.attention.dtype, {extra.num_keys(), mla.qk_rope_head_dim});
  fill_rows(extra.inputs, kLatentStreams, sources, mla.kv_lora_rank, keys.kv_c,
            value_mean(extra.inputs));
  fill_rows(extra.inputs, kRopeStreams, sources, mla.qk_rope_head_dim, keys.k_pe);
  const std::int64_t topk = *mla.sparse_extra_topk;
  Tensor indices(Dtype::kI32, {problem.num_tokens(), topk});
  if (!problem.inputs.shapes_only) {
    for_each_token(problem, [&](std::int64_t token, std::size_t, std::int64_t) {
      draw_row(extra, token, *mla.sparse_extra_keys,
               {indices.data<std::int32_t>() + token * topk, static_cast<std::size_t>(topk)});
    });
  }
  keys.lists = lists_of_lengths(problem, std::move(indices), mla.sparse_extra_topk_length);
}

class MlaReader : private FileTensors {
 public:
  MlaReader(const Problem& problem, MlaInputs& inputs)
      : FileTensors(problem, inputs.notices), problem_(problem), inputs_(inputs) {}

  void read() {
    const AttentionSpec& a = problem_.attention;
    const MlaSpec& mla = problem_.mla;
    check_lengths("query_start_loc", inputs_.query_start_loc);
    check_lengths("seq_lens", inputs_.seq_lens);
    inputs_.query =
        pad_query(floating_tensor("query", {problem_.num_tokens(), a.num_heads, a.head_size}));
    inputs_.kv_c = floating_tensor("kv_c", {problem_.num_keys(), mla.kv_lora_rank});
    inputs_.k_pe = floating_tensor("k_pe", {problem_.num_keys(), mla.qk_rope_head_dim});
    read_weights();
    check_shared_prefix("kv_c", inputs_.kv_c);
    check_shared_prefix("k_pe", inputs_.k_pe);
    read_topk();
  }

 private:
  /// The two weights, or the matrix that they are cut out of, as a checkpoint has it.
  void read_weights() {
    const AttentionSpec& a = problem_.attention;
    const MlaSpec& mla = problem_.mla;
    const Tensor* joined = find("kv_b_proj");
    if (joined == nullptr) {
      inputs_.w_uk = floating_tensor("w_uk", {a.num_heads, mla.qk_nope_head_dim, mla.kv_lora_rank});
      inputs_.w_uv = floating_tensor("w_uv", {a.num_heads, mla.kv_lora_rank, mla.v_head_dim});
      return quantise_mla_weights(problem_, inputs_);
    }
    if (find("w_uk") != nullptr || find("w_uv") != nullptr) {
      notice("w_uk and w_uv are ignored beside kv_b_proj");
    }
    check_weight_type(*joined);
    const Shape shape{std::int64_t{a.num_heads} * (mla.qk_nope_head_dim + mla.v_head_dim),
                      mla.kv_lora_rank};
    if (mla.kv_b_proj != WeightFormat::kFp8) {
      return split_mla_weights(problem_, floating_tensor("kv_b_proj", shape), inputs_);
    }
    check_shape("kv_b_proj", shape, joined->shape());
    inputs_.kv_b_proj = *joined;
    read_weight_scales();
    dequantise_mla_weights(problem_, inputs_);
  }

  /// Packed 4-bit weights are bytes (NVFP4) or int32 (AWQ).
  void check_weight_type(const Tensor& weights) const {
    const Dtype dtype = weights.dtype();
    const char* packed = dtype == Dtype::kU8    ? "packed NVFP4 weights are not dequantised here; "
                         : dtype == Dtype::kI32 ? "packed AWQ weights are not dequantised here; "
                                                : "";
    const bool is_fp8 = problem_.mla.kv_b_proj == WeightFormat::kFp8;
    const bool fits = is_fp8 ? dtype == Dtype::kE4M3 : is_floating(dtype) && dtype_size(dtype) > 1;
    if (fits) return;
    fail(ErrorKind::kDtype,
         "inputs.file '{}': tensor 'kv_b_proj': {}expected {} with mla.kv_b_proj.dtype {}, got {}",
         name(), packed, is_fp8 ? dtype_name(Dtype::kE4M3) : "16 or 32 bits",
         to_string(problem_.mla.kv_b_proj), dtype_name(dtype));
  }

  void read_weight_scales() {
    const Tensor* scales = find("kv_b_proj_scale");
    if (scales == nullptr) {
      fail(ErrorKind::kFormat, "inputs.file '{}': tensor 'kv_b_proj_scale' is missing", name());
    }
    check_shape("kv_b_proj_scale", kv_b_proj_scale_shape(problem_), scales->shape());
    if (scales->dtype() != Dtype::kF32) {
      fail(ErrorKind::kDtype,
           "inputs.file '{}': tensor 'kv_b_proj_scale': expected float32, got {}", name(),
           dtype_name(scales->dtype()));
    }
    for (std::int64_t i = 0; i < scales->num_elements(); ++i) {
      if (scales->at(i) > 0 && std::isfinite(scales->at(i))) continue;
      fail(ErrorKind::kValue,
           "inputs.file '{}': kv_b_proj_scale[{}]: expected a finite scale > 0, got {}", name(), i,
           scales->at(i));
    }
    inputs_.kv_b_proj_scale = *scales;
  }

  void read_topk() {
    const Tensor* found = find("topk_indices");
    if (!problem_.mla.sparse_topk) {
      if (found != nullptr) notice("topk_indices are ignored because mla.sparse_topk is null");
      return;
    }
    if (found == nullptr) {
      inputs_.topk_indices = draw_topk(problem_);
      notice("topk_indices are missing and drawn");
      return;
    }
    const std::int64_t topk = *problem_.mla.sparse_topk;
    check_shape("topk_indices", {problem_.num_tokens(), topk}, found->shape());
    if (found->dtype() != Dtype::kI32) {
      fail(ErrorKind::kDtype, "inputs.file '{}': tensor 'topk_indices': expected int32, got {}",
           name(), dtype_name(found->dtype()));
    }
    for_each_token(problem_, [&](std::int64_t token, std::size_t b, std::int64_t) {
      for (std::int64_t k = token * topk; k < (token + 1) * topk; ++k) {
        const std::int32_t index = found->data<std::int32_t>()[k];
        if (index < problem_.batch[b].seq_len) continue;
        fail(ErrorKind::kValue,
             "inputs.file '{}': topk_indices of token {}: expected positions below the request's "
             "seq_len {}, got {}",
             name(), token, problem_.batch[b].seq_len, index);
      }
    });
    inputs_.topk_indices = *found;
  }

  /// Requests share the pages of the prefix, so their latents must be the same there.
  void check_shared_prefix(const std::string& tensor, const Tensor& rows) const {
    const std::int64_t prefix = problem_.cascade.common_prefix_len;
    if (prefix == 0 || rows.empty()) return;
    const auto longest = static_cast<std::size_t>(
        std::max_element(inputs_.seq_lens.begin(), inputs_.seq_lens.end()) -
        inputs_.seq_lens.begin());
    const std::size_t row_bytes = rows.size_bytes() / static_cast<std::size_t>(rows.dim(0));
    const auto row = [&](std::size_t b, std::int64_t p) {
      return rows.bytes() + static_cast<std::size_t>(inputs_.key_start_loc[b] + p) * row_bytes;
    };
    for (std::size_t b = 0; b < inputs_.seq_lens.size(); ++b) {
      for (std::int64_t p = 0; p < std::min<std::int64_t>(prefix, inputs_.seq_lens[b]); ++p) {
        if (std::memcmp(row(b, p), row(longest, p), row_bytes) == 0) continue;
        fail(ErrorKind::kValue,
             "inputs.file '{}': tensor '{}': cascade.common_prefix_len {} needs equal rows, but "
             "position {} of request {} differs from request {}",
             name(), tensor, prefix, p, b, longest);
      }
    }
  }

  const Problem& problem_;
  MlaInputs& inputs_;
};

}  // namespace

std::int64_t num_listed_keys(const MlaSpec& mla, std::int64_t visible) {
  const auto wanted = std::llround(mla.sparse_valid * mla.sparse_topk.value_or(0));
  return std::min<std::int64_t>(wanted, visible);
}

double num_counted_keys(const Problem& problem, std::size_t b, std::int64_t visible) {
  const auto counted = [&](const MlaSpec& mla, const std::vector<int>& lengths, std::int64_t seen) {
    const std::int64_t topk = mla.sparse_topk.value_or(0);
    if (topk == 0) return 0.0;
    return static_cast<double>(num_listed_keys(mla, seen)) *
           static_cast<double>(topk_length_of(lengths, b, topk)) / static_cast<double>(topk);
  };
  double keys = counted(problem.mla, problem.mla.sparse_topk_length, visible);
  if (!has_extra_keys(problem)) return keys;
  MlaSpec extra = problem.mla;
  extra.sparse_topk = problem.mla.sparse_extra_topk;
  return keys + counted(extra, problem.mla.sparse_extra_topk_length,
                        problem.mla.sparse_extra_keys.value_or(0));
}

MlaInputs make_mla_inputs(const Problem& problem) {
  MlaInputs inputs;
  BatchLengths lengths = batch_lengths(problem);
  inputs.query_start_loc = std::move(lengths.query_start_loc);
  inputs.seq_lens = std::move(lengths.seq_lens);
  inputs.key_start_loc = std::move(lengths.key_start_loc);
  check_inputs_fit(problem);
  if (problem.inputs.file) {
    MlaReader(problem, inputs).read();
    add_sparse_operands(problem, inputs);
    return inputs;
  }
  draw_tensors(problem, inputs);
  if (has_indexer(problem)) {
    inputs.index = make_exact_index_inputs(problem);
    inputs.topk_indices = choose_index_keys(problem, inputs.index);
  } else if (problem.mla.sparse_topk) {
    inputs.topk_indices = draw_topk(problem);
  }
  add_sparse_operands(problem, inputs);
  if (has_needles(problem.inputs)) place_needles(problem, inputs);
  return inputs;
}

}  // namespace attnbench
