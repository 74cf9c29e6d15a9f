// Rings and trees move the same bytes here: what counts is what arrives at a rank.
#include "metadata/parts/dcp_model.h"

#include <algorithm>

#include "core/numbers/dtype.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

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

double dcp_exchange_us(const DcpMessages& messages, const DcpLink& link) {
  if (messages.total() == 0) return 0;
  return messages.count() * link.latency_us + messages.total() / (link.gbps * 1e3);
}

double dcp_context_bytes(const Problem& problem, double bytes_of_key) {
  const DcpGroup group = DcpGroup::of(problem);
  double most = 0;
  for (int rank = 0; rank < group.world_size; ++rank) {
    double tokens = 0;
    for (const Request& request : problem.batch) {
      const auto context = static_cast<std::int32_t>(request.seq_len - request.query_len);
      tokens += dcp_local_seq_len(std::max(context, 0), rank, group);
    }
    most = std::max(most, tokens);
  }
  return most * bytes_of_key;
}

}  // namespace attnbench
