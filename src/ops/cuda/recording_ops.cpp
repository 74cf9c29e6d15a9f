// A launcher that keeps specs, and buffers that are addresses without memory: whatever touches one,
// here or in a pipeline, ends in a fault and not in a wrong answer. Whether there is a kernel for a
// problem is a question to the kernels' candidates, put as a call of attend() with the element
// types and head sizes of the problem: there is no second table of what they can do.
#include "ops/cuda/recording_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "ops/cuda/kernel_ops.h"

namespace attnbench {
namespace {

class RecordingLauncher final : public cuda::Launcher {
 public:
  RecordingLauncher(const cuda::Target& target, std::vector<KernelSpec>& specs,
                    std::vector<cuda::AttendDecision>* decisions)
      : target_(target), specs_(specs), decisions_(decisions) {}
  const cuda::Target& target() const override { return target_; }
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<cuda::KernelArgument>& arguments) override {
    if (shape.num_ctas() == 0) return;
    cuda::check_launch(target_, spec, shape, arguments);
    add_once(specs_, spec);
  }
  void note_attend(const cuda::AttendCall& call) override {
    if (decisions_ == nullptr) return;
    add_once(*decisions_, cuda::decide_attend(target_, call, forced_kernel()));
  }

 private:
  template <typename T>
  static void add_once(std::vector<T>& list, const T& value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  }

  cuda::Target target_;
  std::vector<KernelSpec>& specs_;
  std::vector<cuda::AttendDecision>* decisions_;  // may be null
};

/// Addresses without memory behind them: aligned as those of a device, and a touch is a fault.
class AddressRange final : public Buffer {
 public:
  AddressRange(std::size_t size_bytes, const std::string& name)
      : size_bytes_(size_bytes), mapped_(std::max<std::size_t>(size_bytes, 1)) {
    data_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      fail(ErrorKind::kCapacity, "{}: {} bytes of addresses are not available", name, size_bytes);
    }
  }
  ~AddressRange() override { munmap(data_, mapped_); }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  std::size_t mapped_;
  void* data_ = nullptr;
};

class RecordingOps final : public cuda::KernelOps {
 public:
  RecordingOps(const cuda::Target& target, std::vector<KernelSpec>& specs,
               std::vector<cuda::AttendDecision>* decisions)
      : launcher_(target, specs, decisions) {}

  std::string device_name() const override { return "cuda:0"; }
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return std::make_unique<AddressRange>(size_bytes, name);
  }
  bool place_buffers(Placement) override { return false; }
  std::vector<std::string> edges() const override { return {}; }
  void close_edges(const std::string&) override {}
  void upload(Buffer&, const void*, std::size_t) override {}
  void download(void* destination, Buffer&, std::size_t size_bytes, std::size_t) override {
    std::fill_n(static_cast<unsigned char*>(destination), size_bytes,
                static_cast<unsigned char>(0));
  }
  void poison(Buffer&) override {}
  void synchronize() override {}
  void wait() override {}
  void settle() override {}
  void on_wait(std::function<void(const std::string& kernels)>) override {}
  void* stream_for(const std::string&) override { return nullptr; }
  std::vector<KernelInfo> take_kernels() override { return {}; }
  void prepare_matmul(const attn::MatmulParams&) override {}

 protected:
  cuda::Launcher& launcher() override { return launcher_; }

 private:
  RecordingLauncher launcher_;
};

/// The cache's element that demands most of a kernel: codes are expanded, other keys are as
/// queries.
attn::Element cache_element(const Problem& problem) {
  const KvFormat& format = kv_format(problem.kv_cache.dtype);
  const bool copies = format.scales == KvScales::kNone;
  return static_cast<attn::Element>(copies ? problem.attention.dtype : format.codes.value());
}

/// Attention over paged keys as far as the choice of a kernel goes; pointers that are set mean
/// "there is one" and are never followed.
attn::AttendParams attend_form(const Problem& problem, int head_size, int v_head_size) {
  // Why on 16 bytes: as on a device, and which kernel is chosen goes by it.
  alignas(16) static std::array<float, 64> somewhere{};
  attn::AttendParams p{};
  p.query_element = p.output_element = static_cast<attn::Element>(problem.attention.dtype);
  p.num_heads = p.num_kv_heads = 1;
  p.head_size = head_size;
  p.v_head_size = v_head_size;
  p.max_query_len = 1;
  p.score.softmax_scale = 1.0f;
  static constexpr std::array<int, 1> kTable{};
  p.kv.block_table = kTable.data();
  p.kv.block_size = problem.kv_cache.block_size;
  p.kv.element = cache_element(problem);
  // Slots of all codes need the same of a kernel: products of float32.
  if (shares_slots(problem.kv_cache.dtype)) p.kv.coding = attn::KvCoding::kSlotK8V4;
  p.kv.key = somewhere.data();
  // The latent of MLA is key and value at once.
  const bool is_mla = problem.attention.type == AttentionType::kMla;
  p.kv.value = is_mla ? p.kv.key : somewhere.data() + 16;
  if (problem.kv_cache.int8_level > 0) {
    p.query_element = p.kv.element = attn::Element::kI8;
    p.int8.query_scale = p.kv.key_scales = somewhere.data();
    p.int8.value_element = problem.kv_cache.int8_level == 1
                               ? attn::Element::kI8
                               : static_cast<attn::Element>(problem.attention.dtype);
  }
  return p;
}

}  // namespace

std::unique_ptr<Ops> make_recording_ops(const cuda::Target& target, std::vector<KernelSpec>& specs,
                                        std::vector<cuda::AttendDecision>* decisions) {
  return std::make_unique<RecordingOps>(target, specs, decisions);
}

std::vector<std::string> cuda_lacks(const Problem& problem, const cuda::Target& target) {
  const AttentionSpec& attention = problem.attention;
  if (attention.type == AttentionType::kOp) return {};
  attn::AttendParams params = attend_form(problem, attention.head_size, attention.v_head_size);
  if (attention.type == AttentionType::kMla) {
    const MlaSpec& mla = problem.mla;
    params = attend_form(problem, mla.kv_lora_rank + mla.qk_rope_head_dim, mla.kv_lora_rank);
  }
  try {
    cuda::check_attend(target, params);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return {error.what()};
  }
  return {};
}

}  // namespace attnbench
