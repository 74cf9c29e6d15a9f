// The system of one operation alone: its operands, its expectations, what is saved of it.
#include "backends/backend.h"
#include "bench/cases/case.h"
#include "bench/cases/op_inputs.h"
#include "bench/judge/op_expect.h"
#include "bench/tensor_list.h"
#include "inputs/cache/check_cache.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/op_inputs.h"

namespace attnbench {
namespace {

bool has_fused_write(const Problem& problem) { return problem.op.name == OpKind::kRopeAndCache; }

class OpCase {
 public:
  explicit OpCase(const Problem& problem) : problem_(problem) {}

  const Problem& problem() const { return problem_; }
  const OpInputs& inputs() {
    if (!inputs_) inputs_ = make_op_inputs(problem_);
    return *inputs_;
  }
  /// The cache that a fused write leaves depends on the rows that it rotated: only for those is
  /// `output` looked at.
  const OpExpectations& expectations(const PipelineOutput* output) {
    if (!expectations_ || (has_fused_write(problem_) && output != nullptr)) {
      expectations_ = expect_op(problem_, inputs(), output);
    }
    return *expectations_;
  }
  const std::vector<std::string>& notices() {
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

 private:
  const Problem& problem_;
  std::optional<OpInputs> inputs_;
  std::optional<OpExpectations> expectations_;
  std::optional<std::vector<std::string>> notices_;
};

class OpTrial final : public Trial {
 public:
  OpTrial(OpCase& op_case, const Backend& backend) : case_(op_case), backend_(backend) {
    inputs_.op = &case_.inputs();
  }

  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return backend_.prepare(case_.problem(), inputs_, ops);
  }

  /// Names the request and the position of a cell that is wrong.
  std::string check_stored(const PipelineOutput& output) override {
    const Problem& problem = case_.problem();
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
    // Why: a user's kernel without one says so, and has it left out by its pipeline alone.
    return judge_op(case_.expectations(&output), output, backend_.is_users());
  }

  void add_tensors(const PipelineOutput& output, TensorList& tensors) const override {
    const OpInputs& inputs = *inputs_.op;
    for (const auto& [name, tensor] : inputs.tensors) tensors.borrow(name, tensor);
    add_case(inputs, tensors);
    tensors.borrow(op_output_name(case_.problem()), output.output);
    if (output.lse) tensors.borrow("lse", *output.lse);
    for (const auto& [name, tensor] : output.more) tensors.borrow(name, tensor);
  }

 private:
  /// The attention that the cache belongs to, under the names of contract section 5.
  void add_case(const OpInputs& inputs, TensorList& tensors) const {
    const OpKind op = *case_.problem().op.name;
    const bool writes = op == OpKind::kReshapeAndCache || op == OpKind::kRopeAndCache;
    if (!writes && op != OpKind::kGather) return;
    if (case_.problem().op.mla) {
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

  OpCase& case_;
  const Backend& backend_;
  BackendInputs inputs_;
};

class OpSystem final : public System {
 public:
  explicit OpSystem(const Problem& problem) : case_(problem) {}
  const Problem& problem() const override { return case_.problem(); }
  const std::vector<std::string>& notices() override { return case_.notices(); }
  std::unique_ptr<Trial> start(const Backend& backend) override {
    return std::make_unique<OpTrial>(case_, backend);
  }

 private:
  OpCase case_;
};

}  // namespace

std::unique_ptr<System> make_op_system(const Problem& problem, const ReferenceOptions&) {
  return std::make_unique<OpSystem>(problem);
}

}  // namespace attnbench
