// The rows of the mutants are judged as a small case of their own: a request for each one that has
// rows, with these rows as its tokens. So the rule is the case's, and the tensors are small.
#include "bench/judge/blind.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/tensor.h"

namespace attnbench {
namespace {

constexpr double kScaleError = 1.01;
/// Below this a mutant is the reference: nothing was there to lose.
constexpr double kSame = 1e-9;

/// `problem` with the rows as its only tokens.
Problem problem_of_rows(const Problem& problem, std::span<const std::int32_t> rows) {
  Problem result = problem;
  result.batch.clear();
  result.attention.mm_prefix_ranges.clear();  // by request, and the rule does not look at them
  std::int64_t begin = 0;
  std::size_t next = 0;
  for (const Request& request : problem.batch) {
    const std::size_t first = next;
    while (next < rows.size() && rows[next] < begin + request.query_len) ++next;
    begin += request.query_len;
    if (next == first) continue;
    result.batch.push_back({static_cast<std::int64_t>(next - first), request.seq_len});
  }
  return result;
}

bool has_longer_than(const Problem& problem, std::int64_t keys) {
  return std::any_of(problem.batch.begin(), problem.batch.end(), [&](const Request& request) {
    return request.query_len > 0 && request.seq_len > keys;
  });
}

/// How far two results are apart, relative to the larger one.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) && a[i] == b[i]) continue;
    apart = std::max(apart, std::abs(a[i] - b[i]));
    size = std::max({size, std::abs(a[i]), std::abs(b[i])});
  }
  return size > 0 ? apart / size : 0;
}

bool is_same(const ReferenceOutput& a, const ReferenceOutput& b, bool with_lse) {
  return distance(a.output, b.output) < kSame && (!with_lse || distance(a.lse, b.lse) < kSame);
}

class Jury {
 public:
  Jury(const BlindCase& blind_case, const MutantReference& reference)
      : case_(blind_case),
        reference_(reference),
        problem_(problem_of_rows(*blind_case.problem, blind_case.rows)) {}

  /// False when interrupted.
  bool prepare() {
    MutantChange emulated;
    emulated.rule = emulation_rule(problem_, case_.numerics);
    exact_ = compute({});
    if (exact_) emulation_ = compute(emulated);
    return exact_ && emulation_;
  }

  /// Whether the rule lets the mutant pass; nothing when interrupted.
  std::optional<bool> lets_pass(Mutant mutant) {
    const std::optional<ReferenceOutput> wrong = make(mutant);
    if (!wrong) return std::nullopt;
    // Rounded as a kernel's, it is no mistake where it is what an honest kernel gives.
    const ReferenceOutput& right = mutant == Mutant::kE4M3Probability ? *emulation_ : *exact_;
    if (is_same(*wrong, right, case_.gives_lse)) return false;
    Yardsticks yardsticks;
    yardsticks.reference = &*exact_;
    yardsticks.emulation = &*emulation_;
    return judge(problem_, case_.numerics, output_of(*wrong), yardsticks).reasons.empty();
  }

 private:
  std::optional<ReferenceOutput> compute(const MutantChange& change) const {
    std::optional<ReferenceOutput> result = reference_(change);
    if (result) std::iota(result->rows.begin(), result->rows.end(), 0);
    return result;
  }

  std::optional<ReferenceOutput> make(Mutant mutant) {
    MutantChange change;
    switch (mutant) {
      case Mutant::kZeros: {
        ReferenceOutput result = *exact_;
        std::fill(result.output.begin(), result.output.end(), 0.0);
        return result;
      }
      case Mutant::kMeanOfValues:
        change.uniform = true;
        break;
      case Mutant::kNoScale:
        change.scale_factor = 1 / problem_.attention.scale;
        break;
      case Mutant::kScaleOff:
        change.scale_factor = kScaleError;
        break;
      case Mutant::kLastKeyDropped:
        return without_last();
      case Mutant::kKeyDoubled:
        return with_last_twice();
      case Mutant::kFirstPageDropped:
        change.first_dropped = problem_.kv_cache.block_size;
        break;
      case Mutant::kWindowShort:
        change.window_change = -1;
        break;
      case Mutant::kWindowLong:
        change.window_change = 1;
        break;
      case Mutant::kE4M3Probability:
        change.rule = emulation_rule(problem_, case_.numerics);
        change.rule->probability = Dtype::kE4M3;
        break;
      case Mutant::kWrongKvHead:
        change.next_kv_head = true;
        break;
      case Mutant::kBase2Lse: {
        ReferenceOutput result = *exact_;
        for (double& lse : result.lse) lse /= std::log(2.0);
        return result;
      }
    }
    return compute(change);
  }

  const std::optional<ReferenceOutput>& without_last() {
    if (!without_last_) {
      MutantChange change;
      change.last_dropped = 1;
      without_last_ = compute(change);
    }
    return without_last_;
  }

  /// From the two results: with p the weight of the last key, o = (1 - p) o' + p v, and twice the
  /// key is (o + p v) / (1 + p).
  std::optional<ReferenceOutput> with_last_twice() {
    if (!without_last()) return std::nullopt;
    ReferenceOutput result = *exact_;
    const auto num_rows = static_cast<std::int64_t>(result.rows.size());
    const std::int64_t heads = result.num_heads;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto state = static_cast<std::size_t>(head * num_rows + row);
        if (std::isinf(result.lse[state])) continue;
        const double others = std::exp(without_last_->lse[state] - result.lse[state]);  // 1 - p
        const double total = 2 - others;
        result.lse[state] += std::log(total);
        const std::int64_t width = result.v_head_size;
        for (std::int64_t d = 0; d < width; ++d) {
          const auto i = static_cast<std::size_t>((row * heads + head) * width + d);
          result.output[i] = (2 * exact_->output[i] - others * without_last_->output[i]) / total;
        }
      }
    }
    return result;
  }

  /// As the kernel would give it, with its output's type.
  PipelineOutput output_of(const ReferenceOutput& wrong) const {
    PipelineOutput output;
    const auto num_rows = static_cast<std::int64_t>(wrong.rows.size());
    const bool is_static_fp8 = problem_.output_quant.type == OutputQuantType::kFp8Static;
    const double step = is_static_fp8 ? problem_.output_quant.scale : 1.0;
    output.output = Tensor(case_.numerics.output, {num_rows, wrong.num_heads, wrong.v_head_size});
    for (std::size_t i = 0; i < wrong.output.size(); ++i) {
      output.output.set(static_cast<std::int64_t>(i), static_cast<float>(wrong.output[i] / step));
    }
    if (!case_.gives_lse) return output;
    output.lse = Tensor(Dtype::kF32, {wrong.num_heads, num_rows});
    for (std::size_t i = 0; i < wrong.lse.size(); ++i) {
      output.lse->set(static_cast<std::int64_t>(i), static_cast<float>(wrong.lse[i]));
    }
    return output;
  }

  const BlindCase& case_;
  const MutantReference& reference_;
  Problem problem_;
  std::optional<ReferenceOutput> exact_;
  std::optional<ReferenceOutput> emulation_;
  std::optional<ReferenceOutput> without_last_;
};

/// `rows` of the query with each head at the place of the next KV head; the other rows are zeros
/// that nobody reads.
Tensor shifted_query(const Tensor& query, std::span<const std::int32_t> rows, std::int64_t group) {
  Tensor shifted(query.dtype(), query.shape());
  const std::int64_t heads = query.dim(1);
  const std::size_t bytes = static_cast<std::size_t>(query.dim(2)) * dtype_size(query.dtype());
  for (const std::int32_t row : rows) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto from = static_cast<std::size_t>(row * heads + head) * bytes;
      const auto to = static_cast<std::size_t>(row * heads + (head + group) % heads) * bytes;
      std::memcpy(shifted.bytes() + to, query.bytes() + from, bytes);
    }
  }
  return shifted;
}

/// The result of a shifted query with every head back in its place.
void shift_back(std::int64_t group, ReferenceOutput& result) {
  const ReferenceOutput shifted = result;
  const auto num_rows = static_cast<std::int64_t>(result.rows.size());
  const std::int64_t heads = result.num_heads;
  const std::int64_t width = result.v_head_size;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t source = (head + group) % heads;
      result.lse[static_cast<std::size_t>(head * num_rows + row)] =
          shifted.lse[static_cast<std::size_t>(source * num_rows + row)];
      std::copy_n(shifted.output.begin() + (row * heads + source) * width, width,
                  result.output.begin() + (row * heads + head) * width);
    }
  }
}

}  // namespace

std::span<const EnumRow<Mutant>> enum_rows(Mutant) {
  using enum Mutant;
  static constexpr auto kRows = every_value<EnumRow<Mutant>>({
      {kZeros, "zeros", "an output of zeros"},
      {kMeanOfValues, "mean of V", "every visible key has the same weight"},
      {kNoScale, "no scale", "scores that are not multiplied by attention.scale"},
      {kScaleOff, "scale off by 1 %", "attention.scale times 1.01"},
      {kLastKeyDropped, "last key dropped", "the last visible key has no weight"},
      {kFirstPageDropped, "first page dropped", "the keys of block 0 have no weight"},
      {kKeyDoubled, "key doubled", "the last visible key counts twice"},
      {kWindowShort, "window - 1", "a sliding window one key too short"},
      {kWindowLong, "window + 1", "a sliding window one key too long"},
      {kE4M3Probability, "undeclared e4m3 P", "probabilities rounded to e4m3"},
      {kWrongKvHead, "wrong KV head", "each head reads the next KV head"},
      {kBase2Lse, "base-2 LSE", "an LSE in base 2"},
  });
  return kRows;
}

std::vector<Mutant> mutants_of(const BlindCase& blind_case) {
  const Problem& problem = *blind_case.problem;
  const AttentionSpec& a = problem.attention;
  const bool is_mla = a.type == AttentionType::kMla;
  const auto means_something = [&](Mutant mutant) {
    switch (mutant) {
      case Mutant::kNoScale:
        return a.scale > 0 && a.scale != 1;
      case Mutant::kFirstPageDropped:
        return !has_direct_kv(a.type) && !problem.mla.sparse_topk && !a.sliding_window &&
               has_longer_than(problem, problem.kv_cache.block_size);
      case Mutant::kWindowShort:
      case Mutant::kWindowLong:
        return a.sliding_window && has_longer_than(problem, *a.sliding_window);
      case Mutant::kE4M3Probability:
        return blind_case.numerics.probability != Dtype::kE4M3;
      case Mutant::kWrongKvHead:
        return !is_mla && a.num_kv_heads > 1;
      case Mutant::kBase2Lse:
        return blind_case.gives_lse;
      default:
        return true;
    }
  };
  std::vector<Mutant> mutants;
  for (const EnumRow<Mutant>& row : enum_rows(Mutant{})) {
    if (means_something(row.value)) mutants.push_back(row.value);
  }
  return mutants;
}

std::optional<std::vector<Mutant>> unseen_mutants(const BlindCase& blind_case,
                                                  const std::vector<Mutant>& candidates,
                                                  const MutantReference& reference) {
  std::vector<Mutant> unseen;
  if (candidates.empty() || blind_case.rows.empty()) return unseen;
  Jury jury(blind_case, reference);
  if (!jury.prepare()) return std::nullopt;
  for (const Mutant mutant : candidates) {
    const std::optional<bool> passes = jury.lets_pass(mutant);
    if (!passes) return std::nullopt;
    if (*passes) unseen.push_back(mutant);
  }
  return unseen;
}

std::optional<std::vector<Mutant>> BlindAnswers::get(
    const BlindCase& blind_case, const std::optional<std::vector<Mutant>>& candidates,
    const MutantReference& reference) {
  for (const Entry& entry : entries_) {
    if (entry.numerics == blind_case.numerics && entry.gives_lse == blind_case.gives_lse &&
        entry.candidates == candidates) {
      return entry.unseen;
    }
  }
  std::optional<std::vector<Mutant>> unseen =
      unseen_mutants(blind_case, candidates.value_or(mutants_of(blind_case)), reference);
  if (unseen) {
    entries_.push_back({blind_case.numerics, blind_case.gives_lse, candidates, *unseen});
  }
  return unseen;
}

std::vector<std::string> names_of(const std::vector<Mutant>& mutants) {
  std::vector<std::string> names;
  for (const Mutant mutant : mutants) names.emplace_back(to_string(mutant));
  return names;
}

ShorterRequests shorter_requests(std::span<const std::int32_t> seq_lens,
                                 std::span<const std::int64_t> key_start_loc,
                                 const MutantChange& change) {
  ShorterRequests result{{seq_lens.begin(), seq_lens.end()},
                         {key_start_loc.begin(), key_start_loc.end()}};
  for (std::size_t b = 0; b < result.seq_lens.size(); ++b) {
    std::int32_t& length = result.seq_lens[b];
    const auto first =
        static_cast<std::int32_t>(std::min<std::int64_t>(length, change.first_dropped));
    length -= first;
    result.key_start_loc[b] += first;
    length -= static_cast<std::int32_t>(std::min<std::int64_t>(length, change.last_dropped));
  }
  return result;
}

std::optional<ReferenceOutput> mutated_attention(AttentionMath math, ReferenceInputs inputs,
                                                 const MutantChange& change,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options) {
  math.softmax_scale *= change.scale_factor;
  if (math.window_left > 0) math.window_left += change.window_change;
  if (change.uniform) {
    math.softmax_scale = 0;
    math.logits_soft_cap = 0;
    math.alibi = AlibiForm::kNone;
    math.has_sinks = false;
    inputs.sinks = {};
  }
  const ShorterRequests shorter = shorter_requests(inputs.seq_lens, inputs.key_start_loc, change);
  inputs.seq_lens = shorter.seq_lens;
  inputs.key_start_loc = shorter.key_start_loc;
  const std::int64_t group = inputs.query->dim(1) / inputs.key->dim(1);
  Tensor shifted;
  if (change.next_kv_head) {
    shifted = shifted_query(*inputs.query, rows, group);
    inputs.query = &shifted;
  }
  std::optional<ReferenceOutput> result =
      change.rule ? emulate_attention(math, inputs, *change.rule, rows, options)
                  : reference_attention(math, inputs, rows, options);
  if (result && change.next_kv_head) shift_back(group, *result);
  return result;
}

}  // namespace attnbench
