// A plugin's kernel as a step of a pipeline of ours: prepared, run, its inputs watched, its LSE
// made ours. What the pipelines of plugins share, whatever they compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/device_buffers.h"
#include "backends/plugin/problem.h"
#include "backends/plugin/returned.h"
#include "ops/ops.h"
#include "plugin/plugin_library.h"

namespace attnbench {

/// Descriptions of device memory, which stay where they are as long as the list lives.
class PluginTensors {
 public:
  /// `by_token`: LSEs have a token's heads side by side.
  PluginTensors(const PluginDevice& device, bool by_token) : device_(device), by_token_(by_token) {}
  /// Null for null memory. `strides` in elements; empty = row-major.
  const AttnbenchTensor* add(const void* data, Dtype dtype, std::vector<std::int64_t> shape,
                             std::vector<std::int64_t> strides = {});
  /// An LSE [heads, tokens]; `head_stride` is for heads whose tokens are side by side.
  const AttnbenchTensor* add_lse(const void* data, std::int64_t heads, std::int64_t tokens,
                                 std::int64_t head_stride);

 private:
  struct Entry {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    AttnbenchTensor tensor;
  };
  PluginDevice device_;
  bool by_token_;
  std::deque<Entry> entries_;
};

/// What prepare() made, destroyed once.
class PluginState {
 public:
  explicit PluginState(const PluginTable& plugin) : plugin_(plugin) {}
  ~PluginState() { destroy(); }
  PluginState(const PluginState&) = delete;
  PluginState& operator=(const PluginState&) = delete;

  /// For prepare() to fill; own() says that it succeeded.
  void** place() { return &state_; }
  void own() { is_owned_ = true; }
  bool is_owned() const { return is_owned_; }
  void* get() const { return state_; }
  /// What the plugin complains of.
  std::optional<std::string> destroy();

 private:
  const PluginTable& plugin_;
  void* state_ = nullptr;
  bool is_owned_ = false;
};

class PluginKernel {
 public:
  /// A tensor of the case, and its copy on the device.
  struct Input {
    const char* name;
    const void* memory;
    const Tensor* tensor;
  };

  /// `memory`, the pipeline's, and `plugin` must outlive it. What the kernel allocates there is
  /// poisoned before a run that is judged.
  PluginKernel(DeviceBuffers& memory, const PluginTable& plugin, const PluginDevice& device);
  PluginKernel(const PluginKernel&) = delete;
  PluginKernel& operator=(const PluginKernel&) = delete;
  ~PluginKernel();

  const AttnbenchBackend& table() const { return plugin_.table; }
  /// What prepare() hands over, to be filled before: with descriptions from list().
  AttnbenchTensors& tensors() { return tensors_; }
  const AttnbenchTensors& tensors() const { return tensors_; }
  PluginTensors& list() { return list_; }

  /// Remembers what a small input (lengths, scales) holds now, for changed_input(). Null: nothing.
  void watch(const char* name, const AttnbenchTensor* tensor, Dtype dtype);
  /// Calls prepare() while `values` hold poison, and uploads them afterwards. `problem` must
  /// outlive the kernel. Errors: BackendFailure with the plugin's words, E-CAPACITY when it wants
  /// for more memory than there is.
  void prepare(const AttnbenchProblem& problem, const std::vector<Input>& values);
  /// The step of the pipeline. Errors: BackendFailure.
  void run();
  /// Queues the copies of the tensors that the last run() returned to ours, once. No code of the
  /// plugin runs. Whether there were any: what the tensors hold may be of another run by then,
  /// which no step of ours has to go on from.
  bool collect();
  /// The same behind a timed run, which may be the replay of a graph: without a run() of its own,
  /// it leaves its results in the tensors that the recorded one returned.
  void collect_sample();
  bool collects() const { return plugin_.returned != nullptr; }
  /// Destroys the plugin's state; nothing may run afterwards. Errors: BackendFailure.
  void finish();

  /// Empty, or where one of `inputs` or of those under watch is not what it was.
  std::string changed_input(const std::vector<Input>& inputs);
  /// Flips the sign of every element of the buffer that begins at `memory`.
  void negate(const void* memory, Dtype dtype);
  /// The LSE as the plugin wrote it becomes ours; none where it writes none.
  void convert_lse(PipelineOutput& output);

 private:
  std::string first_change(const Input& input);
  void read_lse_by_token(Tensor& lse);
  static void* allocate(const AttnbenchHost* host, std::size_t size_bytes, const char* name);

  DeviceBuffers& memory_;
  Ops& ops_;
  const PluginTable& plugin_;
  std::string run_name_;
  std::string destroy_name_;
  PluginTensors list_;
  AttnbenchTensors tensors_{};
  AttnbenchHost host_{};
  std::deque<Tensor> watched_tensors_;
  std::vector<Input> watched_;
  std::exception_ptr refused_memory_;
  ReturnedTensors returned_;
  bool has_run_ = false;  // since the last collect()
  PluginState state_;     // last: destroyed before everything that it may point to
};

/// What a call of a plugin's function complains of; nothing when it went well. A C++ exception
/// counts as words.
template <typename Call>
std::optional<std::string> complaint_of(const PluginTable& plugin, Call call) {
  const PluginCall settings(plugin.floats, plugin.on_cuda);
  try {
    const char* text = call();
    if (text == nullptr) return std::nullopt;
    return *text == '\0' ? "failed without a word" : text;
  } catch (const std::exception& error) {
    return std::string("threw an exception: ") + error.what();
  } catch (...) {
    return "threw an exception";
  }
}

/// Flips the sign of every element of the buffer that begins at `data`.
void negate_buffer(DeviceBuffers& memory, const void* data, Dtype dtype);

/// Flips the sign of every element of a floating-point tensor.
void negate(Tensor& tensor);
/// The same of `count` elements of `size_bytes` side by side.
void negate_elements(std::byte* elements, std::int64_t count, std::int64_t size_bytes);

/// How the plugin writes its LSE.
LseConvention lse_convention(const AttnbenchBackend& table);

}  // namespace attnbench
