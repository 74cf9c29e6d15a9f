// Screening on a GPU: every row of an attention output against float64 attention by
// kernels/measure/screen.cuh, which shares nothing with the kernels that are judged.
//
// It is given what the judge holds, host tensors, and never a buffer of the backend. Inputs are
// uploaded once and kept while they are small beside the device, outputs for each comparison. Which
// keys a row sees is worked out by the caller.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "kernels/params_measure.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// Borrowed. Elements are f32, f16 or bf16.
struct ScreenInputs {
  const Tensor* query = nullptr;                  // [>=T, H, D]
  const Tensor* key = nullptr;                    // [S, Hk, D]
  const Tensor* value = nullptr;                  // [S, Hk, Dv]
  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B]
  std::span<const std::int64_t> key_start_loc;    // [>=B]
  std::span<const std::int32_t> visible_begin;    // [T]: the row sees keys [begin, end) of its
  std::span<const std::int32_t> visible_end;      //   request
  double softmax_scale = 1;
  double soft_cap = 0;  // 0 = off
  attn::Alibi alibi = attn::Alibi::kNone;
  std::span<const float> alibi_slopes;  // [H] or empty
  std::span<const float> sinks;         // [H] or empty
};

/// How a stored output reads: value = scale * element, and what happens beyond its largest value.
struct ScreenOutput {
  const Tensor* output = nullptr;  // [T, H, Dv] in f32, f16, bf16 or e4m3
  double scale = 1;
  double limit = 0;  // the largest value, scale included
  bool saturates = false;
};

/// The kernels of tiles for requests of at most `most_rows` rows that share a KV head.
std::vector<KernelSpec> screen_specs(std::int64_t most_rows, std::int64_t v_head_size);

/// Which work a CTA takes: all of it is in shape of tiles, so that tests see it without a device.
struct ScreenPlan {
  int rows_per_thread = 4;               // of 16 rows
  int columns_per_thread = 8;            // of 16 columns of V
  int num_chunks = 1;                    // of columns of V
  std::vector<attn::ScreenItem> items;   // costliest first
  std::vector<attn::ScreenItem> merges;  // of items that share the keys of their rows
  std::int64_t num_partials = 0;

  int tile_rows() const { return 16 * rows_per_thread; }
  int tile_columns() const { return 16 * columns_per_thread; }
};
/// Few rows take small tiles; keys are split where there would be fewer than some tiles for each of
/// `num_sms`.
ScreenPlan plan_screen(const ScreenInputs& inputs, int num_sms);

class Screen {
 public:
  /// Both must outlive it. `ops` holds the memory that `launcher` launches on.
  Screen(Ops& ops, Launcher& launcher) : ops_(ops), launcher_(launcher) {}

  /// The tensors of `inputs` must stay as they are as long as this object lives. A record of each
  /// row and head, [T, H]: sums over all columns. Errors: E-CAPACITY where the device has too
  /// little memory, E-CUDA.
  std::vector<attn::ScreenRecord> compare(const ScreenInputs& inputs, const ScreenOutput& output);

 private:
  void drop_large_uploads();
  Buffer& upload_once(const Tensor& tensor, const char* name);
  std::unique_ptr<Buffer> upload(const void* data, std::size_t size_bytes, const char* name);

  Ops& ops_;
  Launcher& launcher_;
  std::map<const void*, std::unique_ptr<Buffer>> uploaded_;  // by the tensor's bytes
};

}  // namespace attnbench::cuda
