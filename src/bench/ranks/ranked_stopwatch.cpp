// Orders are given where rank 0 queues the work that they belong to, so that every rank has the
// same things in the same order on its stream.
#include "bench/ranks/ranked_stopwatch.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "backends/backend.h"

namespace attnbench {
namespace {

class RankedStopwatch final : public Stopwatch {
 public:
  RankedStopwatch(SampleOrders& orders, std::unique_ptr<Stopwatch> own)
      : orders_(orders), own_(std::move(own)) {}

  std::vector<Part> prepare(std::vector<Part> parts) override {
    // Why: what a first sample loads and allocates may wait for devices, and so must not come once
    // rank 0's stream is held.
    orders_.begin_sample(true);
    if (own_->mode() != "graph") return own_->prepare(std::move(parts));
    const std::size_t first = graphs_.size();
    graphs_.resize(first + parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      part.insert(part.begin(), [this, i, first] { graphs_[first + i] = orders_.begin_capture(); });
      part.emplace_back([this] { orders_.end_capture(); });
    }
    std::vector<Part> launches = own_->prepare(std::move(parts));
    for (std::size_t i = 0; i < launches.size(); ++i) {
      launches[i] = {[this, graph = graphs_[first + i], own = std::move(launches[i])] {
        orders_.launch(graph, [&own] {
          for (const auto& call : own) call();
        });
      }};
    }
    return launches;
  }

  std::vector<double> time_us(const std::vector<Part>& parts) override {
    own_->time_us(with_marks(parts, false));
    return of_slowest();
  }
  std::vector<double> time_sample(const std::vector<Part>& parts,
                                  const SampleSetting& setting) override {
    own_->time_sample(with_marks(parts, setting.flusher != nullptr), setting);
    return of_slowest();
  }

  bool boundaries_take_time() const override { return own_->boundaries_take_time(); }
  std::string mode() const override { return own_->mode(); }
  double launch_overhead_us() override { return own_->launch_overhead_us(); }
  double waited_us() const override { return own_->waited_us(); }
  void rest() override { own_->rest(); }
  std::string pace() const override { return own_->pace(); }
  double sm_mhz() const override { return own_->sm_mhz(); }
  std::optional<DeviceClocks> clocks() override { return own_->clocks(); }

 private:
  std::vector<Part> with_marks(std::vector<Part> parts, bool flush) {
    for (Part& part : parts) part.emplace_back([this] { orders_.mark(); });
    if (!parts.empty()) {
      parts.front().insert(parts.front().begin(), [this, flush] { orders_.begin_sample(flush); });
    }
    return parts;
  }

  std::vector<double> of_slowest() {
    std::vector<std::vector<double>> times = orders_.times_us();
    const auto total = [](const std::vector<double>& of_rank) {
      return std::accumulate(of_rank.begin(), of_rank.end(), 0.0);
    };
    return std::move(*std::max_element(
        times.begin(), times.end(),
        [&](const auto& left, const auto& right) { return total(left) < total(right); }));
  }

  SampleOrders& orders_;
  std::unique_ptr<Stopwatch> own_;
  std::vector<std::size_t> graphs_;  // of the parts, as the other ranks count them
};

}  // namespace

std::unique_ptr<Stopwatch> over_ranks(SampleOrders& orders, std::unique_ptr<Stopwatch> own) {
  return std::make_unique<RankedStopwatch>(orders, std::move(own));
}

std::unique_ptr<Stopwatch> over_ranks(Pipeline& pipeline, std::unique_ptr<Stopwatch> own) {
  auto* const ranked = dynamic_cast<RankedTiming*>(&pipeline);
  SampleOrders* const orders = ranked == nullptr ? nullptr : ranked->sample_orders();
  return orders == nullptr ? std::move(own) : over_ranks(*orders, std::move(own));
}

}  // namespace attnbench
