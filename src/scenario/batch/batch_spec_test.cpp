#include "scenario/batch/batch_spec.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

std::string spec_error(const std::string& spec, bool cross = false,
                       ErrorKind kind = ErrorKind::kConfig) {
  try {
    parse_batch_spec(spec, cross);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a batch spec gives its requests in order") {
  const std::vector<Request> batch = parse_batch_spec("2q1s4k_q8k_3q5s6_q1ks2k", false);
  CHECK(batch == std::vector<Request>{
                     {1, 4096}, {1, 4096}, {8192, 8192}, {5, 6}, {5, 6}, {5, 6}, {1024, 2048}});
  CHECK(parse_batch_spec("60q1s4k_4q1ks3k", false).size() == 64);
  CHECK(parse_batch_spec("007q01s002", false) == std::vector<Request>(7, Request{1, 2}));
}

TEST_CASE("a KV length below the query length needs cross attention") {
  CHECK(contains(spec_error("q1ks1"), "a KV length below the query length in segment 'q1ks1'"));
  CHECK(contains(spec_error("q1_q4s3"), "in segment 'q4s3' of 'q1_q4s3'"));
  CHECK(contains(spec_error("q1s0"), "below the query length"));
  CHECK(parse_batch_spec("q4s3", true) == std::vector<Request>{{4, 3}});
  CHECK(parse_batch_spec("q4s0", true) == std::vector<Request>{{4, 0}});
}

TEST_CASE("everything outside the grammar is rejected with its segment") {
  CHECK(contains(spec_error("q8k_0q1"), "count 0 in segment '0q1' of 'q8k_0q1'"));
  CHECK(contains(spec_error("q0"), "query length 0 in segment 'q0'"));
  CHECK(contains(spec_error("q0s5"), "query length 0"));
  CHECK(contains(spec_error(""), "an empty segment"));
  CHECK(contains(spec_error("q1__q2"), "an empty segment"));
  CHECK(contains(spec_error("q1_"), "an empty segment"));
  CHECK(contains(spec_error("_q1"), "an empty segment"));
  CHECK(contains(spec_error("q"), "a number after 'q'"));
  CHECK(contains(spec_error("q1s"), "a number after 's'"));
  CHECK(contains(spec_error("qk"), "'k' instead of a number after 'q'"));
  CHECK(contains(spec_error("q8K"), "'K' instead of the end of the segment"));
  CHECK(contains(spec_error("Q8"), "'Q8' instead of 'q'"));
  CHECK(contains(spec_error("8"), "its end instead of 'q'"));
  CHECK(contains(spec_error("2kq1"), "'kq1' instead of 'q'"));
  for (const char* spec : {"q1s1k2",    "q1m",   "q1 ",    " q1",       "q 1",
                           "q-1",       "q+1",   "q1.5",   "q1e3",      "q8kk",
                           "q1s2s3",    "q1q2",  "s4q1",   "q1,q2",     "q1\n",
                           "2x q1",     "0x2q1", "q1s1ks", "q1_q2s1kK", "60q1s4k_4q1kS3k",
                           "\xd9\xa3q1"}) {
    CAPTURE(spec);
    CHECK(spec_error(spec) != "accepted");
  }
}

TEST_CASE("too many requests or tokens are too much for any machine, and nothing is allocated") {
  const auto size_error = [](const std::string& spec) {
    return spec_error(spec, false, ErrorKind::kCapacity);
  };
  CHECK(contains(size_error("1000001q1"), "more than 1000000 requests"));
  CHECK(contains(size_error("600000q1_600000q1"), "from segment '600000q1' on"));
  CHECK(contains(size_error("q2147483648"), "above 2147483647"));
  CHECK(contains(size_error("q99999999999999999999999"), "above 2147483647"));
  CHECK(contains(size_error("q2097152k"), "more than 2147483647 tokens"));
  CHECK(contains(size_error("1000q4000k"), "at most 1000000 requests and 2147483647 tokens"));
  CHECK(contains(size_error("1000000q1s4k"), "at most 1000000 requests and 2147483647 tokens"));
  CHECK(parse_batch_spec("q2147483647", false).front().query_len == 2147483647);
}

TEST_CASE("the canonical text is run-length coded with k where exact") {
  std::vector<Request> batch(60, Request{1, 4096});
  batch.insert(batch.end(), 4, Request{1024, 3072});
  CHECK(canonical_batch_spec(batch) == "60q1s4k_4q1ks3k");
  CHECK(canonical_batch_spec({{8192, 8192}}) == "q8k");
  CHECK(canonical_batch_spec({{1, 1000}, {1, 1}}) == "q1s1000_q1");
  CHECK(canonical_batch_spec({{0, 0}, {0, 0}, {0, 2048}}) == "2q0s0_q0s2k");
  CHECK(canonical_batch_spec({}) == "");
  for (const char* spec : {"q8k", "60q1s4k_4q1ks3k", "q1_q2_q1", "3q5s6", "q1ks1025"}) {
    CHECK(canonical_batch_spec(parse_batch_spec(spec, false)) == spec);
  }
  CHECK(canonical_batch_spec(parse_batch_spec("q1s4096_2q1s4k_q1024", false)) == "3q1s4k_q1k");
}

}  // namespace

namespace {

std::vector<Request> sequences(std::vector<std::array<std::int64_t, 2>> images, int patch,
                               std::optional<int> window = {}) {
  MmEncoderSpec spec;
  spec.images = std::move(images);
  spec.patch_size = patch;
  spec.window = window;
  return image_requests(spec);
}

TEST_CASE("without window each image is one sequence of its patches") {
  CHECK(sequences({{448, 672}, {224, 224}}, 14) == std::vector<Request>{{1536, 1536}, {256, 256}});
  CHECK(sequences({{30, 45}}, 14) == std::vector<Request>{{6, 6}});
}

TEST_CASE("window attention cuts the grid into squares, smaller ones at the border") {
  // Grid 10 x 7, window 4: columns 4 + 3; rows 4 + 4 + 2.
  CHECK(sequences({{100, 70}}, 10, 4) ==
        std::vector<Request>{{16, 16}, {12, 12}, {16, 16}, {12, 12}, {8, 8}, {6, 6}});
  CHECK(sequences({{28, 28}}, 14, 8) == std::vector<Request>{{4, 4}});
}

TEST_CASE("images below one patch and floods of windows are refused") {
  CHECK_THROWS_WITH_AS(sequences({{448, 13}}, 14),
                       "expected images of at least one patch of 14 x 14, found 448 x 13", Error);
  CHECK_THROWS_AS(sequences({{1048576, 1048576}}, 1, 1), Error);
}

}  // namespace

}  // namespace attnbench
