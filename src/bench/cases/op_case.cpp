// A backend's turn at one operation, and the tensors that are saved of it under the names of
// contract section 5.
#include "bench/cases/op_case.h"

#include "backends/backend.h"
#include "bench/cases/op_inputs.h"
#include "bench/tensor_list.h"
#include "inputs/cache/check_cache.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/op_inputs.h"

namespace attnbench {
namespace {

bool has_fused_write(const Problem& problem) { return problem.op.name == OpKind::kRopeAndCache; }

class OpCaseRun final : public CaseRun {
 public:
  OpCaseRun(OpValues& values, const Backend& backend) : values_(values), backend_(backend) {
    inputs_.op = &values_.inputs();
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(values_.problem(), inputs_, ops);
  }

  /// Names the request and the position of a cell that is wrong.
  std::string check_stored(const PipelineOutput& output) override {
    const Problem& problem = values_.problem();
    const OpInputs& inputs = *inputs_.op;
    if (problem.op.name != OpKind::kReshapeAndCache) return "";
    const Tensor* scales = output.more.empty() ? nullptr : &output.more.front().second;
    const std::string wrong =
        problem.op.mla
            ? check_mla_cache(inputs.base, inputs.entries, inputs.mla_cache, output.output)
            : check_cache(inputs.base, inputs.stored, inputs.cache, output.output, scales);
    return wrong.empty() ? "" : "cache write: " + wrong;
  }

  std::optional<Judgement> judge(const PipelineOutput& output) override {
    // Why: a user's kernel without an LSE says so, and nothing but its pipeline leaves it out.
    return judge_op(values_.expectations(&output), output, backend_.is_users());
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const OpInputs& inputs = *inputs_.op;
    for (const auto& [name, tensor] : inputs.tensors) tensors.borrow(name, tensor);
    add_case(inputs, tensors);
    tensors.borrow(op_output_name(values_.problem()), output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
  }

 private:
  /// The attention that the cache belongs to, under the names of contract section 5.
  void add_case(const OpInputs& inputs, TensorList& tensors) const {
    const OpKind op = *values_.problem().op.name;
    const bool writes = op == OpKind::kReshapeAndCache || op == OpKind::kRopeAndCache;
    if (!writes && op != OpKind::kGather) return;
    if (values_.problem().op.mla) {
      tensors.borrow("kv_c", inputs.latents.kv_c);
      tensors.borrow("k_pe" + std::string(op == OpKind::kRopeAndCache ? "_all" : ""),
                     inputs.latents.k_pe);
      tensors.own("all_seq_lens", Tensor::from_i32(inputs.latents.seq_lens));
      if (writes) {
        tensors.borrow("kv_cache_before", inputs.mla_cache.data);
        tensors.borrow("block_table", inputs.mla_cache.block_table);
      } else {
        tensors.borrow("kv_cache", inputs.mla_cache.data);
      }
      return;
    }
    tensors.borrow("key", inputs.attention.key);
    tensors.borrow("value", inputs.attention.value);
    tensors.own("query_start_loc", Tensor::from_i32(inputs.attention.query_start_loc));
    tensors.own("seq_lens", Tensor::from_i32(inputs.attention.seq_lens));
    tensors.borrow("kv_cache_before", inputs.cache.data);
    tensors.borrow("block_table", inputs.cache.block_table);
  }

  OpValues& values_;
  const Backend& backend_;
  BackendInputs inputs_;
};

}  // namespace

const OpInputs& OpValues::inputs() {
  if (!inputs_) inputs_ = make_op_inputs(problem_);
  return *inputs_;
}

const OpExpectations& OpValues::expectations(const PipelineOutput* output) {
  if (!expectations_ || (has_fused_write(problem_) && output != nullptr)) {
    expectations_ = expect_op(problem_, inputs(), output);
  }
  return *expectations_;
}

const std::vector<std::string>& OpValues::notices() {
  if (notices_) return *notices_;
  notices_ = inputs().notices;
  const bool counts_saturation = problem_.output_quant.type == OutputQuantType::kFp8Static ||
                                 problem_.op.name == OpKind::kQuantize ||
                                 problem_.op.name == OpKind::kMmQuant;
  if (counts_saturation && problem_.op.name != OpKind::kMerge) {
    for (const std::string& notice : expectations(nullptr).notices) notices_->push_back(notice);
  }
  return *notices_;
}

std::unique_ptr<CaseRun> OpCase::start(const Backend& backend) {
  return std::make_unique<OpCaseRun>(values_, backend);
}

}  // namespace attnbench
