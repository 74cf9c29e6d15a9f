// Ranks that exchange buffers. What the pipelines of decode context parallelism move between ranks
// goes through here (semantics §7), so that a pipeline is written for W ranks and does not know
// whether they are simulated in one process or real ones.
//
// The implementation of this file simulates them: all W ranks have their buffers on the device of
// one Ops, and what they exchange is copied and summed by its operations. Nothing passes through
// the host, so the steps can be captured and timed; what such a time leaves out is the network.
// Real ranks (dcp.transport mpi and nccl) exchange through bench/ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/numbers/dtype.h"
#include "ops/ops.h"

namespace attnbench {

/// Buffers of the ranks that this process runs, in ascending order of rank.
using SendBuffers = std::span<const void* const>;
using ReceiveBuffers = std::span<void* const>;

/// Every method takes one send and one receive buffer for each local rank, which must not overlap,
/// and is done when it returns or, on a GPU, queued. A wrong number of buffers is E-SHAPE.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int world_size() const = 0;  // W
  /// Ranks whose buffers a call takes: all W when they are simulated, else one.
  virtual int num_local_ranks() const = 0;
  /// The first of them.
  virtual int first_rank() const { return 0; }

  /// Ends exchanges that are queued and wait for other ranks, so that the device is free; nothing
  /// can be exchanged after it.
  virtual void abort() {}

  /// Each rank sends size_bytes and receives [W, size_bytes], ordered by rank.
  virtual void all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) = 0;

  /// all_gather() beside what is queued next, where there is a way; only one at a time. Nothing may
  /// touch its buffers, and nothing else be exchanged, before await_gather().
  virtual void begin_all_gather(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) {
    all_gather(send, receive, size_bytes);
  }
  /// What is queued from now on comes after it.
  virtual void await_gather() {}

  /// Each rank sends [W, size_bytes] and receives [W, size_bytes]: part n of what rank r receives
  /// is part r of what rank n sent.
  virtual void all_to_all(SendBuffers send, ReceiveBuffers receive, std::size_t size_bytes) = 0;

  /// Sums over the ranks, in f32 and in the order of the ranks, rounded once to dtype (f32, f16 or
  /// bf16, else E-DTYPE; §7.3). Each rank sends [W, count] and rank r receives the sums of part r.
  virtual void reduce_scatter_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                                  std::int64_t count) = 0;
  /// Each rank sends [count] and receives the sums [count].
  virtual void all_reduce_sum(SendBuffers send, ReceiveBuffers receive, Dtype dtype,
                              std::int64_t count) = 0;
};

/// One of several real ranks, which a pipeline can be: it holds its share of heads and keys, and
/// the communicator leads to the pipelines of the others.
struct RankSeat {
  int rank = 0;
  Communicator* communicator = nullptr;
};

/// Simulated ranks on the device of `ops`, which must outlive it. world_size >= 1, else E-CONFIG.
std::unique_ptr<Communicator> make_ops_communicator(int world_size, Ops& ops);

/// output[i] = the sum over the ranks of parts[rank][i], in f32 and in their order, rounded once to
/// dtype (f32, f16 or bf16, else E-DTYPE). One kernel takes attn::kMostSummedRanks of them; more
/// are summed by several, whose sums so far are f32 (E-CAPACITY for more of another type).
void sum_over_ranks(Ops& ops, std::span<const void* const> parts, Dtype dtype, std::int64_t count,
                    void* output);

}  // namespace attnbench
