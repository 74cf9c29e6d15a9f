// Attention in the terms of a cuDNN graph: extents, strides and masks, without any header of
// cuDNN's.
//
// The backend CUDNN describes a case with these structs, frontend/plan.cpp translates them one to
// one. Nothing here converts: layouts, masks and scales are already as cuDNN means them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/numbers/dtype.h"

namespace attnbench {

/// Of a tensor [batch, heads, rows, columns], in elements.
struct CudnnTensor {
  std::array<std::int64_t, 4> extents{};
  std::array<std::int64_t, 4> strides{};
  /// Sequence b starts `offsets[b]` elements after the first; the stride of the batch means
  /// nothing.
  bool is_ragged = false;
};

/// Pages of keys and values: key and value are then [num_blocks, Hk, block_size, D].
struct CudnnPages {
  std::int64_t table_width = 0;  // entries of a row: those that the longest sequence needs
  std::int64_t max_seq_len = 0;
};

/// Row i of a sequence stands at p = i, or at i + key_len - query_len when is_bottom_right.
struct CudnnMask {
  bool is_bottom_right = false;
  std::optional<std::int64_t> left;   // key j is seen only if j > p - left
  std::optional<std::int64_t> right;  // key j is seen only if j <= p + right
};

struct CudnnGraph {
  Dtype input = Dtype::kBF16;  // of query, key and value; kE4M3 needs scales
  Dtype output = Dtype::kBF16;
  CudnnTensor query_shape;   // [B, H, Sq, D]
  CudnnTensor key_shape;     // [B, Hk, Sk, D]
  CudnnTensor value_shape;   // [B, Hk, Sk, Dv]
  CudnnTensor output_shape;  // [B, H, Sq, Dv]
  CudnnTensor stats_shape;   // [B, H, Sq, 1] f32: natural logarithm of the sum of e^score
  std::optional<CudnnPages> pages;
  bool has_lengths = false;   // query_lens and key_lens are given
  bool wide_offsets = false;  // offsets are of 64 bits, else of 32
  bool has_sinks = false;
  float softmax_scale = 1;
  CudnnMask mask;
};

/// Device memory of one run; null = the graph has no use for it.
struct CudnnMemory {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  float* stats = nullptr;
  const void* query_offsets = nullptr;  // [B+1], of every ragged tensor
  const void* key_offsets = nullptr;
  const void* value_offsets = nullptr;
  const void* output_offsets = nullptr;
  const void* stats_offsets = nullptr;
  const std::int32_t* query_lens = nullptr;   // [B]
  const std::int32_t* key_lens = nullptr;     // [B]
  const std::int32_t* block_table = nullptr;  // [B, table_width]
  const float* sinks = nullptr;               // [H]
  /// Of e4m3: x = code * descale of query, key, value and P; P and output are multiplied by their
  /// scales before they are rounded. [1] each.
  const float* query_descale = nullptr;
  const float* key_descale = nullptr;
  const float* value_descale = nullptr;
  const float* probability_descale = nullptr;
  const float* probability_scale = nullptr;
  const float* output_scale = nullptr;
  float* probability_amax = nullptr;  // [1], written
  float* output_amax = nullptr;       // [1], written
};

/// A graph that cuDNN has chosen a kernel for.
class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  /// The engine and its settings as cuDNN names them.
  virtual const std::string& name() const = 0;
  /// Queues the attention on the stream of the plan; may be captured. Errors: kCuda.
  virtual void run(const CudnnMemory& memory, void* workspace) = 0;
};

}  // namespace attnbench
