// Figures are those of docs/performance.md. Times of decodes are from the bytes of keys and values
// there: 2.147 GB of 16 bits for 64 requests of 8,192 tokens on 8 heads of 128.
#include "cli/cases/quantising.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace attnbench {
namespace {

using enum MeasuredWork;

constexpr std::string_view kH200 = "NVIDIA H200";
constexpr std::string_view kFp8All = "fp8 query, cache and P";
constexpr std::string_view kFp8Cache = "fp8 query and cache";
constexpr std::string_view kFp8Keys = "fp8 cache, 16-bit query";
constexpr std::string_view kInt8Level1 = "int8 level 1";
constexpr std::string_view kInt8Level2 = "int8 level 2";
constexpr std::array kTable = {
    MeasuredQuantising{kH200, kPrefill, 64, kFp8All, "q16k", 621, 585, false, "f53feb7",
                       "2026-11-30"},
    MeasuredQuantising{kH200, kPrefill, 128, kFp8All, "2q8k", 850, 759, false, "f53feb7",
                       "2026-11-30"},
    MeasuredQuantising{kH200, kPrefill, 128, kFp8All, "q16k", 937, 806, false, "f53feb7",
                       "2026-11-30"},
    MeasuredQuantising{kH200, kPrefill, 256, kFp8All, "2q8k", 884, 774, false, "b651c2b",
                       "2026-11-28"},
    MeasuredQuantising{kH200, kPrefill, 256, kFp8All, "q16k", 959, 814, false, "b651c2b",
                       "2026-11-28"},
    MeasuredQuantising{kH200, kPrefill, 64, kFp8Cache, "q16k", 1828.8, 1849.7, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 96, kFp8Cache, "q16k", 2033.4, 2303.3, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 128, kFp8Cache, "q16k", 2321.7, 2715.6, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kFp8Cache, "q16k", 4138.1, 5358.8, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 64, kFp8Cache, "8q2k", 317.3, 308.1, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 96, kFp8Cache, "8q2k", 423.4, 382.1, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 128, kFp8Cache, "8q2k", 410.9, 439.7, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kFp8Cache, "8q2k", 669.0, 778.5, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 64, kFp8Keys, "2q8k", 999, 979, true, "d5598d0",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 128, kFp8Keys, "2q8k", 1478, 1450, true, "d5598d0",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kFp8Keys, "2q8k", 2891, 2851, true, "d5598d0",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kInt8Level1, "8q2k", 738.9, 778.5, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kInt8Level1, "2q8k", 2410.3, 2800.0, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 256, kInt8Level2, "8q2k", 736, 794, true, "d5598d0",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 128, kInt8Level1, "2q8k", 1574.7, 1440.8, true, "87c53ad",
                       "2026-12-01"},
    MeasuredQuantising{kH200, kPrefill, 128, kInt8Level2, "2q8k", 1577.5, 1465.4, true, "c30e607",
                       "2026-11-28"},
    MeasuredQuantising{kH200, kEncoder, 80, "fp8 query, key, value and P", "q16k", 2161, 2152, true,
                       "c675c95", "2026-12-01"},
    MeasuredQuantising{kH200, kEncoder, 80, "fp8 query, key and value", "q16k", 2889, 2152, true,
                       "c675c95", "2026-12-01"},
    MeasuredQuantising{kH200, kDecode, 128, kFp8Cache, "64q1s8k", 267, 492, true, "61c13b6",
                       "2026-11-22"},
    MeasuredQuantising{kH200, kDecode, 128, "cache fp8 per token and head", "64q1s8k", 265, 492,
                       true, "647fa6c", "2026-11-30"},
    MeasuredQuantising{kH200, kDecode, 128, "cache int8 per token and head", "64q1s8k", 267, 492,
                       true, "647fa6c", "2026-11-30"},
    MeasuredQuantising{kH200, kDecode, 128, kInt8Level1, "64q1s8k", 278.0, 504.4, true, "78f60ad",
                       "2026-11-28"},
    MeasuredQuantising{kH200, kDecode, 128, kInt8Level2, "64q1s8k", 393.1, 504.4, true, "78f60ad",
                       "2026-11-28"},
    MeasuredQuantising{kH200, kLatentDecode, 16, kFp8Cache, "128q1s4k", 93.1, 160.5, true,
                       "9106e22", "2026-11-29"},
    MeasuredQuantising{kH200, kLatentDecode, 16, kFp8Cache, "128q1s16k", 312.9, 561.5, true,
                       "9106e22", "2026-11-29"},
    MeasuredQuantising{kH200, kLatentDecode, 64, kFp8Cache, "128q1s16k", 412.9, 572.1, true,
                       "d9fd685", "2026-11-30"},
    MeasuredQuantising{kH200, kLatentDecode, 128, kFp8Cache, "64q1s8k", 205.4, 247.6, true,
                       "d9fd685", "2026-11-30"},
    MeasuredQuantising{kH200, kLatentDecode, 128, kFp8Cache, "128q1s16k", 741.2, 920.7, true,
                       "d9fd685", "2026-11-30"},
};

std::string_view name_of(MeasuredWork work) {
  switch (work) {
    case kPrefill:
      return "prefill";
    case kDecode:
      return "decode";
    case kEncoder:
      return "encoder";
    case kLatentDecode:
      return "latent decode";
  }
  return "";
}

/// Nothing for what has no figures of this kind.
std::vector<MeasuredWork> works_of(const Problem& problem) {
  switch (problem.attention.type) {
    case AttentionType::kOp:
      return {};
    case AttentionType::kMla:
      break;
    case AttentionType::kDecoder:
    case AttentionType::kEncoderDecoder:
      break;
    default:
      return {kEncoder};
  }
  std::vector<MeasuredWork> works;
  const bool is_latent = problem.attention.type == AttentionType::kMla;
  if (is_latent && (problem.mla.sparse_topk > 0 || problem.mla.kv_lora_rank != 512)) return works;
  const auto add_if = [&](MeasuredWork work, auto has) {
    if (std::any_of(problem.batch.begin(), problem.batch.end(), has)) works.push_back(work);
  };
  if (!is_latent) add_if(kPrefill, [](const Request& request) { return request.query_len > 1; });
  add_if(is_latent ? kLatentDecode : kDecode,
         [](const Request& request) { return request.query_len == 1; });
  return works;
}

}  // namespace

std::span<const MeasuredQuantising> measured_quantising() { return kTable; }

std::string_view verdict_of(const MeasuredQuantising& row) {
  constexpr double kNotable = 0.05;
  if (row.gain() >= 1 + kNotable) return "pays";
  return row.gain() <= 1 - kNotable ? "does not pay" : "about even";
}

std::vector<std::pair<std::string, std::string>> quantising_facts(const Problem& problem,
                                                                  std::string_view gpu) {
  std::vector<std::pair<std::string, std::string>> facts;
  for (const MeasuredWork work : works_of(problem)) {
    const std::size_t before = facts.size();
    const bool is_latent = work == kLatentDecode;
    const int heads = is_latent ? problem.attention.num_heads : problem.attention.head_size;
    for (const MeasuredQuantising& row : kTable) {
      if (row.gpu != gpu || row.work != work || row.heads != heads) continue;
      facts.emplace_back(fmt::format("{} {}", name_of(work), row.format),
                         fmt::format("{}: {:.2f} times as fast as 16 bits at {} ({}, {})",
                                     verdict_of(row), row.gain(), row.batch, row.commit, row.date));
    }
    if (facts.size() > before) continue;
    facts.emplace_back(std::string(name_of(work)),
                       is_latent ? fmt::format("not measured on {} with {} heads", gpu, heads)
                                 : fmt::format("not measured on {} with heads of {}", gpu, heads));
  }
  return facts;
}

std::string gpu_of(const DeviceChoice& device) {
  if (device.info) return device.info->name;
  if (device.facts.sm == kAssumedSm) return std::string(kH200);
  return fmt::format("SM {}.{}", device.facts.sm / 10, device.facts.sm % 10);
}

}  // namespace attnbench
