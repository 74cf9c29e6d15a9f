#include "cli/cases/quantising.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

namespace attnbench {
namespace {

Problem problem_of(AttentionType type, int head_size, std::vector<Request> batch) {
  Problem problem;
  problem.attention.type = type;
  problem.attention.head_size = problem.attention.v_head_size = head_size;
  problem.batch = std::move(batch);
  return problem;
}

}  // namespace

TEST_CASE("every measured figure names its source, and none is there twice") {
  std::set<std::tuple<std::string, int, int, std::string, std::string>> seen;
  for (const MeasuredQuantising& row : measured_quantising()) {
    CAPTURE(row.format);
    CHECK(row.value > 0);
    CHECK(row.own_16_bit > 0);
    CHECK(row.commit.size() == 7);
    CHECK(row.date.size() == 10);
    CHECK(seen.insert({std::string(row.gpu), static_cast<int>(row.work), row.heads,
                       std::string(row.format), std::string(row.batch)})
              .second);
  }
}

TEST_CASE("a time below that of 16 bits pays, and a rate above it") {
  MeasuredQuantising row{.value = 90, .own_16_bit = 100, .is_time = true};
  CHECK(verdict_of(row) == "pays");
  row.is_time = false;
  CHECK(verdict_of(row) == "does not pay");
  row.value = 103;
  CHECK(verdict_of(row) == "about even");
}

TEST_CASE("a problem gets the figures of its work, its head size and its GPU, or is told none") {
  const auto texts = [](const Problem& problem, std::string_view gpu) {
    std::string all;
    for (const auto& [name, text] : quantising_facts(problem, gpu))
      all += name + ": " + text + "\n";
    return all;
  };
  const std::string decode =
      texts(problem_of(AttentionType::kDecoder, 128, {{1, 900}}), "NVIDIA H200");
  CHECK(decode.find("decode fp8 query and cache: pays: 1.84 times as fast as 16 bits at 64q1s8k "
                    "(61c13b6, 2026-11-22)") != std::string::npos);
  CHECK(decode.find("decode int8 level 1: pays: 1.81 times as fast as 16 bits at 64q1s8k") !=
        std::string::npos);
  CHECK(decode.starts_with("decode "));
  CHECK(decode.find("\nprefill ") == std::string::npos);
  const std::string prefill =
      texts(problem_of(AttentionType::kDecoder, 256, {{100, 900}}), "NVIDIA H200");
  CHECK(prefill.find("prefill fp8 query, cache and P: pays: 1.14") != std::string::npos);
  CHECK(texts(problem_of(AttentionType::kDecoder, 80, {{1, 900}, {7, 7}}), "NVIDIA H200") ==
        "prefill: not measured on NVIDIA H200 with heads of 80\n"
        "decode: not measured on NVIDIA H200 with heads of 80\n");
  CHECK(texts(problem_of(AttentionType::kDecoder, 128, {{1, 900}}), "NVIDIA A100") ==
        "decode: not measured on NVIDIA A100 with heads of 128\n");
  CHECK(texts(problem_of(AttentionType::kMmEncoder, 80, {{64, 64}}), "NVIDIA H200") ==
        "encoder fp8 query, key, value and P: about even: 1.00 times as fast as 16 bits at q16k "
        "(c675c95, 2026-12-01)\n"
        "encoder fp8 query, key and value: does not pay: 0.74 times as fast as 16 bits at q16k "
        "(c675c95, 2026-12-01)\n");
  CHECK(texts(problem_of(AttentionType::kMmEncoder, 72, {{64, 64}}), "NVIDIA H200") ==
        "encoder: not measured on NVIDIA H200 with heads of 72\n");
  Problem latent = problem_of(AttentionType::kMla, 192, {{1, 900}});
  latent.attention.num_heads = 64;
  CHECK(texts(latent, "NVIDIA H200") ==
        "latent decode fp8 query and cache: pays: 1.39 times as fast as 16 bits at 128q1s16k "
        "(d9fd685, 2026-11-30)\n");
  latent.attention.num_heads = 24;
  CHECK(texts(latent, "NVIDIA H200") ==
        "latent decode: not measured on NVIDIA H200 with 24 heads\n");
  latent.batch = {{7, 900}};
  CHECK(texts(latent, "NVIDIA H200").empty());
  latent.batch = {{1, 900}};
  latent.mla.sparse_topk = 64;
  CHECK(texts(latent, "NVIDIA H200").empty());
}

}  // namespace attnbench
