// A plugin's attention as a pipeline: our cache write, then its run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "backends/ops_pipeline.h"
#include "backends/plugin_problem.h"
#include "plugin/plugin_library.h"

namespace attnbench {

/// Descriptions of device memory, which stay where they are as long as the list lives.
class PluginTensors {
 public:
  explicit PluginTensors(const PluginDevice& device) : device_(device) {}
  /// Null for null memory. `strides` in elements; empty = row-major.
  const AttnbenchTensor* add(const void* data, Dtype dtype, std::vector<std::int64_t> shape,
                             std::vector<std::int64_t> strides = {});

 private:
  struct Entry {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    AttnbenchTensor tensor;
  };
  PluginDevice device_;
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

class PluginPipeline final : public OpsPipeline {
 public:
  /// `plugin` must outlive it. Errors: BackendFailure with the plugin's words, E-CAPACITY when it
  /// asked for more memory than there is.
  PluginPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                 const PluginTable& plugin, const PluginDevice& device);

  PipelineOutput read_output(bool with_cache) override;
  /// Flips the sign of query, keys and values. Scores and LSE stay, every output is negated. Twice
  /// changes nothing.
  void negate_inputs();
  /// The same of the query alone, after which most outputs are others.
  void negate_query();
  /// Destroys the plugin's state; nothing may run afterwards. Errors: BackendFailure.
  void finish();

 private:
  void describe_tensors();
  void describe_keys();
  /// A tensor of the case, and its copy on the device.
  struct Input {
    const char* name;
    const void* memory;
    const Tensor* tensor;
  };
  std::vector<Input> values() const;
  void keep_small_inputs();
  void negate(Buffer& buffer, Dtype dtype);
  void prepare();
  void run();
  void collect();
  std::string changed_input();
  std::string first_change(const Input& input);
  static void* allocate(const AttnbenchHost* host, std::size_t size_bytes, const char* name);

  const PluginTable& plugin_;
  const BackendInputs& inputs_;  // outlives the pipeline
  std::string run_name_;
  PluginProblem problem_;
  PluginTensors list_;
  AttnbenchTensors tensors_{};
  AttnbenchHost host_{};
  std::deque<Tensor> small_tensors_;
  std::vector<Input> small_inputs_;  // lengths, scales, slopes: what they were is in small_tensors_
  std::exception_ptr refused_memory_;
  PluginState state_;  // last: destroyed before everything that it may point to
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

/// Flips the sign of every element of a floating-point tensor.
void negate(Tensor& tensor);

/// How the plugin writes its LSE.
LseConvention lse_convention(const AttnbenchBackend& table);

}  // namespace attnbench
