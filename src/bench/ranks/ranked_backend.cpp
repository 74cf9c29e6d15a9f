// Orders are a word, the number of a pipeline and what belongs to it. After each all ranks meet, so
// an order is done everywhere when it is done here.
#include "bench/ranks/ranked_backend.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backends/sample_side.h"
#include "bench/ranks/rank_share.h"
#include "bench/ranks/ranked_stopwatch.h"
#include "core/error.h"
#include "core/tensor.h"
#include "metadata/parts/dcp.h"

namespace attnbench {
namespace {

constexpr const char* kPrepare = "prepare";
constexpr const char* kRun = "run";      // a step, until its work is done everywhere
constexpr const char* kQueue = "queue";  // a step
constexpr const char* kPoison = "poison";
constexpr const char* kRead = "read";
constexpr const char* kDrop = "drop";
constexpr const char* kEnd = "end";
// Around samples on GPUs; the value of kSample says whether caches are emptied, of kLaunch which
// graph it is.
constexpr const char* kSample = "sample";
constexpr const char* kMark = "mark";
constexpr const char* kTimes = "times";
constexpr const char* kCapture = "capture";
constexpr const char* kCaptured = "captured";
constexpr const char* kLaunch = "launch";

std::string words_of(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? ours->full_message() : error.what();
}

/// Copies columns [begin, end) of each of `rows` rows of `columns` columns.
void take_columns(Tensor& to, const Tensor& from, std::int64_t rows, std::int64_t columns,
                  std::int64_t begin, std::int64_t end) {
  const std::size_t row = rows == 0 ? 0 : to.size_bytes() / static_cast<std::size_t>(rows);
  const std::size_t column = row / static_cast<std::size_t>(columns);
  const std::size_t first = static_cast<std::size_t>(begin) * column;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    std::memcpy(to.bytes() + i * row + first, from.bytes() + i * row + first,
                static_cast<std::size_t>(end - begin) * column);
  }
}

/// Tensors [1, ...] of the ranks as [W, ...].
Tensor stack(const std::vector<const Tensor*>& parts) {
  std::vector<std::int64_t> shape = parts.front()->shape();
  shape.front() = static_cast<std::int64_t>(parts.size());
  Tensor all(parts.front()->dtype(), std::move(shape));
  const std::size_t size = parts.front()->size_bytes();
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r]->size_bytes() != size) fail(ErrorKind::kInternal, "ranks gave unequal tensors");
    if (size > 0) std::memcpy(all.bytes() + r * size, parts[r]->bytes(), size);
  }
  return all;
}

/// Heads of rank r come from rank r; what ranks have by themselves is stacked.
PipelineOutput join(const Problem& problem, std::vector<PipelineOutput> of_ranks) {
  const int world_size = problem.dcp.world_size;
  const std::int64_t heads = problem.attention.num_heads;
  PipelineOutput& first = of_ranks.front();
  for (int r = 1; r < world_size; ++r) {
    PipelineOutput& other = of_ranks[static_cast<std::size_t>(r)];
    const HeadSpan own = dcp_heads_of_rank(problem.attention.num_heads, r, world_size);
    take_columns(first.output, other.output, first.output.dim(0), heads, own.begin, own.end);
    if (first.lse) take_columns(*first.lse, *other.lse, 1, heads, own.begin, own.end);
    if (first.defect.empty() && !other.defect.empty()) {
      first.defect = fmt::format("rank {}: {}", r, other.defect);
    }
  }
  const auto stacked = [&](const std::function<const Tensor*(const PipelineOutput&)>& of) {
    std::vector<const Tensor*> parts;
    for (const PipelineOutput& output : of_ranks) parts.push_back(of(output));
    return stack(parts);
  };
  if (first.cache) {
    first.cache = stacked([](const PipelineOutput& output) { return &*output.cache; });
  }
  for (std::size_t i = 0; i < first.more.size(); ++i) {
    first.more[i].second = stacked([i](const PipelineOutput& o) { return &o.more.at(i).second; });
  }
  return std::move(first);
}

}  // namespace

/// The group of the pipelines that are prepared, on rank 0.
class RankSession {
 public:
  RankSession(std::unique_ptr<RankChannel> channel, Ops& ops, double limit_s,
              const MakeRankRecorder& make_recorder)
      : channel_(std::move(channel)),
        communicator_(connect(ops)),
        seat_{0, communicator_.get()},
        ops_(ops),
        limit_s_(limit_s),
        recorder_(make_recorder(ops)) {
    if (recorder_) sampler_.emplace(*communicator_, ops, *recorder_);
  }

  ~RankSession() {
    if (is_broken_) return;
    try {
      channel_->broadcast(kEnd, kEnd, limit_s_);
      channel_->close();
    } catch (const std::exception&) {
      // The case has its result; who did not end is ended by its broker.
    }
  }

  const RankSeat& seat() const { return seat_; }
  RankChannel& channel() { return *channel_; }
  bool is_broken() const { return is_broken_; }
  int next_number() { return next_number_++; }
  std::size_t next_graph() { return next_graph_++; }
  /// Null on the CPU.
  RankSampler* sampler() { return sampler_ ? &*sampler_ : nullptr; }

  /// Gives an order and does `work`, rank 0's part of it. `settles`: the order ends when its work
  /// is done on every device. Why only then: first all have to know that all have queued it, since
  /// a device may wait for another one.
  template <typename Work>
  void order(const std::string& text, const std::string& phase, const Work& work,
             bool settles = false) {
    if (is_broken_) fail(ErrorKind::kInternal, "the ranks of the case have given up");
    try {
      channel_->broadcast(text, phase, limit_s_);
      is_working_ = true;
      work();
      is_working_ = false;
      channel_->meet();
      if (settles) settle();
    } catch (const std::exception& error) {
      is_broken_ = true;
      // Nobody listens any more where it was the channel that threw.
      if (std::exchange(is_working_, false)) tell(words_of(error));
      // Before pipelines free their memory, which waits for whatever is queued.
      communicator_->abort();
      throw;
    }
  }

 private:
  void settle() {
    is_working_ = true;
    ops_.synchronize();
    is_working_ = false;
    channel_->meet();
  }

  /// The others are to know that they need not wait for this one.
  std::unique_ptr<Communicator> connect(Ops& ops) {
    try {
      return channel_->make_communicator(ops);
    } catch (const std::exception& error) {
      tell(words_of(error));
      throw;
    }
  }

  void tell(const std::string& reason) {
    try {
      channel_->give_up(reason);
    } catch (const std::exception&) {
    }
  }

  std::unique_ptr<RankChannel> channel_;
  std::unique_ptr<Communicator> communicator_;
  RankSeat seat_;
  Ops& ops_;
  double limit_s_;
  bool is_broken_ = false;
  bool is_working_ = false;
  int next_number_ = 0;
  std::size_t next_graph_ = 0;
  std::unique_ptr<RankRecorder> recorder_;
  std::optional<RankSampler> sampler_;
};

namespace {

class RankedPipeline final : public Pipeline, public RankedTiming, private SampleOrders {
 public:
  RankedPipeline(std::shared_ptr<RankSession> session, const Backend& backend,
                 const Problem& problem, const BackendInputs& inputs, Ops& ops)
      : session_(std::move(session)), number_(session_->next_number()) {
    session_->order(order_of(kPrepare), "prepare", [&] {
      for (int rank = 1; rank < problem.dcp.world_size; ++rank) {
        Parcel share = pack_share(problem, inputs, rank);
        session_->channel().pass(0, rank, &share);
      }
      share_ = std::make_unique<RankShare>(pack_share(problem, inputs, 0), session_->seat());
      own_ = backend.prepare(share_->problem(), share_->inputs(), ops);
    });
    for (const Step& step : own_->steps()) {
      Step& ranked = steps_.emplace_back(step);
      ranked.run = [this, index = steps_.size() - 1, &step] { run(index, step); };
    }
  }
  ~RankedPipeline() override {
    if (session_->is_broken()) return;
    try {
      session_->order(order_of(kDrop), kDrop, [this] { own_.reset(); });
    } catch (const std::exception&) {
      // The session is broken then.
    }
  }
  RankedPipeline(const RankedPipeline&) = delete;
  RankedPipeline& operator=(const RankedPipeline&) = delete;

  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override {
    session_->order(order_of(kPoison), kPoison, [this] { own_->poison_outputs(); });
  }
  PipelineOutput read_output(bool with_cache) override {
    std::vector<PipelineOutput> outputs;
    session_->order(order_of(kRead, with_cache ? 1 : 0), kRead, [&] {
      outputs.push_back(own_->read_output(with_cache));
      for (int rank = 1; rank < session_->channel().world_size(); ++rank) {
        const std::optional<Parcel> parcel = session_->channel().pass(rank, 0, nullptr);
        outputs.push_back(ParcelReader(parcel->text, parcel->file).output());
      }
    });
    return join(share_->problem(), std::move(outputs));
  }
  /// The memory of other ranks is not here.
  std::optional<SampleSide> sample_side() override { return std::nullopt; }
  SampleOrders* sample_orders() override { return session_->sampler() == nullptr ? nullptr : this; }

 private:
  /// Until it is timed, a step that goes wrong is found where it is. From the first sample on
  /// nothing may wait for a device here: rank 0's stream is held or recorded while steps are
  /// queued.
  void run(std::size_t index, const Step& step) {
    session_->order(order_of(is_timed_ ? kQueue : kRun, index), step.name, step.run, !is_timed_);
  }

  void begin_sample(bool flush) override {
    is_timed_ = true;
    session_->order(order_of(kSample, flush ? 1 : 0), "begin of a sample",
                    [this] { session_->sampler()->begin(L2Mode::kWarm); });
  }
  void mark() override {
    session_->order(order_of(kMark), "sample", [this] { session_->sampler()->mark(); });
  }
  std::vector<std::vector<double>> times_us() override {
    std::vector<std::vector<double>> times;
    session_->order(order_of(kTimes), "end of a sample", [&] {
      times.push_back(session_->sampler()->times_us());
      for (int rank = 1; rank < session_->channel().world_size(); ++rank) {
        const std::optional<Parcel> parcel = session_->channel().pass(rank, 0, nullptr);
        times.push_back(ParcelReader(parcel->text, parcel->file).numbers<double>());
        if (times.back().size() == times.front().size()) continue;
        fail(ErrorKind::kInternal, "rank {}: sent the times of {} parts, expected {}", rank,
             times.back().size(), times.front().size());
      }
    });
    return times;
  }
  std::size_t begin_capture() override {
    session_->order(order_of(kCapture), kCapture, [] {});
    return session_->next_graph();
  }
  void end_capture() override {
    session_->order(order_of(kCaptured), kCapture, [] {});
  }
  void launch(std::size_t graph, const std::function<void()>& own) override {
    session_->order(order_of(kLaunch, graph), "launch of a graph", own);
  }

  std::string order_of(const char* word, std::size_t value = 0) const {
    return fmt::format("{} {} {}", word, number_, value);
  }

  std::shared_ptr<RankSession> session_;
  int number_;
  std::unique_ptr<RankShare> share_;
  std::unique_ptr<Pipeline> own_;
  std::vector<Step> steps_;
  bool is_timed_ = false;
};

/// The pipelines of a rank that is not the first.
class RankServer {
 public:
  RankServer(RankChannel& channel, const Backend& backend, Ops& ops,
             const MakeRankRecorder& make_recorder)
      : channel_(channel),
        backend_(backend),
        ops_(ops),
        communicator_(channel.make_communicator(ops)),
        seat_{channel.rank(), communicator_.get()},
        recorder_(make_recorder(ops)) {
    if (recorder_) sampler_.emplace(*communicator_, ops, *recorder_);
  }

  void abort() { communicator_->abort(); }

  void serve() {
    for (;;) {
      const std::string text = channel_.broadcast("", "", 0);
      std::istringstream words(text);
      std::string word;
      int number = 0;
      std::size_t value = 0;
      words >> word >> number >> value;
      if (word == kEnd) return channel_.close();
      obey(word, number, value);
      channel_.meet();
      if (word != kRun) continue;
      ops_.synchronize();
      channel_.meet();
    }
  }

 private:
  struct Prepared {
    std::unique_ptr<RankShare> share;
    std::unique_ptr<Pipeline> pipeline;
  };

  void obey(const std::string& word, int number, std::size_t value) {
    if (word == kPrepare) {
      prepare(number);
    } else if (word == kDrop) {
      prepared_.erase(number);
    } else if (word == kPoison) {
      prepared_.at(number).pipeline->poison_outputs();
    } else if (word == kRun || word == kQueue) {
      prepared_.at(number).pipeline->steps().at(value).run();
    } else if (word == kRead) {
      read(number, value != 0);
    } else if (!recorder_ || !sample(word, number, value)) {
      fail(ErrorKind::kInternal, "an order that it does not know: {}", word);
    }
  }

  /// False: not an order of this kind.
  bool sample(const std::string& word, int number, std::size_t value) {
    if (word == kSample) {
      const L2Mode mode = prepared_.at(number).share->problem().timing.l2;
      sampler_->begin(value != 0 ? mode : L2Mode::kWarm);
    } else if (word == kMark) {
      sampler_->mark();
    } else if (word == kTimes) {
      send_times();
    } else if (word == kCapture) {
      recorder_->begin_capture();
    } else if (word == kCaptured) {
      recorder_->end_capture();
      recorder_->launch(num_graphs_++);
    } else if (word == kLaunch) {
      recorder_->launch(value);
    } else {
      return false;
    }
    return true;
  }

  void send_times() {
    ParcelWriter writer;
    writer.numbers(sampler_->times_us());
    Parcel own = writer.take();
    for (int rank = 1; rank < channel_.world_size(); ++rank) {
      channel_.pass(rank, 0, rank == channel_.rank() ? &own : nullptr);
    }
  }

  void prepare(int number) {
    Prepared& prepared = prepared_[number];
    for (int rank = 1; rank < channel_.world_size(); ++rank) {
      const std::optional<Parcel> parcel = channel_.pass(0, rank, nullptr);
      if (parcel) prepared.share = std::make_unique<RankShare>(*parcel, seat_);
    }
    prepared.pipeline = backend_.prepare(prepared.share->problem(), prepared.share->inputs(), ops_);
  }

  void read(int number, bool with_cache) {
    ParcelWriter writer;
    writer.output(prepared_.at(number).pipeline->read_output(with_cache));
    Parcel own = writer.take();
    for (int rank = 1; rank < channel_.world_size(); ++rank) {
      channel_.pass(rank, 0, rank == channel_.rank() ? &own : nullptr);
    }
  }

  RankChannel& channel_;
  const Backend& backend_;
  Ops& ops_;
  std::unique_ptr<Communicator> communicator_;
  RankSeat seat_;
  std::map<int, Prepared> prepared_;
  std::unique_ptr<RankRecorder> recorder_;
  std::optional<RankSampler> sampler_;
  std::size_t num_graphs_ = 0;
};

}  // namespace

RankedBackend::RankedBackend(const Backend& inner, OpenGroup open, double limit_s,
                             MakeRankRecorder make_recorder)
    : ForwardingBackend(inner),
      open_(std::move(open)),
      limit_s_(limit_s),
      make_recorder_(std::move(make_recorder)) {}

RankedBackend::~RankedBackend() = default;

std::unique_ptr<Pipeline> RankedBackend::prepare(const Problem& problem,
                                                 const BackendInputs& inputs, Ops& ops) const {
  // The group lives as long as one of its pipelines.
  std::shared_ptr<RankSession> session = session_.lock();
  if (session == nullptr || session->is_broken()) {
    session =
        std::make_shared<RankSession>(open_(problem.dcp.world_size), ops, limit_s_, make_recorder_);
    session_ = session;
  }
  return std::make_unique<RankedPipeline>(std::move(session), inner(), problem, inputs, ops);
}

void serve_rank(RankChannel& channel, const Backend& backend, Ops& ops,
                const MakeRankRecorder& make_recorder) {
  std::optional<RankServer> server;
  try {
    server.emplace(channel, backend, ops, make_recorder);
    server->serve();
  } catch (const std::exception& error) {
    try {
      // Where the channel threw, the group is over and nobody listens any more.
      channel.give_up(words_of(error));
    } catch (const std::exception&) {
      // Nobody is there any more.
    }
    // Before pipelines free their memory, which waits for whatever is queued.
    if (server) server->abort();
    throw;
  }
}

}  // namespace attnbench
