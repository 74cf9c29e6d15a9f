// Codes are made in the step, so where inputs have to change, what is quantised changes; scales are
// those of the largest magnitudes and stay.
#include "backends/plugin/mm_pipeline.h"

#include <utility>

#include "backends/sample_side.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int kCodeHeadMultiple = 16;  // of heads in e4m3 (§10.5)

}  // namespace

std::unique_ptr<PluginProblem> mm_fp8_call(const Problem& problem, const PluginDevice& device) {
  auto call = std::make_unique<PluginProblem>(problem, device);
  call->set_encoder_codes(
      static_cast<int>(round_up(problem.attention.head_size, kCodeHeadMultiple)));
  return call;
}

PluginMmPipeline::PluginMmPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                                   const PluginTable& plugin, const PluginDevice& device)
    : inputs_(inputs),
      ops_(ops),
      plugin_(plugin),
      device_(device),
      problem_(mm_fp8_call(problem, device)),
      head_size_(problem.attention.head_size),
      capability_(mm_torch_sdpa_capability()) {
  users_.add_call = [this](DeviceBuffers& memory, const attn::AttendParams& p,
                           const float* q_scale) { return add_call(memory, p, q_scale); };
  ours_ = std::make_unique<MmPipeline>(problem, inputs, ops, capability_, &users_);
}

std::function<void()> PluginMmPipeline::add_call(DeviceBuffers& memory, const attn::AttendParams& p,
                                                 const float* q_scale) {
  memory_ = &memory;
  kernel_ = std::make_unique<PluginKernel>(memory, plugin_, device_);
  const AttnbenchProblem& problem = *problem_->get();
  const std::int64_t tokens = problem.num_tokens, keys = problem.num_keys;
  const std::int64_t heads = p.num_heads, kv_heads = p.num_kv_heads, requests = p.num_requests;
  PluginTensors& list = kernel_->list();
  AttnbenchTensors& t = kernel_->tensors();
  t.query = list.add(p.query, Dtype::kE4M3, {tokens, heads, p.head_size});
  t.key = list.add(p.kv.key, Dtype::kE4M3, {keys, kv_heads, p.head_size});
  t.value = list.add(p.kv.value, Dtype::kE4M3, {keys, kv_heads, p.v_head_size});
  t.q_scale = list.add(q_scale, Dtype::kF32, {1});
  t.k_scale = list.add(p.kv.k_scale, Dtype::kF32, {kv_heads});
  t.v_scale = list.add(p.kv.v_scale, Dtype::kF32, {kv_heads});
  t.output = list.add(p.output, dtype_of(p.output_element), {tokens, heads, p.v_head_size});
  if (kernel_->table().lse != ATTNBENCH_LSE_NONE) {
    t.lse = list.add_lse(p.lse, heads, tokens, p.lse_stride);
  }
  t.query_start_loc = list.add(p.query_start_loc, Dtype::kI32, {requests + 1});
  t.seq_lens = list.add(p.seq_lens, Dtype::kI32, {requests});
  t.key_start_loc = list.add(p.kv.kv_start_loc, Dtype::kI64, {requests + 1});
  if (!inputs_.inputs->shapes_only) {
    kernel_->watch("query_start_loc", t.query_start_loc, Dtype::kI32);
    kernel_->watch("seq_lens", t.seq_lens, Dtype::kI32);
    kernel_->watch("key_start_loc", t.key_start_loc, Dtype::kI64);
    // Codes are poison still: memory that no step has written.
    kernel_->prepare(problem, {});
  }
  return [this] { kernel_->run(); };
}

void PluginMmPipeline::run_later_steps() {
  const std::vector<Step>& all = ours_->steps();
  for (std::size_t i = users_.attend_step + 1; i < all.size(); ++i) all[i].run();
}

PipelineOutput PluginMmPipeline::read_output(bool with_cache) {
  if (kernel_->collect()) {
    run_later_steps();
    ops_.synchronize();
  }
  PipelineOutput output = ours_->read_output(with_cache);
  if (with_cache && output.defect.empty()) output.defect = kernel_->changed_input({});
  kernel_->convert_lse(output);
  return output;
}

std::optional<SampleSide> PluginMmPipeline::sample_side() {
  std::optional<SampleSide> side = ours_->sample_side();
  if (!side) return side;
  // The query is read by a step of ours in front of the kernel, which quantises it: first_reader
  // stays.
  side->read = [this, read = side->read] {
    PipelineOutput output = read();
    kernel_->convert_lse(output);
    return output;
  };
  if (kernel_->table().lse == ATTNBENCH_LSE_NONE) side->outputs.pop_back();
  if (plugin_.returned == nullptr) return side;
  side->collect = [this] {
    kernel_->collect_sample();
    run_later_steps();
  };
  return side;
}

void PluginMmPipeline::negate_query() {
  ops_.synchronize();
  negate_buffer(*memory_, users_.sources[0], inputs_.inputs->query.dtype());
}

void PluginMmPipeline::negate_inputs() {
  negate_query();
  for (const std::size_t i : {1, 2}) {
    negate_buffer(*memory_, users_.sources[i], inputs_.inputs->key.dtype());
  }
}

/// The codes are compared with those of the inputs as they were; columns of padding have no sign.
void PluginMmPipeline::negate_output(PipelineOutput& output) const {
  negate(output.output);
  for (auto& [name, tensor] : output.more) {
    if (!name.ends_with("_codes")) continue;
    const std::int64_t width = tensor.shape().back();
    for (std::int64_t row = 0; row < tensor.num_elements() / width; ++row) {
      negate_elements(tensor.bytes() + row * width, head_size_, 1);
    }
  }
}

}  // namespace attnbench
