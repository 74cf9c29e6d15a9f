// Parts of keys, then halves, then the whole: each stage keeps what the one before it left, as an
// engine would, and is looked at by itself before the next one takes it.
#include "bench/studies/composition.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <utility>

#include "bench/cases/attention_values.h"
#include "core/error.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/make_inputs.h"
#include "inputs/op_inputs.h"

namespace attnbench {
namespace {

constexpr std::int64_t kRanks = 2;
constexpr std::int64_t kParts = 2 * kRanks;

/// A partial or final result, output [T, H, Dv] and LSE [H, T] as the next stage is given them.
struct State {
  Tensor output;
  Tensor lse;
};

struct Staged {
  std::optional<State> state;
  std::string refusal;
};

// ---- Parts of the keys ------------------------------------------------------------------------

/// Every request as one new token over at least as many keys as there are parts.
Problem decodes_of(const Problem& problem) {
  Problem decodes = problem;
  decodes.batch.clear();
  std::int64_t pages = 1;
  for (const Request& request : problem.batch) {
    const std::int64_t keys = std::max<std::int64_t>(request.seq_len, 2 * kParts);
    decodes.batch.push_back({1, keys});
    pages += (keys + problem.kv_cache.block_size - 1) / problem.kv_cache.block_size;
  }
  decodes.kv_cache.manager_block_size.reset();
  decodes.kv_cache.num_blocks = pages;
  decodes.cascade.common_prefix_len = 0;
  decodes.cascade.groups.clear();
  decodes.attention.num_speculative_tokens = 0;
  decodes.inputs.file.reset();
  return decodes;
}

void copy_keys(const Tensor& source, std::int64_t from, std::int64_t count, Tensor& target,
               std::int64_t to) {
  const std::size_t row = source.size_bytes() / static_cast<std::size_t>(source.dim(0));
  std::memcpy(target.bytes() + static_cast<std::size_t>(to) * row,
              source.bytes() + static_cast<std::size_t>(from) * row,
              static_cast<std::size_t>(count) * row);
}

struct CutKeys {
  Problem problem;
  AttentionInputs inputs;
};

/// The decodes over keys [S * begin / kParts, S * end / kParts) of each request.
CutKeys cut_keys(const Problem& decodes, const AttentionInputs& all, std::int64_t begin,
                 std::int64_t end) {
  CutKeys cut{decodes, {}};
  for (Request& request : cut.problem.batch) {
    request.seq_len = request.seq_len * end / kParts - request.seq_len * begin / kParts;
  }
  cut.inputs = make_inputs(cut.problem);
  AttentionInputs& inputs = cut.inputs;
  inputs.query = all.query;
  inputs.sinks = all.sinks;
  inputs.alibi_slopes = all.alibi_slopes;
  inputs.value_channel_scale = all.value_channel_scale;
  for (std::size_t b = 0; b < all.seq_lens.size(); ++b) {
    const std::int64_t first = all.key_start_loc[b] + all.seq_lens[b] * begin / kParts;
    const std::int64_t count = inputs.seq_lens[b];
    copy_keys(all.key, first, count, inputs.key, inputs.key_start_loc[b]);
    copy_keys(all.value, first, count, inputs.value, inputs.key_start_loc[b]);
  }
  return cut;
}

// ---- Stages -----------------------------------------------------------------------------------

/// What a pipeline leaves of a problem that its backend takes.
class Runner {
 public:
  Runner(Ops& ops, const DeviceFacts& device) : ops_(ops), device_(device) {}

  Staged run(const Backend& backend, const Problem& problem, const BackendInputs& inputs) const {
    const auto reasons = backend.refusals(problem, device_);
    if (!reasons.empty()) return {std::nullopt, reasons.front()};
    try {
      const std::unique_ptr<Pipeline> pipeline = backend.prepare(problem, inputs, ops_);
      pipeline->poison_outputs();
      for (const Step& step : pipeline->steps()) step.run();
      ops_.synchronize();
      PipelineOutput output = pipeline->read_output(false);
      if (!output.lse) return {std::nullopt, "writes no LSE"};
      return {State{std::move(output.output), *std::move(output.lse)}, ""};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      return {std::nullopt, error.what()};
    } catch (const BackendFailure& failure) {
      return {std::nullopt, failure.what()};
    }
  }

 private:
  Ops& ops_;
  const DeviceFacts& device_;
};

Problem operation_on(const Problem& decodes, OpKind kind) {
  Problem problem = decodes;
  const std::int64_t tokens = decodes.num_tokens();
  problem.attention.type = AttentionType::kOp;
  problem.attention.query_dtype = QueryDtype::kAuto;
  problem.op = {};
  problem.op.name = kind;
  problem.op.tokens = tokens;
  problem.batch = {{tokens, tokens}};
  problem.kv_cache = {};
  problem.output_quant = {};
  return problem;
}

Problem combination_on(const Problem& decodes, DcpComm comm) {
  Problem problem = operation_on(decodes, OpKind::kDcpCorrect);
  problem.dcp.world_size = kRanks;
  problem.dcp.comm = comm;
  return problem;
}

Staged merge(const Runner& stage, const Backend& backend, const Problem& decodes,
             const State& prefix, const State& suffix) {
  const Problem problem = operation_on(decodes, OpKind::kMerge);
  OpInputs inputs;
  inputs.base = decodes;
  inputs.add("prefix_output", prefix.output);
  inputs.add("prefix_lse", prefix.lse);
  inputs.add("suffix_output", suffix.output);
  inputs.add("suffix_lse", suffix.lse);
  BackendInputs given;
  given.op = &inputs;
  return stage.run(backend, problem, given);
}

/// The states one behind the other, [W, ...].
Tensor stacked(const std::array<State, kRanks>& states, const Tensor State::*part) {
  std::vector<std::int64_t> shape = (states[0].*part).shape();
  shape.insert(shape.begin(), kRanks);
  Tensor all((states[0].*part).dtype(), shape);
  std::byte* next = all.bytes();
  for (const State& state : states) {
    next = std::copy_n((state.*part).bytes(), (state.*part).size_bytes(), next);
  }
  return all;
}

Staged combine(const Runner& stage, const Backend& backend, DcpComm comm, const Problem& decodes,
               const std::array<State, kRanks>& ranks) {
  const Problem problem = combination_on(decodes, comm);
  OpInputs inputs;
  inputs.base = decodes;
  inputs.add("partial_output", stacked(ranks, &State::output));
  inputs.add("partial_lse", stacked(ranks, &State::lse));
  BackendInputs given;
  given.op = &inputs;
  return stage.run(backend, problem, given);
}

// ---- What came out ----------------------------------------------------------------------------

double worst_row(const Tensor& output, const ReferenceOutput& reference) {
  const std::int64_t width = output.dim(2);
  double worst = 0;
  for (std::size_t line = 0; line < reference.rows.size() * static_cast<std::size_t>(output.dim(1));
       ++line) {
    double error = 0;
    double size = 0;
    for (std::int64_t d = 0; d < width; ++d) {
      const auto index = line * static_cast<std::size_t>(width) + static_cast<std::size_t>(d);
      const double expected = reference.output[index];
      const double actual = output.at(static_cast<std::int64_t>(index));
      error += (actual - expected) * (actual - expected);
      size += expected * expected;
    }
    const double relative = size > 0 ? std::sqrt(error / size) : std::sqrt(error);
    if (!(relative <= worst)) worst = relative;  // a NaN stays
  }
  return worst;
}

/// Of the parts' type, a few times over: each of the three stages rounds once.
double rounding_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 4e-3;
    case Dtype::kF32:
      return 1e-4;
    default:
      return 3e-2;
  }
}

constexpr double kLseTolerance = 0.02;

const char* base_of(const FoundLse& found) { return found.base_two ? "base 2" : "base e"; }

/// Adds a sentence when an LSE is not natural and by head, which is what it was declared as or
/// converted to.
void judge_lse(const std::string& who, const Tensor& lse, std::span<const double> expected,
               std::vector<std::string>& mismatches) {
  const auto found = find_lse_convention(lse, expected, kLseTolerance);
  if (!found) {
    mismatches.push_back(who + " writes an LSE that fits no convention");
    return;
  }
  if (found->base_two) {
    mismatches.push_back(
        fmt::format("{} writes its LSE in {}, declared base e", who, base_of(*found)));
  }
  if (found->by_token) {
    mismatches.push_back(who + " writes its LSE as [T, H], declared [H, T]");
  }
}

class Composition {
 public:
  Composition(const Problem& problem, const CompositionMembers& members, Ops& ops,
              const DeviceFacts& device, const ReferenceOptions& options)
      : members_(members),
        stage_(ops, device),
        options_(options),
        decodes_(decodes_of(problem)),
        inputs_(make_inputs(decodes_)) {
    decodes_.validation.max_rows = decodes_.num_tokens();
  }

  std::vector<CompositionRow> run() {
    for (const Backend* attention : members_.attentions) attend(*attention);
    return std::move(rows_);
  }

 private:
  ReferenceOutput reference_of(const Backend& backend, const CutKeys& cut) const {
    AttentionValues values(cut.problem, cut.inputs);
    values.backend_inputs(backend);
    const ReferenceOutput* reference = values.reference(values.key_of(backend));
    return reference == nullptr ? ReferenceOutput{} : *reference;
  }

  CutKeys cut(std::int64_t begin, std::int64_t end) const {
    return cut_keys(decodes_, inputs_, begin, end);
  }

  void attend(const Backend& attention) {
    CompositionRow row;
    row.attention = full_name(attention);
    std::array<State, kParts> parts;
    for (std::int64_t i = 0; i < kParts; ++i) {
      const CutKeys part = cut(i, i + 1);
      AttentionValues values(part.problem, part.inputs);
      const BackendInputs given = values.backend_inputs(attention);
      Staged staged = stage_.run(attention, part.problem, given);
      if (!staged.state) {
        row.refusal = row.attention + ": " + staged.refusal;
        rows_.push_back(row);
        return;
      }
      parts[static_cast<std::size_t>(i)] = *std::move(staged.state);
    }
    judge_lse(row.attention, parts[0].lse, reference_of(attention, cut(0, 1)).lse, row.mismatches);
    for (const Backend* by : members_.merges) merge_parts(attention, parts, *by, row);
  }

  void merge_parts(const Backend& attention, const std::array<State, kParts>& parts,
                   const Backend& by, CompositionRow row) {
    row.merge = full_name(by);
    std::array<State, kRanks> ranks;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      Staged staged = merge(stage_, by, decodes_, parts[2 * rank], parts[2 * rank + 1]);
      if (!staged.state) {
        row.refusal = row.merge + ": " + staged.refusal;
        rows_.push_back(row);
        return;
      }
      ranks[rank] = *std::move(staged.state);
    }
    // What the parts brought with them is not the merge's.
    if (row.mismatches.empty()) {
      judge_lse(row.merge, ranks[0].lse, reference_of(attention, cut(0, 2)).lse, row.mismatches);
    }
    for (const Backend* last : members_.combines) {
      for (const DcpComm comm : {DcpComm::kAgRs, DcpComm::kA2a}) {
        combine_ranks(attention, ranks, *last, comm, row);
      }
    }
  }

  void combine_ranks(const Backend& attention, const std::array<State, kRanks>& ranks,
                     const Backend& by, DcpComm comm, CompositionRow row) {
    row.combine = fmt::format("{} {}", full_name(by), to_string(comm));
    const Staged staged = combine(stage_, by, comm, decodes_, ranks);
    if (!staged.state) {
      row.refusal = row.combine + ": " + staged.refusal;
    } else {
      const ReferenceOutput whole = reference_of(attention, cut(0, kParts));
      row.row_error = worst_row(staged.state->output, whole);
      row.fits = row.row_error <= rounding_of(decodes_.attention.dtype);
    }
    rows_.push_back(std::move(row));
  }

  const CompositionMembers& members_;
  Runner stage_;
  const ReferenceOptions& options_;
  Problem decodes_;
  AttentionInputs inputs_;
  std::vector<CompositionRow> rows_;
};

}  // namespace

std::optional<FoundLse> find_lse_convention(const Tensor& lse, std::span<const double> expected,
                                            double tolerance) {
  const std::int64_t heads = lse.dim(0);
  const std::int64_t tokens = lse.dim(1);
  for (const bool by_token : {false, true}) {
    for (const bool base_two : {false, true}) {
      bool fits = true;
      for (std::int64_t i = 0; fits && i < heads * tokens; ++i) {
        const double natural = expected[static_cast<std::size_t>(i)];
        if (!std::isfinite(natural)) continue;
        const std::int64_t place = by_token ? i % tokens * heads + i / tokens : i;
        const double actual =
            static_cast<double>(lse.at(place)) * (base_two ? std::numbers::ln2 : 1.0);
        fits = std::abs(actual - natural) <= tolerance * std::max(1.0, std::abs(natural) / 8);
      }
      if (fits) return FoundLse{base_two, by_token};
    }
  }
  return std::nullopt;
}

std::string why_no_composition(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  if (a.type != AttentionType::kDecoder) {
    return fmt::format("attention.type {}: only decoders are composed", to_string(a.type));
  }
  if (problem.dcp.world_size > 1) return "dcp: the study makes its own ranks";
  if (a.chunk_size) return "attention.chunk_size: chunks go by positions, as windows do";
  if (a.sliding_window || a.alibi != AlibiKind::kNone) {
    return "windows and ALiBi go by positions, which a part of the keys does not have";
  }
  if (a.sinks != SinksKind::kNone) return "each part would count the sink";
  if (calculates_kv_scales(problem)) return "kv_cache.calculate_kv_scales: each part has its own";
  if (problem.output_quant.type != OutputQuantType::kNone) return "output_quant: parts are rounded";
  if (a.num_heads % kRanks != 0) return "an odd number of heads cannot be sent to two ranks";
  return "";
}

CompositionMembers members_of(const Problem& problem, const std::vector<const Backend*>& candidates,
                              const DeviceFacts& device) {
  const Problem decodes = decodes_of(problem);
  const auto takes = [&](const Backend& backend, const Problem& part) {
    return backend.refusals(part, device).empty();
  };
  CompositionMembers members;
  for (const Backend* backend : candidates) {
    if (takes(*backend, decodes)) members.attentions.push_back(backend);
    if (takes(*backend, operation_on(decodes, OpKind::kMerge))) members.merges.push_back(backend);
    if (takes(*backend, combination_on(decodes, DcpComm::kAgRs))) {
      members.combines.push_back(backend);
    }
  }
  return members;
}

std::vector<CompositionRow> study_composition(const Problem& problem,
                                              const CompositionMembers& members, Ops& ops,
                                              const DeviceFacts& device,
                                              const ReferenceOptions& options) {
  return Composition(problem, members, ops, device, options).run();
}

}  // namespace attnbench
