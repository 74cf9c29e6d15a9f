// Ops on CPU threads. The end of a buffer is the end of a mapping, as a rule, and guard zones fill
// what is left of its pages; synchronize() looks at both: an operation or a plugin that reads or
// writes past the end is told with the buffer's name.
#include "ops/cpu/cpu_ops.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/system/fenced_memory.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

constexpr std::size_t kAlignment = 64;

#if defined(__SANITIZE_ADDRESS__)
/// Why not fenced under AddressSanitizer: it finds every access outside, and where it is done.
class HostMemory {
 public:
  HostMemory(std::size_t size_bytes, Placement)
      : size_bytes_(size_bytes), data_(AlignedAllocator<std::byte>().allocate(size_bytes)) {}
  ~HostMemory() { AlignedAllocator<std::byte>().deallocate(data_, size_bytes_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  std::byte* data() const { return data_; }
  std::string take_accesses(const std::string&) { return {}; }

 private:
  std::size_t size_bytes_;
  std::byte* data_;
};
constexpr bool kHasEdges = false;
#else
class HostMemory : public FencedMemory {
 public:
  HostMemory(std::size_t size_bytes, Placement placement)
      : FencedMemory(size_bytes, kAlignment, placement) {}
};
constexpr bool kHasEdges = true;
#endif

class HostBuffer;
/// Of one Ops. Shared, because a buffer may outlive it.
using LiveBuffers = std::shared_ptr<std::set<HostBuffer*>>;

/// Memory between two fences, known to its Ops as long as it lives.
class HostBuffer : public Buffer {
 public:
  HostBuffer(std::size_t size_bytes, std::string name, Placement placement, LiveBuffers live)
      : size_bytes_(size_bytes), name_(std::move(name)), live_(std::move(live)) {
    try {
      memory_.emplace(size_bytes, placement);
    } catch (const std::bad_alloc&) {
      fail(ErrorKind::kCapacity, "{}: {} bytes of host memory are not available", name_,
           size_bytes);
    }
    poison();
    live_->insert(this);
  }
  ~HostBuffer() override { live_->erase(this); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() override { return memory_->data(); }
  std::size_t size_bytes() const override { return size_bytes_; }
  void poison() { std::memset(data(), 0xFF, size_bytes_); }
  /// Empty, or what was done outside since the last call.
  std::string take_accesses() { return memory_->take_accesses(name_); }

 private:
  std::size_t size_bytes_ = 0;
  std::string name_;
  LiveBuffers live_;
  std::optional<HostMemory> memory_;
};

/// A copy beyond a buffer is a defect of this program, not of the input.
void check_size(const Buffer& buffer, std::size_t size_bytes) {
  if (size_bytes > buffer.size_bytes()) {
    fail(ErrorKind::kInternal, "copy of {} bytes, the buffer has {}", size_bytes,
         buffer.size_bytes());
  }
}

/// Operations are done when their calls return: there is nothing to wait for, and no kernels to
/// name.
class CpuOps : public Ops {
 public:
  CpuOps(int num_threads, int num_sms, int sm)
      : num_sms_(num_sms), sm_(sm), workers_(num_threads) {}

  std::string device_name() const override { return "cpu"; }
  int num_sms() const override { return num_sms_; }
  int sm() const override { return sm_; }
  void force_kernel(std::string_view name) override {
    if (name.empty()) return;
    fail(ErrorKind::kUnsupported, "kernel {}: the CPU has no kernels to choose from", name);
  }
  TileUse tile_use(const attn::AttendParams&) const override { return TileUse::kNever; }
  TileUse beside_use(const attn::AttendParams&) const override { return TileUse::kNever; }
  ApartUse apart_use(const attn::AttendParams&) const override { return ApartUse::kNever; }

  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return std::make_unique<HostBuffer>(size_bytes, name, placement_, live_);
  }
  /// The end of a mapping is where buffers stand as a rule.
  bool place_buffers(Placement placement) override {
    placement_ = placement;
    return kHasEdges && placement == Placement::kAtStart;
  }
  /// A fault on the host says itself where it was.
  std::vector<std::string> edges() const override { return {}; }
  void close_edges(const std::string&) override {}
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    check_size(destination, size_bytes);
    if (size_bytes > 0) std::memcpy(destination.data(), source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes,
                std::size_t offset_bytes) override {
    check_size(source, offset_bytes + size_bytes);
    if (size_bytes == 0) return;
    std::memcpy(destination, static_cast<const std::byte*>(source.data()) + offset_bytes,
                size_bytes);
  }
  void poison(Buffer& buffer) override { static_cast<HostBuffer&>(buffer).poison(); }
  /// Every operation is done when its call returns, so only the edges are left to look at.
  void synchronize() override {
    const std::string foreign = std::exchange(foreign_, {});
    std::string broken;
    for (HostBuffer* buffer : *live_) {
      const std::string found = buffer->take_accesses();
      if (!found.empty()) broken += (broken.empty() ? "" : "; ") + found;
    }
    if (broken.empty()) return;
    const bool is_write = broken.find("reads ") == std::string::npos;
    fail(ErrorKind::kInternal, "out-of-bounds {}: {}{}{}", is_write ? "write" : "access", broken,
         foreign.empty() ? "" : "; since the last check ran: ", foreign);
  }
  void wait() override {}
  void settle() override { workers_.pool.settle(); }
  void on_wait(std::function<void(const std::string& work)> listener) override {
    listener_ = std::move(listener);
  }
  void* stream_for(const std::string& name) override {
    if (foreign_ == name) return nullptr;
    foreign_ = name;
    if (listener_) listener_(name);
    return nullptr;
  }
  std::vector<KernelInfo> take_kernels() override { return {}; }
  void prepare_matmul(const attn::MatmulParams&) override {}
  bool takes_rope_apart(const attn::AttendParams&) const override { return false; }
  WideUse wide_use(const attn::AttendParams&) const override { return WideUse::kNever; }
  bool fuses(const attn::LatentQueryParams&) const override { return false; }
  bool fuses(const attn::ValueOutputParams&) const override { return false; }

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override { cpu::name(ATTNBENCH_LIST arguments, workers_); }
#include "ops/operations.def"

 private:
  int num_sms_;
  int sm_;
  Placement placement_ = Placement::kUsual;
  LiveBuffers live_ = std::make_shared<std::set<HostBuffer*>>();
  std::string foreign_;  // what others did since the last synchronize()
  std::function<void(const std::string& work)> listener_;
  cpu::Workers workers_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int num_threads, int num_sms, int sm) {
  return std::make_unique<CpuOps>(num_threads, num_sms, sm);
}

}  // namespace attnbench
