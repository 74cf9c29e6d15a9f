// The primitive operations of attention as one interface: what a pipeline is written in. Each has
// a realisation on CPU threads (ops/cpu) and, on a GPU, one by kernels, with the same arguments.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/assumed_device.h"
#include "core/result/result.h"
#include "core/tensor.h"
#include "kernels/params.h"
#include "kernels/params_dcp.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/params_rope.h"
#include "kernels/params_scale.h"

namespace attnbench {

/// Memory of the device that an Ops works on. Freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t size_bytes() const = 0;
  template <typename T>
  T* as() {
    return static_cast<T*>(data());
  }
};

/// A pipeline queues operations and reads results after synchronize(). All pointers in parameter
/// structs are memory of this device.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string device_name() const = 0;  // "cpu", "cuda:0"
  /// Multiprocessors of the device, by which pipelines divide work; the CPU has the number of the
  /// device whose pipelines it plays.
  virtual int num_sms() const = 0;
  /// Every attention operation from now on is done by the kernel of this name ("prefill"); empty =
  /// by the first that fits, as at the start. Where it does not fit, the operation throws
  /// E-UNSUPPORTED with the reason. The CPU has one way only: it throws for any name.
  virtual void force_kernel(std::string_view name) = 0;

  /// `name` is for error messages. Contents are poison (NaN bytes), never zero by accident.
  virtual std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) = 0;
  virtual void upload(Buffer& destination, const void* source, std::size_t size_bytes) = 0;
  virtual void download(void* destination, Buffer& source, std::size_t size_bytes) = 0;
  /// Fills with bytes that read as NaN in every float format (0xFF).
  virtual void poison(Buffer& buffer) = 0;
  virtual void synchronize() = 0;
  /// synchronize() without its checks of memory: what is timed.
  virtual void wait() { synchronize(); }
  /// Before operations that are timed and follow at once: gets ready what sleeps between them.
  virtual void settle() {}
  /// Calls `listener` before every wait for kernels that it has not heard of, with their names and
  /// choices, so that a process that never comes back has said what it waits for.
  virtual void on_wait(std::function<void(const std::string& kernels)> listener) {
    static_cast<void>(listener);
  }
  /// For work that is not an operation of this interface: the CUDA stream to queue it on, null on
  /// the CPU, where the work is done when its call returns. `name` stands for the work in messages,
  /// as the names of kernels do.
  virtual void* stream_for(const std::string& name) {
    static_cast<void>(name);
    return nullptr;
  }
  /// The kernels launched since the last call, each once, in the order of their first launch; none
  /// on the CPU.
  virtual std::vector<KernelInfo> take_kernels() { return {}; }

  /// Attention of requests [first, first + count) with one pass over each row's keys (§3).
  virtual void attend(const attn::AttendParams& params) = 0;
  /// The same in num_splits parts of the keys, and the combination of the parts (output, LSE).
  virtual void attend_splits(const attn::AttendParams& params, const attn::SplitParams& split) = 0;
  virtual void combine_splits(const attn::AttendParams& params, const attn::SplitParams& split) = 0;
  /// Triton's 3D form: segments of query_len-1 rows, and their reduction (§4.3).
  virtual void attend_segments(const attn::AttendParams& params,
                               const attn::SegmentParams& segments) = 0;
  virtual void reduce_segments(const attn::AttendParams& params,
                               const attn::SegmentParams& segments) = 0;
  virtual void merge(const attn::MergeParams& params) = 0;
  virtual void write_cache(const attn::CacheWriteParams& params) = 0;

  /// int8 attention (§11): attend() and its splits with AttendParams::int8 set, and these.
  virtual void quantise_int8(const attn::Int8QuantiseParams& params) = 0;
  virtual void write_cache_int8(const attn::Int8CacheWriteParams& params) = 0;
  /// Paged decode with save arguments (§11.6): the same bytes as write_cache_int8, then attend.
  virtual void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                                    const attn::AttendParams& params) = 0;

  /// fp8 of the multimodal encoder (§10.5, §10.6), and scales made from data (§5.4).
  virtual void quantise_pad_fp8(const attn::PadQuantiseParams& params) = 0;
  virtual void amax(const attn::AmaxParams& params) = 0;
  virtual void update_amax_history(const attn::AmaxHistoryParams& params) = 0;
  virtual void calc_kv_scales(const attn::KvScaleParams& params) = 0;

  virtual void rope(const attn::RopeParams& params) = 0;
  /// §12.2: rotates, then writes the rotated keys; the same bytes as rope, then write_cache.
  virtual void rope_and_write_cache(const attn::RopeParams& rope,
                                    const attn::CacheWriteParams& write) = 0;
  virtual void rope_and_write_mla_cache(const attn::RopeParams& rope,
                                        const attn::MlaCacheWriteParams& write) = 0;

  /// Decode by an explicit plan (§8.8), then the requests that it split.
  virtual void attend_plan(const attn::AttendParams& params, const attn::PlanParams& plan) = 0;
  virtual void combine_plan(const attn::AttendParams& params, const attn::PlanParams& plan) = 0;
  /// Sparse MLA (§8.9): one pass over each token's listed slots, or by a plan of list positions
  /// with combine_plan after it.
  virtual void attend_sparse(const attn::AttendParams& params,
                             const attn::SparseParams& sparse) = 0;
  virtual void attend_sparse_plan(const attn::AttendParams& params,
                                  const attn::SparseParams& sparse,
                                  const attn::PlanParams& plan) = 0;

  /// MLA (§8.2 to §8.7): products with the split weights, its cache and the ways out of it.
  virtual void matmul(const attn::MatmulParams& params) = 0;
  /// What may take long for products of this shape, ahead of the first: later ones only launch.
  virtual void prepare_matmul(const attn::MatmulParams& params) { static_cast<void>(params); }
  virtual void write_mla_cache(const attn::MlaCacheWriteParams& params) = 0;
  virtual void gather_mla(const attn::MlaGatherParams& params) = 0;
  virtual void cp_gather(const attn::CpGatherParams& params) = 0;
  virtual void upconvert_ds_mla(const attn::DsMlaUpconvertParams& params) = 0;

  /// Moving elements without arithmetic.
  virtual void concat(const attn::ConcatParams& params) = 0;
  virtual void gather_rows(const attn::GatherRowsParams& params) = 0;
  virtual void copy(const attn::CopyParams& params) = 0;

  /// Quantisation of the MLA query and of the output (§8.7, §9).
  virtual void quantise_fp8(const attn::StaticQuantiseParams& params) = 0;
  virtual void quantise_fp8_groups(const attn::GroupQuantiseParams& params) = 0;
  virtual void quantise_nvfp4(const attn::Nvfp4QuantiseParams& params) = 0;

  /// Partial results of the ranks of a decode-context group (§7.3 steps 2 and 3, §7.5).
  virtual void correct_dcp(const attn::DcpCorrectParams& params) = 0;
  virtual void combine_dcp(const attn::DcpCombineParams& params) = 0;
  virtual void sum_ranks(const attn::SumRanksParams& params) = 0;
};

/// Operations on CPU threads: float32 blocked online softmax. num_threads 0 = all cores. Work is
/// divided as for a device of `num_sms` multiprocessors.
std::unique_ptr<Ops> make_cpu_ops(int num_threads = 0, int num_sms = kAssumedNumSms);

}  // namespace attnbench
