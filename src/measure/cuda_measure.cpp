#include "measure/cuda_measure.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "gpu/nvml.h"
#include "measure/stream_gate.h"

namespace attnbench {
namespace {

constexpr std::size_t kSmallestBuffer = std::size_t{256} << 20;

class CudaCacheFlusher final : public CacheFlusher {
 public:
  CudaCacheFlusher(Runtime& runtime, const Stream& stream)
      : runtime_(runtime),
        stream_(stream),
        size_bytes_(std::max(kSmallestBuffer, 4 * runtime.device().l2_bytes)),
        buffer_(runtime.allocate(size_bytes_)) {}
  ~CudaCacheFlusher() override { runtime_.release_memory(buffer_); }
  CudaCacheFlusher(const CudaCacheFlusher&) = delete;
  CudaCacheFlusher& operator=(const CudaCacheFlusher&) = delete;

  void flush() override { runtime_.fill(buffer_, ++byte_, size_bytes_, stream_.handle()); }
  bool proven_cold() const override {
    const std::size_t cache = runtime_.device().l2_bytes;
    return cache > 0 && size_bytes_ >= 2 * cache;
  }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  Runtime& runtime_;
  const Stream& stream_;
  std::size_t size_bytes_;
  void* buffer_;
  unsigned char byte_ = 0;
};

}  // namespace

std::unique_ptr<CacheFlusher> make_cuda_cache_flusher(Runtime& runtime, const Stream& stream) {
  return std::make_unique<CudaCacheFlusher>(runtime, stream);
}

namespace {

/// Reading the clocks takes tens of microseconds; more often tells nothing.
constexpr double kSecondsBetweenClocks = 0.005;

/// Clock readings of one measurement.
class ClockLog {
 public:
  ClockLog(const Runtime& runtime, const Clock& clock)
      : nvml_(runtime.device().pci_bus_id), clock_(clock) {}

  void read() {
    const double now_s = clock_.now_s();
    if (now_s - last_s_ < kSecondsBetweenClocks) return;
    last_s_ = now_s;
    const std::optional<DeviceState> state = nvml_.sample();
    if (!state) return;
    sm_mhz_.push_back(state->sm_clock_mhz);
    std::istringstream reasons(state->throttling);
    for (std::string reason; reasons >> reason;) throttling_.insert(reason);
  }

  std::optional<DeviceClocks> summary() const {
    if (sm_mhz_.empty()) return std::nullopt;
    std::vector<int> sorted = sm_mhz_;
    std::sort(sorted.begin(), sorted.end());
    return DeviceClocks{sorted.front(),
                        sorted[sorted.size() / 2],
                        sorted.back(),
                        {throttling_.begin(), throttling_.end()}};
  }

 private:
  Nvml nvml_;
  const Clock& clock_;
  double last_s_ = -1;
  std::vector<int> sm_mhz_;
  std::set<std::string> throttling_;
};

/// A part as a graph that can be launched.
class Graph {
 public:
  Graph(Runtime& runtime, const Stream& stream, const Part& part) : runtime_(runtime) {
    runtime.begin_capture(stream.handle());
    try {
      for (const auto& work : part) work();
    } catch (...) {
      runtime.release_graph(runtime.end_capture(stream.handle()));
      throw;
    }
    graph_ = runtime.end_capture(stream.handle());
  }
  ~Graph() { runtime_.release_graph(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Stream& stream) { runtime_.launch_graph(graph_, stream.handle()); }

 private:
  Runtime& runtime_;
  GraphHandle graph_ = nullptr;
};

class CudaStopwatch final : public Stopwatch {
 public:
  CudaStopwatch(Runtime& runtime, const Stream& stream, const Clock& clock, TimingMode mode)
      : runtime_(runtime),
        stream_(stream),
        clock_(clock),
        mode_(mode),
        gate_(runtime, stream),
        log_(runtime, clock) {}

  std::vector<Part> prepare(std::vector<Part> parts) override {
    while (events_.size() <= parts.size()) events_.push_back(std::make_unique<Event>(runtime_));
    if (mode_ == TimingMode::kStream) return parts;
    runtime_.synchronize(stream_.handle());
    for (Part& part : parts) {
      graphs_.push_back(std::make_unique<Graph>(runtime_, stream_, part));
      Graph& graph = *graphs_.back();
      graph.launch(stream_);  // the first launch uploads it
      part = {[this, &graph] { graph.launch(stream_); }};
    }
    runtime_.synchronize(stream_.handle());
    return parts;
  }

  std::vector<double> time_us(const std::vector<Part>& parts) override {
    gate_.close();
    events_[0]->record(stream_);
    const double start_s = clock_.now_s();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const auto& work : parts[i]) work();
      events_[i + 1]->record(stream_);
    }
    launches_us_.push_back((clock_.now_s() - start_s) * 1e6);
    gate_.open();
    log_.read();
    runtime_.synchronize(stream_.handle());
    std::vector<double> times_us;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      times_us.push_back(Event::elapsed_us(*events_[i], *events_[i + 1]));
    }
    return times_us;
  }

  bool boundaries_take_time() const override { return true; }
  std::string mode() const override { return mode_ == TimingMode::kGraph ? "graph" : "stream"; }
  double launch_overhead_us() override { return summarize_samples(launches_us_).median_us; }
  std::optional<DeviceClocks> clocks() override { return log_.summary(); }

 private:
  Runtime& runtime_;
  const Stream& stream_;
  const Clock& clock_;
  TimingMode mode_;
  StreamGate gate_;
  ClockLog log_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<double> launches_us_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_cuda_stopwatch(Runtime& runtime, const Stream& stream,
                                               const Clock& clock, TimingMode mode) {
  return std::make_unique<CudaStopwatch>(runtime, stream, clock, mode);
}

}  // namespace attnbench
