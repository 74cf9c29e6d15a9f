// The reference's view of the inputs of a case. One place puts the two together, so that REFERENCE
// as a backend and the judge in bench cannot read different tensors.
#pragma once

#include "inputs/make_inputs.h"
#include "reference/attention.h"

namespace attnbench {

/// Query, keys and values as they were drawn, with lengths, sinks and slopes. Borrows all of them.
inline ReferenceInputs reference_sources(const AttentionInputs& inputs) {
  ReferenceInputs result;
  result.query = &inputs.query;
  result.key = &inputs.key;
  result.value = &inputs.value;
  result.query_start_loc = inputs.query_start_loc;
  result.seq_lens = inputs.seq_lens;
  result.key_start_loc = inputs.key_start_loc;
  result.sinks = inputs.sinks;
  result.alibi_slopes = inputs.alibi_slopes;
  return result;
}

}  // namespace attnbench
