#include "metadata/mla/sparse_index.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

/// [128] indices that start with `indices`, the rest -1.
Ints topk_row(Ints indices) {
  indices.resize(128, -1);
  return indices;
}

Ints head(const Ints& values, size_t count) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST_CASE("indices become slots as in the golden values") {
  const Ints requests = {0};
  const Ints table = {7, 2};
  const Ints indices = topk_row({70, 128, -1, 0});
  const SparseSlots result = convert_request_indices({requests, indices, 128, table, 2, 64});
  CHECK(head(result.slots, 4) == Ints{134, -1, -1, 448});
  CHECK(result.slots.size() == 128);
  CHECK(result.valid_counts == Ints{2});
}

TEST_CASE("unmapped blocks give -1 and duplicates count repeatedly") {
  const Ints requests = {1};
  const Ints table = {7, 2, -1, 3};  // [2, 2]
  const Ints indices = topk_row({5, 64, 64});
  const SparseSlots result = convert_request_indices({requests, indices, 128, table, 2, 64});
  CHECK(head(result.slots, 4) == Ints{-1, 192, 192, -1});
  CHECK(result.valid_counts == Ints{2});
}

TEST_CASE("requests in the prefill workspace are addressed from their start") {
  const Ints requests = {0, 1};
  const Ints table = {7, 2};  // [2, 1]
  const Ints starts = {-1, 1000};
  Ints indices = topk_row({3, 64});
  const Ints second = topk_row({3, 200, -1});
  indices.insert(indices.end(), second.begin(), second.end());
  const SparseSlots result =
      convert_request_indices({requests, indices, 128, table, 1, 64, starts});
  CHECK(head(result.slots, 2) == Ints{451, -1});
  CHECK(Ints{result.slots[128], result.slots[129], result.slots[130]} == Ints{1003, 1200, -1});
  CHECK(result.valid_counts == Ints{1, 2});
}

TEST_CASE("bad extents and requests are refused") {
  const Ints requests = {0};
  const Ints stray = {2};
  const Ints table = {7, 2};
  const Ints indices = topk_row({});
  const Ints hundred(100, -1);
  const auto convert = [](SparseIndexArgs args) {
    return error_of([&] { convert_request_indices(args); });
  };
  CHECK(convert({requests, hundred, 100, table, 2, 64}) == "E-CONFIG");
  CHECK(convert({requests, hundred, 128, table, 2, 64}) == "E-SHAPE");
  CHECK(convert({requests, indices, 128, table, 3, 64}) == "E-SHAPE");
  CHECK(convert({requests, indices, 128, table, 2, 64, table}) == "E-SHAPE");
  CHECK(convert({stray, indices, 128, table, 1, 64}) == "E-VALUE");
  const Ints far = {40000000};
  const Ints zero = topk_row({0});
  CHECK(convert({requests, zero, 128, far, 1, 64}) == "E-CAPACITY");
}

}  // namespace
}  // namespace attnbench
