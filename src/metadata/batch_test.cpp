#include "metadata/batch.h"

#include "core/problem/problem.h"
#include "metadata/test_support.h"

namespace attnbench {
namespace {

BatchSplit split(const std::vector<int32_t>& query_lens, int threshold, bool uniform) {
  const auto starts = start_loc(query_lens);
  int longest = 0;
  for (const int32_t len : query_lens) longest = std::max<int>(longest, len);
  return split_decodes_and_prefills(starts, starts.back(), longest,
                                    {.threshold = threshold, .require_uniform = uniform});
}

TEST_CASE("split puts every request from the first prefill on into the prefills") {
  CHECK(split({1, 1, 3, 1}, 1, false) == BatchSplit{2, 2, 2, 4});
  CHECK(split({2, 2, 1, 5}, 4, false) == BatchSplit{3, 1, 5, 5});
  CHECK(split({5, 1}, 4, false) == BatchSplit{0, 2, 0, 6});
  CHECK(split({}, 1, false) == BatchSplit{0, 0, 0, 0});
}

TEST_CASE("a uniform split takes zero-length rows as padding of the decodes") {
  CHECK(split({2, 2, 0}, 4, true) == BatchSplit{3, 0, 4, 0});
  CHECK(split({2, 2, 1, 5}, 4, true) == BatchSplit{2, 2, 4, 6});
  CHECK(split({2, 2, 0, 0}, 4, true) == BatchSplit{4, 0, 4, 0});
  const auto padded = start_loc({2, 2, 0});
  CHECK(split_decodes_and_prefills(padded, 6, 2, {.threshold = 4, .require_uniform = true}) ==
        BatchSplit{3, 0, 6, 0});
}

TEST_CASE("a uniform split of threshold 1 needs no uniformity check") {
  CHECK(split({1, 0, 1}, 1, true) == BatchSplit{3, 0, 2, 0});
}

TEST_CASE("short extends become prefills when asked, and with them all that follows") {
  const auto starts = start_loc({1, 1, 5});
  const std::vector<uint8_t> prefilling = {0, 1, 1};
  const SplitOptions options = {
      .threshold = 1, .treat_short_extends_as_decodes = false, .is_prefilling = prefilling};
  CHECK(split_decodes_and_prefills(starts, 7, 5, options) == BatchSplit{1, 2, 1, 6});
  CHECK(split_decodes_and_prefills(starts, 7, 5, {}) == BatchSplit{2, 1, 2, 5});
  const std::vector<uint8_t> finished = {0, 0, 0};
  const auto short_starts = start_loc({1, 1, 1});
  CHECK(split_decodes_and_prefills(short_starts, 3, 1,
                                   {.treat_short_extends_as_decodes = false,
                                    .is_prefilling = finished}) == BatchSplit{3, 0, 3, 0});
}

TEST_CASE("a uniform batch still yields its prefilling rows when short extends are prefills") {
  const auto starts = start_loc({2, 2, 2});
  const std::vector<uint8_t> prefilling = {0, 0, 1};
  CHECK(split_decodes_and_prefills(starts, 6, 2,
                                   {.threshold = 4,
                                    .require_uniform = true,
                                    .treat_short_extends_as_decodes = false,
                                    .is_prefilling = prefilling}) == BatchSplit{2, 1, 4, 2});
}

TEST_CASE("split rejects what cannot describe a batch") {
  const auto starts = start_loc({1, 3});
  const std::vector<int32_t> falling = {0, 3, 1};
  CHECK(error_of([&] { split_decodes_and_prefills(falling, 1, 3, {}); }) == "E-VALUE");
  CHECK(error_of([&] { split_decodes_and_prefills(starts, 3, 3, {}); }) == "E-VALUE");
  CHECK(error_of([&] { split_decodes_and_prefills(starts, 4, 2, {}); }) == "E-VALUE");
  CHECK(error_of([&] {
          split_decodes_and_prefills(starts, 4, 3, {.treat_short_extends_as_decodes = false});
        }) == "E-SHAPE");
  CHECK(error_of([] { check_split({1, 1, 1, 3}, 2, 4); }) == "none");
  CHECK(error_of([] { check_split({1, 1, 1, 3}, 3, 4); }) == "E-VALUE");
  CHECK(error_of([] { check_split({1, 1, 1, 3}, 2, 5); }) == "E-VALUE");
}

TEST_CASE("split counts always sum to the batch and decodes stay within the threshold") {
  Draw draw(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> lens(static_cast<size_t>(draw(1, 8)));
    for (auto& len : lens) len = draw(0, 6);
    const int threshold = draw(1, 5);
    const bool uniform = draw(0, 1) == 1;
    const BatchSplit result = split(lens, threshold, uniform);
    REQUIRE(result.num_decodes + result.num_prefills == static_cast<int>(lens.size()));
    int tokens = 0;
    for (int b = 0; b < result.num_decodes; ++b) {
      const int32_t len = lens[static_cast<size_t>(b)];
      tokens += len;
      REQUIRE(len <= threshold);
    }
    REQUIRE(tokens == result.num_decode_tokens);
    REQUIRE(result.num_decode_tokens + result.num_prefill_tokens == start_loc(lens).back());
    if (result.num_prefills > 0) {
      const int32_t first = lens[static_cast<size_t>(result.num_decodes)];
      REQUIRE((first > threshold || (uniform && first != lens[0])));
    }
  }
}

TEST_CASE("reorder puts decode, short extend, long extend and prefill in that order, stably") {
  const std::vector<int32_t> scheduled = {9, 1, 1, 7, 1, 3, 1};
  const std::vector<int32_t> computed = {0, 20, 4, 8, 30, 0, 12};
  const std::vector<int32_t> prompts = {9, 20, 10, 15, 16, 3, 12};
  CHECK(reorder_batch(scheduled, computed, prompts, 1) == std::vector<int>{1, 4, 6, 2, 3, 0, 5});
  CHECK(error_of([&] { reorder_batch(scheduled, computed, std::vector<int32_t>{1}, 1); }) ==
        "E-SHAPE");
}

TEST_CASE("decode thresholds follow the table of builders") {
  using enum MetadataBuilder;
  const auto at = [](MetadataBuilder builder, int speculative, bool parallel = false, int world = 1,
                     int interleave = 1) {
    return decode_threshold(builder, speculative, parallel, world, interleave);
  };
  CHECK(at(kFlashAttnIx, 0) == DecodeThreshold{true, 1, false});
  CHECK(at(kFlashAttnIx, 3) == DecodeThreshold{true, 4, false});
  CHECK(at(kFlashAttnIx, 3, true) == DecodeThreshold{true, 7, false});
  CHECK(at(kFlashAttnIx, 3, false, 2) == DecodeThreshold{true, 1, false});
  CHECK_FALSE(at(kTritonAttn, 3).splits);
  CHECK_FALSE(at(kFlashAttn, 3).splits);
  CHECK(at(kMlaSingleOnly, 3) == DecodeThreshold{true, 1, true});
  CHECK(at(kFlashMla, 3) == DecodeThreshold{true, 128, true});
  CHECK(at(kFlashMla, 200) == DecodeThreshold{true, 201, true});
  CHECK(at(kFlashMla, 0, false, 2) == DecodeThreshold{true, 1, true});
  CHECK(at(kFlashAttnMla, 0) == DecodeThreshold{true, 512, false});
  CHECK(at(kFlashAttnMla, 0, false, 2, 1) == DecodeThreshold{true, 512, false});
  CHECK(at(kFlashAttnMla, 0, false, 2, 4) == DecodeThreshold{true, 1, false});
  CHECK_FALSE(at(kFlashMlaSparse, 1).splits);
  CHECK(at(kFlashMlaSparseFp8, 1) == DecodeThreshold{true, 2, true});
}

TEST_CASE("decode queries reshape only when the tokens divide evenly") {
  CHECK(uniform_decode_query_len(3, 6) == 2);
  CHECK(error_of([] { uniform_decode_query_len(3, 7); }) == "E-SHAPE");
  CHECK(error_of([] { uniform_decode_query_len(0, 0); }) == "E-SHAPE");
}

TEST_CASE("an MLA graph holds nothing but decodes") {
  CHECK(error_of([] { check_mla_graph_capture(8, 8, 1, 1); }) == "none");
  CHECK(error_of([] { check_mla_graph_capture(9, 8, 1, 1); }) == "E-CONFIG");
  CHECK(error_of([] { check_mla_graph_capture(8, 8, 2, 1); }) == "E-CONFIG");
}

Problem problem_of(std::vector<Request> batch) {
  Problem problem;
  problem.batch = std::move(batch);
  return problem;
}

TEST_CASE("the lengths of a problem begin at any of its requests") {
  const Problem problem = problem_of({{1, 9}, {2, 2}, {5, 30}});
  CHECK(query_lens_of(problem) == std::vector<int32_t>{1, 2, 5});
  CHECK(seq_lens_of(problem, 1) == std::vector<int32_t>{2, 30});
  CHECK(context_lens_of(problem) == std::vector<int32_t>{8, 0, 25});
  CHECK(query_start_loc_of(problem, 1) == std::vector<int32_t>{0, 2, 7});
  CHECK(query_start_loc_of(problem, 3) == std::vector<int32_t>{0});
  CHECK(error_of([] { seq_lens_of(problem_of({{1, int64_t{1} << 31}})); }) == "E-CAPACITY");
}

TEST_CASE("a short request whose keys are all new is a prefill only where the problem says so") {
  Problem problem = problem_of({{1, 9}, {1, 1}, {1, 7}});
  problem.treat_short_extends_as_decodes = false;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnIx) == BatchSplit{1, 2, 1, 2});
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnIx, true) == BatchSplit{3, 0, 3, 0});
  problem.treat_short_extends_as_decodes = true;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnIx) == BatchSplit{3, 0, 3, 0});
}

TEST_CASE("the batch of a problem is split by the threshold of its builder") {
  Problem problem = problem_of({{2, 9}, {2, 40}, {3, 40}});
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnIx) == BatchSplit{0, 3, 0, 7});
  problem.attention.num_speculative_tokens = 1;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnIx) == BatchSplit{2, 1, 4, 3});
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{3, 0, 7, 0});
  problem.dcp.world_size = 2;
  problem.dcp.interleave_size = 4;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{0, 3, 0, 7});
}

TEST_CASE("a chunk with context is of a prompt when it is too long for a decode, or says so") {
  Problem problem = problem_of({{1, 9}, {3, 9}, {1, 7}, {0, 0}});
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{4, 0, 5, 0});
  problem.treat_short_extends_as_decodes = false;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{1, 3, 1, 4});
  problem.attention.num_speculative_tokens = 2;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{4, 0, 5, 0});
  problem.batch[2].prefilling = true;
  CHECK(split_batch(problem, MetadataBuilder::kFlashAttnMla) == BatchSplit{2, 2, 4, 1});
  CHECK_FALSE(is_prefilling({0, 0}, 0));
  CHECK_FALSE(is_prefilling({5, 5, false}, 0));
}

TEST_CASE("a captured MLA graph holds decodes only") {
  const auto captures = [](const Problem& problem, MetadataBuilder builder) {
    return error_of([&] { check_mla_graph_capture(problem, builder); });
  };
  Problem problem = problem_of({{1, 9}, {1, 40}, {0, 0}});
  CHECK(captures(problem, MetadataBuilder::kMlaSingleOnly) == "none");
  problem.batch = {{2, 9}, {2, 40}};
  CHECK(captures(problem, MetadataBuilder::kMlaSingleOnly) == "E-CONFIG");
  CHECK(captures(problem, MetadataBuilder::kFlashMla) == "none");
  problem.batch = {{2, 9}, {3, 40}};
  CHECK(captures(problem, MetadataBuilder::kFlashMla) == "E-CONFIG");
  CHECK(captures(problem, MetadataBuilder::kFlashAttnMla) == "none");
  CHECK(captures(problem, MetadataBuilder::kFlashMlaSparse) == "none");
  problem.treat_short_extends_as_decodes = false;
  CHECK(captures(problem, MetadataBuilder::kFlashAttnMla) == "E-CONFIG");
}

}  // namespace
}  // namespace attnbench
