// Chooses a form for each batch of rows by its cost, and compares the forms. Rows that exist in one
// form only (a quantised latent query, fp8 prefill) are computed in that one and not compared.
#include "reference/mla/mla_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "reference/mla/batch.h"
#include "reference/mla/forms.h"

namespace attnbench {
namespace {

enum class Form { kMqa, kMha };

Form other(Form form) { return form == Form::kMqa ? Form::kMha : Form::kMqa; }

/// The only form that some rows have.
std::optional<Form> only_form(const MlaReferenceInputs& inputs, bool is_decode) {
  if (is_decode && inputs.latent_query != nullptr) return Form::kMqa;
  if (!is_decode && inputs.fp8_prefill) return Form::kMha;
  return std::nullopt;
}

/// Operations of one head.
double head_flops(Form form, const MlaDims& dims, const MlaBatchPlan& plan) {
  const auto pairs = static_cast<double>(plan.num_pairs);
  const auto latent = static_cast<double>(dims.kv_lora_rank);
  const auto weights = static_cast<double>(dims.qk_nope_head_dim + dims.v_head_dim);
  const auto rope = static_cast<double>(dims.qk_rope_head_dim);
  if (form == Form::kMqa) {
    const auto rows = static_cast<double>(plan.row_end - plan.row_begin);
    return 2 * pairs * (2 * latent + rope) + 2 * rows * latent * weights;
  }
  return 2 * pairs * (weights + rope) +
         2 * static_cast<double>(plan.num_entries) * latent * weights;
}

Form cheaper_form(const MlaDims& dims, const MlaBatchPlan& plan) {
  return head_flops(Form::kMqa, dims, plan) <= head_flops(Form::kMha, dims, plan) ? Form::kMqa
                                                                                  : Form::kMha;
}

/// The form of the kernels, unless expanding the keys of a few prefill rows would take seconds: the
/// rounding of either form errs as much on average.
Form emulated_form(const MlaDims& dims, const MlaBatchPlan& plan) {
  constexpr double kExpensiveFlops = 20e9;
  if (plan.is_decode) return Form::kMqa;
  const double mha = head_flops(Form::kMha, dims, plan);
  const bool expensive = mha * static_cast<double>(dims.num_heads) > kExpensiveFlops &&
                         mha > 2 * head_flops(Form::kMqa, dims, plan);
  return expensive ? Form::kMqa : Form::kMha;
}

template <typename Real>
std::optional<ReferenceOutput> compute(MlaForms<Real>& forms, Form form, const MlaBatch& batch,
                                       std::span<const int> heads) {
  return form == Form::kMqa ? forms.mqa(batch, heads) : forms.mha(batch, heads);
}

/// A sink behind the attention (§3.5). What a row may err by shrinks with it, and the LSE's own
/// error moves the factor.
void apply_sinks(std::span<const float> sinks, ReferenceOutput& result) {
  if (sinks.empty()) return;
  const std::size_t num_rows = result.rows.size();
  const auto heads = static_cast<std::size_t>(result.num_heads);
  const auto width = static_cast<std::size_t>(result.v_head_size);
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      const double lse = result.lse[head * num_rows + row];
      // Of an infinite sink the exponential is 0 or infinite, as it has to be.
      const double factor =
          std::isinf(lse) && lse < 0 ? 0.0 : 1 / (1 + std::exp(double{sinks[head]} - lse));
      const std::size_t pair = row * heads + head;
      double squares = 0;
      for (std::size_t v = 0; v < width; ++v) {
        double& value = result.output[pair * width + v];
        squares += value * value;
        value *= factor;
      }
      if (!result.row_size.empty()) result.row_size[pair] *= factor;
      if (result.output_loss.empty() || result.lse_loss.empty()) continue;
      result.output_loss[pair] =
          factor *
          (result.output_loss[pair] + (1 - factor) * result.lse_loss[pair] * std::sqrt(squares));
    }
  }
}

/// All rows, each batch in the form that `form_of` names.
template <typename Real, typename FormOf>
std::optional<ReferenceOutput> compute_all(const MlaReferenceInputs& inputs,
                                           const EmulationRule* rule,
                                           std::span<const std::int32_t> rows,
                                           const ReferenceOptions& options, const FormOf& form_of) {
  const MlaDims dims = check_mla_inputs(inputs, rows);
  ReferenceOutput result = empty_output(rows, dims.num_heads, dims.v_head_dim);
  if (rows.empty()) return result;
  MlaForms<Real> forms(inputs, dims, rule, options);
  const MlaBatcher batcher(inputs, dims, rows);
  const std::vector<int> heads = forms.all_heads();
  for (const MlaBatchPlan& plan : batcher.plans()) {
    const Form form = only_form(inputs, plan.is_decode).value_or(form_of(dims, plan));
    const auto part = compute(forms, form, batcher.load(plan), heads);
    if (!part) return std::nullopt;
    place_part(*part, heads, plan.row_begin, result);
  }
  apply_sinks(inputs.sinks, result);
  return result;
}

std::optional<ReferenceOutput> compute_in(Form form, const MlaReferenceInputs& inputs,
                                          std::span<const std::int32_t> rows,
                                          const ReferenceOptions& options) {
  return compute_all<double>(inputs, nullptr, rows, options,
                             [=](const MlaDims&, const MlaBatchPlan&) { return form; });
}

/// `count` of N heads, evenly spaced; successive batches begin with different heads.
std::vector<int> spread_heads(std::int64_t num_heads, std::int64_t count, std::size_t batch) {
  std::vector<int> heads;
  const auto shift = static_cast<std::int64_t>(batch) * 7;
  for (std::int64_t i = 0; i < count; ++i) {
    heads.push_back(static_cast<int>((shift + i * num_heads / count) % num_heads));
  }
  std::sort(heads.begin(), heads.end());
  return heads;
}

ReferenceOutput pick_heads(const ReferenceOutput& whole, std::span<const int> heads) {
  ReferenceOutput part =
      empty_output(whole.rows, static_cast<std::int64_t>(heads.size()), whole.v_head_size);
  const std::size_t num_rows = whole.rows.size();
  const auto width = static_cast<std::size_t>(whole.v_head_size);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const auto head = static_cast<std::size_t>(heads[i]);
    std::copy_n(whole.lse.data() + head * num_rows, num_rows, part.lse.data() + i * num_rows);
    for (std::size_t row = 0; row < num_rows; ++row) {
      std::copy_n(
          whole.output.data() + (row * static_cast<std::size_t>(whole.num_heads) + head) * width,
          width, part.output.data() + (row * heads.size() + i) * width);
    }
  }
  return part;
}

bool all_finite(const Tensor* tensor) {
  if (tensor == nullptr) return true;
  for (std::int64_t i = 0; i < tensor->num_elements(); ++i) {
    if (!std::isfinite(tensor->at(i))) return false;
  }
  return true;
}

/// Entries of a batch rather than the cache: what no row sees does not excuse a result.
bool batch_is_finite(const MlaReferenceInputs& inputs, const MlaBatch& batch) {
  const Tensor& query = *inputs.query;
  const std::int64_t width = query.dim(1) * query.dim(2);
  for (const std::int64_t token : batch.tokens) {
    for (std::int64_t i = token * width; i < (token + 1) * width; ++i) {
      if (!std::isfinite(query.at(i))) return false;
    }
  }
  return all_finite(&batch.entries) && all_finite(inputs.w_uk) && all_finite(inputs.w_uv);
}

bool is_finite(const ReferenceOutput& output) {
  const auto finite = [](double x) { return std::isfinite(x); };
  return std::all_of(output.output.begin(), output.output.end(), finite);
}

/// The batches of a case in both forms, the second one as far as it is affordable.
class BothForms {
 public:
  BothForms(const MlaReferenceInputs& inputs, const MlaDims& dims,
            std::span<const std::int32_t> rows, const MlaReferenceOptions& options)
      : inputs_(inputs),
        dims_(dims),
        forms_(inputs, dims, nullptr, options.reference),
        batcher_(inputs, dims, rows),
        heads_(forms_.all_heads()) {
    if (options.second_form_flops <= 0) return;
    double flops = 0;
    for (const MlaBatchPlan& plan : batcher_.plans()) {
      if (only_form(inputs, plan.is_decode)) continue;
      flops += head_flops(other(cheaper_form(dims, plan)), dims, plan);
    }
    const double affordable = flops > 0 ? std::min(options.second_form_flops / flops, 1e9) : 1e9;
    second_heads_ =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(affordable), 1, dims.num_heads);
  }

  bool compute_into(ReferenceOutput& result, MlaAgreement& agreement) {
    for (std::size_t i = 0; i < batcher_.plans().size(); ++i) {
      const MlaBatchPlan& plan = batcher_.plans()[i];
      const std::optional<Form> only = only_form(inputs_, plan.is_decode);
      const Form form = only.value_or(cheaper_form(dims_, plan));
      const MlaBatch batch = batcher_.load(plan);
      const auto first = compute(forms_, form, batch, heads_);
      if (!first) return false;
      place_part(*first, heads_, plan.row_begin, result);
      if (only || second_heads_ == 0) continue;
      const std::vector<int> chosen = spread_heads(dims_.num_heads, second_heads_, i);
      const auto second = compute(forms_, other(form), batch, chosen);
      if (!second) return false;
      const ReferenceOutput first_part = pick_heads(*first, chosen);
      const bool finite = is_finite(first_part) && is_finite(*second);
      check_mla_agreement(first_part, *second, chosen, finite || batch_is_finite(inputs_, batch),
                          agreement);
    }
    return true;
  }

 private:
  const MlaReferenceInputs& inputs_;
  MlaDims dims_;
  MlaForms<double> forms_;
  MlaBatcher batcher_;
  std::vector<int> heads_;
  std::int64_t second_heads_ = 0;
};

/// Difference of two results in units of the allowed one; infinite where only one is finite.
double difference(double first, double second, double allowed) {
  if (first == second) return 0;
  const double units = std::abs(first - second) / allowed;
  return std::isnan(units) ? std::numeric_limits<double>::infinity() : units;
}

}  // namespace

std::optional<ReferenceOutput> mla_reference_mqa(const MlaReferenceInputs& inputs,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options) {
  return compute_in(Form::kMqa, inputs, rows, options);
}

std::optional<ReferenceOutput> mla_reference_mha(const MlaReferenceInputs& inputs,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options) {
  return compute_in(Form::kMha, inputs, rows, options);
}

std::optional<ReferenceOutput> emulate_mla(const MlaReferenceInputs& inputs,
                                           const EmulationRule& rule,
                                           std::span<const std::int32_t> rows,
                                           const ReferenceOptions& options) {
  return compute_all<float>(inputs, &rule, rows, options, emulated_form);
}

std::optional<ReferenceOutput> emulate_mla_prefills(const MlaReferenceInputs& inputs,
                                                    const EmulationRule& rule,
                                                    std::span<const std::int32_t> rows,
                                                    std::span<const int> heads,
                                                    const ReferenceOptions& options) {
  const MlaDims dims = check_mla_inputs(inputs, rows);
  std::vector<std::int32_t> prefills;
  for (const std::int32_t row : rows) {
    const bool is_decode = inputs.topk_indices != nullptr || row < inputs.num_decode_tokens;
    if (!is_decode) prefills.push_back(row);
  }
  ReferenceOutput result =
      empty_output(prefills, static_cast<std::int64_t>(heads.size()), dims.v_head_dim);
  if (prefills.empty()) return result;
  MlaForms<float> forms(inputs, dims, &rule, options);
  std::vector<int> places(heads.size());
  std::iota(places.begin(), places.end(), 0);
  const MlaBatcher batcher(inputs, dims, prefills);
  for (const MlaBatchPlan& plan : batcher.plans()) {
    const auto part = forms.mha(batcher.load(plan), heads);
    if (!part) return std::nullopt;
    place_part(*part, places, plan.row_begin, result);
  }
  std::vector<float> sinks;
  for (const int head : heads) {
    if (!inputs.sinks.empty()) sinks.push_back(inputs.sinks[static_cast<std::size_t>(head)]);
  }
  apply_sinks(sinks, result);
  return result;
}

void check_mla_agreement(const ReferenceOutput& first, const ReferenceOutput& second,
                         std::span<const int> heads, bool inputs_finite, MlaAgreement& agreement) {
  constexpr double kRelative = 1e-9;
  constexpr double kLargeScore = 1000;
  const std::size_t num_rows = first.rows.size();
  const auto width = static_cast<std::size_t>(first.v_head_size);
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const double lse = first.lse[i * num_rows + row];
      const double other_lse = second.lse[i * num_rows + row];
      const double* output = first.output.data() + (row * heads.size() + i) * width;
      const double* other_output = second.output.data() + (row * heads.size() + i) * width;
      double largest = 0;
      bool finite = !std::isnan(lse + other_lse);
      for (std::size_t v = 0; v < width; ++v) {
        largest = std::max(largest, std::abs(output[v]));
        finite = finite && std::isfinite(output[v]) && std::isfinite(other_output[v]);
      }
      if (!finite && !inputs_finite) {
        ++agreement.exempt_pairs;
        continue;
      }
      const double magnitude = std::isfinite(lse) ? std::abs(lse) : 0;
      const double factor = kRelative * std::max(1.0, magnitude / kLargeScore);
      double worst = difference(lse, other_lse, kRelative * std::max(1.0, magnitude));
      for (std::size_t v = 0; v < width; ++v) {
        worst = std::max(worst, difference(output[v], other_output[v], factor * largest));
      }
      if (worst > 1) {
        fail(ErrorKind::kInternal,
             "MLA reference: the forms mqa and mha must agree to 1e-9, they differ by {} of that "
             "at row {}, head {} (lse {} and {})",
             worst, first.rows[row], heads[i], lse, other_lse);
      }
      agreement.worst = std::max(agreement.worst, worst);
      ++agreement.compared_pairs;
    }
  }
}

std::optional<ReferenceOutput> mla_reference(const MlaReferenceInputs& inputs,
                                             std::span<const std::int32_t> rows,
                                             const MlaReferenceOptions& options,
                                             MlaAgreement* agreement) {
  if (options.form == MlaRefForm::kMqa) return mla_reference_mqa(inputs, rows, options.reference);
  if (options.form == MlaRefForm::kMha) return mla_reference_mha(inputs, rows, options.reference);
  const MlaDims dims = check_mla_inputs(inputs, rows);
  ReferenceOutput result = empty_output(rows, dims.num_heads, dims.v_head_dim);
  if (rows.empty()) return result;
  MlaAgreement local;
  BothForms both(inputs, dims, rows, options);
  if (!both.compute_into(result, agreement != nullptr ? *agreement : local)) return std::nullopt;
  apply_sinks(inputs.sinks, result);
  return result;
}

}  // namespace attnbench
