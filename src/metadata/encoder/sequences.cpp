// From the arguments of a wrapper back to sequences, with every condition under which the wrapper
// would read outside its tensors refused by name.
#include "metadata/encoder/sequences.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

using enum MmLengthsBackend;

void check_both_or_none(MmLengthsBackend backend, const MmCall& call) {
  if (backend == kTorchSdpa) return;
  if (backend == kFlashInfer) {
    if (call.cu_seqlens && call.max_seqlen && call.sequence_lengths) return;
    fail(ErrorKind::kConfig,
         "cu_seqlens, max_seqlen and sequence_lengths: expected all three for FLASHINFER, got {}",
         int{call.cu_seqlens.has_value()} + int{call.max_seqlen.has_value()} +
             int{call.sequence_lengths.has_value()});
  }
  if (call.cu_seqlens.has_value() == call.max_seqlen.has_value()) return;
  fail(ErrorKind::kConfig, "cu_seqlens and max_seqlen should be both set or both None.");
}

/// Each row of the batch is one sequence.
MmSequences batch_sequences(MmLengthsBackend backend, const MmCall& call) {
  if (backend != kTorchSdpa && call.key_len != call.query_len) {
    fail(ErrorKind::kShape, "key: expected {} tokens a row, as query has, got {}", call.query_len,
         call.key_len);
  }
  MmSequences result;
  const std::int32_t key_len = checked_int32(call.key_len, "key tokens");
  for (std::int64_t row = 0; row <= call.batch_size; ++row) {
    const std::int64_t start = checked_mul(row, call.query_len, "query tokens");
    result.query_start_loc.push_back(checked_int32(start, "query tokens"));
    result.key_start_loc.push_back(checked_mul(row, call.key_len, "key tokens"));
    if (row < call.batch_size) result.seq_lens.push_back(key_len);
  }
  return result;
}

void check_max_seqlen(MmLengthsBackend backend, const MmCall& call,
                      const std::vector<std::int32_t>& lens) {
  // TORCH_SDPA splits by cu_seqlens only; its max_seqlen is 0 or missing (§10.3).
  if (backend == kTorchSdpa || lens.empty()) return;
  const std::int64_t longest = std::ranges::max(lens);
  if (*call.max_seqlen >= longest) return;
  fail(ErrorKind::kValue, "max_seqlen: expected at least the longest sequence {}, got {}", longest,
       *call.max_seqlen);
}

MmSequences ragged(std::vector<std::int32_t> starts, std::vector<std::int32_t> lens) {
  std::vector<std::int64_t> key_starts(starts.begin(), starts.end());
  return {std::move(starts), std::move(key_starts), std::move(lens)};
}

/// Token at which an element offset lies.
std::int32_t token_of(std::int32_t offset, std::int64_t unit, std::size_t index) {
  if (unit < 1 || offset % unit != 0) {
    fail(ErrorKind::kValue, "cu_seqlens[{}]: expected a multiple of {} elements, got {}", index,
         unit, offset);
  }
  return static_cast<std::int32_t>(offset / unit);
}

/// Element offsets back to tokens (§10.4); padding entries are sequences of length 0.
std::vector<std::int32_t> starts_of_offsets(const MmCall& call) {
  const std::vector<std::int32_t>& offsets = *call.cu_seqlens;
  if (offsets.size() % 2 != 0 || offsets.empty()) {
    fail(ErrorKind::kShape, "cu_seqlens: expected an even number of offsets, got {}",
         offsets.size());
  }
  const std::size_t half = offsets.size() / 2;
  if (call.sequence_lengths->size() != half - 1) {
    fail(ErrorKind::kShape, "sequence_lengths: expected {} entries, got {}", half - 1,
         call.sequence_lengths->size());
  }
  std::vector<std::int32_t> starts;
  for (std::size_t i = 0; i < half; ++i) {
    starts.push_back(token_of(offsets[i], call.query_unit, i));
    const std::int32_t value = token_of(offsets[half + i], call.value_unit, half + i);
    if (value != starts.back()) {
      fail(ErrorKind::kValue, "cu_seqlens[{}]: expected V at token {}, as Q is, got {}", half + i,
           starts.back(), value);
    }
  }
  return starts;
}

}  // namespace

MmCall make_mm_call(MmLengthsBackend backend, const std::vector<std::int32_t>& cu_seqlens,
                    std::int64_t query_unit, bool fp8) {
  MmCall call;
  call.query_len = call.key_len = cu_seqlens.empty() ? 0 : cu_seqlens.back();
  call.query_unit = query_unit;
  call.value_unit = fp8 ? query_unit : 3 * query_unit;
  const auto padded = fp8 ? std::optional<std::int64_t>(query_unit) : std::nullopt;
  call.cu_seqlens = maybe_recompute_cu_seqlens(backend, cu_seqlens, query_unit, 1, padded);
  call.max_seqlen = compute_max_seqlen(backend, cu_seqlens);
  call.sequence_lengths = maybe_compute_seq_lens(backend, cu_seqlens);
  return call;
}

MmSequences mm_sequences(MmLengthsBackend backend, const MmCall& call) {
  check_both_or_none(backend, call);
  if (!call.cu_seqlens) return batch_sequences(backend, call);
  if (call.batch_size != 1) {
    fail(ErrorKind::kShape, "query: expected one batch row beside cu_seqlens, got {}",
         call.batch_size);
  }
  const bool offsets = backend == kFlashInfer;
  std::vector<std::int32_t> starts = offsets ? starts_of_offsets(call) : *call.cu_seqlens;
  check_cumulative(starts, call.query_len, "cu_seqlens");
  if (call.key_len != call.query_len) {
    fail(ErrorKind::kShape, "key: expected {} tokens, as query has, got {}", call.query_len,
         call.key_len);
  }
  std::vector<std::int32_t> lens = query_lens_of(starts, "cu_seqlens");
  if (offsets && lens != *call.sequence_lengths) {
    fail(ErrorKind::kValue, "sequence_lengths: expected the differences of cu_seqlens");
  }
  check_max_seqlen(backend, call, lens);
  return ragged(std::move(starts), std::move(lens));
}

}  // namespace attnbench
