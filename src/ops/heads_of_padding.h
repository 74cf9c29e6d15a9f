// The padding of a query of MLA decodes as an operation of its own, for those that make the query
// step by step.
#pragma once

#include "kernels/params_mla.h"
#include "ops/operation_table.h"

namespace attnbench {

/// Heads of zeros behind those that `params` joins, up to padded_heads: of the codes, if there are
/// any, else of the query in 16 bits.
inline attn::ConcatParams heads_of_padding(const attn::LatentQueryParams& params) {
  const attn::ConcatParams& join = params.join;
  const bool is_quantised = params.quantise.codes != nullptr;
  const attn::i64 size = attn::i64{join.first_size} + join.second_size;
  const attn::i64 first = join.num_heads * size;
  attn::ConcatParams zeros{};
  zeros.element = is_quantised ? attn::Element::kU8 : join.element;
  zeros.output = is_quantised ? static_cast<void*>(params.quantise.codes + first)
                              : static_cast<char*>(join.output) +
                                    first * static_cast<attn::i64>(element_size(join.element));
  zeros.output_token_stride =
      is_quantised ? params.quantise.code_row_stride : join.output_token_stride;
  zeros.output_head_stride = size;
  zeros.num_tokens = join.num_tokens;
  zeros.num_heads = params.padded_heads - join.num_heads;
  zeros.second_size = static_cast<int>(size);
  return zeros;
}

}  // namespace attnbench
