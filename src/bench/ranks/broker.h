// The process that mpirun or srun started, on every rank: it holds MPI, and attnbench itself runs
// in a child of it.
//
// A rank's pipeline may crash or hang, and MPI ends a whole run when one of its processes does. So
// the process that has MPI does nothing else, and pipelines run in others, which talk with it over
// a socket. All brokers meet before every exchange and say what their rank is about to do. A rank
// that has ended, hangs, met an error or wants another exchange is known to all of them then, and
// they give up the case together; nothing of MPI is left half done, and the next case runs.
#pragma once

#include <cstdint>
#include <string>

namespace attnbench {

// Kinds of messages to a broker; those of a job are operations of RankChannel and Communicator.
inline constexpr char kServerHello = 'S';  // of the process that starts this rank's jobs
inline constexpr char kJobHello = 'J';     // of a process that is a rank
inline constexpr char kOpen = 'O';         // rank 0: RankOpening
inline constexpr char kBroadcast = 'B';
inline constexpr char kPass = 'P';
inline constexpr char kMeet = 'D';
inline constexpr char kAllGather = 'A';
inline constexpr char kAllToAll = 'X';
inline constexpr char kGiveUp = 'F';
inline constexpr char kClose = 'C';
inline constexpr char kJobEnded = 'E';  // of the server: number of the process, how it ended
// Kinds of answers.
inline constexpr char kAnswered = 'R';
inline constexpr char kBroken = '!';  // the text says why

/// First bytes of the text of an operation; what is sent along stands behind them.
struct RankOperation {
  std::int32_t from = 0;         // kPass
  std::int32_t to = 0;           // kPass
  std::uint64_t bytes = 0;       // kAllGather, kAllToAll: of a part
  double limit_s = 0;            // kBroadcast, of rank 0
  char phase[64] = {};           // kBroadcast, of rank 0
  std::uint64_t file_bytes = 0;  // kPass, of rank `from`
};

/// What the launcher said about this process; size 1 without one.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among those of this machine
};
LaunchedRank launched_rank();

/// This process as a rank.
struct RankHome {
  LaunchedRank launched;
  std::string socket;   // where the broker listens; empty without one
  std::string missing;  // why there is no broker; empty = there is one
};

/// In a process that was started as one of several ranks, and that has no threads yet: opens MPI,
/// forks, and returns in the child. The parent stays here as the broker and leaves with the exit
/// code of the child on rank 0, with 0 on the others. Elsewhere it returns at once.
RankHome start_broker();

}  // namespace attnbench
