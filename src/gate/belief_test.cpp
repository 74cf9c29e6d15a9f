#include "gate/belief.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "core/error.h"
#include "gate/gate_cases.h"

namespace attnbench::belief_test {
namespace {

using gate_testing::at_clock;
using gate_testing::file_of;
using gate_testing::result_of;
using gate_testing::timing_of;
using gate_testing::with_status;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A result with every number that a file can hold.
Result full_result() {
  Result result = at_clock(result_of("a"), 1500);
  result.lse_error = result.probe_error = result.probe_lse_error = result.error;
  result.error->row_error = 1e-3;
  result.error->row_limit = 4e-3;
  result.error->max_abs = 0.01;
  result.error->mean_abs = 0.001;
  result.error->matched_pct = 100;
  result.error->screened_rows = 64;
  result.timing->waits_us.assign(result.timing->samples_us.size(), 1);
  result.timing->cpu_wait = 0.01;
  result.timing->rounds = {4, 6};
  result.timing->checked_samples = {{3, 1e-3, 4e-3}};
  Throughput& rate = result.throughput.emplace();
  const double median_us = result.timing->median_us;
  rate.flops = 4e9;
  rate.bytes = 2e6;
  rate.tflops = rate.flops / median_us * 1e-6;
  rate.gbps = rate.bytes / median_us * 1e-3;
  rate.ceiling_tflops = 2 * rate.tflops;
  rate.ceiling_gbps = 8 * rate.gbps;
  rate.roofline_pct = 50;
  rate.bound = "compute";
  rate.by_name["physics_pct"] = 50;
  return result;
}

/// What is said of a full result after `change`, all of it in one text.
std::string said(const std::function<void(Result&)>& change) {
  Result result = full_result();
  change(result);
  std::string text;
  for (const std::string& sentence : contradictions(result)) text += sentence + "\n";
  return text;
}

bool says(const std::string& text, const std::string& words) {
  const bool found = text.find(words) != std::string::npos;
  if (!found) MESSAGE(text);
  return found;
}

}  // namespace

TEST_CASE("a result whose numbers agree contradicts nothing") {
  CHECK(said([](Result&) {}) == "");
}

TEST_CASE("how it was timed must be how its case is timed") {
  const auto with = [](const char* timing, const char* mode, const char* l2, const char* device) {
    return said([=](Result& r) {
      r.problem_json = std::string(R"({"timing":)") + timing + "}";
      r.timing->mode = mode;
      r.timing->l2 = l2;
      r.device = device;
      r.timing->waits_us.clear();
    });
  };
  const char* stream = R"({"mode":"stream","l2":"cold"})";
  const char* graph = R"({"mode":"graph","l2":"warm"})";
  CHECK(with(stream, "stream", "cold", "cuda:0") == "");
  CHECK(with(stream, "stream", "warm", "cuda:0") == "");  // not proven
  CHECK(with(graph, "stream", "warm", "cpu") == "");      // which has no graphs
  CHECK(with("{}", "graph", "clean", "cuda:0") == "");
  CHECK(says(with(stream, "graph", "cold", "cuda:0"),
             "timing.mode is 'graph', but problem.timing.mode is 'stream'"));
  CHECK(says(with(stream, "graph", "cold", "cpu"), "timing.mode is 'graph'"));
  CHECK(says(with(graph, "stream", "warm", "cuda:0"),
             "timing.mode is 'stream', but problem.timing.mode is 'graph'"));
  CHECK(says(with(graph, "graph", "cold", "cuda:0"),
             "timing.l2 is 'cold', but problem.timing.l2 is 'warm'"));
  CHECK(says(with(stream, "stream", "clean", "cuda:0"),
             "timing.l2 is 'clean', but problem.timing.l2 is 'cold'"));
}

TEST_CASE("nothing that passed has reasons against it") {
  CHECK(says(said([](Result& r) { r.reasons = {"output is off"}; }),
             "reasons has 'output is off', but the result passed"));
  CHECK(said([](Result& r) {
          r.status = Status::kIncorrect;
          r.reasons = {"output is off"};
        }) == "");
}

TEST_CASE("samples that are no times are named with their place") {
  CHECK(says(said([](Result& r) { r.timing->samples_us[2] = 0; }), "timing.samples_us[2] is 0"));
  CHECK(says(said([](Result& r) { r.timing->samples_us[0] = -3; }), "timing.samples_us[0] is -3"));
  CHECK(says(said([](Result& r) { r.timing->samples_us[1] = kInfinity; }), "samples_us[1] is inf"));
  CHECK(says(said([](Result& r) { r.timing->samples_us[1] = kNaN; }), "samples_us[1] is nan"));
  CHECK(says(said([](Result& r) { r.timing->samples_us.clear(); }), "timing.samples_us is empty"));
}

TEST_CASE("every number of the samples must be theirs") {
  const auto changed = [](double Timing::*member) {
    return said([member](Result& r) { (*r.timing).*member *= 1.01; });
  };
  CHECK(says(changed(&Timing::median_us), "timing.median_us is 101, but samples_us give 100"));
  CHECK(says(changed(&Timing::min_us), "timing.min_us is"));
  CHECK(says(changed(&Timing::q1_us), "timing.q1_us is"));
  CHECK(says(changed(&Timing::q3_us), "timing.q3_us is"));
  CHECK(says(changed(&Timing::mean_us), "timing.mean_us is"));
  CHECK(says(changed(&Timing::stdev_us), "timing.stdev_us is"));
  CHECK(says(said([](Result& r) { r.timing->noise = 0.3; }), "timing.noise is 0.3"));
  CHECK(says(said([](Result& r) { r.timing->median_us = kNaN; }), "timing.median_us is nan"));
}

TEST_CASE("waits belong to their samples and to the share of them that is said") {
  CHECK(says(said([](Result& r) { r.timing->waits_us[4] = 150; }), "timing.waits_us[4] is 150"));
  CHECK(says(said([](Result& r) { r.timing->waits_us[4] = -1; }), "timing.waits_us[4] is -1"));
  CHECK(says(said([](Result& r) { r.timing->waits_us.pop_back(); }), "timing.waits_us has 9"));
  CHECK(says(said([](Result& r) { r.timing->cpu_wait = 0; }), "timing.cpu_wait is 0, but"));
  CHECK(says(said([](Result& r) { r.timing->cpu_wait = kNaN; }), "timing.cpu_wait is missing"));
}

TEST_CASE("nothing measures waits on a GPU") {
  const std::string text = said([](Result& r) { r.device = "cuda:0"; });
  CHECK(says(text, "waits_us is there, but nothing measures waits on cuda:0"));
  CHECK_FALSE(says(said([](Result&) {}), "nothing measures waits"));
}

TEST_CASE("samples of operations, which have no rule by rows, have none either") {
  const auto without_rows = [](Result& r) {
    r.error->row_error = r.error->row_limit = kNaN;
    r.timing->checked_samples = {{3, kNaN, kNaN}};
  };
  CHECK_FALSE(says(said(without_rows), "checked_samples"));
  CHECK(says(said([](Result& r) {
               r.timing->checked_samples = {{3, kNaN, kNaN}};
             }),
             "checked_samples[0].row_error"));
}

TEST_CASE("clocks are of every sample, and cycles are time times clock") {
  CHECK(says(said([](Result& r) { r.timing->samples_sm_mhz.pop_back(); }), "samples_sm_mhz has 9"));
  CHECK(says(said([](Result& r) { r.timing->samples_sm_mhz[1] = 0; }), "samples_sm_mhz[1] is 0"));
  CHECK(says(said([](Result& r) { r.timing->samples_sm_mhz.clear(); }),
             "timing.cycles is 150000, but there are no samples_sm_mhz"));
  CHECK(says(said([](Result& r) { r.timing->cycles = kNaN; }), "timing.cycles is missing"));
  CHECK(says(said([](Result& r) { r.timing->cycles *= 0.9; }),
             "timing.cycles is 135000, but samples_us"));
}

TEST_CASE("what passed was compared, in rows that are inside their limits") {
  CHECK(says(said([](Result& r) { r.error.reset(); }), "error is missing, but the result passed"));
  const auto of_error = [](const std::function<void(ErrorStats&)>& change) {
    return said([&](Result& r) { change(*r.error); });
  };
  CHECK(says(of_error([](ErrorStats& e) { e.checked_rows = 0; }), "error.checked_rows is 0 of 64"));
  CHECK(says(of_error([](ErrorStats& e) { e.rows_outside = 2; }), "error.rows_outside is 2"));
  CHECK(says(of_error([](ErrorStats& e) { e.requests_outside = 1; }), "requests_outside is 1"));
  CHECK(says(of_error([](ErrorStats& e) { e.row_error = 5e-3; }),
             "error.row_error is 0.005, above row_limit 0.004, but"));
  CHECK(says(of_error([](ErrorStats& e) { e.row_error = kNaN; }),
             "error.row_error is nan, but row_limit is 0.004"));
  CHECK(
      says(said([](Result& r) { r.lse_error->rows_outside = 1; }), "lse_error.rows_outside is 1"));
  CHECK(says(said([](Result& r) { r.probe_error->checked_rows = 0; }), "probe_error.checked_rows"));
  CHECK(says(said([](Result& r) { r.timing->checked_samples[0].row_error = 1; }),
             "timing.checked_samples[0].row_error is 1, above row_limit 0.004"));
  CHECK(says(said([](Result& r) { r.timing->checked_samples[0].sample = 10; }),
             "timing.checked_samples[0].sample is 10"));
}

TEST_CASE("what passed without a single row was not compared, however many rows there were") {
  CHECK(says(said([](Result& r) { r.error->checked_rows = r.error->total_rows = 0; }),
             "error.checked_rows is 0 of 0 rows, but the result passed"));
}

TEST_CASE("a case without new tokens has no rows, and passes without one") {
  const auto of_batch = [](const std::string& batch) {
    return said([&](Result& r) {
      r.problem_json = "{\"batch\": " + batch + "}";
      for (ErrorStats* error : {&*r.error, &*r.lse_error, &*r.probe_error}) {
        error->checked_rows = error->total_rows = error->screened_rows = 0;
      }
    });
  };
  CHECK(of_batch(R"([{"count": 3, "query_len": 0, "seq_len": 20}])") == "");
  const std::string nothing = "error.checked_rows is 0 of 0 rows, but the result passed";
  CHECK(says(of_batch(R"([{"query_len": 0, "seq_len": 2}, {"query_len": 1, "seq_len": 2}])"),
             nothing));
  CHECK(says(of_batch("[]"), nothing));
  CHECK(says(of_batch(R"([{"seq_len": 2}])"), nothing));
  CHECK(says(of_batch("\"3q0s20\""), nothing));
}

TEST_CASE("every rank is judged like the whole, and stands in its place") {
  const auto of_ranks = [](const std::function<void(Result&)>& change) {
    return said([&](Result& r) {
      for (int rank = 0; rank < 2; ++rank) r.rank_errors.push_back({rank, *r.error, *r.lse_error});
      change(r);
    });
  };
  CHECK(of_ranks([](Result&) {}) == "");
  CHECK(says(of_ranks([](Result& r) { r.rank_errors[1].error.rows_outside = 3; }),
             "rank_errors[1].error.rows_outside is 3"));
  CHECK(says(of_ranks([](Result& r) { r.rank_errors[0].lse_error.checked_rows = 0; }),
             "rank_errors[0].lse_error.checked_rows is 0 of 64"));
  CHECK(says(of_ranks([](Result& r) { r.rank_errors[1].error.max_abs = -1; }),
             "rank_errors[1].error.max_abs is -1"));
  CHECK(says(of_ranks([](Result& r) { r.rank_errors[1].rank = 0; }),
             "rank_errors[1].rank is 0, but ranks are listed in order from 0"));
}

TEST_CASE("what quantising cost is a number of a comparison, but no verdict") {
  const auto of_quantising = [](const std::function<void(ErrorStats&)>& change) {
    return said([&](Result& r) {
      r.quantization_error = r.error;
      change(*r.quantization_error);
    });
  };
  CHECK(of_quantising([](ErrorStats& e) { e.row_error = 5; }) == "");
  CHECK(says(of_quantising([](ErrorStats& e) { e.max_abs = kInfinity; }),
             "quantization_error.max_abs is inf"));
}

TEST_CASE("what is incorrect may say so in every number") {
  CHECK(said([](Result& r) {
          r.status = Status::kIncorrect;
          r.error->row_error = 5;
          r.error->rows_outside = 2;
          r.timing->checked_samples.clear();
        }) == "");
}

TEST_CASE("numbers of an error are those of one comparison") {
  const auto of_error = [](const std::function<void(ErrorStats&)>& change) {
    return said([&](Result& r) { change(*r.error); });
  };
  CHECK(says(of_error([](ErrorStats& e) { e.max_abs = -1; }), "error.max_abs is -1"));
  CHECK(says(of_error([](ErrorStats& e) { e.err_ratio = kInfinity; }), "error.err_ratio is inf"));
  CHECK(says(of_error([](ErrorStats& e) { e.nmse = 0; }), "error.nmse is 0, but rms_rel squared"));
  CHECK(
      says(of_error([](ErrorStats& e) { e.mean_abs = 1; }), "error.mean_abs is 1, above max_abs"));
  CHECK(says(of_error([](ErrorStats& e) { e.cosine = 1.1; }), "error.cosine is 1.1"));
  CHECK(says(of_error([](ErrorStats& e) { e.matched_pct = 101; }), "error.matched_pct is 101"));
  CHECK(says(of_error([](ErrorStats& e) { e.nan_count = -1; }), "error.nan_count is -1"));
  CHECK(says(of_error([](ErrorStats& e) { e.checked_rows = 65; }),
             "error.checked_rows is 65, more than total_rows 64"));
  CHECK(says(of_error([](ErrorStats& e) { e.screened_rows = 65; }), "error.screened_rows is 65"));
}

TEST_CASE("what quantising costs is within the limit that the scenario sets") {
  const auto with_limit = [](double rms_rel, const std::string& limit) {
    return said([&](Result& r) {
      r.quantization_error = r.error;
      r.quantization_error->rms_rel = rms_rel;
      r.quantization_error->nmse = rms_rel * rms_rel;
      r.problem_json = R"({"validation":{"max_quantization_error":)" + limit + "}}";
    });
  };
  CHECK(says(with_limit(0.05, "0.02"), "quantization_error.rms_rel is 0.05"));
  CHECK(with_limit(0.02, "0.02").empty());
  CHECK(with_limit(0.05, "null").empty());
  CHECK(says(said([](Result& r) {
               r.quantization_error = r.error;
               r.quantization_error->by_name["saturated_key"] = 1.5;
             }),
             "quantization_error.saturated_key is 1.5"));
}

TEST_CASE("limits of the whole batch bind the results of earlier versions that name them") {
  const auto old = [](double err_ratio, double cosine, double matched, double max_abs = 0.01) {
    return said([&](Result& r) {
      ErrorStats& error = *r.error;
      error.row_error = error.row_limit = kNaN;
      error.limit =
          "|a-r| <= 0.01 + 0.01*|r|, cosine >= 1-1e-05, err_ratio <= 2 or max_abs <= 0.001";
      error.err_ratio = err_ratio;
      error.cosine = cosine;
      error.matched_pct = matched;
      error.max_abs = max_abs;
      error.mean_abs = 0;
    });
  };
  CHECK(old(1.9, 1 - 1e-6, 100) == "");
  CHECK(old(50, 1, 100, 5e-4) == "");
  CHECK(says(old(50, 1, 100),
             "error.err_ratio is 50, not within its limit 2, but the result passed"));
  CHECK(says(old(1, 0.99, 100), "error.cosine is 0.99"));
  CHECK(says(old(1, 1, 99), "error.matched_pct is 99"));
  CHECK(says(old(kNaN, 1, 100), "error.err_ratio is nan, not within its limit 2"));
  CHECK(says(old(1, kNaN, 100), "error.cosine is nan, not within its limit"));
  CHECK(says(old(1, 1, kNaN), "error.matched_pct is nan, not 100"));
}

TEST_CASE("rates are work over the time that is stored") {
  const auto of_rate = [](const std::function<void(Throughput&)>& change) {
    return said([&](Result& r) { change(*r.throughput); });
  };
  CHECK(says(of_rate([](Throughput& t) { t.tflops *= 2; }), "throughput.tflops is 80, but flops"));
  CHECK(says(of_rate([](Throughput& t) { t.gbps *= 2; }), "throughput.gbps is 40, but bytes"));
  CHECK(says(of_rate([](Throughput& t) { t.roofline_pct = 90; }), "throughput.roofline_pct is 90"));
  CHECK(says(of_rate([](Throughput& t) { t.bound = "memory"; }), "throughput.bound is 'memory'"));
  CHECK(says(said([](Result& r) { r.timing.reset(); }),
             "throughput.tflops is 40, but there is no timing"));
}

TEST_CASE("a time beyond the device is called implausible or not believed") {
  const auto beyond = [](Result& r) { r.throughput->by_name["physics_pct"] = 111; };
  CHECK(says(said(beyond), "throughput.physics_pct is 111, above 110, but the status is 'passed'"));
  CHECK(said([&](Result& r) {
          beyond(r);
          r.status = Status::kImplausible;
        }) == "");
  CHECK(said([](Result& r) { r.throughput->by_name["physics_pct"] = 109; }) == "");
}

TEST_CASE("files of earlier versions are believed on a GPU up to its ceilings") {
  const auto on_gpu = [](double share, const char* bound, const char* l2, double l2_bytes,
                         const char* dtype = "bfloat16") {
    Result result = full_result();
    result.device = "cuda:0";
    result.problem_json = R"({"attention":{"dtype":")" + std::string(dtype) + "\"}}";
    result.timing->l2 = l2;
    result.timing->waits_us.clear();
    result.timing->cpu_wait = std::numeric_limits<double>::quiet_NaN();
    Throughput& rate = *result.throughput;
    rate.by_name.clear();
    rate.bound = bound;
    const bool memory = rate.bound == "memory";
    rate.ceiling_tflops = rate.tflops / (memory ? 0.1 : share);
    rate.ceiling_gbps = rate.gbps / (memory ? share : 0.1);
    rate.roofline_pct = 100 * share;
    return contradictions(result, l2_bytes);
  };
  CHECK(on_gpu(1.09, "compute", "warm", 0).empty());
  CHECK(on_gpu(1.12, "compute", "warm", 0).size() == 1);
  // f32 may be made of 16-bit products.
  CHECK(on_gpu(1.12, "compute", "warm", 0, "float32").empty());
  // 2 MB: a tenth of it may have been in the cache.
  CHECK(on_gpu(1.04, "memory", "cold", 2e5).empty());
  CHECK(on_gpu(1.10, "memory", "cold", 2e5).empty());
  CHECK(on_gpu(1.20, "memory", "cold", 2e5).size() == 1);
  CHECK(on_gpu(1.10, "memory", "clean", 2e5).empty());
  CHECK(on_gpu(1.20, "memory", "clean", 2e5).size() == 1);
  CHECK(on_gpu(3, "memory", "warm", 2e5).empty());
  CHECK(on_gpu(3, "memory", "cold", 0).empty());
}

TEST_CASE("an id is made of its scenario, case and backend") {
  CHECK(says(said([](Result& r) { r.backend = "C"; }), "id is 's/a/B', but"));
}

TEST_CASE("a noise floor under which any slowdown would pass is not gone by") {
  ResultFile file = file_of({result_of("a")});
  file.run.noise_floor = NoiseFloor{2, 0.2, {{"s/a/B", 0.2}}};
  CHECK(contradictions(file).empty());
  for (const double floor : {0.21, 10.0, -0.1, kNaN, kInfinity}) {
    file.run.noise_floor = NoiseFloor{2, floor, {}};
    CHECK(contradictions(file).size() == 1);
    file.run.noise_floor = NoiseFloor{2, 0, {{"s/a/B", floor}}};
    CHECK(says(contradictions(file).at(0), "noise_floor.cases['s/a/B'] is"));
  }
}

TEST_CASE("a file that contradicts itself is refused with its first sentences") {
  ResultFile file = file_of({result_of("a"), result_of("b")});
  CHECK_NOTHROW(refuse_contradictions(file));
  for (Result& result : file.results) result.timing->median_us = 50;
  try {
    refuse_contradictions(file);
    FAIL("was believed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kFormat);
    CHECK(says(error.what(), "file.json: the file contradicts itself and cannot be believed"));
    CHECK(says(error.what(), "'s/b/B': timing.median_us is 50, but samples_us give 100"));
  }
}

TEST_CASE("a reader that shows results shows those that are not believed as errors") {
  ResultFile file = file_of({result_of("a"), result_of("b")});
  file.run.noise_floor = NoiseFloor{2, 3, {}};
  file.results[1].timing->median_us = 50;
  CHECK(disbelieve(file) == 1);
  CHECK(file.results[0].status == Status::kPassed);
  const Result& shown = file.results[1];
  CHECK(shown.status == Status::kError);
  CHECK(says(shown.reasons.at(0), "cannot be believed: timing.median_us is 50"));
  CHECK(!shown.timing);
  CHECK(!shown.error);
  CHECK(contradictions(file).empty());
}

}  // namespace attnbench::belief_test
