#include "metadata/mla/prefill.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

std::vector<std::string> reasons(int nope, int rope, int value,
                                 const char* name = "FLASH_ATTN_PREFILL",
                                 Dtype dtype = Dtype::kBF16) {
  MlaSpec mla;
  mla.qk_nope_head_dim = nope;
  mla.qk_rope_head_dim = rope;
  mla.v_head_dim = value;
  return mla_prefill_reasons(name, mla, dtype);
}

}  // namespace

TEST_CASE("the FlashAttention prefill takes 256 columns in multiples of 8 and values no wider") {
  CHECK(reasons(128, 64, 128).empty());
  CHECK(reasons(192, 64, 256).empty());
  CHECK(reasons(192, 72, 128) == std::vector<std::string>{"head_size 264 not supported"});
  CHECK(reasons(60, 64, 64) == std::vector<std::string>{"head_size 124 not supported"});
  CHECK(reasons(64, 64, 129) == std::vector<std::string>{"v_head_dim 129 larger than 128"});
  CHECK(reasons(128, 64, 128, "FLASH_ATTN_PREFILL", Dtype::kF32) ==
        std::vector<std::string>{"dtype not supported"});
}

TEST_CASE("the prefills of SM 10 do not run on SM 9") {
  for (const char* name : {"TRTLLM_RAGGED", "FLASHINFER"}) {
    CHECK(is_mla_prefill_backend(name));
    CHECK(reasons(128, 64, 128, name).front() == "compute capability 9.0 not supported");
    CHECK(reasons(64, 64, 128, name).size() == 2);
  }
  CHECK_FALSE(is_mla_prefill_backend("FLASH_ATTN"));
}

TEST_CASE("the message lists all reasons") {
  CHECK(mla_prefill_message("FLASHINFER", {"a", "b"}) ==
        "Selected MLA prefill backend FLASHINFER is not valid for this configuration. "
        "Reason: [a, b]");
}

}  // namespace attnbench
