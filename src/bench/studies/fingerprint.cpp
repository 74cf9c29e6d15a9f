// Every part is a crafted batch of one request, run once; the last row of the prompt is read, which
// sees every key whether the case is causal or not.
#include "bench/studies/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "bench/cases/attention_values.h"
#include "core/error.h"
#include "core/numbers/dtype.h"
#include "inputs/make_inputs.h"

namespace attnbench {
namespace {

constexpr std::int64_t kPromptRows = 64;

/// The type in which values reach the kernel: that of the cache, where codes have one.
Dtype value_type(const Problem& problem) {
  if (is_encoder_type(problem.attention.type)) return problem.attention.dtype;
  return kv_element_dtype(problem.kv_cache.dtype, problem.attention.dtype);
}

/// One request over `keys` keys by the kernels of `problem`, without what would bend the scores.
Problem plain_problem(const Problem& problem, std::int64_t keys) {
  Problem plain = problem;
  const bool is_decode = problem.max_query_len() <= 1;
  plain.batch = {{is_decode ? 1 : kPromptRows, keys}};
  if (is_encoder_type(problem.attention.type)) plain.batch = {{keys, keys}};
  AttentionSpec& attention = plain.attention;
  attention.sliding_window.reset();
  attention.chunk_size.reset();
  attention.num_splits.reset();
  attention.logits_soft_cap = 0;
  attention.alibi = AlibiKind::kNone;
  attention.alibi_slopes.reset();
  attention.sinks = SinksKind::kNone;
  attention.sink_values.clear();
  attention.mm_prefix_ranges.clear();
  attention.num_speculative_tokens = 0;
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_size));
  plain.cascade.common_prefix_len = 0;
  plain.cascade.groups.clear();
  plain.output_quant = {};
  plain.inputs = {};
  KvCacheSpec& cache = plain.kv_cache;
  cache.k_scale = cache.v_scale = {1.0};
  cache.q_scale = 1.0;
  cache.scale_file.reset();
  cache.manager_block_size.reset();
  cache.num_blocks = (keys + cache.block_size - 1) / cache.block_size + 1;
  return plain;
}

/// Sets all elements of rows x heads by (row, head, element).
void fill(Tensor& tensor, std::int64_t rows,
          const std::function<float(std::int64_t, std::int64_t, std::int64_t)>& value) {
  const std::int64_t heads = tensor.dim(1);
  const std::int64_t width = tensor.dim(2);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t d = 0; d < width; ++d) {
        tensor.set((row * heads + head) * width + d, value(row, head, d));
      }
    }
  }
}

class Bench {
 public:
  Bench(const Backend& backend, Ops& ops, const DeviceFacts& device)
      : backend_(backend), ops_(ops), device_(device) {}

  /// The last token's row of head 0, [Dv]; nothing when the backend refuses the problem.
  std::optional<std::vector<double>> last_row(const Problem& problem,
                                              const AttentionInputs& inputs) const {
    const std::optional<Tensor> output = run(problem, inputs);
    if (!output) return std::nullopt;
    const std::int64_t width = output->dim(2);
    const std::int64_t first = (problem.num_tokens() - 1) * output->dim(1) * width;
    std::vector<double> row;
    for (std::int64_t d = 0; d < width; ++d) row.push_back(output->at(first + d));
    return row;
  }

  std::optional<Tensor> run(const Problem& problem, const AttentionInputs& inputs) const {
    if (!backend_.refusals(problem, device_).empty()) return std::nullopt;
    AttentionValues values(problem, inputs);
    const BackendInputs prepared = values.backend_inputs(backend_);
    try {
      const std::unique_ptr<Pipeline> pipeline = backend_.prepare(problem, prepared, ops_);
      pipeline->poison_outputs();
      for (const Step& step : pipeline->steps()) step.run();
      ops_.synchronize();
      return pipeline->read_output(false).output;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      return std::nullopt;
    }
  }

  const Backend& backend() const { return backend_; }

 private:
  const Backend& backend_;
  Ops& ops_;
  const DeviceFacts& device_;
};

// Bits of sums. All scores are 0, so every probability is 1 and a column of the output is the mean
// of the column of values. In each stretch of keys +2^m comes in its first keys and -2^m in its
// last, so that they cancel and the mean is that of the small terms between, one in each group of
// keys that a matrix instruction takes at once. A small term is lost where the sum beside it is
// more than 2^bits times as large. m differs from column to column, and the first m whose terms are
// lost tells the bits, in whichever direction the keys are read.
struct SumTest {
  static constexpr std::int64_t kStretch = 1024;
  static constexpr std::int64_t kKeys = 4 * kStretch;
  static constexpr std::int64_t kLarge = 64;  // keys of +2^m, and of -2^m
  static constexpr std::int64_t kGroup = 64;
  static constexpr int kLargeLog2 = 6;
  static constexpr int kSmallLog2 = -8;

  /// Of the largest term that the type has room for beside the small one.
  static int most_log2(Dtype dtype) {
    switch (dtype) {
      case Dtype::kE4M3:
        return 8;
      case Dtype::kF16:
      case Dtype::kE5M2:
        return 15;
      default:
        return 18;
    }
  }
  static int large_log2(Dtype dtype, std::int64_t column) {
    const int choices = most_log2(dtype) - kSmallLog2 - 1;
    return kSmallLog2 + 2 + static_cast<int>(column % choices);
  }
  static float value(Dtype dtype, std::int64_t key, std::int64_t column) {
    const std::int64_t place = key % kStretch;
    const float large = std::ldexp(1.0F, large_log2(dtype, column));
    if (place < kLarge) return large;
    if (place >= kStretch - kLarge) return -large;
    return place % kGroup == kGroup / 2 ? std::ldexp(1.0F, kSmallLog2) : 0.0F;
  }
  /// Mean of a column.
  static double expected() {
    const std::int64_t terms = kKeys / kStretch * ((kStretch - 2 * kLarge) / kGroup);
    return static_cast<double>(terms) * std::ldexp(1.0, kSmallLog2) / static_cast<double>(kKeys);
  }
};

/// Sets sum_bits from the column of least m whose terms are lost.
void find_sum_bits(const Problem& problem, const Bench& bench, Fingerprint& print) {
  const Problem plain = plain_problem(problem, SumTest::kKeys);
  const Dtype dtype = value_type(problem);
  AttentionInputs inputs = make_inputs(plain);
  fill(inputs.query, inputs.num_tokens(), [](auto, auto, auto) { return 0.0F; });
  fill(inputs.value, SumTest::kKeys, [&](std::int64_t key, std::int64_t, std::int64_t d) {
    return SumTest::value(dtype, key, d);
  });
  const auto row = bench.last_row(plain, inputs);
  if (!row) return;
  int first_lost = SumTest::most_log2(dtype) + 1;
  for (std::size_t d = 0; d < row->size(); ++d) {
    const double kept = (*row)[d] / SumTest::expected();
    const bool is_lost = !(kept > 0.5 && kept < 1.5);
    const int large = SumTest::large_log2(dtype, static_cast<std::int64_t>(d));
    if (is_lost) first_lost = std::min(first_lost, large);
  }
  print.sum_bits = first_lost - 1 + SumTest::kLargeLog2 - SumTest::kSmallLog2;
  print.sum_bits_at_least = first_lost > SumTest::most_log2(dtype);
}

// The type of P. One key has probability x, those beside it probability 1 and values that sum to
// -c: the output is x - c over the sum of probabilities, where c is x as some type holds it. The
// column of the type that P is rounded to is zero and no other. Keys far below take no part.
struct RoundingTest {
  static constexpr std::int64_t kKeys = 64;
  static constexpr std::int64_t kParts = 8;  // keys over which -c is spread
  static constexpr std::array kTypes{Dtype::kE4M3, Dtype::kE5M2, Dtype::kBF16, Dtype::kF16};

  /// Scores whose probability is well away from every type's values and borders.
  static bool is_telling(double x) {
    for (const Dtype type : kTypes) {
      const double rounded = round_to(type, static_cast<float>(x));
      const double next = round_to(type, static_cast<float>(x + 2 * (x - rounded)));
      const double step = std::abs(next - rounded) > 0 ? std::abs(next - rounded) : 0;
      const double off = std::abs(x - rounded);
      if (off < x * 4e-5) return false;
      if (step > 0 && off > 0.45 * step) return false;
    }
    return true;
  }
  /// -c as values of the type, the largest first.
  static std::array<float, kParts> parts_of(Dtype dtype, double c) {
    std::array<float, kParts> parts{};
    double left = -c;
    for (float& part : parts) {
      part = round_to(dtype, static_cast<float>(left));
      left -= part;
    }
    return parts;
  }
};

/// A value of the key's type whose score with a query of ones gives a telling probability.
std::optional<std::pair<float, double>> telling_key(const Problem& plain, Dtype dtype, int skip) {
  const double scale = plain.attention.scale;
  for (int step = 1; step < 4096; ++step) {
    const float key = round_to(dtype, static_cast<float>(-step / 256.0 / scale));
    const double x = std::exp(scale * static_cast<double>(key));
    if (x > 0.95 || x < 0.05 || !RoundingTest::is_telling(x)) continue;
    if (skip-- == 0) return std::make_pair(key, x);
  }
  return std::nullopt;
}

/// What each type's column leaves of x: |x~ - c|, by RoundingTest::kTypes.
std::optional<std::vector<double>> leftovers(const Problem& plain, const Bench& bench, float key,
                                             double x) {
  const Dtype dtype = value_type(plain);
  AttentionInputs inputs = make_inputs(plain);
  // Why the first element only: its products have no rounding, in whichever order they are summed.
  fill(inputs.query, inputs.num_tokens(),
       [](auto, auto, std::int64_t d) { return d == 0 ? 1.0F : 0.0F; });
  const float far = round_to(dtype, -440.0F);
  const std::int64_t first = RoundingTest::kKeys - RoundingTest::kParts - 1;
  fill(inputs.key, RoundingTest::kKeys, [&](std::int64_t row, std::int64_t, std::int64_t d) {
    if (d > 0) return 0.0F;
    return row < first ? far : row == first ? key : 0.0F;
  });
  fill(inputs.value, RoundingTest::kKeys, [&](std::int64_t row, std::int64_t, std::int64_t d) {
    if (row < first || d >= static_cast<std::int64_t>(RoundingTest::kTypes.size())) return 0.0F;
    if (row == first) return 1.0F;
    const Dtype type = RoundingTest::kTypes[static_cast<std::size_t>(d)];
    const double c = round_to(type, static_cast<float>(x));
    return RoundingTest::parts_of(dtype, c)[static_cast<std::size_t>(row - first - 1)];
  });
  const auto row = bench.last_row(plain, inputs);
  if (!row) return std::nullopt;
  std::vector<double> left;
  const double sum = RoundingTest::kParts + x;
  for (std::size_t i = 0; i < RoundingTest::kTypes.size() && i < row->size(); ++i) {
    left.push_back(std::abs((*row)[i]) * sum);
  }
  return left;
}

/// The first type whose column is zero in every one of some trials.
void find_probability_type(const Problem& problem, const Bench& bench, Fingerprint& print) {
  constexpr int kTrials = 3;
  const Problem plain = plain_problem(problem, RoundingTest::kKeys);
  std::vector<bool> fits(RoundingTest::kTypes.size(), true);
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto key = telling_key(plain, value_type(plain), 2 * trial);
    if (!key) return;
    const auto left = leftovers(plain, bench, key->first, key->second);
    if (!left) return;
    for (std::size_t i = 0; i < left->size(); ++i) {
      const double off =
          std::abs(key->second - static_cast<double>(round_to(RoundingTest::kTypes[i],
                                                              static_cast<float>(key->second))));
      if ((*left)[i] > 0.2 * off) fits[i] = false;
    }
  }
  const auto found = std::find(fits.begin(), fits.end(), true);
  print.probability =
      found == fits.end()
          ? "float32"
          : std::string(
                dtype_name(RoundingTest::kTypes[static_cast<std::size_t>(found - fits.begin())]));
}

/// Towards zero, as bits beyond the type's are cut off.
float truncated(Dtype dtype, double value) {
  float rounded = round_to(dtype, static_cast<float>(value));
  if (std::abs(static_cast<double>(rounded)) <= std::abs(value)) return rounded;
  // The next value towards zero lies within a step of a hundredth.
  for (double share = 1 - 1e-4; std::abs(static_cast<double>(rounded)) > std::abs(value);
       share -= 1e-4) {
    rounded = round_to(dtype, static_cast<float>(value * share));
  }
  return rounded;
}

/// How the output is rounded, from means of three values: their exact value is known, and kernels
/// have it in float32 before they store it.
void find_output_rounding(const Problem& problem, const Bench& bench, Fingerprint& print) {
  constexpr std::int64_t kTerms = 3;
  const Problem plain = plain_problem(problem, RoundingTest::kKeys);
  const Dtype dtype = value_type(plain);
  AttentionInputs inputs = make_inputs(plain);
  const float far = round_to(dtype, -440.0F);
  fill(inputs.query, inputs.num_tokens(),
       [](auto, auto, std::int64_t d) { return d == 0 ? 1.0F : 0.0F; });
  const std::int64_t first = RoundingTest::kKeys - kTerms;
  fill(inputs.key, RoundingTest::kKeys, [&](std::int64_t row, std::int64_t, std::int64_t d) {
    return d == 0 && row < first ? far : 0.0F;
  });
  const auto term = [&](std::int64_t row, std::int64_t d) {
    return round_to(dtype, static_cast<float>(
                               1 + static_cast<double>((37 * d + 11 * (row - first)) % 64) / 32.0));
  };
  fill(inputs.value, RoundingTest::kKeys, [&](std::int64_t row, std::int64_t, std::int64_t d) {
    return row < first ? 0.0F : term(row, d);
  });
  const auto row = bench.last_row(plain, inputs);
  const Dtype output = plain.attention.dtype;
  if (!row || output == Dtype::kF32) return;
  int telling = 0;
  int nearest = 0;
  int cut = 0;
  for (std::size_t d = 0; d < row->size(); ++d) {
    double mean = 0;
    for (std::int64_t i = 0; i < kTerms; ++i) {
      mean += static_cast<double>(term(first + i, static_cast<std::int64_t>(d))) / kTerms;
    }
    const double near = round_to(output, static_cast<float>(mean));
    const double zero = truncated(output, mean);
    if (near == zero) continue;
    ++telling;
    if ((*row)[d] == near) ++nearest;
    if ((*row)[d] == zero) ++cut;
  }
  if (telling == 0) return;
  const auto most = [&](int count) { return 10 * count >= 9 * telling; };
  print.output_rounding = most(nearest) ? "nearest" : most(cut) ? "toward zero" : "neither";
}

/// ||a - r|| / ||r|| over the checked rows.
double relative_error(const Tensor& output, const ReferenceOutput& reference) {
  const std::int64_t line = output.dim(1) * output.dim(2);
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    for (std::int64_t k = 0; k < line; ++k) {
      const double expected =
          reference.output[i * static_cast<std::size_t>(line) + static_cast<std::size_t>(k)];
      const double actual = output.at(reference.rows[i] * line + k);
      error += (actual - expected) * (actual - expected);
      size += expected * expected;
    }
  }
  return size > 0 ? std::sqrt(error / size) : std::numeric_limits<double>::quiet_NaN();
}

/// The error over values with a mean of half their deviation, where short sums stop to grow.
void measure_biased(const Problem& problem, const Bench& bench, const ReferenceOptions& options,
                    std::int64_t longest, Fingerprint& print) {
  if (is_encoder_type(problem.attention.type)) return;  // its rows are as many as its keys
  for (std::int64_t keys = 8192; keys <= longest; keys *= 4) {
    Problem plain = plain_problem(problem, keys);
    plain.validation.max_rows = 4;
    const AttentionInputs drawn = [&] {
      AttentionInputs inputs = make_inputs(plain);
      for (std::int64_t i = 0; i < inputs.value.num_elements(); ++i) {
        inputs.value.set(i, inputs.value.at(i) + 0.5F);
      }
      return inputs;
    }();
    const std::optional<Tensor> output = bench.run(plain, drawn);
    if (!output) return;
    AttentionValues values(plain, drawn);
    values.backend_inputs(bench.backend());
    const ReferenceOutput* reference = values.reference(values.key_of(bench.backend()));
    if (reference == nullptr || (options.should_stop && options.should_stop())) return;
    print.biased.push_back({keys, relative_error(*output, *reference)});
  }
}

}  // namespace

std::string why_no_fingerprint(const Problem& problem) {
  switch (problem.attention.type) {
    case AttentionType::kMla:
    case AttentionType::kMmEncoder:
    case AttentionType::kOp:
    case AttentionType::kEncoderDecoder:
      return fmt::format("attention.type {}: no fingerprint is taken of it",
                         to_string(problem.attention.type));
    default:
      break;
  }
  if (problem.kv_cache.int8_level > 0) return "int8: codes cannot be given one by one";
  if (has_inner_scales(problem.kv_cache.dtype)) {
    return "kv_cache.dtype with scales by token: codes cannot be given one by one";
  }
  return problem.dcp.world_size > 1 ? "dcp: ranks hold parts of a request" : "";
}

Fingerprint take_fingerprint(const Problem& problem, const Backend& backend, Ops& ops,
                             const DeviceFacts& device, const ReferenceOptions& options,
                             std::int64_t longest) {
  const Bench bench(backend, ops, device);
  Fingerprint print;
  find_sum_bits(problem, bench, print);
  find_probability_type(problem, bench, print);
  find_output_rounding(problem, bench, print);
  measure_biased(problem, bench, options, longest, print);
  return print;
}

std::string describe_fingerprint(const Fingerprint& print) {
  std::vector<std::string> parts;
  if (print.sum_bits) {
    parts.push_back(fmt::format("sums keep {}{} bits", print.sum_bits_at_least ? "at least " : "",
                                *print.sum_bits));
  }
  if (!print.probability.empty()) parts.push_back("P " + print.probability);
  if (!print.output_rounding.empty()) {
    parts.push_back(fmt::format("output rounded {}{}",
                                print.output_rounding == "nearest" ? "to " : "",
                                print.output_rounding));
  }
  for (const BiasedError& error : print.biased) {
    parts.push_back(fmt::format("error on biased values over {}k keys {:.2g} %", error.keys / 1024,
                                100 * error.rms_rel));
  }
  return parts.empty() ? "nothing found out" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace attnbench
