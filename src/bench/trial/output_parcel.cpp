// A submission is written before its output.
#include "bench/trial/output_parcel.h"

#include <utility>
#include <vector>

#include "backends/output_quant.h"
#include "bench/judge/judge.h"
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

using Shape = std::vector<std::int64_t>;

/// A tensor of attention as it must be. One request by itself has fewer rows, which whoever
/// compares them counts: there types decide, and nothing is known of shapes.
class AttentionForm {
 public:
  AttentionForm(const Problem& problem, RunKind run)
      : problem_(problem), has_all_rows_(run != RunKind::kAlone) {}

  void check_all(const PipelineOutput& output) const {
    const AttentionSpec& a = problem_.attention;
    const Shape rows{problem_.num_tokens(), a.num_heads, a.v_head_size};
    const bool is_quantised = problem_.output_quant.type != OutputQuantType::kNone;
    const bool has_both = is_quantised && a.type == AttentionType::kMla;
    const OutputQuantLayout codes = is_quantised
                                        ? output_quant_layout(problem_)
                                        : OutputQuantLayout{a.dtype, rows, Dtype::kF32, {}};
    expect(output.output, "output", codes.code_dtype, codes.code_shape);
    if (output.lse) expect(*output.lse, "lse", Dtype::kF32, {a.num_heads, problem_.num_tokens()});
    // A quantised output of MLA is judged before and after it is quantised.
    check_pair(output, "output_unquantized", "output_scales", has_both);
    if (const Tensor* const values = find_tensor(output, "output_unquantized")) {
      expect(*values, "output_unquantized", a.dtype, rows);
    }
    if (const Tensor* const scales = find_tensor(output, "output_scales")) {
      expect(*scales, "output_scales", codes.scale_dtype, codes.scale_shape);
    }
    check_ranks(output);
  }

 private:
  void expect(const Tensor& tensor, const std::string& name, Dtype dtype,
              const Shape& shape) const {
    check(tensor.dtype() == dtype && (!has_all_rows_ || tensor.shape() == shape), name);
  }

  static void check_pair(const PipelineOutput& output, const std::string& a, const std::string& b,
                         bool must_be_there) {
    for (const std::string& name : {a, b}) {
      const bool is_there = find_tensor(output, name) != nullptr;
      const bool other = find_tensor(output, name == a ? b : a) != nullptr;
      if (is_there || !(must_be_there || other)) continue;
      fail(ErrorKind::kInternal, "{} was not handed in", name);
    }
  }

  /// What each rank computed, of MLA for the decodes, of which there may be fewer than rows.
  void check_ranks(const PipelineOutput& output) const {
    check_pair(output, "rank_output", "rank_lse", false);
    const Tensor* const partial = find_tensor(output, "rank_output");
    if (partial == nullptr) return;
    const Tensor& lse = *find_tensor(output, "rank_lse");
    check(partial->shape().size() == 4, "rank_output");
    const AttentionSpec& a = problem_.attention;
    const bool is_mla = a.type == AttentionType::kMla;
    const std::int64_t world_size = problem_.dcp.world_size;
    const std::int64_t rows = partial->dim(1);
    const std::int64_t width = is_mla ? problem_.mla.kv_lora_rank : a.v_head_size;
    const std::int64_t tokens = problem_.num_tokens();
    check(partial->dtype() == Dtype::kF32 &&
              partial->shape() == Shape{world_size, rows, a.num_heads, width} &&
              (is_mla || !has_all_rows_ ? rows <= tokens : rows == tokens),
          "rank_output");
    check(lse.dtype() == Dtype::kF32 && lse.shape() == Shape{world_size, a.num_heads, rows},
          "rank_lse");
  }

  const Problem& problem_;
  bool has_all_rows_;
};

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
  if (is_attention) return AttentionForm(problem, run).check_all(output);
  for (const auto& [name, tensor] : output.more) {
    if (name.starts_with("rank_")) {
      check(!tensor.shape().empty() && tensor.dim(0) == problem.dcp.world_size, name);
    }
    if (name == "fp8_scales") check(tensor.num_elements() >= 3, name);
  }
}

}  // namespace attnbench
