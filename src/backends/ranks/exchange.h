// What the ranks of a decode-context group give each other around the attention over their own
// keys (semantics §7): the query heads before it, the partial results after it; and which KV heads
// the query heads of a rank read.
//
// The keys of a request are striped over W ranks, while heads are split among the same ranks
// everywhere else. So each rank gathers the query of all H heads, attends to its share of the keys,
// and gets back the result of its own h = H / W heads over the keys of all. FLASH_ATTN's DCP and
// the decodes of MLA use the same two classes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/device_buffers.h"
#include "backends/ranks/communicator.h"
#include "core/problem/problem.h"
#include "metadata/parts/dcp.h"
#include "ops/ops.h"

namespace attnbench {

/// all_gather(query, head dim): every rank ends with the heads of all ranks, in order.
class DcpQueryGather {
 public:
  /// A rank has num_heads = H / W heads of `head_size` elements.
  DcpQueryGather(Communicator& communicator, DeviceBuffers& memory, attn::Element element,
                 std::int64_t num_tokens, int num_heads, int head_size);

  /// What a rank receives from the others.
  double received_bytes() const;
  /// [T, H, head_size] of a local rank, after run().
  const void* query_of_all(int local) const { return joined_[static_cast<std::size_t>(local)]; }
  /// `own`: [T, H / W, head_size] of each local rank.
  void run(const std::vector<const void*>& own) const;
  /// run() in two parts: the exchange beside what is queued between them, then what needs it.
  void begin(const std::vector<const void*>& own) const;
  void finish() const;

 private:
  void join() const;

  Communicator& communicator_;
  Ops& ops_;
  attn::Element element_;
  std::int64_t num_tokens_;
  std::int64_t row_;             // elements of a rank's heads
  std::vector<void*> received_;  // [W, T, H / W, head_size] of each local rank
  std::vector<void*> joined_;    // [T, H, head_size] of each local rank
};

struct DcpExchangeShape {
  std::int64_t num_tokens = 0;  // T
  int num_heads = 0;            // h = H / W, of one rank
  int partial_heads = 0;        // of a partial: H, or more where heads are padded
  int width = 0;                // of a head's output
};

/// One operation of an exchange. Its name is that of a step: "all_gather_lse", "correct" and
/// "reduce_scatter" or "all_reduce"; "pack", "all_to_all" and "combine".
struct DcpStage {
  std::string name;
  /// What a rank receives from the others, by the least that its collective moves; 0 where nothing
  /// goes between ranks. Over its time that is the bus bandwidth, as NCCL's tests have it.
  double received_bytes = 0;
  std::function<void()> run;
};

/// cp_lse_ag_out_rs, cp_lse_ag_out_ar or dcp_a2a_lse_reduce (§7.3 to §7.5). Everything between is
/// float32, so that whoever rounds does so once.
class DcpExchange {
 public:
  DcpExchange(DcpComm comm, Communicator& communicator, DeviceBuffers& memory,
              const DcpExchangeShape& shape);

  /// The attention of a local rank over its own keys goes here: [T, partial_heads, width] and,
  /// natural log, [partial_heads, T].
  float* partial(int local) const { return at(local).partial; }
  float* partial_lse(int local) const { return at(local).partial_lse; }
  /// Its own heads over the keys of all ranks, after the stages: [T, h, width] and [h, T].
  const float* output(int local) const { return at(local).output; }
  const float* lse(int local) const { return at(local).lse; }
  /// What is to be done, in this order. The exchange must outlive them.
  std::vector<DcpStage> stages() const;

 private:
  struct Rank {
    float* partial = nullptr;
    float* partial_lse = nullptr;
    float* gathered_lse = nullptr;  // ag_*: [W, H, T]
    // Part n goes to rank n. a2a: the LSEs [h, T] of a part lie behind its output [T, h, width].
    float* parts = nullptr;     // [W, T, h, width]
    float* received = nullptr;  // ag_rs: [T, h, width]; ag_ar and a2a: as parts
    float* all_lse = nullptr;   // ag_*: [H, T] combined
    float* output = nullptr;
    float* lse = nullptr;
  };

  const Rank& at(int local) const { return ranks_[static_cast<std::size_t>(local)]; }
  std::int64_t own_elements() const { return own_lses() * shape_.width; }
  std::int64_t own_lses() const { return shape_.num_tokens * shape_.num_heads; }
  /// Floats of a part with its LSEs, up to a multiple of 128 bytes.
  std::int64_t packed_part() const { return (own_elements() + own_lses() + 31) / 32 * 32; }
  void make_rank(int local, DeviceBuffers& memory);
  void gather_lses() const;
  void correct(int local) const;
  void sum_parts() const;
  void pack(const Rank& rank) const;
  void send_parts() const;
  void combine(const Rank& rank) const;

  DcpComm comm_;
  Communicator& communicator_;
  Ops& ops_;
  DcpExchangeShape shape_;
  int world_size_;
  std::vector<Rank> ranks_;
};

/// Neighbouring query heads of a rank that one call serves: all of them where its KV heads have
/// equally many, else those of one KV head.
struct HeadRun {
  int first_head = 0;  // within the rank
  int num_heads = 0;
  int first_kv_head = 0;
  int num_kv_heads = 0;
};

/// For `attnbench explain`: how many ranks, and what their times are.
std::string explain_ranks(const DcpSpec& dcp);

/// The KV head of global head h is h / (H / Hk).
std::vector<HeadRun> dcp_head_runs(const AttentionSpec& attention, HeadSpan heads);

}  // namespace attnbench
