#include "metadata/encoder/lengths.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using enum MmLengthsBackend;
using Ints = std::vector<int32_t>;

TEST_CASE("buckets match the golden values") {
  const std::vector<std::pair<int64_t, int64_t>> lengths = {
      {-3, 1024},       {0, 1024},        {1, 1024},        {1024, 1024},    {1025, 2048},
      {131072, 131072}, {131073, 262144}, {262144, 262144}, {262145, 393216}};
  for (const auto& [length, bucket] : lengths)
    CHECK(bucket_flashinfer_max_seqlen(length) == bucket);
  const std::vector<std::pair<int64_t, int64_t>> batches = {{0, 8},   {1, 8},   {8, 8},   {9, 16},
                                                            {33, 64}, {64, 64}, {65, 72}, {73, 80}};
  for (const auto& [batch, padded] : batches) CHECK(padded_mm_batch(batch) == padded);
}

TEST_CASE("the longest sequence is reported by the backends that use it") {
  const Ints cu = {0, 10, 30};
  for (const auto backend : {kFlashAttn, kRocmAiterFa, kTritonAttn}) {
    CHECK(compute_max_seqlen(backend, cu) == 20);
    CHECK(compute_max_seqlen(backend, Ints{0}) == 0);
  }
  CHECK(compute_max_seqlen(kTorchSdpa, cu) == 0);
  CHECK(compute_max_seqlen(kFlashInfer, cu) == 1024);
  CHECK(compute_max_seqlen(kFlashInfer, Ints{0, 1500}) == 2048);
  CHECK(error_of([] { compute_max_seqlen(kFlashAttn, Ints{0, 5, 3}); }) == "E-VALUE");
}

TEST_CASE("padding is appended to whatever was given, up to the padded batch") {
  CHECK(add_padding_to_seqlens(Ints{10, 20}, 2, 0) == Ints{10, 20, 0, 0, 0, 0, 0, 0});
  CHECK(add_padding_to_seqlens(Ints{0, 10, 30}, 2, 30).size() == 9);
  CHECK(add_padding_to_seqlens(Ints(8, 1), 8, 0) == Ints(8, 1));
}

TEST_CASE("only FLASHINFER gets sequence lengths") {
  CHECK_FALSE(maybe_compute_seq_lens(kFlashAttn, Ints{0, 10, 30}));
  CHECK(maybe_compute_seq_lens(kFlashInfer, Ints{0, 10, 30}) == Ints{10, 20, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("offsets in elements match the golden values") {
  const Ints offsets = maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 10, 30}, 1280, 2);
  const Ints expected = {0, 6400,  19200, 19200, 19200, 19200, 19200, 19200, 19200,
                         0, 19200, 57600, 57600, 57600, 57600, 57600, 57600, 57600};
  CHECK(offsets == expected);
  CHECK(maybe_recompute_cu_seqlens(kTritonAttn, Ints{0, 10, 30}, 1280, 2) == Ints{0, 10, 30});
}

TEST_CASE("fp8 offsets count padded heads and are the same for Q, K and V") {
  CHECK(mm_fp8_padded_hidden_size(16, 72) == 1280);
  const Ints offsets = maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 3}, 1152, 2, 1280);
  REQUIRE(offsets.size() == 18);
  CHECK(offsets[1] == 1920);
  CHECK(offsets[8] == 1920);
  CHECK(Ints(offsets.begin(), offsets.begin() + 9) == Ints(offsets.begin() + 9, offsets.end()));
}

TEST_CASE("offsets beyond int32 and uneven ranks are refused") {
  // 3 * 1280 elements a token: V passes int32 at 559241 tokens, Q only at 1677722.
  CHECK(error_of([] {
          maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 559240}, 1280, 1);
        }) == "none");
  CHECK(error_of([] {
          maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 559241}, 1280, 1);
        }) == "E-CAPACITY");
  CHECK(error_of([] {
          maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 559241}, 1280, 1, 1280);
        }) == "none");
  CHECK(error_of([] {
          maybe_recompute_cu_seqlens(kFlashInfer, Ints{0, 1}, 1281, 2);
        }) == "E-CONFIG");
  CHECK(error_of([] { maybe_recompute_cu_seqlens(kFlashInfer, Ints{}, 1280, 1); }) == "E-SHAPE");
}

}  // namespace
}  // namespace attnbench
