#include "bench/ranks/rank_sampler.h"

#include <array>
#include <utility>

#include "core/error.h"
#include "gpu/stream.h"
#include "measure/cuda_measure.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

/// What a rank sends to meet the others; as little as is moved anyway.
constexpr std::size_t kMeetingBytes = 128;

class CudaRecorder final : public RankRecorder {
 public:
  explicit CudaRecorder(CudaOps& ops)
      : runtime_(ops.runtime()),
        stream_(ops.stream()),
        flushers_(ops.runtime(), ops.stream(), ops.kernels()) {}
  ~CudaRecorder() override {
    for (const GraphHandle graph : graphs_) runtime_.release_graph(graph);
  }
  CudaRecorder(const CudaRecorder&) = delete;
  CudaRecorder& operator=(const CudaRecorder&) = delete;

  void flush(L2Mode mode) override {
    CacheFlusher& flusher = flushers_.leaving(mode);
    runtime_.forget_persisting_l2();
    flusher.flush();
  }
  void mark(std::size_t number) override {
    while (events_.size() <= number) events_.push_back(std::make_unique<Event>(runtime_));
    events_[number]->record(stream_);
  }
  std::vector<double> times_us(std::size_t last) override {
    runtime_.synchronize(stream_.handle());
    std::vector<double> times;
    for (std::size_t i = 0; i < last; ++i) {
      times.push_back(Event::elapsed_us(*events_.at(i), *events_.at(i + 1)));
    }
    return times;
  }
  void begin_capture() override { runtime_.begin_capture(stream_.handle()); }
  void end_capture() override { graphs_.push_back(runtime_.end_capture(stream_.handle())); }
  void launch(std::size_t graph) override {
    runtime_.launch_graph(graphs_.at(graph), stream_.handle());
  }

 private:
  Runtime& runtime_;
  const Stream& stream_;
  CudaFlushers flushers_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<GraphHandle> graphs_;
};

}  // namespace

std::unique_ptr<RankRecorder> make_rank_recorder(Ops& ops) {
  auto* const device = dynamic_cast<CudaOps*>(&ops);
  return device == nullptr ? nullptr : std::make_unique<CudaRecorder>(*device);
}

RankSampler::RankSampler(Communicator& communicator, Ops& ops, RankRecorder& recorder)
    : communicator_(communicator),
      recorder_(recorder),
      sent_(ops.allocate(kMeetingBytes, "meeting of ranks, sent")),
      received_(ops.allocate(kMeetingBytes * static_cast<std::size_t>(communicator.world_size()),
                             "meeting of ranks, received")) {}

void RankSampler::begin(L2Mode mode) {
  if (mode != L2Mode::kWarm) recorder_.flush(mode);
  const std::array<const void*, 1> sent{sent_->data()};
  const std::array<void*, 1> received{received_->data()};
  communicator_.all_gather(sent, received, kMeetingBytes);
  num_marks_ = 0;
  recorder_.mark(0);
}

}  // namespace attnbench
