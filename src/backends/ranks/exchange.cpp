// Buffers are all allocated in the constructors and the runs only queue operations, so that a step
// waits for nothing and a repeated run does the same again. Every intermediate is float32.
#include "backends/ranks/exchange.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {
namespace {

using attn::i64;

/// Runs of `width` elements: [outer, inner] of the source to [outer, inner] of the output.
attn::CopyParams copy_runs(attn::Element element, const void* source, void* output, i64 width) {
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = element;
  copy.source = source;
  copy.output = output;
  copy.extents[2] = 1;
  copy.width = width;
  return copy;
}

void set_pair(i64 (&target)[3], i64 outer, i64 inner) {
  target[0] = outer;
  target[1] = inner;
}

i64 float_bytes(i64 count) { return count * static_cast<i64>(sizeof(float)); }

}  // namespace

DcpQueryGather::DcpQueryGather(Communicator& communicator, DeviceBuffers& memory,
                               attn::Element element, std::int64_t num_tokens, int num_heads,
                               int head_size)
    : communicator_(communicator),
      ops_(memory.ops()),
      element_(element),
      num_tokens_(num_tokens),
      row_(std::int64_t{num_heads} * head_size) {
  const i64 size = communicator.world_size() * num_tokens * row_;
  for (int i = 0; i < communicator.num_local_ranks(); ++i) {
    const int r = communicator.first_rank() + i;
    received_.push_back(
        memory.workspace_of(element, size, fmt::format("rank {} gathered query", r)));
    joined_.push_back(
        memory.workspace_of(element, size, fmt::format("rank {} query of all heads", r)));
  }
}

double DcpQueryGather::received_bytes() const {
  return static_cast<double>((communicator_.world_size() - 1) * num_tokens_ * row_) *
         static_cast<double>(element_size(element_));
}

void DcpQueryGather::run(const std::vector<const void*>& own) const {
  const std::size_t size = element_size(element_);
  communicator_.all_gather(own, received_, static_cast<std::size_t>(num_tokens_ * row_) * size);
  join();
}

void DcpQueryGather::begin(const std::vector<const void*>& own) const {
  const auto size = static_cast<std::size_t>(num_tokens_ * row_) * element_size(element_);
  communicator_.begin_all_gather(own, received_, size);
}

void DcpQueryGather::finish() const {
  communicator_.await_gather();
  join();
}

/// Ranks arrive one behind the other and are put side by side.
void DcpQueryGather::join() const {
  const i64 world_size = communicator_.world_size();
  for (std::size_t r = 0; r < joined_.size(); ++r) {
    attn::CopyParams copy = copy_runs(element_, received_[r], joined_[r], row_);
    set_pair(copy.source_strides, num_tokens_ * row_, row_);
    set_pair(copy.output_strides, row_, row_ * world_size);
    set_pair(copy.extents, world_size, num_tokens_);
    ops_.copy(copy);
  }
}

DcpExchange::DcpExchange(DcpComm comm, Communicator& communicator, DeviceBuffers& memory,
                         const DcpExchangeShape& shape)
    : comm_(comm),
      communicator_(communicator),
      ops_(memory.ops()),
      shape_(shape),
      world_size_(communicator.world_size()),
      ranks_(static_cast<std::size_t>(communicator.num_local_ranks())) {
  for (int i = 0; i < communicator.num_local_ranks(); ++i) make_rank(i, memory);
}

void DcpExchange::make_rank(int local, DeviceBuffers& memory) {
  Rank& rank = ranks_[static_cast<std::size_t>(local)];
  const int r = communicator_.first_rank() + local;
  const auto floats = [&](i64 count, const char* name) {
    return memory.workspace_of<float>(count, fmt::format("rank {} {}", r, name));
  };
  const i64 own = own_elements();
  const i64 partial_lses = shape_.num_tokens * shape_.partial_heads;
  const bool scatters = comm_ == DcpComm::kAgRs;
  rank.partial = floats(partial_lses * shape_.width, "partial");
  rank.partial_lse = floats(partial_lses, "partial lse");
  if (comm_ == DcpComm::kA2a) {
    rank.parts = floats(packed_part() * world_size_, "parts");
    rank.received = floats(packed_part() * world_size_, "received");
    rank.output = floats(own, "combined");
    rank.lse = floats(own_lses(), "combined lse");
    return;
  }
  rank.parts = floats(own * world_size_, "parts");
  rank.received = floats(scatters ? own : own * world_size_, "received");
  const i64 all = own_lses() * world_size_;
  rank.gathered_lse = floats(all * world_size_, "gathered lse");
  rank.all_lse = floats(all, "combined lse");
  // reduce-scatter leaves a rank's own heads at the beginning.
  // all-reduce leaves every head on every rank.
  rank.output = rank.received + (scatters ? 0 : r * own);
  rank.lse = rank.all_lse + r * own_lses();
}

std::vector<DcpStage> DcpExchange::stages() const {
  const double others = world_size_ - 1;
  const auto each_rank = [this](auto work) {
    return [this, work] {
      for (int local = 0; local < communicator_.num_local_ranks(); ++local) work(local);
    };
  };
  if (comm_ == DcpComm::kA2a) {
    const double packed = static_cast<double>(float_bytes(packed_part()));
    return {{"pack", 0, each_rank([this](int local) { pack(at(local)); })},
            {"all_to_all", others * packed, [this] { send_parts(); }},
            {"combine", 0, each_rank([this](int local) { combine(at(local)); })}};
  }
  const double lses = static_cast<double>(float_bytes(own_lses() * world_size_));
  const double outputs = static_cast<double>(float_bytes(own_elements()));
  const bool scatters = comm_ == DcpComm::kAgRs;
  // An all-reduce is a reduce-scatter and an all-gather of what that gave.
  return {{"all_gather_lse", others * lses, [this] { gather_lses(); }},
          {"correct", 0, each_rank([this](int local) { correct(local); })},
          {scatters ? "reduce_scatter" : "all_reduce", (scatters ? 1 : 2) * others * outputs,
           [this] { sum_parts(); }}};
}

/// §7.3 and §7.4. Padding heads stand behind the others, so the LSEs of all H heads come first.
void DcpExchange::gather_lses() const {
  std::vector<const void*> lses;
  std::vector<void*> gathered;
  for (const Rank& rank : ranks_) {
    lses.push_back(rank.partial_lse);
    gathered.push_back(rank.gathered_lse);
  }
  const i64 all_lses = own_lses() * world_size_;
  communicator_.all_gather(lses, gathered, static_cast<std::size_t>(float_bytes(all_lses)));
}

void DcpExchange::sum_parts() const {
  std::vector<const void*> parts;
  std::vector<void*> received;
  for (const Rank& rank : ranks_) {
    parts.push_back(rank.parts);
    received.push_back(rank.received);
  }
  if (comm_ == DcpComm::kAgRs) {
    communicator_.reduce_scatter_sum(parts, received, Dtype::kF32, own_elements());
  } else {
    communicator_.all_reduce_sum(parts, received, Dtype::kF32, own_elements() * world_size_);
  }
}

/// All heads of a rank at once, into the parts that reduce_scatter sends. Padding heads stand
/// behind them and take no part.
void DcpExchange::correct(int local) const {
  const Rank& rank = at(local);
  const i64 width = shape_.width;
  attn::DcpCorrectParams correct{};
  correct.lses = {
      rank.gathered_lse, own_lses() * world_size_, 1, shape_.num_tokens, world_size_, 0};
  correct.rank = communicator_.first_rank() + local;
  correct.partial_element = correct.output_element = attn::Element::kF32;
  correct.partial = rank.partial;
  correct.partial_token_stride = shape_.partial_heads * width;
  correct.partial_head_stride = correct.output_head_stride = width;
  correct.output = rank.parts;
  correct.output_token_stride = shape_.num_heads * width;
  correct.output_lse = rank.all_lse;
  correct.lse_token_stride = 1;
  correct.lse_head_stride = shape_.num_tokens;
  correct.num_tokens = shape_.num_tokens;
  correct.num_heads = shape_.num_heads * world_size_;
  correct.head_size = shape_.width;
  correct.part_heads = shape_.num_heads;
  correct.output_part_stride = own_elements();
  ops_.correct_dcp(correct);
}

/// §7.5: rank n receives everybody's partial of its heads. Outputs and LSEs go in one exchange: a
/// message more would cost its latency again.
void DcpExchange::send_parts() const {
  std::vector<const void*> parts;
  std::vector<void*> received;
  for (const Rank& rank : ranks_) {
    parts.push_back(rank.parts);
    received.push_back(rank.received);
  }
  communicator_.all_to_all(parts, received, static_cast<std::size_t>(float_bytes(packed_part())));
}

/// Heads of rank n into part n, and their LSEs behind them.
void DcpExchange::pack(const Rank& rank) const {
  const i64 row = i64{shape_.num_heads} * shape_.width;
  attn::CopyParams output = copy_runs(attn::Element::kF32, rank.partial, rank.parts, row);
  set_pair(output.source_strides, row, i64{shape_.partial_heads} * shape_.width);
  set_pair(output.output_strides, packed_part(), row);
  set_pair(output.extents, world_size_, shape_.num_tokens);
  ops_.copy(output);
  attn::CopyParams lse =
      copy_runs(attn::Element::kF32, rank.partial_lse, rank.parts + own_elements(), own_lses());
  set_pair(lse.source_strides, own_lses(), 0);
  set_pair(lse.output_strides, packed_part(), 0);
  set_pair(lse.extents, world_size_, 1);
  ops_.copy(lse);
}

/// The W partials of a rank's own heads, weighted by their LSEs. `received` has them rank after
/// rank.
void DcpExchange::combine(const Rank& rank) const {
  const i64 width = shape_.width;
  attn::DcpCombineParams combine{};
  combine.lses = {
      rank.received + own_elements(), packed_part(), 1, shape_.num_tokens, world_size_, 0};
  combine.partial_element = combine.output_element = attn::Element::kF32;
  combine.partial = rank.received;
  combine.partial_rank_stride = packed_part();
  combine.partial_token_stride = combine.output_token_stride = shape_.num_heads * width;
  combine.partial_head_stride = combine.output_head_stride = width;
  combine.output = rank.output;
  combine.output_lse = rank.lse;
  combine.lse_token_stride = 1;
  combine.lse_head_stride = shape_.num_tokens;
  combine.num_tokens = shape_.num_tokens;
  combine.num_heads = shape_.num_heads;
  combine.head_size = shape_.width;
  ops_.combine_dcp(combine);
}

std::string explain_ranks(const DcpSpec& dcp) {
  if (dcp.transport == DcpTransport::kSimulated) {
    return fmt::format("{} simulated, times are those of all of them in turn", dcp.world_size);
  }
  return fmt::format("{} over {}, times are those of the slowest", dcp.world_size,
                     to_string(dcp.transport));
}

std::vector<HeadRun> dcp_head_runs(const AttentionSpec& attention, HeadSpan heads) {
  const int group = attention.num_heads / attention.num_kv_heads;
  const int count = heads.end - heads.begin;
  if (heads.begin % group == 0 && count % group == 0) {
    return {{0, count, heads.begin / group, count / group}};
  }
  // Uneven: a group of query heads is cut by the border between two ranks, so each KV head is a
  // call of its own, because a call takes one ratio of query heads to KV heads.
  std::vector<HeadRun> runs;
  for (int head = heads.begin; head < heads.end;) {
    const int kv_head = head / group;
    const int end = std::min(heads.end, (kv_head + 1) * group);
    runs.push_back({head - heads.begin, end - head, kv_head, 1});
    head = end;
  }
  return runs;
}

}  // namespace attnbench
