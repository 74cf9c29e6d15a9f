#include "inputs/batch_lengths.h"

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {

BatchLengths batch_lengths(const Problem& problem) {
  BatchLengths lengths;
  std::int64_t tokens = 0;
  std::int64_t keys = 0;
  lengths.query_start_loc.push_back(0);
  lengths.key_start_loc.push_back(0);
  for (const Request& request : problem.batch) {
    if (request.query_len < 0 || request.seq_len < 0) {
      fail(ErrorKind::kValue, "batch: lengths must be >= 0, got query_len {} and seq_len {}",
           request.query_len, request.seq_len);
    }
    tokens = checked_add(tokens, request.query_len, "tokens of the batch");
    keys = checked_add(keys, request.seq_len, "keys of the batch");
    lengths.query_start_loc.push_back(checked_int32(tokens, "tokens of the batch"));
    lengths.seq_lens.push_back(checked_int32(request.seq_len, "seq_len"));
    lengths.key_start_loc.push_back(keys);
  }
  return lengths;
}

std::vector<SourceRow> key_sources(const Problem& problem) {
  std::vector<SourceRow> sources;
  if (problem.inputs.shapes_only) return sources;  // nothing is drawn
  sources.reserve(static_cast<std::size_t>(problem.num_keys()));
  for (const Request& request : problem.batch) {
    for (std::int64_t p = 0; p < request.seq_len; ++p) {
      const bool shared = p < problem.cascade.common_prefix_len;
      sources.push_back({shared, shared ? p : static_cast<std::int64_t>(sources.size())});
    }
  }
  return sources;
}

}  // namespace attnbench
