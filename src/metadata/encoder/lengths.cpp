// Buckets and offsets of the encoder's lengths. The bucket limits are those of vLLM: cuDNN builds a
// plan for each shape, and buckets keep the number of plans small.
#include "metadata/encoder/lengths.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

constexpr int64_t kSmallestBucket = 1024;
constexpr int64_t kLargestBucket = 131072;
constexpr int64_t kSmallestBatch = 8;
constexpr int64_t kLargestBatchBucket = 64;
constexpr int kFp8HeadMultiple = 16;
constexpr int64_t kInterleavedParts = 3;  // Q, K and V in one row

/// Smallest power-of-two multiple of `smallest` that holds x <= a power-of-two multiple of it.
int64_t doubling_bucket(int64_t x, int64_t smallest) {
  int64_t bucket = smallest;
  while (bucket < x) bucket *= 2;
  return bucket;
}

int64_t elements_per_token(int64_t hidden_size, int tp_size, std::string_view name) {
  if (tp_size < 1 || hidden_size % tp_size != 0) {
    fail(ErrorKind::kConfig, "{}: expected a multiple of tp_size {}, got {}", name, tp_size,
         hidden_size);
  }
  return hidden_size / tp_size;
}

void append_offsets(std::vector<int32_t>& out, std::span<const int32_t> cu_seqlens,
                    int64_t elements) {
  std::vector<int32_t> offsets;
  for (const int32_t token : cu_seqlens) {
    const int64_t offset = checked_mul(token, elements, "cu_seqlens in elements");
    offsets.push_back(checked_int32(offset, "cu_seqlens in elements"));
  }
  const auto batch_size = static_cast<int64_t>(cu_seqlens.size()) - 1;
  offsets = add_padding_to_seqlens(offsets, batch_size, offsets.back());
  out.insert(out.end(), offsets.begin(), offsets.end());
}

}  // namespace

int64_t bucket_flashinfer_max_seqlen(int64_t max_seqlen) {
  if (max_seqlen > kLargestBucket) return round_up(max_seqlen, kLargestBucket);
  return doubling_bucket(max_seqlen, kSmallestBucket);
}

int64_t padded_mm_batch(int64_t batch_size) {
  if (batch_size > kLargestBatchBucket) return round_up(batch_size, kSmallestBatch);
  return doubling_bucket(batch_size, kSmallestBatch);
}

std::vector<int32_t> add_padding_to_seqlens(std::span<const int32_t> seq, int64_t batch_size,
                                            int32_t pad) {
  std::vector<int32_t> padded(seq.begin(), seq.end());
  padded.insert(padded.end(), static_cast<size_t>(padded_mm_batch(batch_size) - batch_size), pad);
  return padded;
}

int64_t compute_max_seqlen(MmLengthsBackend backend, std::span<const int32_t> cu_seqlens) {
  int64_t longest = 0;
  if (backend != MmLengthsBackend::kTorchSdpa && cu_seqlens.size() >= 2) {
    longest = std::ranges::max(query_lens_of(cu_seqlens, "cu_seqlens"));
  }
  const bool bucketed = backend == MmLengthsBackend::kFlashInfer;
  return bucketed ? bucket_flashinfer_max_seqlen(longest) : longest;
}

std::optional<std::vector<int32_t>> maybe_compute_seq_lens(MmLengthsBackend backend,
                                                           std::span<const int32_t> cu_seqlens) {
  if (backend != MmLengthsBackend::kFlashInfer) return std::nullopt;
  const std::vector<int32_t> lens = query_lens_of(cu_seqlens, "cu_seqlens");
  return add_padding_to_seqlens(lens, static_cast<int64_t>(lens.size()), 0);
}

int64_t mm_fp8_padded_hidden_size(int num_heads, int head_size) {
  return num_heads * round_up(head_size, kFp8HeadMultiple);
}

std::vector<int32_t> maybe_recompute_cu_seqlens(MmLengthsBackend backend,
                                                std::span<const int32_t> cu_seqlens,
                                                int64_t hidden_size, int tp_size,
                                                std::optional<int64_t> fp8_padded_hidden_size) {
  if (backend != MmLengthsBackend::kFlashInfer) return {cu_seqlens.begin(), cu_seqlens.end()};
  if (cu_seqlens.empty()) {
    fail(ErrorKind::kShape, "cu_seqlens: expected at least one element, got none");
  }
  int64_t unit = elements_per_token(hidden_size, tp_size, "hidden_size");
  int64_t value_unit = unit * kInterleavedParts;
  if (fp8_padded_hidden_size) {
    unit = elements_per_token(*fp8_padded_hidden_size, tp_size, "fp8_padded_hidden_size");
    value_unit = unit;
  }
  std::vector<int32_t> offsets;
  append_offsets(offsets, cu_seqlens, unit);
  append_offsets(offsets, cu_seqlens, value_unit);
  return offsets;
}

}  // namespace attnbench
