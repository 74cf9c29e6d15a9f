// What every pipeline of attention over Ops shares: inputs on the device, parameters resolved from
// the problem, the cache write, output and LSE with their poison.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/device_buffers.h"
#include "backends/kv_scale_step.h"
#include "backends/sample_side.h"
#include "core/problem/problem.h"
#include "ops/ops.h"

namespace attnbench {

/// Keys [S, Hk, D] and values [S, Hk, Dv] as tensors: the codes of a quantised cache where the
/// problem has one.
struct RaggedKv {
  const Tensor& key;
  const Tensor& value;
};
RaggedKv ragged_kv(const BackendInputs& inputs);

class AttentionPipeline : public Pipeline {
 public:
  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;
  Facts facts() const override;

 protected:
  /// Uploads everything; params() and cache writing are ready afterwards, no step is queued.
  /// `ragged_keys`: keys and values as tensors where the type has a cache too. Errors: E-CAPACITY.
  AttentionPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                    const KernelRules& rules, bool ragged_keys = false);

  Ops& ops() { return memory_.ops(); }
  const Problem& problem() const { return problem_; }
  /// The problem that is attended: with chunks of local attention as its requests.
  const Problem& attended() const { return attended_; }
  const AttentionMath& math() const { return math_; }
  /// One pass over the whole batch into output and LSE.
  const attn::AttendParams& params() const { return params_; }
  /// Where new keys and values, slot mapping and cache lie on the device; under DCP the first rank.
  const attn::CacheWriteParams& cache_write() const { return write_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  /// Rows of query, output and (as stride) LSE: T_pad.
  std::int64_t num_rows() const { return num_rows_; }
  /// That are attended.
  std::int64_t num_requests() const { return attended_.num_requests(); }

  /// For what a family of backends does its own way, before its first step is queued.
  attn::AttendParams& mutable_params() { return params_; }
  DeviceBuffers& memory() { return memory_; }

  void add_step(Step step) { steps_.push_back(std::move(step)); }
  /// Queues the cache write where the type has a cache.
  void add_write_step();
  std::int64_t cache_bytes() const { return static_cast<std::int64_t>(cache_->size_bytes()); }
  /// One pass over requests [first, first + count) of those that are attended.
  attn::AttendParams slice(int first, int count) const;
  /// `part` over wide pages, with a counted step in front that makes them; none where they are not
  /// wanted or do not pay (make_wide_pages(), make_wide_values()).
  std::optional<attn::AttendParams> widened(const attn::AttendParams& part);
  /// Adds the step that carries the FLOPs and bytes of the attention.
  void add_attend_step(std::string name, std::function<void()> run);
  /// Before and after the attention over a cache of rotated vectors (§5.6); nothing for others.
  void add_rotate_query_step();
  void add_rotate_output_step();
  /// Number of the step that add_attend_step() added first.
  std::size_t attend_step() const { return attend_step_; }

 private:
  void set_rows(const BackendInputs& inputs);
  void set_redrawn_rows(const Tensor& key, const Tensor& value);
  void set_redrawn_blocks(const PagedCache& cache, const StoredKv& stored);
  void set_score(const BackendInputs& inputs);
  void set_paged_kv(const BackendInputs& inputs);
  void set_ragged_kv(const BackendInputs& inputs);
  void set_scales(const KvLayout& layout);
  void set_tensor_scales();
  std::vector<float> expand_scale(const std::vector<float>& scale) const;
  void set_cache_write(const PagedCache& cache);
  void calculate_scales(const AttentionInputs& inputs);
  void set_rotation();
  bool can_scale_once() const;
  void add_rotate_step(const char* name, const std::optional<attn::RotateHeadsParams>& rotation);
  /// Where the output of the whole step lies; params_.output is that of the attention.
  void* final_output() const { return rotate_output_ ? rotate_output_->output : params_.output; }

  /// The pages of every chunk, through the table of its request.
  void set_chunk_tables(const Tensor& table);

  Problem problem_;
  Problem attended_;
  KernelRules rules_;
  AttentionMath math_;
  DeviceBuffers memory_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_rows_ = 0;
  attn::AttendParams params_{};
  attn::CacheWriteParams write_{};
  std::optional<attn::RotateHeadsParams> rotate_query_;  // over a cache of rotated vectors (§5.6)
  std::optional<attn::RotateHeadsParams> rotate_output_;
  std::unique_ptr<KvScaleStep> kv_scales_;  // where the scales are made from the data
  std::vector<Step> steps_;
  std::size_t attend_step_ = 0;
  std::string widened_;                  // what some requests have wide pages of: "codes"
  std::optional<RedrawBlocks> redrawn_;  // what changes between timed samples
  std::vector<SampleSide::Plane> planes_;
  Buffer* cache_ = nullptr;  // where the type has one
  std::vector<std::int64_t> cache_shape_;
  Dtype cache_dtype_ = Dtype::kBF16;
};

}  // namespace attnbench
