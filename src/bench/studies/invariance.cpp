// Each change is one or more placements: a problem with its inputs, and which rows of its output
// are which rows of the request. One function runs a placement whatever the change is.
#include "bench/studies/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "bench/cases/attention_values.h"
#include "bench/cases/single_request.h"
#include "core/error.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/make_inputs.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// Where the request, or a part of it, stands in a batch.
struct PlacedRows {
  Problem problem;
  AttentionInputs inputs;
  std::int64_t first_row = 0;     // of the batch's output
  std::int64_t first_in_one = 0;  // the same row of the request by itself
  std::int64_t num_rows = 0;
};

struct Change {
  std::string words;
  std::vector<PlacedRows> placements;
  int num_sms = 0;  // 0 = the device's
};

std::size_t row_bytes(const Tensor& tensor) {
  return tensor.dim(0) == 0 ? 0 : tensor.size_bytes() / static_cast<std::size_t>(tensor.dim(0));
}

/// Rows [from, from + count) of `source` become those from `to` on.
void copy_rows(const Tensor& source, std::int64_t from, std::int64_t count, Tensor& target,
               std::int64_t to) {
  const std::size_t bytes = row_bytes(source);
  if (count == 0 || bytes == 0) return;
  std::memcpy(target.bytes() + static_cast<std::size_t>(to) * bytes,
              source.bytes() + static_cast<std::size_t>(from) * bytes,
              static_cast<std::size_t>(count) * bytes);
}

std::int64_t pages_of(const Problem& problem) {
  std::int64_t pages = 1;
  for (const Request& request : problem.batch) {
    pages += (request.seq_len + problem.kv_cache.block_size - 1) / problem.kv_cache.block_size;
  }
  return pages;
}

/// The request by itself, from which all changes are made.
class OneRequest {
 public:
  OneRequest(const Problem& problem, std::int64_t request)
      : problem_(problem_of_request(problem, request)) {
    AttentionInputs all = make_inputs(problem);
    inputs_ = inputs_of_request(all, request);
  }

  const Problem& problem() const { return problem_; }
  const AttentionInputs& inputs() const { return inputs_; }
  const Request& request() const { return problem_.batch.front(); }

  PlacedRows by_itself() const { return {problem_, inputs_, 0, 0, request().query_len}; }

  /// Beside `neighbours`, whose values are drawn, in place `position` of the batch.
  PlacedRows beside(std::vector<Request> neighbours, std::size_t position) const {
    neighbours.insert(neighbours.begin() + static_cast<std::ptrdiff_t>(position), request());
    Problem problem = problem_;
    problem.batch = std::move(neighbours);
    const int place = static_cast<int>(position);
    if (place != 0 && problem.attention.mm_prefix_ranges.contains(0)) {
      problem.attention.mm_prefix_ranges = {{place, problem_.attention.mm_prefix_ranges.at(0)}};
    }
    return put(std::move(problem), position, {0, request().query_len, request().seq_len}, 0);
  }

  /// Rows [begin, end) of it as a request of their own, over the keys before them and their own.
  PlacedRows chunk(std::int64_t begin, std::int64_t end) const {
    const std::int64_t keys = context() + end;
    Problem problem = problem_;
    problem.batch = {{end - begin, keys}};
    return put(std::move(problem), 0, {begin, end - begin, keys}, 0);
  }

  /// The last row, with `before` drawn rows of a longer prompt before it.
  PlacedRows last_row_after(std::int64_t before) const {
    Problem problem = problem_;
    problem.batch = {{before + 1, request().seq_len}};
    return put(std::move(problem), 0, {request().query_len - 1, 1, request().seq_len}, before);
  }

  std::int64_t context() const { return request().seq_len - request().query_len; }

 private:
  struct Part {
    std::int64_t first_row;
    std::int64_t num_rows;
    std::int64_t num_keys;
  };

  /// Draws the batch and writes the part of the request over its place in it.
  PlacedRows put(Problem problem, std::size_t position, const Part& part,
                 std::int64_t rows_before) const {
    problem.inputs.seed += 1;
    problem.inputs.file.reset();
    problem.kv_cache.manager_block_size.reset();
    problem.kv_cache.num_blocks = pages_of(problem);
    PlacedRows placement{std::move(problem), {}, 0, part.first_row, part.num_rows};
    placement.inputs = make_inputs(placement.problem);
    AttentionInputs& inputs = placement.inputs;
    placement.first_row = inputs.query_start_loc[position] + rows_before;
    copy_rows(inputs_.query, part.first_row, part.num_rows, inputs.query, placement.first_row);
    const std::int64_t first_key = inputs.key_start_loc[position];
    copy_rows(inputs_.key, 0, part.num_keys, inputs.key, first_key);
    copy_rows(inputs_.value, 0, part.num_keys, inputs.value, first_key);
    inputs.sinks = inputs_.sinks;
    inputs.alibi_slopes = inputs_.alibi_slopes;
    inputs.value_channel_scale = inputs_.value_channel_scale;
    return placement;
  }

  Problem problem_;
  AttentionInputs inputs_;
};

/// Pipelines divide work by the multiprocessors that they are told of.
class OtherSms final : public ForwardingOps {
 public:
  OtherSms(Ops& inner, int num_sms) : ForwardingOps(inner), num_sms_(num_sms) {}
  int num_sms() const override { return num_sms_; }

 private:
  int num_sms_;
};

std::vector<Request> copies(const Request& request, std::size_t count) {
  return std::vector<Request>(count, request);
}

void add_neighbours(const OneRequest& one, std::vector<Change>& changes) {
  const Request& request = one.request();
  for (const std::size_t size : {2, 8, 32}) {
    changes.push_back(
        {fmt::format("last of {} alike", size), {one.beside(copies(request, size - 1), size - 1)}});
  }
  changes.push_back({"first of 8 alike", {one.beside(copies(request, 7), 0)}});
  changes.push_back({"fourth of 8 alike", {one.beside(copies(request, 7), 3)}});
  const Request longer{request.query_len, std::max<std::int64_t>(4 * request.seq_len, 64)};
  changes.push_back({"after one four times as long", {one.beside({longer}, 1)}});
  const std::int64_t prompt = std::min<std::int64_t>(request.seq_len, 256);
  changes.push_back({"after a prompt", {one.beside({{prompt, prompt}}, 1)}});
  changes.push_back({"before 7 decodes", {one.beside(copies({1, request.seq_len}, 7), 0)}});
}

void add_pages(const OneRequest& one, std::vector<Change>& changes) {
  if (is_encoder_type(one.problem().attention.type)) return;
  PlacedRows order = one.by_itself();
  order.problem.kv_cache.shuffle_blocks = !order.problem.kv_cache.shuffle_blocks;
  changes.push_back({order.problem.kv_cache.shuffle_blocks ? "pages shuffled" : "pages in order",
                     {std::move(order)}});
  for (const int block_size : {16, 32, 64, 128}) {
    if (block_size == one.problem().kv_cache.block_size) continue;
    // A chunk of local attention is whole pages.
    if (one.problem().attention.chunk_size.value_or(0) % block_size != 0) continue;
    PlacedRows sized = one.by_itself();
    sized.problem.kv_cache.block_size = block_size;
    sized.problem.kv_cache.num_blocks = pages_of(sized.problem);
    changes.push_back({fmt::format("pages of {}", block_size), {std::move(sized)}});
  }
}

/// Changes that leave the keys of each row as they are only where rows see nothing behind them.
void add_chunks(const OneRequest& one, std::vector<Change>& changes) {
  const Problem& problem = one.problem();
  const std::int64_t rows = one.request().query_len;
  if (!problem.attention.causal || problem.attention.type != AttentionType::kDecoder) return;
  if (!problem.attention.mm_prefix_ranges.empty()) return;
  for (const std::int64_t chunks : {2, 4}) {
    if (rows < 2 * chunks) continue;
    Change change{fmt::format("in {} chunks", chunks), {}};
    for (std::int64_t i = 0; i < chunks; ++i) {
      change.placements.push_back(one.chunk(rows * i / chunks, rows * (i + 1) / chunks));
    }
    changes.push_back(std::move(change));
  }
  if (rows > 1) changes.push_back({"last token as a decode", {one.chunk(rows - 1, rows)}});
  const std::int64_t before = std::min<std::int64_t>(one.request().seq_len - 1, 63);
  if (rows == 1 && before > 0) {
    changes.push_back({"as the last token of a prompt", {one.last_row_after(before)}});
  }
}

std::vector<Change> changes_of(const OneRequest& one, int num_sms) {
  std::vector<Change> changes;
  changes.push_back({"run again", {one.by_itself()}});
  add_neighbours(one, changes);
  add_pages(one, changes);
  add_chunks(one, changes);
  changes.push_back({"work divided for 1 SM", {one.by_itself()}, 1});
  changes.push_back(
      {fmt::format("work divided for {} SMs", 2 * num_sms), {one.by_itself()}, 2 * num_sms});
  return changes;
}

/// What a problem cannot be changed to, such as a path that the scenario is held to.
bool is_refusal(const Error& error) {
  return error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kConfig;
}

class Study {
 public:
  Study(const Backend& backend, Ops& ops, const DeviceFacts& device,
        const ReferenceOptions& options)
      : backend_(backend), ops_(ops), device_(device), options_(options) {}

  /// The rows of the request that the placement holds, [rows, H, Dv].
  Tensor rows_of(const PlacedRows& placement, Ops& ops) const {
    AttentionValues values(placement.problem, placement.inputs);
    const BackendInputs inputs = values.backend_inputs(backend_);
    const std::unique_ptr<Pipeline> pipeline = backend_.prepare(placement.problem, inputs, ops);
    pipeline->poison_outputs();
    for (const Step& step : pipeline->steps()) step.run();
    ops.synchronize();
    const Tensor output = pipeline->read_output(false).output;
    Tensor rows(output.dtype(), {placement.num_rows, output.dim(1), output.dim(2)});
    copy_rows(output, placement.first_row, placement.num_rows, rows, 0);
    return rows;
  }

  InvarianceRow row_of(const Change& change, const Tensor& expected) {
    InvarianceRow row;
    row.change = change.words;
    row.refusal = refusal_of(change);
    if (!row.refusal.empty()) return row;
    row.equal = true;
    row.row_error = 0;
    for (const PlacedRows& placement : change.placements) {
      OtherSms other(ops_, change.num_sms);
      Tensor rows;
      try {
        rows = rows_of(placement, change.num_sms > 0 ? static_cast<Ops&>(other) : ops_);
      } catch (const Error& error) {
        if (!is_refusal(error)) throw;
        row.refusal = error.what();
        return row;
      }
      compare(placement, rows, expected, row);
    }
    return row;
  }

  /// Of the request by itself. Errors: as for run_jobs().
  void set_reference(const PlacedRows& one) {
    AttentionValues values(one.problem, one.inputs);
    values.backend_inputs(backend_);
    const ReferenceOutput* reference = values.reference(values.key_of(backend_));
    if (reference != nullptr) reference_ = *reference;
  }

  /// The largest over rows of `rows`, which begin with row `first_in_one` of the request.
  double row_error(const Tensor& rows, std::int64_t first_in_one) const {
    double largest = std::numeric_limits<double>::quiet_NaN();
    const std::int64_t heads = rows.dim(1);
    const std::int64_t width = rows.dim(2);
    for (std::size_t i = 0; i < reference_.rows.size(); ++i) {
      const std::int64_t row = reference_.rows[i] - first_in_one;
      if (row < 0 || row >= rows.dim(0)) continue;
      for (std::int64_t head = 0; head < heads; ++head) {
        double error = 0;
        double size = 0;
        for (std::int64_t d = 0; d < width; ++d) {
          const double expected = reference_.output[static_cast<std::size_t>(
              (static_cast<std::int64_t>(i) * heads + head) * width + d)];
          const double actual = rows.at((row * heads + head) * width + d);
          error += (actual - expected) * (actual - expected);
          size += expected * expected;
        }
        // Why: fmax() passes over a NaN, and a row of NaN is no row without an error.
        if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
        if (size > 0) largest = std::fmax(largest, std::sqrt(error / size));
      }
    }
    return largest;
  }

 private:
  std::string refusal_of(const Change& change) const {
    for (const PlacedRows& placement : change.placements) {
      const auto reasons = backend_.refusals(placement.problem, device_);
      if (!reasons.empty()) return reasons.front();
    }
    return {};
  }

  void compare(const PlacedRows& placement, const Tensor& rows, const Tensor& expected,
               InvarianceRow& row) const {
    const std::size_t bytes = row_bytes(expected);
    const std::byte* const same =
        expected.bytes() + static_cast<std::size_t>(placement.first_in_one) * bytes;
    row.equal = row.equal && std::memcmp(rows.bytes(), same, rows.size_bytes()) == 0;
    const std::int64_t first =
        placement.first_in_one *
        (expected.num_elements() / std::max<std::int64_t>(expected.dim(0), 1));
    for (std::int64_t i = 0; i < rows.num_elements(); ++i) {
      const double difference = std::abs(static_cast<double>(rows.at(i)) - expected.at(first + i));
      row.max_abs = std::fmax(row.max_abs, difference);
    }
    row.row_error = std::fmax(row.row_error, row_error(rows, placement.first_in_one));
  }

  const Backend& backend_;
  Ops& ops_;
  const DeviceFacts& device_;
  const ReferenceOptions& options_;
  ReferenceOutput reference_;
};

std::int64_t last_with_tokens(const Problem& problem) {
  for (std::int64_t b = problem.num_requests() - 1; b >= 0; --b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    if (request.query_len > 0 && request.seq_len > 0) return b;
  }
  return -1;
}

}  // namespace

std::string why_no_invariance(const Problem& problem) {
  switch (problem.attention.type) {
    case AttentionType::kMla:
    case AttentionType::kMmEncoder:
    case AttentionType::kOp:
      return fmt::format("attention.type {}: no request of it can be taken out of its batch",
                         to_string(problem.attention.type));
    default:
      break;
  }
  if (problem.dcp.world_size > 1) return "dcp: ranks hold parts of a request";
  if (calculates_kv_scales(problem)) {
    return "kv_cache.calculate_kv_scales: the scales depend on the whole batch";
  }
  return last_with_tokens(problem) < 0 ? "no request has new tokens and keys" : "";
}

InvarianceReport study_invariance(const Problem& problem, const Backend& backend, Ops& ops,
                                  const DeviceFacts& device, const ReferenceOptions& options) {
  InvarianceReport report;
  report.request = last_with_tokens(problem);
  const OneRequest one(problem, report.request);
  Study study(backend, ops, device, options);
  const PlacedRows by_itself = one.by_itself();
  const Tensor expected = study.rows_of(by_itself, ops);
  study.set_reference(by_itself);
  report.row_error = study.row_error(expected, 0);
  for (const Change& change : changes_of(one, device.num_sms)) {
    report.rows.push_back(study.row_of(change, expected));
  }
  return report;
}

}  // namespace attnbench
