// What the ranks of one process are at, where the process that started it can read it: who waits
// for whom is gone with a process that crashes, exits or is killed because it hangs.
//
// The board is memory that is shared with children, so it has to be there before they are forked.
// Nobody waits for anybody here: a reader may see a phase that has just begun or ended.
#pragma once

#include <array>
#include <atomic>
#include <string>

namespace attnbench {

class RankBoard {
 public:
  static constexpr int kMostRanks = 64;  // of one process

  /// The one of this process and of those that it forks, which is made by the first call. Null
  /// where the system has no memory for it.
  static RankBoard* shared();

  /// A group of `world_size` ranks begins; ranks beyond kMostRanks are not on the board.
  void open(int world_size);
  void close() { open(0); }
  /// The rank does what `phase` says (its first 63 bytes count), or waits for the others.
  void works(int rank, const std::string& phase);
  void waits(int rank);
  /// On the thread of a rank: a signal that ends the process is of this rank.
  void blame_thread_of(int rank);

  /// Who is to blame when the process is gone: "rank 1", or "rank 0 or 2" where it may be any of
  /// several. Empty while there is no group.
  std::string culprits() const;
  /// "phase 'exchange'" of them, all phases where there are several: "phases 'merge', 'exchange'".
  /// Empty while there is no group.
  std::string phases() const;

 private:
  struct Seat {
    std::atomic<bool> works{false};
    std::array<char, 64> phase{};
  };

  static void on_signal(int number);
  bool is_suspect(int rank) const;

  std::atomic<int> world_size_{0};
  std::atomic<int> crashed_{-1};
  std::array<Seat, kMostRanks> seats_{};
};

}  // namespace attnbench
