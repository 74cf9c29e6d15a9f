// Decodes whose keys are shared out in other ways than one CTA a row tile, on emulated threads:
// warps that share a ring, splits joined by the last CTA or a cluster, parts of a plan; and the
// kernel that makes plans, against the plan of the host.
#include <doctest/doctest.h>

#include <random>

#include "ops/cuda/testing/emulated_attention_testing.h"
#include "ops/cuda/testing/emulated_runs_testing.h"

#include "kernels/attention/decode/forms.cuh"
#include "kernels/attention/make_plan.cuh"
#include "metadata/parts/decode_plan.h"
#include "ops/plan_rows.h"

namespace attnbench::cuda {
namespace {

void check_rows(const Rows& actual, const Rows& expected) {
  CHECK(rows_fault(actual, expected) == "");
}

/// kRowWarps_ warps a stream, two streams.
template <class Config, int kRowWarps_>
struct Shared : Config {
  static constexpr int kRowWarps = kRowWarps_;
  static constexpr int kWarps = 2 * kRowWarps_;
  static constexpr int kStages = 3;
};

template <class Config>
Rows decode_whole(const Request& request) {
  Device<Config> device(request);
  run_decode<Config>(device.params, attn::WholeRequest{});
  return device.rows();
}

/// Rows of several warps, whose last keys only some of them see.
template <class Config>
void check_shared(bool with_scales) {
  for (const int nan_key : {-1, 3, 90, 99}) {
    CAPTURE(nan_key);
    Request request = uneven_request(100);
    request.nan_key = nan_key;
    request.query_len = 30;
    check_rows(decode_whole<Shared<Config, 2>>(request), whole_reference(request, with_scales));
    request.query_len = 61;
    check_rows(decode_whole<Shared<Config, 4>>(request), whole_reference(request, with_scales));
  }
}

/// Pairs of heads, a warp each, in two streams.
struct PairConfig : CellsConfig {
  static constexpr int kHeads = 2;
  static constexpr int kWarps = 4;
  static constexpr int kStages = 3;
};

/// The same request of two KV heads of a query head each, whose cells follow each other.
template <class Config>
struct Pair {
  Device<Config> first, second;
  std::vector<unsigned char> query;
  std::vector<float> output, lse;
  std::array<float, 2> sinks;
  attn::AttendParams params;

  Pair(const Request& one, const Request& two)
      : first(one),
        second(two),
        query(first.query),
        output(2 * first.output.size(), -1.0f),
        lse(2 * first.lse.size(), -1.0f),
        sinks{one.sink, two.sink},
        params(first.params) {
    query.insert(query.end(), second.query.begin(), second.query.end());
    constexpr int kCell = Device<Config>::kCell;
    for (int slot = 0; slot < first.blocks * kBlock; ++slot) {
      const int at = slot * Device<Config>::kStride + Device<Config>::kFirst;
      std::memcpy(first.key.data() + at + kCell, second.key.data() + at, kCell);
      std::memcpy(first.value.data() + at + kCell, second.value.data() + at, kCell);
    }
    params.num_heads = params.num_kv_heads = 2;
    params.query = query.data();
    params.query_head_stride = params.output_head_stride = one.query_len * kSize;
    params.output = output.data();
    params.lse = lse.data();
    params.lse_stride = one.query_len;
    params.score.sinks = sinks.data();
    params.kv.head_stride_key = params.kv.head_stride_value = kCell;
  }
  Rows rows(std::size_t head) const {
    const auto half = [&](const std::vector<float>& of) {
      const auto begin = of.begin() + static_cast<std::ptrdiff_t>(head * (of.size() / 2));
      return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(of.size() / 2));
    };
    return {half(output), half(lse)};
  }
};

template <class Config>
void check_pair(const Request& one, const Request& two) {
  Pair<Config> pair(one, two);
  run_decode<Config>(pair.params, attn::WholeRequest{});
  check_rows(pair.rows(0), whole_reference(one, true));
  check_rows(pair.rows(1), whole_reference(two, true));
}

/// Splits of a request in the order of `finish`, each by a CTA, the last of which joins them.
template <class Config>
struct Joined {
  Device<Config> device;
  std::vector<float> values, lse;
  std::vector<int> arrivals;
  attn::SplitParams split{};
  int joins = 0;

  Joined(const Request& request, int num_splits) : device(request), arrivals(1, 0) {
    const auto rows = static_cast<std::size_t>(num_splits * request.query_len);
    values.assign(rows * kSize, std::numeric_limits<float>::quiet_NaN());
    lse.assign(rows, std::numeric_limits<float>::quiet_NaN());
    split = {num_splits, request.query_len, values.data(), lse.data(), arrivals.data()};
  }
  /// What decode_joined() does, CTA by CTA.
  void finish(int index) {
    run_decode<Config>(device.params, attn::OneSplit{split, index});
    if (!attn::is_last_arrival(split.arrivals, split.num_splits)) return;
    ++joins;
    using Work = attn::Decode<Config, attn::OneSplit>;
    const attn::RowTile tile = attn::row_tile(device.params, 0, 0, 0, Work::kTileM);
    const int bytes = attn::join_bytes(tile.num_rows, split.num_splits, Work::kThreads);
    EmulatedCta cta(Work::kThreads, static_cast<std::size_t>(bytes));
    cta.run([&] {
      attn::join_splits<Config>(device.params, split, tile, reinterpret_cast<float*>(cta.shared()));
    });
  }
};

template <class Config>
void check_joined(const Request& request, int num_splits, bool with_scales) {
  CAPTURE(num_splits);
  Joined<Config> joined(request, num_splits);
  for (int i = 0; i < num_splits; ++i) joined.finish(i);
  CHECK(joined.joins == 1);
  CHECK(joined.arrivals[0] == 0);
  const Rows first = joined.device.rows();
  check_rows(first, whole_reference(request, with_scales));
  // Another order, and the counter that the first run left.
  std::ranges::fill(joined.device.output, -1.0f);
  for (int i = num_splits - 1; i >= 0; --i) joined.finish(i);
  CHECK(joined.joins == 2);
  const Rows second = joined.device.rows();
  CHECK(std::memcmp(first.output.data(), second.output.data(), first.output.size() * 8) == 0);
  CHECK(first.lse == second.lse);
}

template <class Base, int kParts_>
struct Clustered : Base {
  static constexpr int kParts = kParts_;
};

/// The CTAs of one cluster, side by side.
template <class Config>
Rows decode_cluster(const Request& request) {
  using Cluster = attn::ClusterDecode<Config>;
  using Work = typename Cluster::Work;
  Device<Config> device(request);
  constexpr int kInbox = Work::kLayout.total + static_cast<int>(sizeof(typename Cluster::Inbox));
  constexpr int kStates = kInbox + static_cast<int>(sizeof(attn::RowTile) + 15) / 16 * 16;
  constexpr int kBytes = kStates + Work::kStreams * Work::kTileM * static_cast<int>(sizeof(float2));
  blockIdx = {};
  run_emulated_cluster(Config::kParts, 0, Work::kThreads, kBytes, [&] {
    unsigned char* const memory = running_cta->shared();
    Cluster::run(device.params, memory, *reinterpret_cast<attn::RowTile*>(memory + kInbox),
                 reinterpret_cast<float2*>(memory + kStates));
  });
  blockIdx = {};
  return device.rows();
}

template <class Config>
void check_cluster(const Request& request, bool with_scales) {
  const Rows expected = whole_reference(request, with_scales);
  check_rows(decode_cluster<Clustered<Config, 2>>(request), expected);
  check_rows(decode_cluster<Clustered<Config, 3>>(request), expected);
  check_rows(decode_cluster<Clustered<Config, 8>>(request), expected);
}

struct PlanConfig {
  static constexpr int kThreads = 128;
};

/// A plan in memory as the device has it.
struct PlanMemory {
  std::vector<int> starts{0};
  std::vector<int> seq_lens;
  std::vector<int> parts, num_splits;
  std::vector<attn::i64> rows;
  attn::MakePlanParams params{};

  PlanMemory(const std::vector<int>& lens, const std::vector<int>& query_lens, int num_parts,
             int overhead)
      : seq_lens(lens),
        parts(static_cast<std::size_t>(num_parts * attn::kPlanRecord), -9),
        num_splits(lens.size() + 1, -9),
        rows(lens.size() + 1, -9) {
    for (const int len : query_lens) starts.push_back(starts.back() + len);
    params = {starts.data(),
              seq_lens.data(),
              0,
              static_cast<int>(lens.size()),
              num_parts,
              overhead,
              parts.data(),
              num_splits.data(),
              rows.data()};
  }
  void make() {
    std::vector<attn::i64> sums(PlanConfig::kThreads);
    EmulatedCta cta(PlanConfig::kThreads, seq_lens.size() * sizeof(attn::PlanRequest));
    cta.run([&] {
      attn::make_plan_of<PlanConfig>(params, reinterpret_cast<attn::PlanRequest*>(cta.shared()),
                                     sums.data());
    });
  }
};

void check_plan(PlanMemory& memory) {
  const DecodePlan plan =
      plan_decode(memory.seq_lens, memory.params.num_parts, memory.params.fixed_overhead);
  CHECK(memory.num_splits == plan.num_splits);
  CHECK(memory.rows == plan_partial_start_loc(plan.num_splits, memory.starts));
  CHECK(std::memcmp(memory.parts.data(), plan.parts.data(),
                    plan.parts.size() * sizeof(DecodePart)) == 0);
}

}  // namespace

TEST_CASE("warps that share a ring have the rows of one tile between them") {
  check_shared<CodesConfig>(false);
  check_shared<F16Config>(false);
  check_shared<TokenHeadConfig>(true);
  check_shared<CellsConfig>(true);
}

TEST_CASE("heads that share a ring have their own keys, values, scales and sinks") {
  Request one = uneven_request(200);
  Request two = one;
  for (std::size_t j = 0; j < two.scores.size(); ++j) {
    two.scores[j] = static_cast<float>(j * 3 % 11) / 4.0f - 1.0f;
    two.value_scales[j] = static_cast<float>(1 + j % 3);
  }
  two.first_query = 2.0f;
  two.sink = 1.5f;
  for (const int nan_key : {-1, 3, 197}) {
    CAPTURE(nan_key);
    (nan_key == 3 ? one : two).nan_key = nan_key;
    one.query_len = two.query_len = 7;
    check_pair<Transposed<PairConfig>>(one, two);
    one.query_len = two.query_len = 13;
    check_pair<PairConfig>(one, two);
  }
}

TEST_CASE("the CTA that finishes last puts the splits together, whichever it is") {
  Request request = uneven_request(200);
  request.sink = 2.0f;
  for (const int num_splits : {1, 2, 3, 7, 40}) {
    check_joined<F16Config>(request, num_splits, false);
    check_joined<TokenHeadConfig>(request, num_splits, true);
    check_joined<Shared<CodesConfig, 2>>(request, num_splits, false);
  }
  request.nan_key = 130;
  check_joined<F16Config>(request, 3, false);
}

TEST_CASE("rows without any key become zeros when their splits are joined") {
  Request request = uneven_request(40);
  request.query_len = 12;
  request.seq_len = 5;
  for (const int num_splits : {2, 5}) check_joined<F16Config>(request, num_splits, false);
  check_cluster<F16Config>(request, false);
}

TEST_CASE("the CTAs of a cluster put their splits together through shared memory") {
  Request request = uneven_request(300);
  request.sink = 2.0f;
  check_cluster<F16Config>(request, false);
  check_cluster<TokenHeadConfig>(request, true);
  check_cluster<Shared<CodesConfig, 2>>(request, false);
  request.query_len = 7;
  check_cluster<Transposed<F16Config>>(request, false);
  request.nan_key = 295;
  check_cluster<F16Config>(request, false);
}

TEST_CASE("the device makes the plan of the host, also after the lengths have changed") {
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    const int requests = static_cast<int>(random() % 70);
    const int num_parts = 1 + static_cast<int>(random() % 40);
    std::vector<int> lens, query_lens;
    for (int b = 0; b < requests; ++b) {
      lens.push_back(static_cast<int>(random() % (b % 9 == 0 ? 9000 : 300)));
      query_lens.push_back(static_cast<int>(random() % 4));
    }
    PlanMemory memory(lens, query_lens, num_parts, static_cast<int>(random() % 6));
    memory.make();
    check_plan(memory);
    for (int& len : memory.seq_lens) len = static_cast<int>(random() % 2000);
    memory.make();
    check_plan(memory);
  }
}

TEST_CASE("the parts of a plan attend to their blocks of a request, and partial rows keep apart") {
  Request request = uneven_request(500);
  request.query_len = 5;
  request.sink = 1.0f;
  for (const int num_parts : {1, 3, 5}) {
    CAPTURE(num_parts);
    Device<F16Config> device(request);
    PlanMemory memory({request.seq_len}, {request.query_len}, num_parts, 1);
    memory.make();
    const int splits = memory.num_splits[1];
    const auto rows = static_cast<std::size_t>(splits * request.query_len);
    std::vector<float> values(rows * kSize, -1.0f), lse(rows, -1.0f);
    const attn::PlanParams plan{num_parts,          memory.parts.data(), memory.num_splits.data(),
                                memory.rows.data(), values.data(),       lse.data()};
    int covered = 0;
    for (int part = 0; part < num_parts; ++part) {
      const int* const record = memory.parts.data() + part * attn::kPlanRecord;
      for (int index = record[0]; index <= record[1]; ++index) {
        const attn::PlannedSplit split = attn::planned_split(device.params, plan, record, index);
        // One after the other, without a gap.
        CHECK(split.keys.begin == covered);
        covered = std::min(split.keys.end, request.seq_len);
        run_decode<F16Config>(device.params, split);
        if (splits == 1) {
          check_rows(device.rows(), whole_reference(request, false));
          continue;
        }
        const double sink = split.split == 0 ? double{request.sink} : -kInf;
        const Rows expected = reference(request, false, split.keys.begin,
                                        std::min(split.keys.end, request.seq_len), sink);
        const auto first = static_cast<std::size_t>(split.split * request.query_len);
        const auto past = first + static_cast<std::size_t>(request.query_len);
        check_rows({{values.data() + first * kSize, values.data() + past * kSize},
                    {lse.data() + first, lse.data() + past}},
                   expected);
      }
    }
    CHECK(covered == request.seq_len);
  }
}

}  // namespace attnbench::cuda
