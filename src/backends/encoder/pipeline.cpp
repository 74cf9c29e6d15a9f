// The base class sets everything up as for an encoder of text; what differs here is put into its
// parameters before the first step is queued: lengths, the place of V, and the fp8 operands.
#include "backends/encoder/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/kernel_params.h"
#include "core/error.h"
#include "metadata/batch.h"

namespace attnbench {
namespace {

bool is_fp8(const Problem& problem) { return problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8; }

/// hidden_size / tp_size with the heads padded in fp8 mode (§10.4).
std::int64_t offset_unit(const Problem& problem) {
  if (!is_fp8(problem)) return mm_query_unit(problem);
  const MmEncoderSpec& mm = problem.mm_encoder;
  const int head_size = problem.attention.head_size;
  const std::int64_t padded = mm_fp8_padded_hidden_size(mm.hidden_size / head_size, head_size);
  if (padded % mm.tp_size != 0) {
    fail(ErrorKind::kConfig, "fp8_padded_hidden_size: expected a multiple of tp_size {}, got {}",
         mm.tp_size, padded);
  }
  return padded / mm.tp_size;
}

}  // namespace

MmCall mm_call_of(const MmCapability& capability, const Problem& problem) {
  if (!problem.mm_encoder.batch_size) {
    return make_mm_call(capability.lengths, query_start_loc_of(problem), offset_unit(problem),
                        is_fp8(problem));
  }
  MmCall call;
  call.batch_size = problem.num_requests();
  call.query_len = problem.max_query_len();
  call.key_len = problem.max_seq_len();
  return call;
}

MmPipeline::MmPipeline(const Problem& problem, const BackendInputs& inputs, Ops& device,
                       const MmCapability& capability, MmUsersKernel* users)
    : AttentionPipeline(problem, inputs, device, KernelRules{}), capability_(capability) {
  if (inputs.mm == nullptr) {
    fail(ErrorKind::kInternal, "{}: no encoder inputs were given", capability.name);
  }
  set_sequences();
  if (capability.lengths == MmLengthsBackend::kFlashInfer) {
    set_interleaved_value(inputs.mm->tensors);
  }
  if (is_fp8(problem)) {
    add_fp8_steps(inputs.mm->tensors, users);
  } else {
    add_attend_step("attend", [this] { ops().attend(params()); });
  }
}

/// Replaces the batch's own lengths by those that the wrapper's arguments mean.
void MmPipeline::set_sequences() {
  const MmSequences sequences =
      mm_sequences(capability_.lengths, mm_call_of(capability_, problem()));
  attn::AttendParams& params = mutable_params();
  params.query_start_loc = memory().upload(sequences.query_start_loc, "query_start_loc");
  params.seq_lens = memory().upload(sequences.seq_lens, "seq_lens");
  params.num_requests = static_cast<int>(sequences.seq_lens.size());
  params.max_query_len = params.max_seq_len = 0;
  params.num_query_tokens = sequences.query_start_loc.back();
  for (std::size_t b = 0; b < sequences.seq_lens.size(); ++b) {
    params.max_query_len = std::max(
        params.max_query_len, sequences.query_start_loc[b + 1] - sequences.query_start_loc[b]);
    params.max_seq_len = std::max(params.max_seq_len, sequences.seq_lens[b]);
  }
  const std::vector<attn::i64> starts(sequences.key_start_loc.begin(),
                                      sequences.key_start_loc.end());
  params.kv.kv_start_loc = memory().upload(starts, "key_start_loc");
}

void MmPipeline::set_interleaved_value(const AttentionInputs& inputs) {
  const InterleavedValue value = interleave_value(problem(), inputs);
  const void* rows = memory().upload(value.rows, "interleaved QKV");
  interleaved_ = rows;
  const auto size = static_cast<std::int64_t>(dtype_size(value.rows.dtype()));
  mutable_params().kv.value = static_cast<const char*>(rows) + value.first * size;
  mutable_params().kv.token_stride_value = value.token_stride;
}

/// The scale of the keys by itself, for every head: a user's kernel has that of the query, too.
void MmPipeline::add_users_call(MmUsersKernel& users) {
  users.sources = {params().query, params().kv.key, params().kv.value};
  users.attend_step = steps().size();
  users_k_scale_ = memory().workspace_of<float>(params().num_kv_heads, "k_scale");
  void* output = padded_output_ != nullptr ? padded_output_ : params().output;
  attn::AttendParams call = fp8_->attend_params(params(), output);
  call.kv.k_scale = users_k_scale_;
  users_call_ = users.add_call(memory(), call, fp8_->scales());
}

void MmPipeline::add_fp8_steps(const AttentionInputs& inputs, MmUsersKernel* users) {
  const attn::AttendParams& p = params();
  const attn::KvParams& kv = p.kv;
  const std::int64_t keys = inputs.key.dim(0);
  fp8_ = std::make_unique<MmFp8>(
      problem(), ops(),
      std::array<MmSource, 3>{
          MmSource{p.query, num_tokens(), p.num_heads, p.query_token_stride, p.query_head_stride},
          MmSource{kv.key, keys, p.num_kv_heads, kv.token_stride_key, kv.head_stride_key},
          MmSource{kv.value, keys, p.num_kv_heads, kv.token_stride_value, kv.head_stride_value}});
  const int padded = fp8_->padded_head_size();
  // Users' kernels have outputs as wide as their heads.
  const bool is_narrow = problem().mm_encoder.fp8_fused && users == nullptr;
  const bool sliced = padded != p.head_size && !is_narrow;
  if (sliced) {
    padded_output_ =
        memory().workspace_of(p.output_element, num_rows() * p.num_heads * padded, "padded output");
  }
  add_step(side_step(
      "quantise",
      [this] {
        fp8_->quantise();
        if (users_k_scale_ == nullptr) return;
        ops().copy(repeated_copy(attn::Element::kF32, fp8_->scales() + 1, users_k_scale_,
                                 params().num_kv_heads));
      },
      fp8_->traffic_bytes()));
  if (users != nullptr) add_users_call(*users);
  add_attend_step("attend", [this] {
    if (users_call_) return users_call_();
    ops().attend(fp8_->attend_params(params(), padded_output_));
  });
  if (sliced) add_slice_step();
}

/// Drops the columns of padding (§10.5).
void MmPipeline::add_slice_step() {
  const attn::AttendParams& p = params();
  const int padded = fp8_->padded_head_size();
  attn::CopyParams slice{};
  slice.source_element = slice.output_element = p.output_element;
  slice.source = padded_output_;
  slice.output = p.output;
  slice.extents[0] = num_tokens();
  slice.extents[1] = p.num_heads;
  slice.extents[2] = 1;
  slice.source_strides[0] = std::int64_t{p.num_heads} * padded;
  slice.source_strides[1] = padded;
  slice.output_strides[0] = p.output_token_stride;
  slice.output_strides[1] = p.output_head_stride;
  slice.width = p.head_size;
  const double elements = static_cast<double>(num_tokens()) * p.num_heads * p.head_size;
  const double bytes = 2 * elements * static_cast<double>(dtype_size(problem().attention.dtype));
  add_step(side_step(
      "slice", [this, slice] { ops().copy(slice); }, bytes));
}

void MmPipeline::poison_outputs() {
  AttentionPipeline::poison_outputs();
  if (fp8_) fp8_->poison();
}

/// Zero columns of V give zero columns of the output; anything else read past the head.
void MmPipeline::check_padding(PipelineOutput& output) {
  const AttentionSpec& a = problem().attention;
  const int padded = fp8_->padded_head_size();
  const Tensor tensor = memory().read(padded_output_, a.dtype, {num_rows(), a.num_heads, padded});
  for (std::int64_t row = 0; row < num_tokens() * a.num_heads; ++row) {
    for (std::int64_t d = a.head_size; d < padded; ++d) {
      const float value = tensor.at(row * padded + d);
      if (value == 0.0f) continue;
      if (output.defect.empty()) {
        output.defect = fmt::format("padding column {} of the output of token {} is {}, not 0", d,
                                    row / a.num_heads, value);
      }
      return;
    }
  }
}

std::optional<SampleSide> MmPipeline::sample_side() {
  std::optional<SampleSide> side = AttentionPipeline::sample_side();
  const MmEncoderSpec& mm = problem().mm_encoder;
  // A scale of the largest element, not of the largest magnitude, is another one with other signs.
  if (fp8_ && mm.amax == AmaxKind::kSigned && !mm.fp8_scale_path) return std::nullopt;
  if (fp8_) {
    // Scales may be those of the largest key, which another block could move.
    side->blocks.reset();
    side->planes.clear();
  } else if (interleaved_ != nullptr) {
    const auto size = static_cast<std::int64_t>(dtype_size(problem().attention.dtype));
    const std::int64_t row = params().kv.token_stride_value * size;
    auto* first = static_cast<std::byte*>(const_cast<void*>(interleaved_));
    side->planes.back() = {first, row, kRedrawRows * row};
  }
  side->read = [this] { return AttentionPipeline::read_output(false); };
  return side;
}

PipelineOutput MmPipeline::read_output(bool with_cache) {
  PipelineOutput output = AttentionPipeline::read_output(with_cache);
  if (!fp8_) return output;
  // Why finite only: a NaN among the values is their own and spreads over all columns of zeros.
  const bool finite = [&] {
    for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
      if (!(output.lse->at(i) == output.lse->at(i))) return false;
    }
    return true;
  }();
  if (padded_output_ != nullptr && finite) check_padding(output);
  MmQuantisedForward forward = fp8_->read();
  output.more.emplace_back("query_codes", std::move(forward.codes[0]));
  output.more.emplace_back("key_codes", std::move(forward.codes[1]));
  output.more.emplace_back("value_codes", std::move(forward.codes[2]));
  output.more.emplace_back("fp8_scales", Tensor::from_f32(forward.scales));
  return output;
}

}  // namespace attnbench
