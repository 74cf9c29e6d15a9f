// Expectations of single operations by concern, and what they are made of: inside of op_expect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/judge/op_expect.h"
#include "reference/ops/merge_states.h"

namespace attnbench {

/// Bytes that must be the same.
OpExpectation equal(std::string name, std::string rule, Tensor bytes);
/// Values within a row of §14.2; `emulated` are those of the same maths in f32, which the storage
/// type rounds.
OpExpectation close(std::string name, const Tolerance& tolerance, std::vector<double> values,
                    std::vector<double> emulated, Dtype storage, std::vector<std::int32_t> rows);
OpExpectation close_lse(MergedState state, MergedState emulated, std::vector<std::int32_t> rows);
std::vector<std::int32_t> all_rows(std::int64_t count);
/// All rows while that is affordable, or a sample of max_rows.
std::vector<std::int32_t> checked_rows(const Problem& problem, std::int64_t row_elements);

/// [T, heads, columns first..first + count of x]: a part of every row that rotates on its own.
Tensor slice(const Tensor& x, std::int64_t first_head, std::int64_t heads, std::int64_t first,
             std::int64_t count);

/// The cache after a correct write of every new position, from the cells of `stored`.
Tensor written_cache(const OpInputs& inputs, const StoredKv& stored, Tensor* key_scales);
/// The cache of latents after a correct write of every new position.
Tensor written_entries(const OpInputs& inputs, const Tensor& entries);

OpExpectations expect_merge(const Problem& problem, const OpInputs& inputs);
OpExpectations expect_dcp_correct(const Problem& problem, const OpInputs& inputs);
OpExpectations expect_cache_write(const OpInputs& inputs);
OpExpectations expect_mla_cache_write(const OpInputs& inputs);
OpExpectations expect_gather(const Problem& problem, const OpInputs& inputs);
/// `output`, when given, is what the rotation left: a fused write stores those very rows (§12.2).
OpExpectations expect_rope(const Problem& problem, const OpInputs& inputs,
                           const PipelineOutput* output);
OpExpectations expect_mla_rope(const Problem& problem, const OpInputs& inputs,
                               const PipelineOutput* output);
OpExpectations expect_quantize(const Problem& problem, const OpInputs& inputs);
OpExpectations expect_output_quant(const Problem& problem, const OpInputs& inputs);
OpExpectations expect_mm_quant(const Problem& problem, const OpInputs& inputs);

}  // namespace attnbench
