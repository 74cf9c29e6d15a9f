#include "metadata/encoder/sequences.h"

#include "core/error.h"
#include "metadata/test_support.h"

namespace attnbench {
namespace {

using enum MmLengthsBackend;
using Ints = std::vector<std::int32_t>;

constexpr std::int64_t kUnit = 640;

ErrorKind kind_of(MmLengthsBackend backend, const MmCall& call) {
  try {
    mm_sequences(backend, call);
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

MmCall batch_call(std::int64_t rows, std::int64_t query_len, std::int64_t key_len) {
  MmCall call;
  call.batch_size = rows;
  call.query_len = query_len;
  call.key_len = key_len;
  return call;
}

}  // namespace

TEST_CASE("without cu_seqlens every row of the batch is a sequence") {
  for (const auto backend : {kTorchSdpa, kFlashAttn, kTritonAttn}) {
    const MmSequences sequences = mm_sequences(backend, batch_call(3, 5, 5));
    CHECK(sequences.query_start_loc == Ints{0, 5, 10, 15});
    CHECK(sequences.key_start_loc == std::vector<std::int64_t>{0, 5, 10, 15});
    CHECK(sequences.seq_lens == Ints{5, 5, 5});
  }
}

TEST_CASE("only SDPA takes other key than query lengths, and only without cu_seqlens") {
  const MmSequences sequences = mm_sequences(kTorchSdpa, batch_call(2, 3, 7));
  CHECK(sequences.query_start_loc == Ints{0, 3, 6});
  CHECK(sequences.key_start_loc == std::vector<std::int64_t>{0, 7, 14});
  CHECK(sequences.seq_lens == Ints{7, 7});
  CHECK(kind_of(kFlashAttn, batch_call(2, 3, 7)) == ErrorKind::kShape);
  CHECK(kind_of(kTritonAttn, batch_call(2, 3, 7)) == ErrorKind::kShape);
  MmCall call = make_mm_call(kTorchSdpa, {0, 3}, kUnit, false);
  call.key_len = 7;
  CHECK(kind_of(kTorchSdpa, call) == ErrorKind::kShape);
}

TEST_CASE("cu_seqlens name the sequences of one row, empty ones included") {
  for (const auto backend : {kTorchSdpa, kFlashAttn, kTritonAttn}) {
    const MmSequences sequences =
        mm_sequences(backend, make_mm_call(backend, {0, 10, 10, 30}, kUnit, false));
    CHECK(sequences.query_start_loc == Ints{0, 10, 10, 30});
    CHECK(sequences.seq_lens == Ints{10, 0, 20});
  }
}

TEST_CASE("FLASHINFER derives the tokens back from element offsets of Q and of V") {
  const MmCall call = make_mm_call(kFlashInfer, {0, 10, 30}, kUnit, false);
  const Ints offsets = {0, 6400,  19200, 19200, 19200, 19200, 19200, 19200, 19200,
                        0, 19200, 57600, 57600, 57600, 57600, 57600, 57600, 57600};
  CHECK(*call.cu_seqlens == offsets);
  CHECK(*call.max_seqlen == 1024);
  CHECK(*call.sequence_lengths == Ints{10, 20, 0, 0, 0, 0, 0, 0});
  const MmSequences sequences = mm_sequences(kFlashInfer, call);
  CHECK(sequences.query_start_loc == Ints{0, 10, 30, 30, 30, 30, 30, 30, 30});
  CHECK(sequences.seq_lens == Ints{10, 20, 0, 0, 0, 0, 0, 0});

  const MmCall fp8 = make_mm_call(kFlashInfer, {0, 10, 30}, kUnit, true);
  CHECK((*fp8.cu_seqlens)[10] == 6400);  // V is contiguous
  CHECK(mm_sequences(kFlashInfer, fp8).query_start_loc == sequences.query_start_loc);
}

TEST_CASE("offsets that do not fit each other are refused") {
  const MmCall good = make_mm_call(kFlashInfer, {0, 10, 30}, kUnit, false);
  MmCall call = good;
  call.cu_seqlens->push_back(57600);
  CHECK(kind_of(kFlashInfer, call) == ErrorKind::kShape);
  call = good;
  (*call.cu_seqlens)[1] += 1;
  CHECK(kind_of(kFlashInfer, call) == ErrorKind::kValue);
  call = good;
  (*call.cu_seqlens)[10] += 3 * 640;  // V one token further
  CHECK(kind_of(kFlashInfer, call) == ErrorKind::kValue);
  call = good;
  (*call.sequence_lengths)[1] = 19;
  CHECK(kind_of(kFlashInfer, call) == ErrorKind::kValue);
  call = good;
  call.sequence_lengths->pop_back();
  CHECK(kind_of(kFlashInfer, call) == ErrorKind::kShape);
}

TEST_CASE("cu_seqlens and max_seqlen come together, FLASHINFER wants all three") {
  for (const auto backend : {kFlashAttn, kTritonAttn}) {
    MmCall call = make_mm_call(backend, {0, 10}, kUnit, false);
    call.max_seqlen.reset();
    try {
      mm_sequences(backend, call);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.full_message() ==
            "E-CONFIG: cu_seqlens and max_seqlen should be both set or both None.");
    }
    call = batch_call(2, 5, 5);
    call.max_seqlen = 5;
    CHECK(kind_of(backend, call) == ErrorKind::kConfig);
  }
  CHECK(kind_of(kFlashInfer, batch_call(1, 10, 10)) == ErrorKind::kConfig);
  for (int missing = 0; missing < 3; ++missing) {
    MmCall call = make_mm_call(kFlashInfer, {0, 10}, kUnit, false);
    if (missing == 0) call.cu_seqlens.reset();
    if (missing == 1) call.max_seqlen.reset();
    if (missing == 2) call.sequence_lengths.reset();
    CHECK(kind_of(kFlashInfer, call) == ErrorKind::kConfig);
  }
}

TEST_CASE("lengths that do not cover the tokens, two rows, or a short max_seqlen are refused") {
  for (const auto backend : {kTorchSdpa, kFlashAttn, kTritonAttn, kFlashInfer}) {
    MmCall call = make_mm_call(backend, {0, 10, 30}, kUnit, false);
    call.query_len = call.key_len = 31;
    CHECK(kind_of(backend, call) == ErrorKind::kValue);
    call = make_mm_call(backend, {0, 10, 30}, kUnit, false);
    call.batch_size = 2;
    CHECK(kind_of(backend, call) == ErrorKind::kShape);
    if (backend == kTorchSdpa) continue;
    call = make_mm_call(backend, {0, 10, 30}, kUnit, false);
    call.max_seqlen = 19;
    CHECK(kind_of(backend, call) == ErrorKind::kValue);
  }
}

TEST_CASE("element offsets beyond int32 are a matter of capacity") {
  // 559,241 tokens of 3 * 1280 elements are the first that do not fit.
  CHECK_NOTHROW(make_mm_call(kFlashInfer, {0, 559240}, 1280, false));
  CHECK_NOTHROW(make_mm_call(kFlashAttn, {0, 559241}, 1280, false));
  CHECK_NOTHROW(make_mm_call(kFlashInfer, {0, 559241}, 1280, true));
  try {
    make_mm_call(kFlashInfer, {0, 559241}, 1280, false);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kCapacity);
  }
}

}  // namespace attnbench
