#include "scenario/batch/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "scenario/batch/batch_spec.h"
#include "scenario/batch/trace.h"
#include "scenario/text/files.h"

namespace attnbench {
namespace {

constexpr std::string_view kForms =
    "a batch spec such as 60q1s4k, a list of {count, query_len, seq_len}, or {trace, format, ...}";

/// An integer key of a row or a trace.
template <typename T>
struct IntegerKey {
  const char* name;
  std::int64_t T::*member;
  std::int64_t low;
  std::int64_t high;
};

struct Row {
  std::int64_t count = 1;
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;
  std::optional<bool> prefilling;
};
constexpr const char* kPrefilling = "prefilling";
const std::vector<IntegerKey<Row>> kRowKeys = {{"count", &Row::count, 1, kMaxRequests},
                                               {"query_len", &Row::query_len, 0, kMaxTokens},
                                               {"seq_len", &Row::seq_len, 0, kMaxTokens}};

struct TraceKeys {
  std::int64_t requests = 64;
  std::int64_t max_batched_tokens = 8192;
  std::int64_t step = 1000;
  std::int64_t seed = 0;
  Arrivals arrivals = Arrivals::kClosed;
  double rate = 0;
  double step_ms = 20;
};
const std::vector<IntegerKey<TraceKeys>> kTraceKeys = {
    {"requests", &TraceKeys::requests, 1, 65536},
    {"max_batched_tokens", &TraceKeys::max_batched_tokens, 1, kMaxTokens},
    {"step", &TraceKeys::step, 1, 10000000},
    {"seed", &TraceKeys::seed, 0, INT64_MAX}};
// A replay visits every running request of every step; this bounds it to some seconds.
constexpr std::int64_t kMaxReplayWork = 2000000000;

std::string key_list(const std::vector<std::string>& keys) {
  return fmt::format("{}", fmt::join(keys, ", "));
}

template <typename T>
std::vector<std::string> names_of(const std::vector<IntegerKey<T>>& keys) {
  std::vector<std::string> names;
  for (const auto& key : keys) names.emplace_back(key.name);
  return names;
}

void check_keys(const Value& map, const std::vector<std::string>& valid, IssueList& issues) {
  for (const Value::Entry& entry : map.entries) {
    if (std::find(valid.begin(), valid.end(), entry.key) != valid.end()) continue;
    const std::string nearest = nearest_word(entry.key, valid);
    issues.add(
        ErrorKind::kFormat, entry.key_mark,
        nearest.empty()
            ? fmt::format("unknown key 'batch.{}'; valid keys: {}", entry.key, key_list(valid))
            : fmt::format("unknown key 'batch.{}'; did you mean '{}'?", entry.key, nearest));
  }
}

/// Reads the integers that are given; what is wrong goes to `issues`, `above` for what is too
/// large.
template <typename T>
void read_integers(const Value& map, const std::vector<IntegerKey<T>>& keys, T& out,
                   IssueList& issues, ErrorKind above = ErrorKind::kConfig) {
  for (const auto& key : keys) {
    const Value* value = map.find(key.name);
    if (value == nullptr) continue;
    if (value->is_int() && value->integer >= key.low && value->integer <= key.high) {
      out.*key.member = value->integer;
      continue;
    }
    const ErrorKind outside = value->integer > key.high ? above : ErrorKind::kConfig;
    const ErrorKind kind = value->is_int() ? outside : ErrorKind::kFormat;
    issues.add_mismatch(kind, fmt::format("batch.{}", key.name),
                        fmt::format("an integer from {} to {}", key.low, key.high), *value);
  }
}

void check_required(const Value& map, std::initializer_list<const char*> keys, IssueList& issues) {
  for (const char* key : keys) {
    if (map.find(key) != nullptr) continue;
    issues.add(ErrorKind::kFormat, map.mark, fmt::format("batch: expected the key '{}'", key));
  }
}

bool is_rows(const Value& value) {
  return value.is_list() && !value.items.empty() &&
         std::all_of(value.items.begin(), value.items.end(), [](const Value& item) {
           return item.is_map() && item.find("trace") == nullptr;
         });
}

Row read_row(const Value& value, IssueList& issues) {
  Row row;
  std::vector<std::string> names = names_of(kRowKeys);
  names.emplace_back(kPrefilling);
  check_keys(value, names, issues);
  check_required(value, {"query_len", "seq_len"}, issues);
  read_integers(value, kRowKeys, row, issues, ErrorKind::kCapacity);
  const Value* const prefilling = value.find(kPrefilling);
  if (prefilling == nullptr) return row;
  if (prefilling->is_bool()) {
    row.prefilling = prefilling->boolean;
  } else {
    issues.add_mismatch(ErrorKind::kFormat, "batch.prefilling", "true or false", *prefilling);
  }
  return row;
}

constexpr std::int64_t kMaxSampledSteps = 10000;

/// N of "sample N".
std::optional<std::int64_t> sampled_steps(const Value& steps) {
  constexpr std::string_view kWord = "sample ";
  if (!steps.is_string() || !steps.text.starts_with(kWord)) return std::nullopt;
  const char* begin = steps.text.data() + kWord.size();
  const char* end = steps.text.data() + steps.text.size();
  std::int64_t count = 0;
  const auto [stop, error] = std::from_chars(begin, end, count);
  if (error != std::errc{} || stop != end || count < 1 || count > kMaxSampledSteps) {
    return std::nullopt;
  }
  return count;
}

void read_positive(const Value& map, const char* name, double& out, IssueList& issues) {
  const Value* value = map.find(name);
  if (value == nullptr) return;
  constexpr double kMost = 1e9;
  if (value->is_number() && value->as_double() > 0 && value->as_double() <= kMost) {
    out = value->as_double();
    return;
  }
  const ErrorKind kind = value->is_number() ? ErrorKind::kConfig : ErrorKind::kFormat;
  issues.add_mismatch(kind, fmt::format("batch.{}", name), "a number > 0 and <= 1e9", *value);
}

/// When requests come, and the steps that were not expanded because they are wrong.
void read_arrivals(const Value& value, TraceKeys& keys, IssueList& issues) {
  if (const Value* arrivals = value.find("arrivals")) {
    const auto found =
        arrivals->is_string() ? enum_from_name<Arrivals>(arrivals->text) : std::nullopt;
    std::vector<std::string> names;
    for (const auto& row : enum_rows(Arrivals{})) names.emplace_back(row.name);
    if (!found) {
      issues.add_mismatch(ErrorKind::kFormat, "batch.arrivals", "one of " + key_list(names),
                          *arrivals);
    }
    keys.arrivals = found.value_or(Arrivals::kClosed);
  }
  read_positive(value, "rate", keys.rate, issues);
  read_positive(value, "step_ms", keys.step_ms, issues);
  if (keys.arrivals == Arrivals::kPoisson) check_required(value, {"rate"}, issues);
  for (const char* key : {"rate", "step_ms"}) {
    const Value* given = value.find(key);
    if (given == nullptr || keys.arrivals != Arrivals::kClosed) continue;
    issues.add(ErrorKind::kConfig, given->mark,
               fmt::format("batch.{}: expected arrivals: trace or poisson with it", key));
  }
  if (const Value* steps = value.find("steps")) {
    issues.add_mismatch(
        ErrorKind::kFormat, "batch.steps",
        fmt::format("'sample N' with N from 1 to {}, at most step", kMaxSampledSteps), *steps);
  }
}

TraceKeys read_trace_keys(const Value& value, IssueList& issues) {
  TraceKeys keys;
  std::vector<std::string> valid = names_of(kTraceKeys);
  valid.insert(valid.begin(), {"trace", "format", "arrivals", "rate", "step_ms", "steps"});
  check_keys(value, valid, issues);
  check_required(value, {"trace", "format"}, issues);
  const Value* trace = value.find("trace");
  if (trace != nullptr && (!trace->is_string() || trace->text.empty())) {
    issues.add_mismatch(ErrorKind::kFormat, "batch.trace", "the path of a trace file", *trace);
  }
  const Value* format = value.find("format");
  if (format != nullptr && (!format->is_string() || !enum_from_name<TraceFormat>(format->text))) {
    std::vector<std::string> names;
    for (const auto& row : enum_rows(TraceFormat{})) names.emplace_back(row.name);
    issues.add_mismatch(ErrorKind::kFormat, "batch.format", "one of " + key_list(names), *format);
  }
  read_integers(value, kTraceKeys, keys, issues);
  read_arrivals(value, keys, issues);
  if (keys.requests * keys.step > kMaxReplayWork) {
    issues.add(ErrorKind::kConfig, value.mark,
               fmt::format("batch: expected requests * step <= {}, found {} * {}", kMaxReplayWork,
                           keys.requests, keys.step));
  }
  return keys;
}

void check_spec(const Value& value, IssueList& issues) {
  try {
    parse_batch_spec(value.text, true);
  } catch (const Error& error) {
    issues.add(error.kind(), value.mark, fmt::format("batch: {}", error.what()));
  }
}

/// A row of {count, query_len, seq_len} that does not stand in a list of rows.
bool is_lone_row(const Value& value) {
  const auto names = names_of(kRowKeys);
  return value.is_map() && value.find("trace") == nullptr && value.find("format") == nullptr &&
         std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return value.find(name) != nullptr; });
}

void check_one(const Value& value, IssueList& issues) {
  if (is_lone_row(value)) {
    issues.add(ErrorKind::kFormat, value.mark,
               "batch: expected a list of {count, query_len, seq_len} for one case, found one "
               "outside such a list; several cases are a list of batch specs or of such lists");
  } else if (value.is_string()) {
    check_spec(value, issues);
  } else if (is_rows(value)) {
    for (const Value& row : value.items) {
      if (!issues.full()) read_row(row, issues);
    }
  } else if (value.is_map()) {
    read_trace_keys(value, issues);
  } else {
    issues.add_mismatch(ErrorKind::kFormat, "batch", kForms, value);
  }
}

BatchResult expand_rows(const Value& value) {
  IssueList issues;
  BatchResult result;
  for (const Value& item : value.items) {
    const Row row = read_row(item, issues);
    issues.throw_if_any();
    const auto requests = static_cast<std::int64_t>(result.batch.size()) + row.count;
    if (requests > kMaxRequests) {
      fail(ErrorKind::kCapacity, "{}batch: expected at most {} requests, found {}",
           location(item.mark), kMaxRequests, requests);
    }
    result.batch.insert(result.batch.end(), static_cast<std::size_t>(row.count),
                        Request{row.query_len, row.seq_len, row.prefilling});
  }
  result.label = canonical_batch_spec(result.batch);
  return result;
}

}  // namespace

void BatchReader::check(const Value& value, IssueList& issues) {
  const bool several = value.is_list() && !is_rows(value);
  if (several && value.items.empty()) {
    issues.add_mismatch(ErrorKind::kFormat, "batch", kForms, value);
  }
  if (!several) return check_one(value, issues);
  for (const Value& item : value.items) {
    if (!issues.full()) check_one(item, issues);
  }
}

std::vector<const Value*> BatchReader::split(const Value& value) {
  if (!value.is_list() || is_rows(value)) return {&value};
  std::vector<const Value*> batches;
  for (const Value& item : value.items) batches.push_back(&item);
  return batches;
}

void BatchReader::expand_steps(Value& batch) {
  if (batch.is_list()) {
    std::vector<Value> items;
    for (Value& item : batch.items) {
      const bool is_trace = item.is_map() && item.find("trace") != nullptr;
      if (is_trace) expand_steps(item);
      if (is_trace && item.is_list()) {
        std::move(item.items.begin(), item.items.end(), std::back_inserter(items));
      } else {
        items.push_back(std::move(item));
      }
    }
    batch.items = std::move(items);
    return;
  }
  const Value* steps = batch.is_map() ? batch.find("steps") : nullptr;
  const std::optional<std::int64_t> count = steps == nullptr ? std::nullopt : sampled_steps(*steps);
  if (!count) return;
  const Value* last = batch.find("step");
  const Value* seed = batch.find("seed");
  const std::int64_t num_steps =
      last != nullptr && last->is_int() ? last->integer : TraceKeys{}.step;
  if (*count > num_steps) return;
  const auto start =
      static_cast<std::uint64_t>(seed != nullptr && seed->is_int() ? seed->integer : 0);
  Value list = Value::list();
  list.mark = batch.mark;
  for (std::int64_t i = 0; i < *count; ++i) {
    const std::int64_t begin = i * num_steps / *count;
    const std::int64_t size = (i + 1) * num_steps / *count - begin;
    const std::uint64_t draw = splitmix64(start + static_cast<std::uint64_t>(i));
    Value one = batch;
    one.erase("steps");
    Value& step = one.at_or_add("step");
    const Mark mark = steps->mark;
    step =
        Value::of(begin + 1 + static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(size)));
    step.mark = mark;
    list.items.push_back(std::move(one));
  }
  batch = std::move(list);
}

BatchResult BatchReader::read(const Value& value, bool cross) {
  if (value.is_map()) return replay(value);
  if (value.is_list()) return expand_rows(value);
  try {
    BatchResult result{parse_batch_spec(value.text, cross), ""};
    result.label = canonical_batch_spec(result.batch);
    return result;
  } catch (const Error& error) {
    fail(error.kind(), "{}batch: {}", location(value.mark), error.what());
  }
}

BatchResult BatchReader::replay(const Value& value) {
  IssueList issues;
  const TraceKeys keys = read_trace_keys(value, issues);
  issues.throw_if_any();
  const std::string& format = value.find("format")->text;
  const std::filesystem::path path = resolve_path(*value.find("trace"));
  const std::string trace_key = format + ":" + path.string();
  std::vector<TraceRequest>& trace = traces_[trace_key];
  if (trace.empty()) {
    try {
      trace = read_trace(path, *enum_from_name<TraceFormat>(format));
    } catch (const Error& error) {
      fail(error.kind(), "{}batch.trace: {}", location(value.find("trace")->mark), error.what());
    }
  }
  const ReplayOptions options{keys.requests, keys.max_batched_tokens,
                              keys.step,     static_cast<std::uint64_t>(keys.seed),
                              keys.arrivals, keys.rate,
                              keys.step_ms};
  const std::string key =
      fmt::format("{} {} {} {} {} {} {}", keys.requests, keys.max_batched_tokens, keys.seed,
                  to_string(keys.arrivals), keys.rate, keys.step_ms, trace_key);
  if (!last_.at || key != last_.key || keys.step < last_.step) {
    try {
      last_ = {key, 0, start_replay(trace, options)};
    } catch (const Error& error) {
      fail(error.kind(), "{}batch.{}", location(value.mark), error.what());
    }
  }
  last_.step = keys.step;
  ReplayedBatch replayed = last_.at(keys.step);
  return {std::move(replayed.batch), fmt::format("trace-step{}", keys.step),
          replayed.shared_prefix_tokens};
}

}  // namespace attnbench
