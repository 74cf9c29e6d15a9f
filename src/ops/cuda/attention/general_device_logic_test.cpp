// The parts of the covering kernels that are plain functions: layouts and widths of loads.
#include <doctest/doctest.h>

#include "kernels/attention/general_layout.cuh"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

TEST_CASE("tiles of the general attention kernel do not overlap and keep their alignment") {
  for (const int key_bytes : {1, 2, 4}) {
    for (const int head_size : {35, 72, 128, 256, 576}) {
      for (const bool value_in_key : {false, true}) {
        const int value_bytes = key_bytes == 4 ? 4 : 2;
        if (value_in_key && value_bytes != key_bytes) continue;
        const int width = head_size == 576 ? 512 : head_size;
        const attn::GeneralLayout layout =
            attn::general_layout(32, 64, head_size, width, key_bytes, value_bytes, value_in_key);
        CAPTURE(head_size);
        CAPTURE(key_bytes);
        // ldmatrix reads 64 bytes of the contraction at a time, and 8 columns of values.
        CHECK(layout.key_pitch - 16 >= (head_size * key_bytes + 63) / 64 * 64);
        CHECK(layout.value_pitch >= (width + 7) / 8 * 8 * value_bytes);
        CHECK(layout.key >= layout.query + 32 * layout.key_pitch);
        const int past_keys = layout.key + 64 * layout.key_pitch;
        if (value_in_key) {
          CHECK(layout.value == layout.key);
          CHECK(layout.scores >= past_keys);
        } else {
          CHECK(layout.value >= past_keys);
          CHECK(layout.scores >= layout.value + 64 * layout.value_pitch);
        }
        CHECK(layout.score_pitch >= 64 * 4);
        CHECK(layout.probabilities >= layout.scores + 32 * layout.score_pitch);
        CHECK(layout.probability_pitch >= 64 * value_bytes);
        CHECK(layout.total >= layout.probabilities + 32 * layout.probability_pitch);
        for (const int at :
             {layout.key, layout.value, layout.scores, layout.probabilities, layout.key_pitch,
              layout.value_pitch, layout.score_pitch, layout.probability_pitch}) {
          CHECK(at % 16 == 0);
        }
        // Eight rows of a fragment lie in eight different groups of banks.
        CHECK(layout.key_pitch / 16 % 2 == 1);
        CHECK(layout.value_pitch / 16 % 2 == 1);
        CHECK(layout.probability_pitch / 16 % 2 == 1);
      }
    }
  }
}

TEST_CASE("a load is as wide as every width and every address allows") {
  using attn::Element;
  const auto side = [](Element element, std::int64_t bytes) {
    VectorSide s{element, {}};
    s.alignment.bytes(bytes);
    return s;
  };
  CHECK(widest_vector(8, {576}, {side(Element::kBF16, 1152)}) == 8);
  CHECK(widest_vector(8, {576, 20}, {side(Element::kBF16, 1152)}) == 4);
  CHECK(widest_vector(8, {576}, {side(Element::kBF16, 6)}) == 1);
  CHECK(widest_vector(8, {33}, {side(Element::kBF16, 16)}) == 1);
  // 32 bytes of f32 are two loads of 16; 8 codes are one store of 8.
  CHECK(widest_vector(8, {64}, {side(Element::kF32, 16), side(Element::kE4M3, 8)}) == 8);
  CHECK(widest_vector(8, {64}, {side(Element::kF32, 16), side(Element::kE4M3, 4)}) == 4);
}

}  // namespace attnbench::cuda
