// The forms of `batch`: a spec, rows, a trace; one of them or a list of several.
//
// Forms are checked for the whole file before any case is built, so that one run shows all faults;
// what depends on the type of attention (KV lengths, the page of a shared prefix) is judged by the
// case that uses the batch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/value.h"
#include "scenario/batch/trace.h"
#include "scenario/text/issues.h"

namespace attnbench {

struct BatchResult {
  std::vector<Request> batch;
  std::string label;  // canonical spec, or "trace-step<N>"
  /// Tokens that all requests share (mooncake traces); the caller rounds to pages.
  std::int64_t shared_prefix_tokens = 0;
};

/// Reads batches; a trace file is read once however many cases replay it, and cases that take later
/// steps of the same replay go on with it.
class BatchReader {
 public:
  BatchReader() = default;
  BatchReader(const BatchReader&) = delete;  // a replay refers to a trace
  BatchReader& operator=(const BatchReader&) = delete;

  /// Form and keys, without reading traces; KV lengths are judged per case, when the type is known.
  static void check(const Value& value, IssueList& issues);

  /// The batches of one `batch` key: each element of a list, except that a list of
  /// {count, query_len, seq_len} is one batch.
  static std::vector<const Value*> split(const Value& value);

  /// A trace with `steps: sample N` becomes a list of N traces that take one step each: one from
  /// each of N equal parts of the first `step` steps, drawn by the seed. Anything else, and a key
  /// that check() will refuse, stays.
  static void expand_steps(Value& batch);

  /// One checked batch; `cross` as for parse_batch_spec. Errors name the place of `value`.
  BatchResult read(const Value& value, bool cross);

 private:
  BatchResult replay(const Value& value);

  std::map<std::string, std::vector<TraceRequest>> traces_;  // by format and path
  /// The last replay: what it is of, the step that it is at, and itself.
  struct {
    std::string key;
    std::int64_t step = 0;
    TraceReplay at;
  } last_;
};

}  // namespace attnbench
