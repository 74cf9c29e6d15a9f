// Sums over a batch and the default slopes of ALiBi. The sums are plain 64-bit ones; who needs a
// total in 32 bits checks that (batch_lengths() of the inputs, query_start_loc_of() of metadata).
#include "core/problem/problem.h"

#include <algorithm>
#include <cmath>

namespace attnbench {

std::int64_t Problem::num_tokens() const {
  std::int64_t sum = 0;
  for (const Request& request : batch) sum += request.query_len;
  return sum;
}
std::int64_t Problem::num_keys() const {
  std::int64_t sum = 0;
  for (const Request& request : batch) sum += request.seq_len;
  return sum;
}
std::int64_t Problem::max_query_len() const {
  std::int64_t longest = 0;
  for (const Request& request : batch) longest = std::max(longest, request.query_len);
  return longest;
}
std::int64_t Problem::max_seq_len() const {
  std::int64_t longest = 0;
  for (const Request& request : batch) longest = std::max(longest, request.seq_len);
  return longest;
}

std::vector<float> resolved_alibi_slopes(const AttentionSpec& attention) {
  std::vector<float> slopes;
  if (attention.alibi_slopes) {
    for (double slope : *attention.alibi_slopes) slopes.push_back(static_cast<float>(slope));
    return slopes;
  }
  const int heads = attention.num_heads;
  int lower = 1;
  while (lower * 2 <= heads) lower *= 2;
  const auto power = [](int index, int count) {
    return static_cast<float>(std::exp2(-8.0 * (index + 1) / count));
  };
  for (int h = 0; h < lower; ++h) slopes.push_back(power(h, lower));
  for (int h = 0; lower + h < heads; ++h) slopes.push_back(power(2 * h, 2 * lower));
  return slopes;
}

}  // namespace attnbench
