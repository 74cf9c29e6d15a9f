#include "report/problem_fields.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace attnbench {
namespace {

/// 2 KV heads of 64 and 32 elements in bfloat16.
double bytes_with(const std::string& sections, const std::string& type = "decoder") {
  return kv_bytes_per_token(nlohmann::ordered_json::parse(
      R"({"attention":{"type":")" + type +
      R"(","num_kv_heads":2,"head_size":64,"v_head_size":32,"dtype":"bfloat16"},)" + sections +
      "}"));
}

std::string cache(const std::string& dtype, int int8_level = 0) {
  return R"("kv_cache":{"dtype":")" + dtype + R"(","int8_level":)" + std::to_string(int8_level) +
         "}";
}

}  // namespace

TEST_CASE("a token costs the codes of its keys and values, and the scales beside them") {
  CHECK(bytes_with(cache("auto")) == 2 * (64 + 32) * 2);
  CHECK(bytes_with(cache("fp8")) == 2 * (64 + 32));
  CHECK(bytes_with(cache("fp8_per_token_head")) == 2 * (64 + 32) + 2 * 2 * 4);
  CHECK(bytes_with(cache("auto", 1)) == 2 * (64 + 4 + 32));
  CHECK(bytes_with(cache("auto", 2)) == 2 * (64 + 4 + 2 * 32));
}

TEST_CASE("latents, encoders and operations") {
  const std::string mla = R"(,"mla":{"kv_lora_rank":512,"qk_rope_head_dim":64})";
  CHECK(bytes_with(cache("fp8") + mla, "mla") == 576);
  CHECK(bytes_with(cache("fp8_ds_mla") + mla, "mla") == 656);
  CHECK(bytes_with(R"("mm_encoder":{"attn_dtype":"fp8"})", "mm_encoder") == 2 * (64 + 32));
  CHECK(bytes_with(R"("mm_encoder":{"attn_dtype":"auto"})", "mm_encoder") == 2 * (64 + 32) * 2);
  CHECK(std::isnan(bytes_with(cache("fp8"), "op")));
  CHECK(std::isnan(kv_bytes_per_token(nullptr)));
  CHECK(std::isnan(kv_bytes_per_token(nlohmann::ordered_json::object())));
}

}  // namespace attnbench
