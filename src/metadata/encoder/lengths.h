// Sequence lengths of the multimodal encoder as its backends want them: maximum, cuDNN buckets,
// padding, element offsets (semantics §10.3, §10.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attnbench {

enum class MmLengthsBackend { kTorchSdpa, kFlashAttn, kRocmAiterFa, kTritonAttn, kFlashInfer };

/// Smallest of 1024 * {1, 2, 4, ..., 128} that holds x, beyond that the next multiple of 131072.
int64_t bucket_flashinfer_max_seqlen(int64_t max_seqlen);

/// Smallest of {8, 16, 32, 64} that holds the batch, beyond that the next multiple of 8.
int64_t padded_mm_batch(int64_t batch_size);

/// seq with padded_mm_batch(batch_size) - batch_size copies of pad appended, whatever its length.
std::vector<int32_t> add_padding_to_seqlens(std::span<const int32_t> seq, int64_t batch_size,
                                            int32_t pad);

/// Longest sequence of cu_seqlens [n+1]; 0 for TORCH_SDPA or fewer than two entries; FLASHINFER
/// rounds it up to a bucket.
int64_t compute_max_seqlen(MmLengthsBackend backend, std::span<const int32_t> cu_seqlens);

/// FLASHINFER only: [padded batch] lengths, 0 for the padding; nullopt for the others.
std::optional<std::vector<int32_t>> maybe_compute_seq_lens(MmLengthsBackend backend,
                                                           std::span<const int32_t> cu_seqlens);

/// fp8 hidden size of all ranks: heads * D rounded up to 16.
int64_t mm_fp8_padded_hidden_size(int num_heads, int head_size);

/// FLASHINFER: element offsets [2 * (padded batch + 1)], first those of Q, K and O, then those of
/// V, each half padded with its last value; V is a view into interleaved Q, K, V rows in 16-bit
/// mode and contiguous in fp8 mode (fp8_padded_hidden_size given). Others: cu_seqlens as it is.
/// hidden size % tp_size != 0 is E-CONFIG, an offset beyond int32 E-CAPACITY.
std::vector<int32_t> maybe_recompute_cu_seqlens(MmLengthsBackend backend,
                                                std::span<const int32_t> cu_seqlens,
                                                int64_t hidden_size, int tp_size,
                                                std::optional<int64_t> fp8_padded_hidden_size = {});

}  // namespace attnbench
