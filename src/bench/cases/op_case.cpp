// A backend's turn at one operation, and the tensors that are saved of it under the names of
// contract section 5.
#include "bench/cases/op_case.h"

#include <cstring>
#include <utility>

#include "backends/backend.h"
#include "bench/cases/op_inputs.h"
#include "bench/tensor_list.h"
#include "inputs/cache/check_cache.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/op_inputs.h"
#include "inputs/redraw.h"

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

  /// Signs of the inputs are those of the output, so that taken back they leave the output of the
  /// inputs as they are. Which operands have them: backends/plugin/op_pipeline.h.
  std::optional<SampleVerdict> judge_sample(const PipelineOutput& output,
                                            std::uint64_t nonce) override {
    if (has_named_operands(values_.problem())) return judge_redrawn(output, nonce);
    PipelineOutput own = output;
    if (values_.problem().op.name == OpKind::kMerge) {
      redraw_signs(own.output, nonce, own.output.num_elements());
    } else {
      take_signs_back(own.output, nonce);
    }
    std::optional<Judgement> judgement = judge(own);
    if (!judgement) return std::nullopt;
    return SampleVerdict{.is_judged = true, .request = -1, .judgement = std::move(*judgement)};
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
  /// By what the operation leaves of the operands as they were drawn anew.
  SampleVerdict judge_redrawn(const PipelineOutput& output, std::uint64_t nonce) const {
    const Problem& problem = values_.problem();
    OpInputs drawn = *inputs_.op;
    redraw_operands(problem, nonce, drawn);
    return SampleVerdict{.is_judged = true,
                         .request = -1,
                         .judgement = judge_op(expect_op(problem, drawn, &output), output, true)};
  }

  /// In the cells of a cache that were written; signs of values follow those of all keys.
  void take_signs_back(Tensor& data, std::uint64_t nonce) const {
    const OpInputs& inputs = *inputs_.op;
    const PagedCache& cache = inputs.cache;
    const Tensor& keys = inputs.at("new_key");
    const std::int64_t block_size = inputs.base.kv_cache.block_size;
    const auto size = static_cast<std::int64_t>(dtype_size(data.dtype()));
    const std::int64_t width = keys.dim(2);
    for (std::int64_t n = 0; n < cache.slot_mapping.num_elements(); ++n) {
      const std::int64_t slot = cache.slot_mapping.data<std::int64_t>()[n];
      if (slot < 0) continue;
      const std::int64_t cell = slot / block_size * cache.layout.block_stride +
                                slot % block_size * cache.layout.slot_stride;
      for (std::int64_t head = 0; head < keys.dim(1); ++head) {
        const std::int64_t index = (n * keys.dim(1) + head) * width;
        const std::int64_t at = cell + head * cache.layout.head_stride;
        flip((cache.layout.key_offset + at) * size, index, nonce, data);
        flip((cache.layout.value_offset + at) * size, keys.num_elements() + index, nonce, data);
      }
    }
  }

  void flip(std::int64_t first_byte, std::int64_t index, std::uint64_t nonce, Tensor& data) const {
    Tensor row(data.dtype(), {inputs_.op->base.attention.head_size});
    std::memcpy(row.bytes(), data.bytes() + first_byte, row.size_bytes());
    redraw_signs(row, nonce, row.num_elements(), index);
    std::memcpy(data.bytes() + first_byte, row.bytes(), row.size_bytes());
  }

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
