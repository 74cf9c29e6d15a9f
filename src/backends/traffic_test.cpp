#include <doctest/doctest.h>

#include "backends/attention/refusals_testing.h"
#include "backends/traffic.h"

namespace attnbench {

TEST_CASE("FLOPs count visible pairs, traffic the keys that some row sees") {
  Problem p = plain();
  p.batch = {{2, 4}};  // 3 + 4 pairs
  CHECK(attention_flops(p, *find_backend(kFa)) == 2.0 * 8 * 128 * 7);
  const double per_key = 2 * 64 * 2 * 2.0;
  const double rows = 2 * 8 * 128 * 2.0;
  CHECK(attention_traffic(p, *find_backend(kFa)).unique_bytes == 4 * per_key + rows);
  p.attention.sliding_window = 2;
  CHECK(attention_traffic(p, *find_backend(kFa)).kv_bytes == 3 * per_key);
}

TEST_CASE("int8 traffic counts one scale a key, and values in their own width") {
  Problem p = plain();
  p.batch = {{1, 10}};
  p.kv_cache.int8_level = 1;
  CHECK(attention_traffic(p, *find_backend(kIx)).kv_bytes == 10 * 2 * (64 + 64 + 4.0));
  p.kv_cache.int8_level = 2;
  CHECK(attention_traffic(p, *find_backend(kIx)).kv_bytes == 10 * 2 * (64 + 2 * 64 + 4.0));
  // The query is read as int8, the output written in 16 bits.
  CHECK(attention_traffic(p, *find_backend(kIx)).unique_bytes ==
        attention_traffic(p, *find_backend(kIx)).kv_bytes + 8 * (64 + 2 * 64.0));
}

TEST_CASE("shared prefix pages are read once, each request's own keys beside them") {
  Problem p = plain();
  p.batch = {{1, 100}, {1, 80}, {1, 64 + 1}};
  p.cascade.common_prefix_len = 64;
  const double per_key = 2 * 64 * 2 * 2.0;
  const Traffic traffic = attention_traffic(p, *find_backend(kFa));
  CHECK(traffic.kv_bytes == (100 + 80 + 65) * per_key);
  CHECK(traffic.unique_bytes == (64 + 36 + 16 + 1) * per_key + 3 * 8 * 128 * 2.0);
}

}  // namespace attnbench
