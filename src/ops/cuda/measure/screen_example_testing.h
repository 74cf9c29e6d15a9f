// A batch to screen, for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {

/// A causal batch of requests of one query length and one number of keys, with some output.
struct ScreenExample {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc{0};
  std::vector<std::int32_t> visible_begin;
  std::vector<std::int32_t> visible_end;
  Tensor query, key, value, output;
  ScreenInputs inputs;

  ScreenExample(int requests, int query_len, int seq_len, int heads, int kv_heads, int size,
                int v_size) {
    for (int b = 0; b < requests; ++b) {
      query_start_loc.push_back(query_start_loc.back() + query_len);
      seq_lens.push_back(seq_len);
      key_start_loc.push_back(key_start_loc.back() + seq_len);
      for (int i = 0; i < query_len; ++i) {
        visible_begin.push_back(0);
        visible_end.push_back(seq_len - query_len + i + 1);
      }
    }
    query = numbers({query_start_loc.back(), heads, size});
    key = numbers({key_start_loc.back(), kv_heads, size});
    value = numbers({key_start_loc.back(), kv_heads, v_size});
    output = numbers({query_start_loc.back(), heads, v_size});
    inputs.query = &query;
    inputs.key = &key;
    inputs.value = &value;
    inputs.query_start_loc = query_start_loc;
    inputs.seq_lens = seq_lens;
    inputs.key_start_loc = key_start_loc;
    inputs.visible_begin = visible_begin;
    inputs.visible_end = visible_end;
    inputs.softmax_scale = 1 / std::sqrt(static_cast<double>(size));
  }
  ScreenOutput screened() const { return {&output, 1, 3e38, false}; }

 private:
  /// bfloat16 between -2 and 2, all magnitudes; enough for sums that depend on every element.
  static Tensor numbers(std::vector<std::int64_t> shape) {
    static unsigned state = 1;
    Tensor tensor(Dtype::kBF16, std::move(shape));
    auto* const codes = tensor.data<std::uint16_t>();
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      state = state * 1664525u + 1013904223u;
      codes[i] =
          static_cast<std::uint16_t>((state >> 16 & 0x807Fu) | 0x3F00u | (state >> 24 & 0x80u));
    }
    return tensor;
  }
};

}  // namespace attnbench::cuda
