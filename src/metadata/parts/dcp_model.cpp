// Rings and trees move the same bytes here: what counts is what arrives at a rank.
#include "metadata/parts/dcp_model.h"

#include <algorithm>
#include <limits>

#include "core/numbers/dtype.h"
#include "core/numbers/kv_format.h"
#include "metadata/parts/dcp.h"

namespace attnbench {
namespace {

/// Context tokens of all requests, and of the rank that holds most of them.
struct ContextOfRanks {
  double all = 0;
  double most = 0;
};
ContextOfRanks context_of(const Problem& problem) {
  const DcpGroup group = DcpGroup::of(problem);
  ContextOfRanks context;
  for (int rank = 0; rank < group.world_size; ++rank) {
    double tokens = 0;
    for (const Request& request : problem.batch) {
      const auto length = static_cast<std::int32_t>(request.seq_len - request.query_len);
      tokens += dcp_local_seq_len(std::max(length, 0), rank, group);
    }
    context.all += tokens;
    context.most = std::max(context.most, tokens);
  }
  return context;
}

/// What a rank receives of the context of MLA's prefills.
double gathered_context_bytes(const Problem& problem) {
  double tokens = 0;
  for (const Request& request : problem.batch) {
    if (request.query_len > 1) tokens += static_cast<double>(request.seq_len - request.query_len);
  }
  const double entry = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
  const double others = problem.dcp.world_size - 1;
  return tokens * entry * static_cast<double>(dtype_size(problem.attention.dtype)) * others /
         problem.dcp.world_size;
}

/// Steps that are messages between the ranks.
bool is_exchange(std::string_view step) {
  constexpr std::string_view kNames[] = {"all_gather_query", "await_query", "all_gather_lse",
                                         "reduce_scatter",   "all_reduce",  "all_to_all"};
  return std::ranges::find(kNames, step) != std::ranges::end(kNames);
}

}  // namespace

DcpMessages dcp_messages(const Problem& problem, std::int64_t tokens, int head_size, int width) {
  DcpMessages messages;
  const double world_size = problem.dcp.world_size;
  const double others = world_size - 1;
  // Rows of the heads of one rank.
  const double own = static_cast<double>(tokens) * problem.attention.num_heads / world_size;
  const auto element = static_cast<double>(dtype_size(problem.attention.dtype));
  constexpr double kFloat = sizeof(float);
  messages.query = others * own * head_size * element;
  const double outputs = others * own * width * kFloat;
  switch (problem.dcp.comm) {
    case DcpComm::kAgRs:
      messages.lse = others * own * world_size * kFloat;
      messages.output = outputs;
      break;
    case DcpComm::kAgAr:
      // A reduce-scatter, and an all-gather of what it gave.
      messages.lse = others * own * world_size * kFloat;
      messages.output = 2 * outputs;
      break;
    case DcpComm::kA2a:
      messages.output = outputs + others * own * kFloat;
      break;
  }
  return messages;
}

DcpMessages dcp_messages(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  if (a.type != AttentionType::kMla) {
    return dcp_messages(problem, problem.num_tokens(), a.head_size, a.v_head_size);
  }
  const auto decodes = std::count_if(problem.batch.begin(), problem.batch.end(),
                                     [](const Request& request) { return request.query_len == 1; });
  const int latent = problem.mla.kv_lora_rank;
  return dcp_messages(problem, decodes, latent + problem.mla.qk_rope_head_dim, latent);
}

double dcp_exchange_us(const DcpMessages& messages, const DcpLink& link) {
  if (messages.total() == 0) return 0;
  return messages.count() * link.latency_us + messages.total() / (link.gbps * 1e3);
}

double dcp_gather_us(const DcpMessages& messages, const DcpLink& link) {
  return messages.query == 0 ? 0 : link.latency_us + messages.query / (link.gbps * 1e3);
}

double dcp_step_us(const Problem& problem, int world_size, const DcpDevice& device,
                   const DcpLink& link) {
  Problem over = problem;
  over.dcp.world_size = world_size;
  const AttentionSpec& a = problem.attention;
  const bool is_mla = a.type == AttentionType::kMla;
  const double latent = problem.mla.kv_lora_rank;
  const double entry = latent + problem.mla.qk_rope_head_dim;
  const double elements =
      is_mla ? entry : double{1.0} * a.num_kv_heads * (a.head_size + a.v_head_size);
  const Dtype element = kv_element_dtype(problem.kv_cache.dtype, a.dtype);
  const double tokens = context_of(over).most;
  const double reading = tokens * elements * static_cast<double>(dtype_size(element));
  // Every rank has the heads of all.
  const double computing = is_mla ? 2 * tokens * a.num_heads * (entry + latent) : 0;
  const double context = std::max(reading / (device.gbps * 1e3), computing / (device.tflops * 1e6));
  const double own = context + (is_mla ? device.mla_step_us : device.step_us);
  if (world_size <= 1) return own;
  const double more = is_mla ? device.mla_rank_us : device.rank_us;
  return own + more + dcp_exchange_us(dcp_messages(over), link);
}

double dcp_critical_path_us(const Problem& problem, std::span<const DcpStep> steps,
                            const DcpLink& link) {
  if (problem.dcp.world_size < 2) return std::numeric_limits<double>::quiet_NaN();
  const ContextOfRanks context = context_of(problem);
  const double ranks = problem.dcp.world_size;
  const double slowest = context.all > 0 ? context.most / context.all : 1 / ranks;
  const bool is_mla = problem.attention.type == AttentionType::kMla;
  const std::string_view of_own_keys = is_mla ? "attend_decode" : "attend_context";
  double total = 0;
  double beside = 0;  // what the query is gathered beside
  double gathers = 0;
  bool exchanges = false;
  for (const DcpStep& step : steps) {
    if (step.name == "all_gather_context") {
      ++gathers;
    } else if (is_exchange(step.name)) {
      exchanges = true;
    } else {
      const double us = step.us * (step.name == of_own_keys ? slowest : 1 / ranks);
      total += us;
      if (problem.dcp.overlap && step.name == "attend_new") beside += us;
    }
  }
  if (exchanges) {
    const DcpMessages messages = dcp_messages(problem);
    total += dcp_exchange_us(messages, link) - std::min(beside, dcp_gather_us(messages, link));
  }
  return total + gathers * link.latency_us +
         (gathers > 0 ? gathered_context_bytes(problem) / (link.gbps * 1e3) : 0);
}

}  // namespace attnbench
