// A submission is written before its output.
#include "bench/trial/output_parcel.h"

#include <utility>
#include <vector>

#include "backends/output_quant.h"
#include "core/error.h"

namespace attnbench {
namespace {

void write_submission(const Submission& what, ParcelWriter& text) {
  text.number(static_cast<std::uint8_t>(what.run));
  text.number(static_cast<std::uint8_t>(what.draw.probe));
  text.number(what.draw.nonce);
  text.number(what.index);
  text.string(what.words);
}

Submission read_submission(ParcelReader& text) {
  Submission what;
  const auto num_kinds = static_cast<std::uint8_t>(enum_rows(RunKind{}).size());
  what.run = static_cast<RunKind>(text.below(num_kinds));
  what.draw.probe = text.flag();
  what.draw.nonce = text.number<std::uint64_t>();
  what.index = text.number<std::int64_t>();
  what.words = text.string();
  return what;
}

void check(bool holds, const std::string& name) {
  if (holds) return;
  fail(ErrorKind::kInternal, "{} was handed in with another type or shape than it has", name);
}

void check_attention(const Problem& problem, RunKind run, const PipelineOutput& output) {
  const bool is_quantised = problem.output_quant.type != OutputQuantType::kNone;
  const Dtype expected =
      is_quantised ? output_quant_layout(problem).code_dtype : problem.attention.dtype;
  check(output.output.dtype() == expected, "output");
  check(!output.lse || output.lse->dtype() == Dtype::kF32, "lse");
  if (run == RunKind::kAlone) return;  // fewer rows, which whoever compares them counts
  const AttentionSpec& attention = problem.attention;
  const std::int64_t tokens = problem.num_tokens();
  using Shape = std::vector<std::int64_t>;
  check(output.output.shape() == Shape{tokens, attention.num_heads, attention.v_head_size} ||
            is_quantised,
        "output");
  check(!output.lse || output.lse->shape() == Shape{attention.num_heads, tokens}, "lse");
}

}  // namespace

Parcel pack(const Submission& what, PipelineOutput&& output) {
  ParcelWriter parcel;
  write_submission(what, parcel);
  parcel.output(std::move(output));
  return parcel.take();
}

Unpacked unpack(const std::string& text, const Descriptor& file) {
  ParcelReader parcel(text, file);
  Unpacked result;
  result.what = read_submission(parcel);
  result.output = parcel.output();
  parcel.end();
  return result;
}

// Operations and the encoder compare what they expect by name, type and shape themselves.
void check_form(const Problem& problem, RunKind run, const PipelineOutput& output) {
  const bool is_attention = problem.attention.type != AttentionType::kOp &&
                            problem.attention.type != AttentionType::kMmEncoder;
  if (is_attention) check_attention(problem, run, output);
  for (const auto& [name, tensor] : output.more) {
    if (name.starts_with("rank_")) {
      check(!tensor.shape().empty() && tensor.dim(0) == problem.dcp.world_size, name);
    }
    if (name == "fp8_scales") check(tensor.num_elements() >= 3, name);
  }
}

}  // namespace attnbench
