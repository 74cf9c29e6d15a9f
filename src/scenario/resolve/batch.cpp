// The batch of one case, from `batch`, or from what stands in for it: images, the dense form of
// vision encoders, the token count of one operation.
#include <algorithm>

#include "metadata/int_math.h"
#include "scenario/batch/batch_spec.h"
#include "scenario/batch/images.h"
#include "scenario/resolve/resolve.h"
#include "scenario/scenario.h"

namespace attnbench {
namespace {

/// The batch that follows from other keys; a `batch` beside them must be the same.
std::string use_derived(const CaseValues& values, std::string_view source,
                        std::vector<Request> derived, Problem& problem) {
  const std::string label = canonical_batch_spec(derived);
  if (!problem.batch.empty() && problem.batch != derived) {
    values.reject(ErrorKind::kConfig, "batch", "expected {} as {} gives it, or no batch, found {}",
                  label, source, canonical_batch_spec(problem.batch));
  }
  problem.batch = std::move(derived);
  return label;
}

/// mm_encoder.batch_size rows of kv_len keys (semantics §10.2); the query length is the batch's
/// where one is given, else kv_len.
std::string use_dense_form(const CaseValues& values, Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  const std::vector<Request>& rows = problem.batch;
  std::int64_t query_len = *mm.kv_len;
  if (!rows.empty()) {
    query_len = rows.front().query_len;
    const std::int64_t seq_len = rows.front().seq_len;
    const bool uniform = std::all_of(rows.begin(), rows.end(),
                                     [&](const Request& row) { return row == rows.front(); });
    const bool count_fits = rows.size() == 1 || problem.num_requests() == *mm.batch_size;
    if (!uniform || !count_fits || (seq_len != query_len && seq_len != *mm.kv_len)) {
      values.reject(ErrorKind::kConfig, "batch",
                    "expected one query length for batch_size = {} rows of kv_len = {}, found {}",
                    *mm.batch_size, *mm.kv_len, canonical_batch_spec(rows));
    }
  }
  problem.batch.assign(static_cast<std::size_t>(*mm.batch_size), {query_len, *mm.kv_len});
  return canonical_batch_spec(problem.batch);
}

void check_mm_forms(const CaseValues& values, const Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  for (const char* key : {"mm_encoder.images", "mm_encoder.batch_size", "mm_encoder.kv_len"}) {
    if (values.gives(key) && problem.attention.type != AttentionType::kMmEncoder) {
      values.reject(ErrorKind::kConfig, key, "expected null unless type is mm_encoder, found {}",
                    describe(*values.find(key)));
    }
  }
  if (mm.batch_size.has_value() != mm.kv_len.has_value()) {
    values.reject(ErrorKind::kConfig, mm.batch_size ? "mm_encoder.batch_size" : "mm_encoder.kv_len",
                  "expected batch_size and kv_len both or neither, found only one");
  }
  if (mm.images && mm.batch_size) {
    values.reject(ErrorKind::kConfig, "mm_encoder.images",
                  "expected images or batch_size, found both");
  }
}

/// Tokens are counted in 32 bits in cumulative arrays.
void check_capacity(const CaseValues& values, const Problem& problem) {
  if (problem.num_requests() > kMaxRequests || problem.num_tokens() > kMaxTokens ||
      problem.num_keys() > kMaxTokens) {
    values.reject(ErrorKind::kCapacity, "batch",
                  "expected at most {} requests, {} tokens and {} keys, found {}, {} and {}",
                  kMaxRequests, kMaxTokens, kMaxTokens, problem.num_requests(),
                  problem.num_tokens(), problem.num_keys());
  }
}

/// Tokens before the new ones of the requests that have any (padding rows have none).
std::int64_t min_context_len(const Problem& problem) {
  std::int64_t shortest = kMaxTokens;
  for (const Request& request : problem.batch) {
    if (request.seq_len == 0 && request.query_len == 0) continue;
    shortest = std::min(shortest, request.seq_len - request.query_len);
  }
  return problem.batch.empty() ? 0 : std::max<std::int64_t>(0, shortest);
}

/// What a trace offers, in whole pages and no longer than cascade could use (§6.2).
void offer_shared_prefix(const CaseValues& values, std::int64_t tokens, Problem& problem) {
  const int page = problem.kv_cache.block_size;
  if (values.gives("cascade.common_prefix_len") || page < 1) return;
  problem.cascade.common_prefix_len = round_down(std::min(tokens, min_context_len(problem)), page);
}

}  // namespace

std::string resolve_batch(const CaseValues& values, const Value* batch, BatchReader& reader,
                          Problem& problem) {
  const AttentionType type = problem.attention.type;
  std::string label;
  problem.batch.clear();
  if (batch != nullptr) {
    BatchResult read = reader.read(*batch, type == AttentionType::kEncoderDecoder);
    problem.batch = std::move(read.batch);
    label = std::move(read.label);
    if (read.shared_prefix_tokens > 0) {
      offer_shared_prefix(values, read.shared_prefix_tokens, problem);
    }
  }
  check_mm_forms(values, problem);
  if (problem.mm_encoder.images) {
    try {
      label = use_derived(values, "mm_encoder.images", image_requests(problem.mm_encoder), problem);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kConfig) throw;
      values.reject(error.kind(), "mm_encoder.images", "{}", error.what());
    }
  } else if (problem.mm_encoder.batch_size) {
    label = use_dense_form(values, problem);
  } else if (type == AttentionType::kOp && problem.op.tokens) {
    if (batch == nullptr) problem.batch = {{*problem.op.tokens, *problem.op.tokens}};
    if (batch == nullptr) label = canonical_batch_spec(problem.batch);
    if (problem.num_tokens() != *problem.op.tokens) {
      values.reject(ErrorKind::kConfig, "op.tokens", "expected {} as the batch has, found {}",
                    problem.num_tokens(), *problem.op.tokens);
    }
  }
  if (problem.batch.empty()) {
    values.reject(ErrorKind::kFormat, "batch", "expected a batch, found none");
  }
  check_capacity(values, problem);
  return label;
}

}  // namespace attnbench
