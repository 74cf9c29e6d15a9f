// The ranks of a group as threads of one process, each with a device of its own: rank 0 is the
// thread that opens the group, the others are started for it.
//
// They share nothing but the meeting that their channels are made of. A rank that meets an error
// says so and all leave, as over MPI. A rank that crashes, exits or hangs takes the process with
// it; what the ranks were at then is on the board (rank_board.h), and whoever started the process
// reports it. Time limits are that process's business, too.
//
// Every rank opens its device on its own thread, so that it is the current one there; nothing of a
// device is touched by the thread of another.
#pragma once

#include <functional>
#include <memory>

#include "backends/ranks/communicator.h"
#include "bench/ranks/rank_channel.h"
#include "ops/ops.h"

namespace attnbench {

/// What a rank that is not the first does on its thread, until its group is closed or over. An
/// exception is why it gives up.
using RankWork = std::function<void(RankChannel& channel)>;
/// As RankChannel::make_communicator(), of a channel of the group.
using ConnectRanks = std::function<std::unique_ptr<Communicator>(RankChannel& channel, Ops& ops)>;

/// Rank 0's end of a group, whose other ranks obey orders:
///
///     open_thread_group(2, [&](RankChannel& channel) {
///       const std::unique_ptr<Ops> ops = make_cuda_ops(channel.rank(), cache_dir);
///       serve_rank(channel, backend, *ops);
///     });
///
/// There are `world_size` ranks. `work` must stay callable as long as there are
/// threads: those that have not ended some seconds after their channel is gone, because a device
/// holds them, are left behind, and the process should not go on for long. `connect` empty = NCCL.
std::unique_ptr<RankChannel> open_thread_group(int world_size, const RankWork& work,
                                               const ConnectRanks& connect = {});

}  // namespace attnbench
