// Block-sparse attention: every KV head has a list of key blocks of its own.
//
// A list belongs to a KV head and to a token, a request or a block of queries. attnbench's
// scenarios give all heads of a request the same keys, so each list becomes a request: its query
// heads are those of the KV head, its keys are the tokens of the blocks, in ascending order. This
// is the same attention over the same keys; what kernels gain from lists that overlap is not in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/trace/form.h"
#include "interop/trace/tensors.h"

namespace attnbench {

struct TraceHeadList {
  std::int64_t head = 0;         // KV head
  std::int64_t first_query = 0;  // row of the query's tokens
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  /// Rows of the keys' tokens: of all tokens, or token r % page of page r / page. Empty where
  /// nobody gave the lists, or no values to gather.
  std::vector<std::int64_t> keys;
};

/// The lists of a form of TraceKind::kHeadLists that have keys, head by head; the output of a query
/// without keys is 0, and no request. Inputs whose values nobody gave are added to `drawn`. Errors:
/// E-VALUE for lists that contradict the other inputs; those of TraceTensors.
std::vector<TraceHeadList> trace_head_lists(const TraceForm& form, const TraceTensors& tensors,
                                            std::vector<std::string>& drawn);

/// Queries of the lists as [tokens, query heads of a KV head, D].
Tensor query_of_lists(const TraceForm& form, const TraceTensors& tensors,
                      const std::vector<TraceHeadList>& lists);

/// Keys of the lists, or with `plane` 1 values, as [tokens, 1, D]; fp8 is multiplied by `scale`.
Tensor cache_of_lists(const TraceForm& form, const TraceTensors& tensors,
                      const std::vector<TraceHeadList>& lists, int plane, double scale);

}  // namespace attnbench
