// A meeting is one call of every rank. Its last caller completes it for all; what it gave stays
// until the next meeting is complete, which nobody can be late for.
#include "bench/ranks/thread_group.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/ranks/rank_board.h"
#include "bench/ranks/rank_communicators.h"
#include "core/error.h"

namespace attnbench {
namespace {

/// What threads may take to leave once the group is over.
constexpr int kLeaveLimitS = 5;

/// One rank's part of a call of all.
struct Call {
  const char* doing = "";  // for messages; equal on all ranks
  int from = 0;
  int to = 0;
  std::string text = {};
  std::string phase = {};
  std::optional<Parcel> parcel = std::nullopt;
};

class Meeting {
 public:
  explicit Meeting(int size) : doings_(static_cast<std::size_t>(size), "") {
    if (board_ != nullptr) board_->open(size);
  }
  ~Meeting() {
    if (board_ != nullptr) board_->close();
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int size() const { return static_cast<int>(doings_.size()); }

  void begin(int rank) {
    if (board_ == nullptr) return;
    board_->blame_thread_of(rank);
    board_->works(rank, "start");
  }

  /// Waits for all ranks. Returns the text of rank 0.
  std::string meet(int rank, Call call) { return take(rank, std::move(call)).first; }
  /// Returns what rank `call.from` has sent, to rank `call.to`.
  std::optional<Parcel> pass(int rank, Call call) { return take(rank, std::move(call)).second; }

  void give_up(int rank, const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    break_off(fmt::format("rank {}: {} (phase '{}')", rank, reason, phase_));
  }
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    break_off("the group is closed");
  }

  void thread_begins() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_threads_;
  }
  void thread_ends() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --num_threads_;
    changed_.notify_all();
  }
  void wait_for_threads() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(kLeaveLimitS),
                      [this] { return num_threads_ == 0; });
  }

 private:
  using Given = std::pair<std::string, std::optional<Parcel>>;

  Given take(int rank, Call call) {
    std::unique_lock<std::mutex> lock(mutex_);
    check();
    if (board_ != nullptr) board_->waits(rank);
    doings_[static_cast<std::size_t>(rank)] = call.doing;
    agrees_ &= num_arrived_ == 0 || (call.from == from_ && call.to == to_);
    from_ = call.from;
    to_ = call.to;
    if (rank == 0) next_text_ = std::move(call.text);
    if (rank == 0 && !call.phase.empty()) next_phase_ = std::move(call.phase);
    if (call.parcel) next_parcel_ = std::move(call.parcel);
    const std::uint64_t mine = number_;
    if (++num_arrived_ == doings_.size()) {
      complete();
    } else {
      changed_.wait(lock, [&] { return number_ != mine || !failure_.empty(); });
    }
    if (number_ == mine) check();
    if (board_ != nullptr) board_->works(rank, phase_);
    Given given{text_, std::nullopt};
    if (rank == call.to && parcel_) given.second = std::exchange(parcel_, std::nullopt);
    return given;
  }

  void complete() {
    for (const std::string& doing : doings_) agrees_ &= doing == doings_.front();
    if (!agrees_) {
      std::string doings;
      for (std::size_t r = 0; r < doings_.size(); ++r) {
        doings += fmt::format("{}rank {} {}", r == 0 ? "" : ", ", r, doings_[r]);
      }
      break_off(fmt::format("ranks disagree in phase '{}': {}", phase_, doings));
      check();
    }
    text_ = std::move(next_text_);
    phase_ = next_phase_;
    parcel_ = std::exchange(next_parcel_, std::nullopt);
    num_arrived_ = 0;
    ++number_;
    changed_.notify_all();
  }

  void break_off(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    changed_.notify_all();
  }
  void check() const {
    if (!failure_.empty()) throw Error(ErrorKind::kInternal, failure_);
  }

  RankBoard* board_ = RankBoard::shared();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> doings_;  // of each rank, in this meeting or the one before
  std::size_t num_arrived_ = 0;
  std::uint64_t number_ = 0;  // of the meeting
  bool agrees_ = true;
  int from_ = 0;
  int to_ = 0;
  std::string next_text_;
  std::string next_phase_ = "start";
  std::optional<Parcel> next_parcel_;
  std::string text_;
  std::string phase_ = "start";
  std::optional<Parcel> parcel_;
  std::string failure_;
  int num_threads_ = 0;
};

class ThreadChannel : public RankChannel {
 public:
  ThreadChannel(std::shared_ptr<Meeting> meeting, int rank, ConnectRanks connect)
      : meeting_(std::move(meeting)), rank_(rank), connect_(std::move(connect)) {
    meeting_->begin(rank_);
  }

  int rank() const override { return rank_; }
  int world_size() const override { return meeting_->size(); }

  /// A time limit is the business of the process that started this one.
  std::string broadcast(const std::string& text, const std::string& phase, double) override {
    Call call{"waits for an order"};
    call.text = text;
    call.phase = phase;
    return meeting_->meet(rank_, std::move(call));
  }
  std::optional<Parcel> pass(int from, int to, Parcel* parcel) override {
    Call call{"passes tensors", from, to};
    if (parcel != nullptr) call.parcel = std::move(*parcel);
    return meeting_->pass(rank_, std::move(call));
  }
  void meet() override { meeting_->meet(rank_, Call{"is done"}); }
  void give_up(const std::string& reason) override { meeting_->give_up(rank_, reason); }
  void close() override { meeting_->meet(rank_, Call{"leaves"}); }

  std::unique_ptr<Communicator> make_communicator(Ops& ops) override {
    return connect_ ? connect_(*this, ops) : make_nccl_communicator(*this, ops);
  }

 protected:
  Meeting& meeting() { return *meeting_; }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
  ConnectRanks connect_;
};

/// Rank 0's, which the others end with.
class FirstChannel final : public ThreadChannel {
 public:
  using ThreadChannel::ThreadChannel;
  ~FirstChannel() override {
    meeting().close();
    meeting().wait_for_threads();
  }
};

/// What a thread does. It owns all that it needs, since it may outlive the group.
void be_rank(const std::shared_ptr<Meeting>& meeting, int rank, const RankWork& work,
             const ConnectRanks& connect) {
  try {
    ThreadChannel channel(meeting, rank, connect);
    work(channel);
  } catch (const Error& error) {
    meeting->give_up(rank, error.full_message());
  } catch (const std::exception& error) {
    meeting->give_up(rank, error.what());
  } catch (...) {  // what else a user's library throws: a thread must not end the program
    meeting->give_up(rank, "an exception of unknown type");
  }
}

}  // namespace

std::unique_ptr<RankChannel> open_thread_group(int world_size, const RankWork& work,
                                               const ConnectRanks& connect) {
  const auto meeting = std::make_shared<Meeting>(world_size);
  auto first = std::make_unique<FirstChannel>(meeting, 0, connect);
  for (int rank = 1; rank < world_size; ++rank) {
    meeting->thread_begins();
    std::thread([meeting, rank, work, connect] {
      be_rank(meeting, rank, work, connect);
      meeting->thread_ends();
    }).detach();
  }
  return first;
}

}  // namespace attnbench
