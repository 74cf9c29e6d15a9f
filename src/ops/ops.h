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
#include "core/system/guard_zone.h"
#include "core/tensor.h"
#include "ops/operation_table.h"

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

/// When attention goes by a list of tiles (kernels/params_tiles.h), or by one with tiles beside.
enum class TileUse {
  kNever,        // no kernel takes the list, or the one that is forced does not
  kWhereItPays,  // in batches where it is faster
  kAlways,       // the kernel that is forced, or one of its options, asks for it
};

/// When the codes of prompts become pages of 16 bits in front of their attention.
enum class WideUse {
  kNever,        // no kernel is faster over these pages, or a kernel is forced
  kWhereItPays,  // where their keys are read often enough
  kAlways,       // an option of the kernel that is forced asks for it
};

/// When a pipeline that has one call for decodes and prefills attends to the decodes in another.
enum class ApartUse {
  kNever,        // one call is as good, or a kernel is forced
  kWhereItPays,  // in batches where it is faster
  kAlways,       // an option of the kernel that is forced asks for it
};

/// A device with its memory, and the operations on it. A pipeline queues operations and reads
/// results after synchronize(). All pointers in parameter structs are memory of this device.
///
/// Every function is pure. With a default, a wrapper that forgets to pass a call on would compile
/// and quietly do nothing; ForwardingOps is the base that passes all of them on.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string device_name() const = 0;  // "cpu", "cuda:0"
  /// Multiprocessors of the device, by which pipelines divide work; the CPU has the number of the
  /// device whose pipelines it plays.
  virtual int num_sms() const = 0;
  /// Compute capability of the device, 10 * major + minor; likewise.
  virtual int sm() const = 0;
  /// Every attention operation from now on is done by the kernel of this name ("prefill"); empty =
  /// by the first that fits, as at the start. Where it does not fit, the operation throws
  /// E-UNSUPPORTED with the reason. The CPU has one way only: it throws for any name.
  virtual void force_kernel(std::string_view name) = 0;
  /// Whether pipelines that can make a list of tiles for the batch of `params` call attend_tiles()
  /// and no other attention.
  virtual TileUse tile_use(const attn::AttendParams& params) const = 0;
  /// The same of tiles of few rows that attend_tiles() does beside the others
  /// (TileListParams::num_beside).
  virtual TileUse beside_use(const attn::AttendParams& params) const = 0;
  /// Whether the decodes of the batch of `params`, which has prefills behind them and goes by no
  /// list of tiles, are attended by a call of their own.
  virtual ApartUse apart_use(const attn::AttendParams& params) const = 0;

  /// `name` is for error messages. Contents are poison (NaN bytes), never zero by accident.
  virtual std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) = 0;
  /// Where allocate() puts buffers from now on. False where that is no other place than the usual
  /// one: the device cannot do it, or buffers stand there anyway.
  virtual bool place_buffers(Placement placement) = 0;
  /// Names of the live buffers at an edge whose faults do not say themselves of which they are,
  /// each once.
  virtual std::vector<std::string> edges() const = 0;
  /// Takes away what is mapped beyond the edges of buffers of this name, and puts it back beyond
  /// those of all others; empty = takes all away, as at the start.
  virtual void close_edges(const std::string& name) = 0;
  virtual void upload(Buffer& destination, const void* source, std::size_t size_bytes) = 0;
  /// From byte `offset_bytes` of the buffer on.
  virtual void download(void* destination, Buffer& source, std::size_t size_bytes,
                        std::size_t offset_bytes = 0) = 0;
  /// Fills with bytes that read as NaN in every float format (0xFF).
  virtual void poison(Buffer& buffer) = 0;
  virtual void synchronize() = 0;
  /// synchronize() without its checks of memory: what is timed.
  virtual void wait() = 0;
  /// Before operations that are timed and follow at once: gets ready what sleeps between them.
  virtual void settle() = 0;
  /// Calls `listener` before every wait for kernels that it has not heard of, with their names and
  /// choices, so that a process that never comes back has said what it waits for.
  virtual void on_wait(std::function<void(const std::string& kernels)> listener) = 0;
  /// For work that is not an operation of this interface: the CUDA stream to queue it on, null on
  /// the CPU, where the work is done when its call returns. `name` stands for the work in messages,
  /// as the names of kernels do.
  virtual void* stream_for(const std::string& name) = 0;
  /// The kernels launched since the last call, each once, in the order of their first launch; none
  /// on the CPU.
  virtual std::vector<KernelInfo> take_kernels() = 0;
  /// What may take long for matmul() of this shape, ahead of the first: later ones only launch.
  virtual void prepare_matmul(const attn::MatmulParams& params) = 0;

  /// Whether attend() takes keys whose rope part lies apart (KvParams::rope), and by the kernel
  /// that would attend to the same keys made whole: then they need not be copied together.
  virtual bool takes_rope_apart(const attn::AttendParams& params) const = 0;
  /// Whether attend() with these parameters, over keys and values of 16 bits or values alone
  /// (KvParams::value_block_table), is so fast that the codes of prompts are better converted to
  /// such pages in front of it (gather_mla()) than by attend() itself.
  virtual WideUse wide_use(const attn::AttendParams& params) const = 0;
  /// Whether make_latent_query(), or project_values(), is more than the operations that it stands
  /// for, one after the other.
  virtual bool fuses(const attn::LatentQueryParams& params) const = 0;
  virtual bool fuses(const attn::ValueOutputParams& params) const = 0;

  // attend(), write_cache(), ...: the operations, which operations.def describes.
#define ATTNBENCH_OPERATION(name, parameters, arguments) virtual void name parameters = 0;
#include "ops/operations.def"
};

/// Operations on CPU threads: float32 blocked online softmax. num_threads 0 = all cores. Work is
/// divided as for a device of `num_sms` multiprocessors and compute capability `sm`.
std::unique_ptr<Ops> make_cpu_ops(int num_threads = 0, int num_sms = kAssumedNumSms,
                                  int sm = kAssumedSm);

}  // namespace attnbench
