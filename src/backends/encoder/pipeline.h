// Attention of the multimodal encoder as a pipeline: one pass over ragged, non-causal sequences,
// with V inside interleaved rows and fp8 where the backend has them (semantics §10). There is no
// cache and no decode. Steps: quantise (fp8), attend, slice (fp8 with padded heads).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "backends/attention/pipeline.h"
#include "backends/encoder/capability.h"
#include "backends/encoder/fp8.h"

namespace attnbench {

/// A user's kernel for the attention over e4m3 codes, and what whoever changes inputs between runs
/// has to know.
struct MmUsersKernel {
  /// Called once when all memory is there. `call` has codes, heads padded to a multiple of 16, and
  /// in kv.k_scale and v_scale f32 [Hk] each, without that of the query, f32 [1]. What it gives
  /// back runs the call.
  std::function<std::function<void()>(DeviceBuffers& memory, const attn::AttendParams& call,
                                      const float* q_scale)>
      add_call;
  // Set by the pipeline.
  std::array<const void*, 3> sources{};  // of Q, K and V before they are quantised
  std::size_t attend_step = 0;
};

/// `capability` must outlive it.
class MmPipeline : public AttentionPipeline {
 public:
  /// Errors: those of mm_sequences and MmFp8; E-CAPACITY for element offsets beyond int32.
  MmPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
             const MmCapability& capability, MmUsersKernel* users = nullptr);

  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;

 private:
  void set_sequences();
  void set_interleaved_value(const AttentionInputs& inputs);
  void add_fp8_steps(const AttentionInputs& inputs, MmUsersKernel* users);
  void add_users_call(MmUsersKernel& users);
  void add_slice_step();
  void check_padding(PipelineOutput& output);

  const MmCapability& capability_;
  std::unique_ptr<MmFp8> fp8_;
  const void* interleaved_ = nullptr;  // rows of Q, K and V where V is a view into them
  std::function<void()> users_call_;
  float* users_k_scale_ = nullptr;  // [Hk]
  void* padded_output_ = nullptr;   // [T_pad, H, D rounded up to 16] where D is not that
};

/// The lengths as vLLM's layer hands them to the wrapper of this backend.
MmCall mm_call_of(const MmCapability& capability, const Problem& problem);

}  // namespace attnbench
