// Plans batches greedily by bytes, then loads them. Entries that no row of the batch sees are not
// loaded; entries that nobody wrote stay NaN, so that reading one by mistake shows in the result.
#include "reference/mla/batch.h"

#include <algorithm>
#include <limits>

#include "core/system/parallel.h"
#include "reference/vector_math.h"

namespace attnbench {
namespace {

constexpr std::int64_t kEntriesPerTask = 256;

/// An entry of the batch: the token of a request at a position.
struct EntrySource {
  std::int64_t request = 0;
  std::int64_t position = 0;
};

bool needs_f64(const Tensor* tensor) { return tensor != nullptr && tensor->dtype() == Dtype::kF64; }

template <typename Real>
void copy_values(const Tensor& source, std::int64_t first, std::int64_t count, Tensor& destination,
                 std::int64_t to) {
  load_values(source.dtype(), source.bytes(), first, count, destination.data<Real>() + to);
}

}  // namespace

std::vector<std::int64_t> requests_of_rows(std::span<const std::int32_t> query_start_loc,
                                           std::span<const std::int32_t> rows) {
  std::vector<std::int64_t> requests;
  requests.reserve(rows.size());
  for (const std::int32_t row : rows) {
    // The last request that begins at or before the row; requests without rows begin there too.
    const auto next = std::upper_bound(query_start_loc.begin(), query_start_loc.end(), row);
    requests.push_back(next - query_start_loc.begin() - 1);
  }
  return requests;
}

std::int64_t num_causal_keys(const MlaReferenceInputs& inputs, std::int64_t request,
                             std::int32_t token) {
  const auto b = static_cast<std::size_t>(request);
  const std::int64_t seq_len = inputs.seq_lens[b];
  const std::int64_t position = std::int64_t{token} - inputs.query_start_loc[b + 1] + seq_len;
  return std::clamp<std::int64_t>(position + 1, 0, seq_len);
}

MlaEntryReader::MlaEntryReader(const MlaReferenceInputs& inputs, const MlaDims& dims)
    : inputs_(inputs), dims_(dims), num_decodes_(num_mla_decodes(inputs)) {
  const bool wide = needs_f64(inputs.kv_c) || needs_f64(inputs.k_pe) ||
                    needs_f64(inputs.kv_c_unquantized) || needs_f64(inputs.k_pe_unquantized);
  dtype_ = wide ? Dtype::kF64 : Dtype::kF32;
}

Tensor MlaEntryReader::make_entries(std::int64_t count) const {
  Tensor entries(dtype_, {count, 1, dims_.entry_size()});
  const std::int64_t size = entries.num_elements();
  if (dtype_ == Dtype::kF64) {
    std::fill_n(entries.data<double>(), size, std::numeric_limits<double>::quiet_NaN());
  } else {
    std::fill_n(entries.data<float>(), size, std::numeric_limits<float>::quiet_NaN());
  }
  return entries;
}

void MlaEntryReader::copy_part(const Tensor& source, std::int64_t source_row, Tensor& entries,
                               std::int64_t row, std::int64_t column) const {
  const std::int64_t width = source.dim(1);
  const std::int64_t to = row * dims_.entry_size() + column;
  if (dtype_ == Dtype::kF64) {
    copy_values<double>(source, source_row * width, width, entries, to);
  } else {
    copy_values<float>(source, source_row * width, width, entries, to);
  }
}

void MlaEntryReader::copy(std::int64_t request, std::int64_t position, Tensor& entries,
                          std::int64_t row) const {
  const auto b = static_cast<std::size_t>(request);
  const std::int64_t query_len = inputs_.query_start_loc[b + 1] - inputs_.query_start_loc[b];
  const bool is_new = position >= inputs_.seq_lens[b] - query_len;
  const bool unquantized = inputs_.kv_c_unquantized != nullptr && request >= num_decodes_ && is_new;
  const std::int64_t source_row = inputs_.key_start_loc[b] + position;
  copy_part(unquantized ? *inputs_.kv_c_unquantized : *inputs_.kv_c, source_row, entries, row, 0);
  copy_part(unquantized ? *inputs_.k_pe_unquantized : *inputs_.k_pe, source_row, entries, row,
            dims_.kv_lora_rank);
}

MlaBatcher::MlaBatcher(const MlaReferenceInputs& inputs, const MlaDims& dims,
                       std::span<const std::int32_t> rows, std::int64_t max_bytes)
    : inputs_(inputs),
      dims_(dims),
      rows_(rows),
      requests_(requests_of_rows(inputs.query_start_loc, rows)) {
  plan(max_bytes);
}

std::vector<std::int64_t> MlaBatcher::sparse_positions(std::int64_t request,
                                                       std::int32_t token) const {
  const std::int64_t topk = inputs_.topk_indices->dim(1);
  const std::int32_t* indices = inputs_.topk_indices->data<std::int32_t>() + token * topk;
  const std::int64_t count =
      inputs_.topk_lengths.empty()
          ? topk
          : std::clamp<std::int64_t>(inputs_.topk_lengths[static_cast<std::size_t>(token)], 0,
                                     topk);
  const std::int64_t seq_len = inputs_.seq_lens[static_cast<std::size_t>(request)];
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < count; ++i) {
    if (indices[i] >= 0 && indices[i] < seq_len) positions.push_back(indices[i]);
  }
  return positions;
}

std::int64_t MlaBatcher::visible_entries(std::int64_t request, std::int32_t token) const {
  if (inputs_.topk_indices == nullptr) return num_causal_keys(inputs_, request, token);
  return static_cast<std::int64_t>(sparse_positions(request, token).size());
}

void MlaBatcher::plan(std::int64_t max_bytes) {
  const std::int64_t num_decodes = num_mla_decodes(inputs_);
  // As loaded, and in f64 beside it.
  const std::int64_t entry_bytes = dims_.entry_size() * 12;
  const std::int64_t row_bytes = dims_.num_heads * (dims_.entry_size() + dims_.kv_lora_rank) * 8;
  const bool sparse = inputs_.topk_indices != nullptr;
  std::int64_t shared = 0;  // entries of the row's request that the batch has already
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const bool is_decode = requests_[i] < num_decodes;
    const std::int64_t visible = visible_entries(requests_[i], rows_[i]);
    if (sparse || i == 0 || requests_[i] != requests_[i - 1]) shared = 0;
    // Why a row joins rows of its request whatever its entries: it would need them in a batch of
    // its own too, and expanding or loading them once for all is what makes long contexts cheap.
    const auto fits = [&](const MlaBatchPlan& batch) {
      return batch.is_decode == is_decode && (row - batch.row_begin + 1) * row_bytes <= max_bytes &&
             (shared > 0 || (batch.num_entries + visible) * entry_bytes <= max_bytes);
    };
    if (plans_.empty() || !fits(plans_.back())) {
      plans_.push_back({row, row, 0, 0, is_decode});
      shared = 0;
    }
    MlaBatchPlan& batch = plans_.back();
    batch.row_end = row + 1;
    batch.num_entries += visible - shared;
    batch.num_pairs += visible;
    shared = visible;
  }
}

MlaBatch MlaBatcher::load(const MlaBatchPlan& plan) const {
  MlaBatch batch;
  batch.is_decode = plan.is_decode;
  const bool sparse = inputs_.topk_indices != nullptr;
  std::vector<EntrySource> sources;
  sources.reserve(static_cast<std::size_t>(plan.num_entries));
  std::int64_t first = 0;  // of the row's entries
  for (std::int64_t row = plan.row_begin; row < plan.row_end; ++row) {
    const auto i = static_cast<std::size_t>(row);
    const bool shares = !sparse && row > plan.row_begin && requests_[i] == requests_[i - 1];
    const auto end = static_cast<std::int64_t>(sources.size());
    if (!shares) first = end;
    if (sparse) {
      for (const std::int64_t position : sparse_positions(requests_[i], rows_[i])) {
        sources.push_back({requests_[i], position});
      }
      batch.add_row(rows_[i], first, static_cast<std::int64_t>(sources.size()) - first);
      continue;
    }
    const std::int64_t visible = visible_entries(requests_[i], rows_[i]);
    for (std::int64_t p = end - first; p < visible; ++p) sources.push_back({requests_[i], p});
    batch.add_row(rows_[i], first, visible);
  }
  const MlaEntryReader reader(inputs_, dims_);
  batch.entries = reader.make_entries(static_cast<std::int64_t>(sources.size()));
  for_each_chunk(batch.entries.dim(0), kEntriesPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t entry = begin; entry < end; ++entry) {
      const EntrySource& source = sources[static_cast<std::size_t>(entry)];
      reader.copy(source.request, source.position, batch.entries, entry);
    }
  });
  return batch;
}

}  // namespace attnbench
