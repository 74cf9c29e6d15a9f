// What a rank leaves behind when its case goes wrong: nothing that is still queued.
#include "bench/ranks/ranked_backend.h"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "core/error.h"

namespace attnbench {
namespace {

using Log = std::vector<std::string>;

class LoggedCommunicator final : public Communicator {
 public:
  explicit LoggedCommunicator(Log& log) : log_(log) {}
  ~LoggedCommunicator() override { log_.emplace_back("leaves"); }

  int world_size() const override { return 2; }
  int num_local_ranks() const override { return 1; }
  void abort() override { log_.emplace_back("aborts"); }
  void all_gather(SendBuffers, ReceiveBuffers, std::size_t) override {}
  void all_to_all(SendBuffers, ReceiveBuffers, std::size_t) override {}
  void reduce_scatter_sum(SendBuffers, ReceiveBuffers, Dtype, std::int64_t) override {}
  void all_reduce_sum(SendBuffers, ReceiveBuffers, Dtype, std::int64_t) override {}

 private:
  Log& log_;
};

/// Hears one order, or without one that the group is over.
class LoggedChannel final : public RankChannel {
 public:
  LoggedChannel(int rank, std::string order, Log& log)
      : rank_(rank), order_(std::move(order)), log_(log) {}

  int rank() const override { return rank_; }
  int world_size() const override { return 2; }
  std::string broadcast(const std::string&, const std::string&, double) override {
    if (order_.empty()) fail(ErrorKind::kInternal, "rank 1: it is gone");
    return order_;
  }
  std::optional<Parcel> pass(int, int, Parcel*) override { return std::nullopt; }
  void meet() override {}
  void give_up(const std::string& reason) override {
    log_.push_back("gives up: " + reason);
    if (order_ == "nobody listens") fail(ErrorKind::kInternal, "the broker is gone");
  }
  void close() override {}
  std::unique_ptr<Communicator> make_communicator(Ops&) override {
    return std::make_unique<LoggedCommunicator>(log_);
  }

 private:
  int rank_;
  std::string order_;
  Log& log_;
};

const Backend& any_backend() { return *find_backend("FLASH_ATTN"); }

}  // namespace

TEST_CASE("rank 0 ends what is queued once another rank has given up") {
  Log log;
  const auto ops = make_cpu_ops(1);
  const RankedBackend backend(
      any_backend(), [&](int) { return std::make_unique<LoggedChannel>(0, "", log); }, 1);
  Problem problem;
  problem.dcp.world_size = 2;
  CHECK_THROWS_WITH_AS(backend.prepare(problem, {}, *ops), "rank 1: it is gone", Error);
  CHECK(log == Log{"aborts", "leaves"});
}

TEST_CASE("another rank says why it gives up, ends what is queued and leaves, in this order") {
  const auto ops = make_cpu_ops(1);
  for (const char* order : {"dance 0 0", "nobody listens"}) {
    Log log;
    LoggedChannel channel(1, order, log);
    CHECK_THROWS_AS(serve_rank(channel, any_backend(), *ops), Error);
    REQUIRE(log.size() == 3);
    CHECK(log[0].find("an order that it does not know") != std::string::npos);
    CHECK(log[1] == "aborts");
    CHECK(log[2] == "leaves");
  }
}

}  // namespace attnbench
