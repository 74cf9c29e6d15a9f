// One rank's end of the conversation of a group of real ranks: orders of rank 0, parcels between
// two ranks, and the communicator by which pipelines exchange tensors.
//
// Every rank calls the same functions in the same order. A call that cannot be completed, because a
// rank has ended, hangs, met an error or calls something else, throws on every rank, and its
// message names the rank and the phase; the group is over then.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backends/ranks/communicator.h"
#include "bench/process/parcel.h"

namespace attnbench {

class RankChannel {
 public:
  virtual ~RankChannel() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Rank 0's `text`, on every rank. `phase`, of rank 0 too, is what messages call that which the
  /// ranks do until their next call, and which may take `limit_s` seconds; 0 = no limit.
  virtual std::string broadcast(const std::string& text, const std::string& phase,
                                double limit_s) = 0;
  /// What rank `from` hands to rank `to`, there; nothing on the other ranks. `parcel` is null but
  /// on `from`. One of the two is rank 0.
  virtual std::optional<Parcel> pass(int from, int to, Parcel* parcel) = 0;
  /// Every rank has come here.
  virtual void meet() = 0;
  /// Says why this rank cannot go on; the next call of the others throws with it.
  virtual void give_up(const std::string& reason) = 0;
  /// Ends the group, on every rank.
  virtual void close() = 0;

  /// For buffers on the device of `ops`: over MPI on the CPU, over NCCL on a GPU. Called by every
  /// rank; both must outlive it. Errors: kUnsupported without NCCL.
  virtual std::unique_ptr<Communicator> make_communicator(Ops& ops) = 0;
};

}  // namespace attnbench
