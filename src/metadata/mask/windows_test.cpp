#include "metadata/mask/windows.h"

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using enum WindowSubject;
using enum WindowBackend;

TEST_CASE("window pairs follow backend and attention type") {
  CHECK(window_pair({}, kDecoder, kTritonAttn) == WindowPair{-1, -1});
  for (const auto backend : {kFlashAttn, kFlashAttnIx, kTritonAttn}) {
    CHECK(window_pair(3, kDecoder, backend) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderDecoder, backend) == WindowPair{2, 0});
    CHECK(window_pair(3, kEncoderOnly, backend) == WindowPair{2, 2});
  }
  CHECK(window_pair(3, kEncoder, kTritonAttn) == WindowPair{2, 2});
  CHECK(window_pair(3, kEncoder, kFlashAttn) == WindowPair{2, 2});
  CHECK(window_pair(3, kEncoder, kFlashAttnIx) == WindowPair{2, 0});
  CHECK(window_pair(3, kEncoder, kFlashAttnIx, true) == WindowPair{2, 2});
  CHECK(window_pair(1, kEncoder, kTritonAttn) == WindowPair{0, 0});
}

TEST_CASE("a window holds at least the token itself, and causal closes its right side") {
  CHECK(error_of([] { window_pair(0, kDecoder, kFlashAttn); }) == "E-CONFIG");
  CHECK(apply_causal({2, 2}, true) == WindowPair{2, 0});
  CHECK(apply_causal({-1, -1}, true) == WindowPair{-1, 0});
  CHECK(apply_causal({2, 2}, false) == WindowPair{2, 2});
}

}  // namespace
}  // namespace attnbench
