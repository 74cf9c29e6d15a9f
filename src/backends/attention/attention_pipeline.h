// What every pipeline over Ops shares: inputs on the device, parameters resolved from the problem,
// the cache write, output and LSE with their poison.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/kv_scale_step.h"
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

 protected:
  /// Uploads everything; params() and cache writing are ready afterwards, no step is queued.
  /// `ragged_keys`: keys and values as tensors where the type has a cache too. Errors: E-CAPACITY.
  AttentionPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                    std::string backend, bool ragged_keys = false);

  Ops& ops() { return ops_; }
  const Problem& problem() const { return problem_; }
  const AttentionMath& math() const { return math_; }
  /// One pass over the whole batch into output and LSE.
  const attn::AttendParams& params() const { return params_; }
  attn::AttendParams& mutable_params() { return params_; }
  /// Where new keys and values, slot mapping and cache lie on the device; under DCP the first rank.
  const attn::CacheWriteParams& cache_write() const { return write_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  /// Rows of query, output and (as stride) LSE: T_pad.
  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t num_requests() const { return problem_.num_requests(); }

  /// For what a family of backends does its own way, before its first step is queued.
  attn::AttendParams& own_params() { return params_; }
  Buffer* new_buffer(std::size_t size_bytes, const std::string& name, bool poisoned);
  const void* upload_bytes(const void* data, std::size_t size_bytes, const std::string& name);

  void add_step(Step step) { steps_.push_back(std::move(step)); }
  /// Queues the cache write where the type has a cache.
  void add_write_step();
  std::size_t cache_bytes() const { return cache_->size_bytes(); }
  /// Step that carries the FLOPs and bytes of the attention.
  Step attention_step(std::string name, std::function<void()> run) const;

  /// Device memory that poison_outputs() refills.
  template <typename T>
  T* workspace(std::int64_t count, const std::string& name) {
    return static_cast<T*>(
        new_buffer(static_cast<std::size_t>(count) * sizeof(T), name, true)->data());
  }
  /// A copy on the device that lives as long as the pipeline.
  template <typename T>
  const T* upload(const std::vector<T>& values, const std::string& name) {
    return static_cast<const T*>(upload_bytes(values.data(), values.size() * sizeof(T), name));
  }
  const void* upload(const Tensor& tensor, const std::string& name) {
    return upload_bytes(tensor.bytes(), tensor.size_bytes(), name);
  }
  /// The buffer of this pipeline that begins at `data`. Errors: E-INTERNAL when there is none.
  Buffer& buffer_at(const void* data);
  /// Copies the first size_bytes of a workspace() to destination + offset_bytes.
  void download_workspace(const void* workspace, Tensor& destination, std::size_t offset_bytes,
                          std::size_t size_bytes);

 private:
  void set_rows(const BackendInputs& inputs);
  void set_score(const BackendInputs& inputs);
  void set_paged_kv(const BackendInputs& inputs);
  void set_ragged_kv(const BackendInputs& inputs);
  void set_scales(const KvLayout& layout);
  void set_tensor_scales();
  std::vector<float> expand_scale(const std::vector<float>& scale) const;
  void set_cache_write(const PagedCache& cache);
  void calculate_scales(const AttentionInputs& inputs);
  Tensor read_lse();

  Problem problem_;
  std::string backend_;
  AttentionMath math_;
  Ops& ops_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_rows_ = 0;
  attn::AttendParams params_{};
  attn::CacheWriteParams write_{};
  std::unique_ptr<KvScaleStep> kv_scales_;  // where the scales are made from the data
  std::vector<Step> steps_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> poisoned_;
  Buffer* output_ = nullptr;
  Buffer* lse_ = nullptr;
  Buffer* cache_ = nullptr;
  std::vector<std::int64_t> cache_shape_;
  Dtype cache_dtype_ = Dtype::kBF16;
};

/// Splits of the keys for decode-only work: the fewest parts that fill whole waves of the device
/// (two parts on each of its `num_sms` multiprocessors) nearly as well as any number up to 64, none
/// shorter than 256 keys; 1 = no split.
int choose_num_splits(std::int64_t num_requests, int num_kv_heads, std::int64_t max_seq_len,
                      int num_sms);

}  // namespace attnbench
