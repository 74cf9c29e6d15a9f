#include "reference/mla/cache_entry.h"

#include "reference/ops/test_support.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {

TEST_CASE("an index key has the scale of its largest magnitude, a power of two with ue8m0") {
  std::vector<float> values = ops_test::noise(kIndexKeySize);
  values[9] = -2.0f;
  const std::span<const float, kIndexKeySize> key(values.data(), kIndexKeySize);
  const IndexKey plain = quantise_index_key(key, false);
  const IndexKey rounded = quantise_index_key(key, true);
  CHECK(plain.scale == 2.0f / 448.0f);
  CHECK(rounded.scale == 0x1p-7f);  // 2/448 = 0.00446
  CHECK(plain.codes[9] == 0xFE);
  CHECK(e4m3_value(rounded.codes[9]) == -256.0f);
}

TEST_CASE("an all-zero index key is scaled as if its largest magnitude were 1e-4") {
  const std::vector<float> values(kIndexKeySize, 0.0f);
  const std::span<const float, kIndexKeySize> key(values.data(), kIndexKeySize);
  CHECK(quantise_index_key(key, false).scale == 1e-4f / 448.0f);
  CHECK(quantise_index_key(key, true).scale == 0x1p-22f);  // 2.2e-7 lies below 2.4e-7
  CHECK(quantise_index_key(key, true).codes[0] == 0);
}

}  // namespace attnbench
