// One mapping for the life of the program. Signals only note the rank of their thread and go on as
// they would have without it.
#include "bench/ranks/rank_board.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace attnbench {
namespace {

/// Of the calling thread, where it is one of several ranks.
thread_local int own_rank = -1;

constexpr std::array kFatal = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
/// What was done about them before.
std::array<struct sigaction, kFatal.size()> actions_before;
std::mutex actions_mutex;

}  // namespace

RankBoard* RankBoard::shared() {
  static RankBoard* const board = [] {
    void* const memory = ::mmap(nullptr, sizeof(RankBoard), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) RankBoard;
  }();
  return board;
}

void RankBoard::open(int world_size) {
  world_size_ = 0;
  crashed_ = -1;
  for (Seat& seat : seats_) seat.works = false;
  world_size_ = std::min(world_size, kMostRanks);
}

void RankBoard::works(int rank, const std::string& phase) {
  if (rank >= kMostRanks) return;
  Seat& seat = seats_[static_cast<std::size_t>(rank)];
  const std::size_t length = std::min(phase.size(), seat.phase.size() - 1);
  std::memcpy(seat.phase.data(), phase.data(), length);
  seat.phase[length] = '\0';
  seat.works = true;
}

void RankBoard::waits(int rank) {
  if (rank < kMostRanks) seats_[static_cast<std::size_t>(rank)].works = false;
}

void RankBoard::blame_thread_of(int rank) {
  own_rank = rank;
  const std::lock_guard<std::mutex> lock(actions_mutex);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_NODEFER;
  for (std::size_t i = 0; i < kFatal.size(); ++i) {
    struct sigaction before = {};
    ::sigaction(kFatal[i], &action, &before);
    // Why the question: every rank comes here.
    if (before.sa_handler != on_signal) actions_before[i] = before;
  }
}

/// Only what may be called in a handler. The signal comes again, and now does what it did before.
void RankBoard::on_signal(int number) {
  RankBoard* const board = shared();
  if (board != nullptr && own_rank >= 0) board->crashed_ = own_rank;
  for (std::size_t i = 0; i < kFatal.size(); ++i) {
    if (kFatal[i] == number) ::sigaction(number, &actions_before[i], nullptr);
  }
  ::raise(number);
}

bool RankBoard::is_suspect(int rank) const {
  const int crashed = crashed_;
  if (crashed >= 0) return rank == crashed;
  return seats_[static_cast<std::size_t>(rank)].works;
}

std::string RankBoard::culprits() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (is_suspect(rank)) ranks.push_back(rank);
  }
  // Between two orders nobody works; rank 0 gives the next one.
  if (ranks.empty() && world_size_ > 0) ranks.push_back(0);
  std::string words;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    words += fmt::format("{}{}",
                         i == 0                  ? "rank "
                         : i + 1 == ranks.size() ? " or "
                                                 : ", ",
                         ranks[i]);
  }
  return words;
}

std::string RankBoard::phases() const {
  std::vector<std::string> phases;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto& phase = seats_[static_cast<std::size_t>(rank)].phase;
    const std::string text(phase.data(), ::strnlen(phase.data(), phase.size()));
    const bool is_new = std::find(phases.begin(), phases.end(), text) == phases.end();
    if (is_suspect(rank) && is_new) phases.push_back(text);
  }
  std::string words;
  for (const std::string& phase : phases) {
    words += fmt::format("{}'{}'", words.empty() ? "" : ", ", phase);
  }
  if (words.empty()) return words;
  return (phases.size() == 1 ? "phase " : "phases ") + words;
}

}  // namespace attnbench
