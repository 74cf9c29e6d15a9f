// How real ranks exchange tensors: between GPUs by NCCL, on the stream that pipelines queue on, and
// between CPU processes by MPI, through the process of the machine that holds it.
//
// Joining NCCL is where a rank can be lost: who waits in NCCL for a rank that has failed there
// waits for ever. So a rank joins on a thread of its own, and meanwhile all ranks go on talking
// over their channel: one that cannot join says so there, and the others leave.
//
// The group is made the same way for ranks that are processes and for threads of one: by
// ncclCommInitRank with an id that rank 0 made, each on its device. Why not by ncclCommInitAll,
// which one thread calls for all: its ranks could not fail one by one.
//
// Either is one rank's end: a call takes the buffers of this rank alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/ranks/communicator.h"
#include "bench/ranks/rank_channel.h"
#include "ops/ops.h"

namespace attnbench {

class RankLink;

/// The ranks of the channel as a group of NCCL. Called by every rank, on the thread whose current
/// device is that of `ops`; both must outlive it. Sums are NCCL's, in the given type. What it does
/// may be captured in a graph by all ranks at once.
///
/// `libraries`: file names, the first of which that is found is NCCL; empty = the usual ones. Every
/// rank gets an exception when one of them cannot join. Errors: kUnsupported without NCCL, else
/// kInternal; those of RankChannel.
std::unique_ptr<Communicator> make_nccl_communicator(
    RankChannel& channel, Ops& ops, const std::vector<std::string>& libraries = {});

/// Buffers are memory of the CPU; an exchange is done when its call returns. Sums are made in the
/// order of the ranks. Both must outlive it. Errors: those of RankChannel.
std::unique_ptr<Communicator> make_mpi_communicator(RankLink& link, Ops& ops);

}  // namespace attnbench
