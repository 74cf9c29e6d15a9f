#include "calibrate/tensor_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/system/printable.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

std::string shape_text(const Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape(), ", "));
}

std::vector<std::int32_t> read_lengths(const SafetensorsReader& reader,
                                       const SafetensorsEntry& entry) {
  const Tensor tensor = reader.read(entry);
  const bool wide = tensor.dtype() == Dtype::kI64;
  if (!wide && tensor.dtype() != Dtype::kI32) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': expected int32, got {}", reader.name(),
         shown(entry.name), dtype_name(tensor.dtype()));
  }
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    const std::int64_t value =
        wide ? tensor.data<std::int64_t>()[i] : tensor.data<std::int32_t>()[i];
    if (value < 0 || value > INT32_MAX) {
      fail(ErrorKind::kValue, "{}: {}[{}]: expected 0 to 2^31 - 1, got {}", reader.name(),
           shown(entry.name), i, value);
    }
    lengths.push_back(static_cast<std::int32_t>(value));
  }
  return lengths;
}

/// The tensor `name` [H] as floats; empty when the file has none.
std::vector<float> read_per_head(const TensorFile& file, const char* name, int num_heads) {
  const SafetensorsEntry* entry = file.reader.find(name);
  if (entry == nullptr) return {};
  const Tensor tensor = file.reader.read(*entry);
  if (!is_floating(tensor.dtype())) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': expected a floating dtype, got {}",
         file.reader.name(), name, entry->dtype);
  }
  if (tensor.shape() != std::vector<std::int64_t>{num_heads}) {
    fail(ErrorKind::kShape, "{}: tensor '{}': expected [{}], got {}", file.reader.name(), name,
         num_heads, shape_text(tensor));
  }
  std::vector<float> values(static_cast<std::size_t>(num_heads));
  load_floats(tensor.dtype(), tensor.bytes(), num_heads, values.data());
  const auto nan =
      std::find_if(values.begin(), values.end(), [](float value) { return std::isnan(value); });
  if (nan != values.end()) {
    fail(ErrorKind::kValue, "{}: tensor '{}': it is NaN for head {}", file.reader.name(), name,
         nan - values.begin());
  }
  return values;
}

/// Sinks and slopes that the saved result was computed with.
void add_per_head(const TensorFile& file, Observation& observation) {
  AttentionSpec& a = observation.problem.attention;
  observation.sinks = read_per_head(file, "sinks", a.num_heads);
  observation.alibi_slopes = read_per_head(file, "alibi_slopes", a.num_heads);
  const auto require = [&](const char* name, bool is_used, bool is_there) {
    if (!is_used || is_there) return;
    fail(ErrorKind::kFormat, "{}: tensor '{}' is missing, which its metadata say was used",
         file.reader.name(), name);
  };
  require("sinks", a.sinks != SinksKind::kNone, !observation.sinks.empty());
  require("alibi_slopes", a.alibi != AlibiKind::kNone, !observation.alibi_slopes.empty());
  if (!observation.sinks.empty()) a.sinks = SinksKind::kValues;
  if (!file.saved && !observation.alibi_slopes.empty()) {
    observation.no_attention = "there are alibi_slopes, and no metadata of which kind";
  }
}

void check_ranges(const TensorFile& file, const Problem& problem) {
  const std::string where =
      fmt::format("{}: metadata 'problem': attention.mm_prefix_ranges", file.reader.name());
  for (const auto& [request, ranges] : problem.attention.mm_prefix_ranges) {
    if (request >= problem.num_requests()) {
      fail(ErrorKind::kValue, "{}: expected a request index below {}, found {}", where,
           problem.num_requests(), request);
    }
    for (const auto& [start, end] : ranges) {
      if (start >= 0 && end >= start) continue;
      fail(ErrorKind::kValue, "{}: expected 0 <= start <= end, found [{}, {}]", where, start, end);
    }
  }
}

std::vector<Request> batch_of(const std::string& layer, const TensorFile& file,
                              const SequenceStarts& starts, const Observation& observation) {
  const std::int64_t num_tokens = observation.tensors[kQueryRole]->dim(0);
  const std::int64_t num_keys = observation.tensors[kKeyRole]->dim(0);
  if (starts.entry == nullptr) return {{num_tokens, num_keys}};
  const std::vector<std::int32_t> cumulative = read_lengths(*starts.reader, *starts.entry);
  const std::string name = fmt::format("{}: {}", starts.reader->name(), shown(starts.entry->name));
  check_cumulative(cumulative, num_tokens, name);
  const std::vector<std::int32_t> query_lens = query_lens_of(cumulative, name);
  const SafetensorsEntry* lens = file.is_saved_result ? file.reader.find("seq_lens") : nullptr;
  const std::vector<std::int32_t> seq_lens =
      lens == nullptr ? query_lens : read_lengths(file.reader, *lens);
  std::int64_t total = 0;
  for (const std::int32_t length : seq_lens) total += length;
  if (seq_lens.size() != query_lens.size() || total != num_keys) {
    fail(ErrorKind::kShape,
         "{}: layer '{}': the lengths of {} sequences add up to {}, but k has {} tokens",
         observation.where, shown(layer), seq_lens.size(), total, num_keys);
  }
  std::vector<Request> batch;
  for (std::size_t b = 0; b < seq_lens.size(); ++b) batch.push_back({query_lens[b], seq_lens[b]});
  return batch;
}

/// Why these tensors are none of attention, or nothing.
std::string no_attention(const Observation& observation) {
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    const std::optional<Tensor>& tensor = observation.tensors[role];
    if (!tensor) return fmt::format("there is no {}", kRoleNames[role]);
    if (tensor->shape().size() != 3) {
      return fmt::format("{} is not [tokens, heads, head size]", kRoleNames[role]);
    }
  }
  return "";
}

[[noreturn]] void fail_disagreement(const std::string& layer, const Observation& observation,
                                    const char* what) {
  const auto& [q, k, v] = observation.tensors;
  fail(ErrorKind::kShape, "{}: layer '{}': {}: q {}, k {}, v {}", observation.where, shown(layer),
       what, shape_text(*q), shape_text(*k), shape_text(*v));
}

void check_shapes(const std::string& layer, const Observation& observation) {
  const auto& [q, k, v] = observation.tensors;
  const auto require = [&](bool agrees, const char* what) {
    if (!agrees) fail_disagreement(layer, observation, what);
  };
  require(k->dim(0) == v->dim(0), "k and v have different numbers of tokens");
  require(k->dim(1) == v->dim(1), "k and v have different numbers of heads");
  require(q->dim(2) == k->dim(2), "q and k have different head sizes");
  require(k->dim(1) != 0 && q->dim(1) % k->dim(1) == 0,
          "the heads of q are no multiple of those of k");
  constexpr std::int64_t kMostExtent = 1 << 20;
  require(q->dim(1) <= kMostExtent && q->dim(2) <= kMostExtent && v->dim(2) <= kMostExtent,
          "more heads or larger ones than 2^20");
}

}  // namespace

void describe_attention(const std::string& layer, const TensorFile& file,
                        const SequenceStarts& starts, ScaleFormat format,
                        Observation& observation) {
  observation.no_attention = no_attention(observation);
  if (!observation.no_attention.empty()) return;
  check_shapes(layer, observation);
  const auto& [q, k, v] = observation.tensors;
  Problem& problem = observation.problem;
  AttentionSpec& a = problem.attention;
  if (file.saved) {
    a = file.saved->attention;
    observation.rules = file.saved->rules;
  } else {
    a.type = is_for_encoders(format) ? AttentionType::kMmEncoder : AttentionType::kDecoder;
    a.causal = !is_for_encoders(format);
    a.scale = 1 / std::sqrt(static_cast<double>(q->dim(2)));
  }
  if (a.type == AttentionType::kMla || a.type == AttentionType::kOp) {
    observation.no_attention =
        fmt::format("attention.type {} is not of q, k and v", to_string(a.type));
    return;
  }
  a.num_heads = static_cast<int>(q->dim(1));
  a.num_kv_heads = static_cast<int>(k->dim(1));
  a.head_size = static_cast<int>(q->dim(2));
  a.v_head_size = static_cast<int>(v->dim(2));
  if (file.is_saved_result) add_per_head(file, observation);
  if (!observation.no_attention.empty()) return;
  problem.batch = batch_of(layer, file, starts, observation);
  check_ranges(file, problem);
  const bool too_long =
      std::any_of(problem.batch.begin(), problem.batch.end(),
                  [](const Request& request) { return request.query_len > request.seq_len; });
  if (a.causal && too_long) fail_disagreement(layer, observation, "more tokens of q than of k");
}

}  // namespace attnbench
