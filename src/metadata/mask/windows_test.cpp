#include "metadata/mask/attention_math.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using enum WindowSubject;
using enum EncoderWindowRule;

TEST_CASE("window pairs follow rule and attention type") {
  CHECK(window_pair({}, kDecoder, kSymmetric) == WindowPair{-1, -1});
  for (const auto rule : {kSymmetric, kOneSided}) {
    CHECK(window_pair(3, kDecoder, rule) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderDecoder, rule) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderOnly, rule) == WindowPair{2, 2});
  }
  CHECK(window_pair(3, kEncoder, kSymmetric) == WindowPair{2, 2});
  CHECK(window_pair(3, kEncoder, kOneSided) == WindowPair{2, 0});
  CHECK(window_pair(3, kEncoder, kOneSided, true) == WindowPair{2, 2});
  CHECK(window_pair(1, kEncoder, kSymmetric) == WindowPair{0, 0});
}

TEST_CASE("a window holds at least the token itself, and causal closes its right side") {
  CHECK(error_of([] { window_pair(0, kDecoder, kSymmetric); }) == "E-CONFIG");
  CHECK(apply_causal({2, 2}, true) == WindowPair{2, 0});
  CHECK(apply_causal({-1, -1}, true) == WindowPair{-1, 0});
  CHECK(apply_causal({2, 2}, false) == WindowPair{2, 2});
}

}  // namespace
}  // namespace attnbench
