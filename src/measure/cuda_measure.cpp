#include "measure/cuda_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "measure/memory_reader.h"
#include "measure/sample_clock.h"
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
  L2Mode leaves() const override {
    const std::size_t cache = runtime_.device().l2_bytes;
    return cache > 0 && size_bytes_ >= 2 * cache ? L2Mode::kCold : L2Mode::kWarm;
  }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  Runtime& runtime_;
  const Stream& stream_;
  std::size_t size_bytes_;
  void* buffer_;
  unsigned char byte_ = 0;
};

class CudaCleanFlusher final : public CacheFlusher {
 public:
  CudaCleanFlusher(Runtime& runtime, const Stream& stream, KernelStore& kernels,
                   CacheFlusher& writer)
      : runtime_(runtime),
        writer_(writer),
        reader_(runtime, stream, kernels, /*streaming=*/false),
        buffer_(runtime.allocate(writer.size_bytes())) {
    runtime.fill(buffer_, MemoryReader::kByte, writer.size_bytes(), stream.handle());
    // Why here: the driver loads a kernel when it is first launched, and waits for the stream to do
    // so, which would be for as long as the stream is held.
    read();
  }
  ~CudaCleanFlusher() override { runtime_.release_memory(buffer_); }
  CudaCleanFlusher(const CudaCleanFlusher&) = delete;
  CudaCleanFlusher& operator=(const CudaCleanFlusher&) = delete;

  void flush() override {
    writer_.flush();
    read();
  }
  L2Mode leaves() const override {
    return writer_.leaves() == L2Mode::kCold ? L2Mode::kClean : L2Mode::kWarm;
  }
  std::size_t size_bytes() const override { return writer_.size_bytes(); }

 private:
  void read() { reader_.read(buffer_, writer_.size_bytes()); }

  Runtime& runtime_;
  CacheFlusher& writer_;
  MemoryReader reader_;
  void* buffer_;
};

}  // namespace

std::unique_ptr<CacheFlusher> make_cuda_cache_flusher(Runtime& runtime, const Stream& stream) {
  return std::make_unique<CudaCacheFlusher>(runtime, stream);
}

std::unique_ptr<CacheFlusher> make_cuda_clean_flusher(Runtime& runtime, const Stream& stream,
                                                      KernelStore& kernels, CacheFlusher& writer) {
  return std::make_unique<CudaCleanFlusher>(runtime, stream, kernels, writer);
}

CacheFlusher& CudaFlushers::leaving(L2Mode mode) {
  if (!cold_) cold_ = make_cuda_cache_flusher(runtime_, stream_);
  if (mode != L2Mode::kClean) return *cold_;
  if (!clean_) clean_ = make_cuda_clean_flusher(runtime_, stream_, kernels_, *cold_);
  return *clean_;
}

namespace {

/// Reading the clocks takes tens of microseconds; more often tells nothing.
constexpr double kSecondsBetweenClocks = 0.005;

/// Clock readings of one measurement.
class ClockLog {
 public:
  ClockLog(std::shared_ptr<const Nvml> nvml, const Clock& clock)
      : nvml_(std::move(nvml)), clock_(clock) {}

  /// The reasons of a reading that was made now.
  std::vector<std::string> read() {
    const double now_s = clock_.now_s();
    if (now_s - last_s_ < kSecondsBetweenClocks) return {};
    last_s_ = now_s;
    const std::optional<DeviceState> state = nvml_->sample();
    if (!state) return {};
    sm_mhz_.push_back(state->sm_clock_mhz);
    std::istringstream words(state->throttling);
    std::vector<std::string> reasons;
    for (std::string reason; words >> reason;) reasons.push_back(reason);
    throttling_.insert(reasons.begin(), reasons.end());
    return reasons;
  }

  /// NaN before the first reading.
  double last_mhz() const {
    return sm_mhz_.empty() ? std::numeric_limits<double>::quiet_NaN() : sm_mhz_.back();
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
  std::shared_ptr<const Nvml> nvml_;
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
      try {
        runtime.release_graph(runtime.end_capture(stream.handle()));
      } catch (const std::exception&) {
        // What went wrong first says why; a capture that it broke has no graph.
      }
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
  CudaStopwatch(Runtime& runtime, const Stream& stream, const Clock& clock, TimingMode mode,
                KernelStore* kernels, std::shared_ptr<RestPolicy> rest,
                std::shared_ptr<const Nvml> nvml)
      : runtime_(runtime),
        stream_(stream),
        clock_(clock),
        mode_(mode),
        gate_(runtime, stream),
        log_(std::move(nvml), clock),
        rest_(std::move(rest)) {
    if (kernels != nullptr) counters_.emplace(runtime, stream, *kernels);
  }

  std::vector<Part> prepare(std::vector<Part> parts) override {
    // One more than boundaries: where inputs are restored between two parts, the later one begins
    // with an event of its own.
    while (events_.size() <= parts.size() + 1) events_.push_back(std::make_unique<Event>(runtime_));
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
    return time_behind_gate(parts, nullptr, 0);
  }

  std::vector<double> time_sample(const std::vector<Part>& parts,
                                  const SampleSetting& setting) override {
    // Before each flush, since a kernel may ask for lines that stay at any time.
    if (setting.flusher != nullptr) runtime_.forget_persisting_l2();
    if (setting.work == nullptr) {
      if (setting.flusher != nullptr) setting.flusher->flush();
      return time_us(parts);
    }
    setting.work->poison();
    gate_.close();
    setting.work->rewrite();
    if (setting.flusher != nullptr) setting.flusher->flush();
    return time_behind_gate(parts, setting.work, setting.reader);
  }

  void rest() override {
    if (rest_ == nullptr) return;
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(rest_->rest_us()));
  }
  std::string pace() const override { return rest_ == nullptr ? "sustained" : "cool"; }
  double sm_mhz() const override { return sm_mhz_; }

  bool boundaries_take_time() const override { return true; }
  std::string mode() const override { return mode_ == TimingMode::kGraph ? "graph" : "stream"; }
  double launch_overhead_us() override { return summarize_samples(launches_us_).median_us; }
  std::optional<DeviceClocks> clocks() override { return log_.summary(); }

 private:
  std::vector<double> time_behind_gate(const std::vector<Part>& parts, SampleWork* work,
                                       std::size_t reader) {
    if (counters_) counters_->reset();
    std::vector<std::pair<const Event*, const Event*>> between;
    double queued_us = 0;
    auto next = events_.begin();
    const auto mark = [&]() -> const Event* {
      (*next)->record(stream_);
      return (next++)->get();
    };
    const Event* begin = nullptr;
    if (counters_) counters_->read_before();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (work != nullptr && i == reader) {
        work->restore();
        begin = nullptr;
      }
      if (begin == nullptr) begin = mark();
      const double start_s = clock_.now_s();
      for (const auto& call : parts[i]) call();
      const Event* const end = mark();
      queued_us += (clock_.now_s() - start_s) * 1e6;
      between.emplace_back(begin, end);
      begin = end;
    }
    launches_us_.push_back(queued_us);
    // First of all: whatever is still at work elsewhere gains nothing by the readings.
    if (work != nullptr) work->keep();
    if (counters_) counters_->read_after();
    gate_.open();
    SampleState state;
    state.throttling = log_.read();
    runtime_.synchronize(stream_.handle());
    std::vector<double> times_us;
    for (const auto& [first, last] : between) times_us.push_back(Event::elapsed_us(*first, *last));
    state.work_us = std::accumulate(times_us.begin(), times_us.end(), 0.0);
    note(state);
    return times_us;
  }

  /// The last sample, whose work is done.
  void note(SampleState& state) {
    sm_mhz_ = state.sm_mhz = counters_ ? counters_->mhz() : log_.last_mhz();
    if (std::isnan(sm_mhz_)) sm_mhz_ = log_.last_mhz();
    if (rest_ != nullptr) rest_->note(state);
  }

  Runtime& runtime_;
  const Stream& stream_;
  const Clock& clock_;
  TimingMode mode_;
  StreamGate gate_;
  ClockLog log_;
  std::shared_ptr<RestPolicy> rest_;                          // null = no rest
  std::optional<SampleClock> counters_;                       // none = the driver's figures only
  double sm_mhz_ = std::numeric_limits<double>::quiet_NaN();  // of the last sample
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<double> launches_us_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_cuda_stopwatch(Runtime& runtime, const Stream& stream,
                                               const Clock& clock, TimingMode mode,
                                               KernelStore* kernels,
                                               std::shared_ptr<RestPolicy> rest,
                                               std::shared_ptr<const Nvml> nvml) {
  if (!nvml) nvml = std::make_shared<const Nvml>(runtime.device().pci_bus_id);
  return std::make_unique<CudaStopwatch>(runtime, stream, clock, mode, kernels, std::move(rest),
                                         std::move(nvml));
}

}  // namespace attnbench
