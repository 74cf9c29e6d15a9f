#include "metadata/parts/local_chunks.h"

#include <doctest/doctest.h>

#include "metadata/mask/attention_math.h"

namespace attnbench {
namespace {

std::vector<Request> rows_of(const std::vector<Request>& batch, std::int64_t chunk_size) {
  std::vector<Request> rows;
  for (const LocalChunk& chunk : local_chunks(batch, chunk_size)) rows.push_back(chunk.rows);
  return rows;
}

TEST_CASE("a request is cut where chunks begin") {
  CHECK(rows_of({{1, 70}}, 32) == std::vector<Request>{{1, 6}});
  CHECK(rows_of({{1, 64}}, 32) == std::vector<Request>{{1, 32}});
  CHECK(rows_of({{1, 65}}, 32) == std::vector<Request>{{1, 1}});
  CHECK(rows_of({{40, 70}}, 32) == std::vector<Request>{{2, 32}, {32, 32}, {6, 6}});
  CHECK(rows_of({{20, 20}, {0, 0}, {3, 3}}, 32) == std::vector<Request>{{20, 20}, {0, 0}, {3, 3}});
  const auto chunks = local_chunks({{1, 9}, {40, 70}}, 32);
  CHECK(chunks[2].request == 1);
  CHECK(chunks[2].first_key == 32);
}

TEST_CASE("the rows of the chunks see what the mask allows, row by row") {
  const std::vector<Request> batch{{1, 70}, {40, 70}, {33, 64}, {5, 5}};
  for (const std::int64_t size : {16, 32, 48, 1000}) {
    AttentionMath math;
    math.window_right = 0;
    math.chunk_size = size;
    std::vector<std::int64_t> expected;
    for (const Request& request : batch) {
      for (std::int64_t p = request.seq_len - request.query_len; p < request.seq_len; ++p) {
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < request.seq_len; ++j) {
          count += is_allowed(math, {}, p, j, request.seq_len) ? 1 : 0;
        }
        CHECK(count == p % size + 1);
        expected.push_back(count);
      }
    }
    std::vector<std::int64_t> found;
    for (const Request& rows : rows_of(batch, size)) {
      for (std::int64_t i = 0; i < rows.query_len; ++i) {
        found.push_back(rows.seq_len - rows.query_len + i + 1);
      }
    }
    CHECK(found == expected);
  }
}

}  // namespace
}  // namespace attnbench
