// Screening on a GPU: every row of an attention output against float64 attention by
// kernels/measure/screen.cuh, which shares nothing with the kernels that are judged.
//
// It is given what the judge holds, host tensors, and never a buffer of the backend. Inputs are
// uploaded once and kept while they are small beside the device, outputs for each comparison; rows
// that were computed are kept as well, for the next output of the same attention. Which keys a row
// sees is worked out by the caller. Latent attention takes one of two ways: rows that
// share few keys attend to the latents, and are projected before they are compared; for the others
// keys and values are expanded, some heads at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "kernels/params_measure.h"
#include "ops/cuda/launcher.h"
#include "ops/cuda/measure/screen_latent.h"
#include "ops/cuda/measure/screen_plan.h"
#include "ops/cuda/measure/screen_rows.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// Borrowed. Elements are f32, f16 or bf16.
struct ScreenInputs {
  const Tensor* query = nullptr;  // [>=T, H, D]
  const Tensor* key = nullptr;    // [S, Hk, D]
  const Tensor* value = nullptr;  // [S, Hk, Dv]
  /// Rows of key and value in the order that key_start_loc and seq_lens count, or empty: as they
  /// are.
  std::span<const std::int32_t> key_index;
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
  /// Whether rows that are computed stay for the next output; not where a tensor goes before that.
  bool keeps_rows = true;

  ScreenBatch batch() const;
  std::int64_t num_rows() const;  // of tokens and heads
};

/// How a stored output reads: value = scale * element, and what happens beyond its largest value.
struct ScreenOutput {
  const Tensor* output = nullptr;  // [T, H, Dv] in f32, f16, bf16 or e4m3
  double scale = 1;
  double limit = 0;  // the largest value, scale included
  bool saturates = false;
};

class Screen {
 public:
  /// Both must outlive it. `ops` holds the memory that `launcher` launches on.
  Screen(Ops& ops, Launcher& launcher) : ops_(ops), launcher_(launcher) {}

  /// The tensors of `inputs` must stay as they are as long as this object lives, or until
  /// forget(). A record of each row and head, [T, H]: sums over all columns. Errors: E-CAPACITY
  /// where the device has too little memory, E-CUDA.
  std::vector<attn::ScreenRecord> compare(const ScreenInputs& inputs, const ScreenOutput& output);
  /// The same of latent attention; records of tokens that are not of `inputs` are left as they are.
  void compare(const LatentScreenInputs& inputs, const ScreenOutput& output,
               std::vector<attn::ScreenRecord>& records);
  /// What a rank of a group gives: rows in the latent space, `output` [T, H, Lkv].
  std::vector<attn::ScreenRecord> compare_latents(const LatentScreenInputs& inputs,
                                                  const ScreenOutput& output);

  /// Of a tensor that changes or goes; rows that were computed from it must not have been kept.
  void forget(const Tensor& tensor) { uploaded_.erase(tensor.bytes()); }
  /// Leaves the device to what is timed next: uploads are gone where there are many.
  void drop_large_uploads();

  /// Keys and values of at most this many bytes are expanded at a time.
  void limit_expanded(std::size_t bytes) { most_expanded_bytes_ = bytes; }
  /// Rows of at most this many bytes are kept, those of no compare() so far.
  void limit_kept(std::size_t bytes) { kept_.limit(bytes); }

 private:
  class Work;
  KeptRows make_rows(const ScreenInputs& inputs, ScreenKey key);
  /// The rows of a batch that is not empty: those that are kept, or fresh ones that are from now
  /// on.
  const KeptRows& rows_of(const ScreenInputs& inputs);
  std::vector<attn::ScreenRecord> compare_rows(const ScreenInputs& inputs, const KeptRows& rows,
                                               const ScreenOutput& output);
  std::vector<attn::ScreenRecord> compare_where_made(const ScreenInputs& inputs,
                                                     const ScreenOutput& output);
  /// All but the output, and what is to be done with rows.
  attn::ScreenParams attention_params(const ScreenInputs& inputs, Work& work);
  /// Launches what `params` says for all rows of the batch, which it writes where params.rows is
  /// set.
  void attend(const ScreenBatch& batch, attn::ScreenParams params, Work& work);
  attn::ScreenParams latent_params(const LatentScreenInputs& inputs, Work& work);
  /// Sets `query`, and where it was quantised `query_rope`, to those of attention to latents.
  void set_latent_query(const LatentScreenInputs& inputs, attn::ScreenParams& params, Work& work);
  void compare_projected(const LatentScreenInputs& inputs, attn::ScreenParams params, Work& work);
  void compare_expanded(const LatentScreenInputs& inputs, attn::ScreenParams params, Work& work);
  double* multiply(attn::ScreenProductParams params, const char* name, Work& work);
  attn::ScreenOutputParams output_params(const ScreenOutput& output, Work& work);
  attn::ScreenOperand operand(const Tensor& tensor, const char* name);
  Buffer& upload_once(const Tensor& tensor, const char* name);
  std::unique_ptr<Buffer> upload(const void* data, std::size_t size_bytes, const char* name);

  Ops& ops_;
  Launcher& launcher_;
  std::map<const void*, std::unique_ptr<Buffer>> uploaded_;  // by the tensor's bytes
  KeptRowsList kept_{kMostKeptScreenBytes};
  std::size_t most_expanded_bytes_ = std::size_t{4} << 30;
};

}  // namespace attnbench::cuda
