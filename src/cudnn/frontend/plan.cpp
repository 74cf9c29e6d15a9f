// The one file that includes cudnn-frontend, which takes long to compile: a CudnnGraph as its
// graph, and the plan that cuDNN chooses for it.
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/error.h"
#include "cudnn/frontend.h"

namespace attnbench {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Attributes>;

/// Names of the tensors between the graph and the addresses of a run.
enum Uid : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOutput,
  kStats,
  kQueryOffsets,
  kKeyOffsets,
  kValueOffsets,
  kOutputOffsets,
  kStatsOffsets,
  kQueryLens,
  kKeyLens,
  kKeyTable,
  kValueTable,
  kSinks,
  kQueryDescale,
  kKeyDescale,
  kValueDescale,
  kProbabilityDescale,
  kProbabilityScale,
  kOutputScale,
  kProbabilityAmax,
  kOutputAmax
};

fe::DataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return fe::DataType_t::BFLOAT16;
    case Dtype::kF16:
      return fe::DataType_t::HALF;
    case Dtype::kE4M3:
      return fe::DataType_t::FP8_E4M3;
    case Dtype::kF32:
    case Dtype::kF64:
    case Dtype::kE5M2:
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kI32:
    case Dtype::kI64:
      break;
  }
  fail(ErrorKind::kInternal, "cuDNN: elements of type {}", dtype_name(dtype));
}

/// What cuDNN has no kernel for is unsupported; a graph that it calls ill-formed is our mistake.
void check(fe::error_t status, const std::string& version) {
  if (status.is_good()) return;
  std::string words = status.get_message();
  for (char& letter : words) {
    if (letter == '\n') letter = ' ';
  }
  switch (status.get_code()) {
    case fe::error_code_t::CUDA_API_FAILED:
    case fe::error_code_t::INVALID_CUDA_DEVICE:
    case fe::error_code_t::HANDLE_ERROR:
      fail(ErrorKind::kCuda, "cuDNN {}: {}", version, words);
    case fe::error_code_t::ATTRIBUTE_NOT_SET:
    case fe::error_code_t::SHAPE_DEDUCTION_FAILED:
    case fe::error_code_t::INVALID_TENSOR_NAME:
    case fe::error_code_t::INVALID_VARIANT_PACK:
    case fe::error_code_t::INVALID_VALUE:
      fail(ErrorKind::kInternal, "cuDNN {}: {}", version, words);
    default:
      fail(ErrorKind::kUnsupported, "cuDNN {}: {}", version, words);
  }
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail(ErrorKind::kCuda, "{}: {}", call, cudnnGetErrorString(status));
}

class Handle {
 public:
  explicit Handle(void* stream) {
    check(cudnnCreate(&handle_), "cudnnCreate");
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
  }
  ~Handle() { cudnnDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

/// A CudnnGraph in the frontend's terms.
class GraphBuilder {
 public:
  GraphBuilder(const CudnnGraph& graph, fe::graph::Graph& target) : graph_(graph), target_(target) {
    target_.set_io_data_type(type_of(graph.input))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void build() {
    const TensorPtr query = input("query", kQuery, graph_.query_shape, kQueryOffsets);
    const TensorPtr key = input("key", kKey, graph_.key_shape, kKeyOffsets);
    const TensorPtr value = input("value", kValue, graph_.value_shape, kValueOffsets);
    TensorPtr output;
    TensorPtr stats;
    if (graph_.input == Dtype::kE4M3) {
      auto [made, its_stats, probability_amax, output_amax] = target_.sdpa_fp8(
          query, key, value, scalar("query_descale", kQueryDescale),
          scalar("key_descale", kKeyDescale), scalar("value_descale", kValueDescale),
          scalar("probability_descale", kProbabilityDescale),
          scalar("probability_scale", kProbabilityScale), scalar("output_scale", kOutputScale),
          options());
      set_amax(probability_amax, kProbabilityAmax);
      set_amax(output_amax, kOutputAmax);
      output = made;
      stats = its_stats;
    } else {
      auto [made, its_stats] = target_.sdpa(query, key, value, options());
      output = made;
      stats = its_stats;
    }
    set_output(output, kOutput, graph_.output_shape, kOutputOffsets, type_of(graph_.output));
    set_output(stats, kStats, graph_.stats_shape, kStatsOffsets, fe::DataType_t::FLOAT);
  }

 private:
  static std::vector<std::int64_t> list(const std::array<std::int64_t, 4>& values) {
    return {values.begin(), values.end()};
  }

  TensorPtr tensor(const char* name, std::int64_t uid, std::vector<std::int64_t> extents,
                   std::vector<std::int64_t> strides, fe::DataType_t type) {
    return target_.tensor(Attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim(std::move(extents))
                              .set_stride(std::move(strides))
                              .set_data_type(type));
  }

  /// [B+1] numbers of elements, one tensor for each ragged one, though query and output may have
  /// the same numbers: each has its own address in CudnnMemory.
  TensorPtr offsets(std::int64_t uid) {
    return tensor("offsets", uid, {num_requests() + 1, 1, 1, 1}, {1, 1, 1, 1},
                  graph_.wide_offsets ? fe::DataType_t::INT64 : fe::DataType_t::INT32);
  }

  TensorPtr lengths(const char* name, std::int64_t uid) {
    return tensor(name, uid, {num_requests(), 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::INT32);
  }

  TensorPtr scalar(const char* name, std::int64_t uid) {
    return tensor(name, uid, {1, 1, 1, 1}, {1, 1, 1, 1}, fe::DataType_t::FLOAT);
  }

  /// Of keys and of values apart, as cuDNN wants it; both get the same address.
  TensorPtr table(const char* name, std::int64_t uid) {
    const std::int64_t width = graph_.pages->table_width;
    return tensor(name, uid, {num_requests(), 1, width, 1}, {width, width, 1, 1},
                  fe::DataType_t::INT32);
  }

  TensorPtr input(const char* name, std::int64_t uid, const CudnnTensor& shape,
                  std::int64_t offsets_uid) {
    TensorPtr made =
        tensor(name, uid, list(shape.extents), list(shape.strides), type_of(graph_.input));
    if (shape.is_ragged) made->set_ragged_offset(offsets(offsets_uid));
    return made;
  }

  void set_output(const TensorPtr& output, std::int64_t uid, const CudnnTensor& shape,
                  std::int64_t offsets_uid, fe::DataType_t type) {
    output->set_output(true)
        .set_uid(uid)
        .set_dim(list(shape.extents))
        .set_stride(list(shape.strides))
        .set_data_type(type);
    if (shape.is_ragged) output->set_ragged_offset(offsets(offsets_uid));
  }

  static void set_amax(const TensorPtr& amax, std::int64_t uid) {
    amax->set_output(true)
        .set_uid(uid)
        .set_dim({1, 1, 1, 1})
        .set_stride({1, 1, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }

  fe::graph::SDPA_attributes options() {
    fe::graph::SDPA_attributes options;
    options.set_name("attention").set_generate_stats(true).set_attn_scale(graph_.softmax_scale);
    if (graph_.has_lengths) {
      options.set_padding_mask(true)
          .set_seq_len_q(lengths("query_lens", kQueryLens))
          .set_seq_len_kv(lengths("key_lens", kKeyLens));
    }
    if (graph_.pages) {
      options.set_paged_attention_k_table(table("key_table", kKeyTable))
          .set_paged_attention_v_table(table("value_table", kValueTable))
          .set_paged_attention_max_seq_len_kv(static_cast<int>(graph_.pages->max_seq_len));
    }
    const CudnnMask& mask = graph_.mask;
    if (mask.left || mask.right) {
      options.set_diagonal_alignment(mask.is_bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                          : fe::DiagonalAlignment_t::TOP_LEFT);
    }
    if (mask.left) options.set_diagonal_band_left_bound(static_cast<int>(*mask.left));
    if (mask.right) options.set_diagonal_band_right_bound(static_cast<int>(*mask.right));
    if (graph_.has_sinks) {
      const std::int64_t heads = graph_.query_shape.extents[1];
      options.set_sink_token(
          tensor("sinks", kSinks, {1, heads, 1, 1}, {heads, 1, 1, 1}, fe::DataType_t::FLOAT));
    }
    return options;
  }

  std::int64_t num_requests() const { return graph_.query_shape.extents[0]; }

  const CudnnGraph& graph_;
  fe::graph::Graph& target_;
};

class FrontendPlan final : public CudnnPlan {
 public:
  FrontendPlan(const CudnnGraph& graph, void* stream, const std::string& version)
      : handle_(stream), version_(version) {
    GraphBuilder(graph, graph_).build();
    // In the order that the frontend prescribes. Heuristics A is what its documentation calls
    // the accurate ones: the kernel that cuDNN itself would choose is what users compare with.
    check(graph_.validate(), version);
    check(graph_.build_operation_graph(handle_.get()), version);
    check(graph_.create_execution_plans({fe::HeurMode_t::A}), version);
    check(graph_.check_support(), version);
    check(graph_.build_plans(), version);
    check(graph_.get_workspace_size(workspace_bytes_), version);
    check(graph_.get_plan_name(name_), version);
  }

  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  const std::string& name() const override { return name_; }

  void run(const CudnnMemory& memory, void* workspace) override {
    std::unordered_map<std::int64_t, void*> given = addresses(memory);
    auto status = graph_.execute(handle_.get(), given, workspace);
    if (status.is_bad()) {
      fail(ErrorKind::kCuda, "cuDNN {}: {}", version_, status.get_message());
    }
  }

 private:
  /// Of the tensors that the graph has.
  static std::unordered_map<std::int64_t, void*> addresses(const CudnnMemory& memory) {
    const std::pair<std::int64_t, const void*> all[] = {
        {kQuery, memory.query},
        {kKey, memory.key},
        {kValue, memory.value},
        {kOutput, memory.output},
        {kStats, memory.stats},
        {kQueryOffsets, memory.query_offsets},
        {kKeyOffsets, memory.key_offsets},
        {kValueOffsets, memory.value_offsets},
        {kOutputOffsets, memory.output_offsets},
        {kStatsOffsets, memory.stats_offsets},
        {kQueryLens, memory.query_lens},
        {kKeyLens, memory.key_lens},
        {kKeyTable, memory.block_table},
        {kValueTable, memory.block_table},
        {kSinks, memory.sinks},
        {kQueryDescale, memory.query_descale},
        {kKeyDescale, memory.key_descale},
        {kValueDescale, memory.value_descale},
        {kProbabilityDescale, memory.probability_descale},
        {kProbabilityScale, memory.probability_scale},
        {kOutputScale, memory.output_scale},
        {kProbabilityAmax, memory.probability_amax},
        {kOutputAmax, memory.output_amax}};
    std::unordered_map<std::int64_t, void*> given;
    for (const auto& [uid, address] : all) {
      if (address != nullptr) given.emplace(uid, const_cast<void*>(address));
    }
    return given;
  }

  Handle handle_;
  fe::graph::Graph graph_;
  std::string version_;
  std::string name_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace

std::string frontend_version() {
  return fmt::format("{}.{}.{}", CUDNN_FRONTEND_MAJOR_VERSION, CUDNN_FRONTEND_MINOR_VERSION,
                     CUDNN_FRONTEND_PATCH_VERSION);
}

std::unique_ptr<CudnnPlan> make_frontend_plan(const CudnnGraph& graph, void* stream,
                                              const std::string& version) {
  try {
    return std::make_unique<FrontendPlan>(graph, stream, version);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::kUnsupported, "cuDNN {}: {}", version, error.what());
  }
}

}  // namespace attnbench
