// The end of a RankChannel in the process of a rank: a socket to the broker of the same machine,
// and memory that both see for what pipelines exchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bench/process/frames.h"
#include "bench/process/parcel.h"
#include "bench/ranks/rank_channel.h"

namespace attnbench {

struct RankOperation;

/// Called about every second while other ranks are waited for.
using WhileWaiting = std::function<void(const std::string& what)>;

class RankLink final : public RankChannel {
 public:
  /// `hello`: kJobHello or kServerHello. Errors: E-INTERNAL when the broker is gone.
  RankLink(const std::string& socket, char hello, int rank, WhileWaiting while_waiting = {});

  /// On rank 0: makes the first `world_size` ranks a group; `about` goes to whoever starts the
  /// processes of the others. On those: they are in it from the start.
  void open(int world_size, const std::string& about);
  void join(int world_size) { world_size_ = world_size; }

  /// A message of the broker that is no answer; nothing when the broker is gone.
  std::optional<Message> receive();
  void send(char kind, const std::string& text) const;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string broadcast(const std::string& text, const std::string& phase, double limit_s) override;
  std::optional<Parcel> pass(int from, int to, Parcel* parcel) override;
  void meet() override;
  void give_up(const std::string& reason) override;
  void close() override;
  std::unique_ptr<Communicator> make_communicator(Ops& ops) override;

  /// By MPI; `bytes` of one part. `kind`: kAllGather or kAllToAll.
  void exchange(char kind, const void* send, void* receive, std::size_t bytes);

 private:
  std::size_t parts_of(char kind) const;
  Message call(char kind, const RankOperation& operation, const std::string& text = "",
               int file = -1);

  Descriptor socket_;
  MessageReader reader_;
  int rank_;
  int world_size_ = 1;
  WhileWaiting while_waiting_;
  MappedFile shared_;
  std::string phase_;
};

}  // namespace attnbench
