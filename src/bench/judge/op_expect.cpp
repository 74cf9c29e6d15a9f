// Which definition holds for an operation, and the expectations of partial results.
#include "bench/judge/op_expect.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "bench/judge/op_expect_cache.h"
#include "bench/judge/op_expect_index.h"
#include "bench/judge/op_expect_metadata.h"
#include "bench/judge/op_expect_quant.h"
#include "reference/ops/merge_states.h"
#include "reference/quantise/output_quant.h"

namespace attnbench {
namespace {

/// Of output and LSE, by values on the rows that checked_rows() chooses. The first
/// op.tokens_with_context tokens are merged, the others are those of the suffix.
OpExpectations expect_merge(const Problem& problem, const OpInputs& inputs) {
  const Tensor& prefix = inputs.at("prefix_output");
  const Tensor& suffix = inputs.at("suffix_output");
  const std::vector<std::int32_t> chosen = checked_rows(problem, suffix.dim(1) * suffix.dim(2));
  const StateRows rows{chosen, suffix.dim(0), suffix.dim(1), suffix.dim(2)};
  const PartialState p{&prefix, &inputs.at("prefix_lse"), 0, 0, prefix.dim(2)};
  const PartialState s{&suffix, &inputs.at("suffix_lse"), 0, 0, suffix.dim(2)};
  const std::int64_t merged = problem.op.tokens_with_context.value_or(suffix.dim(0));
  MergedState exact = merge_states(p, s, merged, rows, Arithmetic::kF64);
  MergedState emulated = merge_states(p, s, merged, rows, Arithmetic::kF32);
  ToleranceQuery query;
  query.output = prefix.dtype();
  if (problem.output_quant.type == OutputQuantType::kFp8Static) {
    query.static_fp8_scale = problem.output_quant.scale;
  }
  OpExpectations expected;
  expected.outputs.push_back(close("output", output_tolerance(query), exact.output, emulated.output,
                                   prefix.dtype(), chosen));
  expected.outputs.push_back(close_lse(std::move(exact), std::move(emulated), chosen));
  return expected;
}

/// The corrected partials [W, W, T, H / W, D] as rows of [W * W * T, H / W, D].
OpExpectation expect_corrected(const Problem& problem, std::span<const PartialState> ranks,
                               const StateRows& rows) {
  const auto parts = static_cast<std::int64_t>(ranks.size());
  const std::int64_t own = rows.num_heads / parts;
  std::vector<double> values, emulated;
  const auto append = [&](const MergedState& state, std::int64_t part, std::vector<double>& to) {
    for (std::size_t i = 0; i < rows.rows.size(); ++i) {
      const std::int64_t first =
          (static_cast<std::int64_t>(i) * rows.num_heads + part * own) * rows.head_size;
      const auto begin = state.output.begin() + first;
      to.insert(to.end(), begin, begin + own * rows.head_size);
    }
  };
  std::vector<std::int32_t> places;
  for (std::int64_t rank = 0; rank < parts; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const LseBase base = problem.op.lse_base;
    const MergedState exact = correct_state(ranks, r, base, rows, Arithmetic::kF64);
    const MergedState in_f32 = correct_state(ranks, r, base, rows, Arithmetic::kF32);
    for (std::int64_t part = 0; part < parts; ++part) {
      append(exact, part, values);
      append(in_f32, part, emulated);
      for (const std::int32_t row : rows.rows) {
        places.push_back(static_cast<std::int32_t>((rank * parts + part) * rows.num_tokens + row));
      }
    }
  }
  ToleranceQuery query;
  query.output = Dtype::kF32;
  return close("rank_output", output_tolerance(query), std::move(values), std::move(emulated),
               Dtype::kF32, std::move(places));
}

/// A group of one rank returns its bytes. Of several, output and LSE of all together, and where
/// they exchange their parts by other means than all-to-all, each part as it is corrected before
/// that.
OpExpectations expect_dcp_correct(const Problem& problem, const OpInputs& inputs) {
  const Tensor& partial = inputs.at("partial_output");
  const Tensor& lses = inputs.at("partial_lse");
  const std::int64_t parts = partial.dim(0), tokens = partial.dim(1), heads = partial.dim(2);
  const std::int64_t width = partial.dim(3);
  OpExpectations expected;
  if (parts == 1) {
    Tensor copy(partial.dtype(), {tokens, heads, width});
    std::copy_n(partial.bytes(), partial.size_bytes(), copy.bytes());
    Tensor lse(Dtype::kF32, {heads, tokens});
    std::copy_n(lses.bytes(), lses.size_bytes(), lse.bytes());
    expected.outputs.push_back(equal("output", "semantics 7.3 identity of one rank", copy));
    expected.outputs.push_back(equal("lse", "semantics 7.3 identity of one rank", lse));
    expected.outputs.back().is_lse = true;
    return expected;
  }
  const std::vector<std::int32_t> chosen = checked_rows(problem, (parts + 1) * heads * width);
  const StateRows rows{chosen, tokens, heads, width};
  std::vector<PartialState> ranks;
  for (std::int64_t rank = 0; rank < parts; ++rank) {
    ranks.push_back({&partial, &lses, rank * tokens * heads * width, rank * heads * tokens, width});
  }
  const LseBase base = problem.op.lse_base;
  MergedState exact = combine_states(ranks, base, rows, Arithmetic::kF64);
  MergedState emulated = combine_states(ranks, base, rows, Arithmetic::kF32);
  ToleranceQuery query;
  query.output = partial.dtype();
  expected.outputs.push_back(close("output", output_tolerance(query), exact.output, emulated.output,
                                   partial.dtype(), chosen));
  expected.outputs.push_back(close_lse(std::move(exact), std::move(emulated), chosen));
  if (problem.dcp.comm != DcpComm::kA2a) {
    expected.outputs.push_back(expect_corrected(problem, ranks, rows));
  }
  return expected;
}

OpExpectations expect(const Problem& problem, const OpInputs& inputs,
                      const PipelineOutput* output) {
  const bool mla = problem.op.mla;
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      return mla ? expect_mla_cache_write(inputs) : expect_cache_write(inputs);
    case OpKind::kMerge:
      return expect_merge(problem, inputs);
    case OpKind::kGather:
      return expect_gather(problem, inputs);
    case OpKind::kRope:
    case OpKind::kRopeAndCache:
      return mla ? expect_mla_rope(problem, inputs, output) : expect_rope(problem, inputs, output);
    case OpKind::kQuantize:
      return expect_quantize(problem, inputs);
    case OpKind::kDcpCorrect:
      return expect_dcp_correct(problem, inputs);
    case OpKind::kOutputQuant:
      return expect_output_quant(problem, inputs);
    case OpKind::kMetadata:
      return expect_metadata(problem, inputs);
    case OpKind::kIndexKeyCache:
      return expect_index_key_cache(problem, inputs);
    case OpKind::kIndexLogits:
      return expect_index_logits(problem, inputs);
    case OpKind::kIndexTopk:
      return expect_index_topk(problem, inputs);
    case OpKind::kMmQuant:
      break;
  }
  return expect_mm_quant(problem, inputs);
}

}  // namespace

OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output) {
  OpExpectations expected = expect(problem, inputs, output);
  expected.num_tokens = problem.num_tokens();
  return expected;
}

std::string op_output_name(const Problem& problem) {
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      return "kv_cache";
    case OpKind::kMetadata:
      return "batch_split";
    case OpKind::kMmQuant:
      return "query_codes";
    case OpKind::kIndexKeyCache:
      return "index_cache";
    case OpKind::kIndexLogits:
      return "logits";
    case OpKind::kIndexTopk:
      return "topk_slots";
    default:
      return "output";
  }
}

}  // namespace attnbench
