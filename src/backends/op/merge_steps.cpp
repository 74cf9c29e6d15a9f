// A merge is one call. The correction of ranks is the arithmetic of ranks/exchange.cpp with given
// partials, and in the type of the case, where the pipelines' exchange is float32 throughout.
#include "backends/op/merge_steps.h"

#include <memory>

#include "backends/ranks/communicator.h"
#include "inputs/cache/poison.h"

namespace attnbench {
namespace {

using attn::i64;

/// The ranks' partial results, their exchange, and the output of all heads.
class RankExchange {
 public:
  explicit RankExchange(OpPipeline& op)
      : op_(op),
        partial_(op.inputs().at("partial_output")),
        ranks_(static_cast<int>(partial_.dim(0))),
        tokens_(partial_.dim(1)),
        heads_(static_cast<int>(partial_.dim(2))),
        own_heads_(heads_ / ranks_),
        width_(static_cast<int>(partial_.dim(3))),
        comm_(make_ops_communicator(ranks_, op.ops())) {
    source_ = static_cast<const char*>(op.operand("partial_output"));
    lses_ = op.operand_of<float>("partial_lse");
    output_ = static_cast<char*>(
        op.output("output", poisoned_tensor(partial_.dtype(), {tokens_, heads_, width_})));
    lse_ = static_cast<float*>(op.output("lse", poisoned_tensor(Dtype::kF32, {heads_, tokens_})));
  }

  /// §7.3 steps 2 and 3 for every rank, in parts of heads as reduce-scatter sends them; the sum
  /// stays f32 and is rounded once.
  void queue_corrected() {
    const Tensor parts =
        poisoned_tensor(Dtype::kF32, {ranks_ * ranks_ * tokens_, own_heads_, width_});
    parts_ = static_cast<float*>(op_.output("rank_output", parts));
    const bool all = op_.problem().dcp.comm == DcpComm::kAgAr;
    received_ = static_cast<float*>(op_.memory().workspace(
        rank_elements() * (all ? ranks_ : 1) * i64{sizeof(float)}, "received"));
    op_.add_step([this] {
      for (int rank = 0; rank < ranks_; ++rank) correct(rank);
    });
    op_.add_step(side_step(all ? "all_reduce" : "reduce_scatter", [this, all] { reduce(all); }));
    op_.add_step(side_step("round", [this] {
      for (int rank = 0; rank < ranks_; ++rank) round(rank);
    }));
  }

  /// §7.5: rank n receives everybody's partial of its heads, and combines.
  void queue_exchanged() {
    const i64 bytes = static_cast<i64>(partial_.size_bytes());
    sent_ = static_cast<char*>(op_.memory().workspace(bytes, "sent"));
    received_bytes_ = static_cast<char*>(op_.memory().workspace(bytes, "received"));
    received_lses_ = static_cast<float*>(op_.memory().workspace(
        i64{ranks_} * heads_ * tokens_ * i64{sizeof(float)}, "received LSEs"));
    op_.add_step(side_step("all_to_all", [this] { exchange(); }));
    op_.add_step([this] {
      for (int rank = 0; rank < ranks_; ++rank) combine(rank);
    });
  }

  /// One rank: the input as it is.
  void queue_identity() {
    op_.add_step([this] {
      copy_rows(partial_.dtype(), source_, output_, tokens_, i64{heads_} * width_);
      copy_rows(Dtype::kF32, lses_, lse_, heads_, tokens_);
    });
  }

 private:
  i64 size() const { return static_cast<i64>(dtype_size(partial_.dtype())); }
  /// Elements of one rank's partial, and of one rank's heads of it.
  i64 rank_elements() const { return tokens_ * heads_ * width_; }
  i64 own_elements() const { return tokens_ * own_heads_ * width_; }
  int base_two() const { return op_.problem().op.lse_base == LseBase::kTwo ? 1 : 0; }

  void copy_rows(Dtype dtype, const void* from, void* to, i64 rows, i64 width) {
    attn::CopyParams copy{};
    copy.source_element = copy.output_element = element_of(dtype);
    copy.source = from;
    copy.output = to;
    copy.extents[0] = rows;
    copy.extents[1] = copy.extents[2] = 1;
    copy.source_strides[0] = copy.output_strides[0] = copy.width = width;
    op_.ops().copy(copy);
  }

  void correct(int rank) {
    attn::DcpCorrectParams p{};
    p.lses = {lses_, i64{heads_} * tokens_, 1, tokens_, ranks_, base_two()};
    p.rank = rank;
    p.partial_element = element_of(partial_.dtype());
    p.partial = source_ + rank * rank_elements() * size();
    p.partial_token_stride = i64{heads_} * width_;
    p.partial_head_stride = p.output_head_stride = width_;
    p.output_element = attn::Element::kF32;
    p.output = parts_ + rank * rank_elements();
    p.output_token_stride = i64{own_heads_} * width_;
    p.output_lse = lse_;
    p.lse_token_stride = 1;
    p.lse_head_stride = tokens_;
    p.num_tokens = tokens_;
    p.num_heads = heads_;
    p.head_size = width_;
    p.part_heads = own_heads_;
    p.output_part_stride = own_elements();
    op_.ops().correct_dcp(p);
  }

  void reduce(bool all) {
    std::vector<const void*> sent;
    std::vector<void*> received;
    for (int rank = 0; rank < ranks_; ++rank) {
      sent.push_back(parts_ + rank * rank_elements());
      received.push_back(received_ + rank * (all ? rank_elements() : own_elements()));
    }
    if (all) {
      comm_->all_reduce_sum(sent, received, Dtype::kF32, rank_elements());
    } else {
      comm_->reduce_scatter_sum(sent, received, Dtype::kF32, own_elements());
    }
  }

  /// The heads of a rank into the output; after an all-reduce each rank takes its own part.
  void round(int rank) {
    const bool all = op_.problem().dcp.comm == DcpComm::kAgAr;
    attn::CopyParams copy{};
    copy.source_element = attn::Element::kF32;
    copy.output_element = element_of(partial_.dtype());
    copy.source =
        received_ + (all ? rank * rank_elements() + rank * own_elements() : rank * own_elements());
    copy.output = output_ + i64{rank} * own_heads_ * width_ * size();
    copy.extents[0] = tokens_;
    copy.extents[1] = copy.extents[2] = 1;
    copy.source_strides[0] = copy.width = i64{own_heads_} * width_;
    copy.output_strides[0] = i64{heads_} * width_;
    op_.ops().copy(copy);
  }

  void exchange() {
    std::vector<const void*> sent, sent_lses;
    std::vector<void*> received, received_lses;
    const i64 lses = i64{heads_} * tokens_;
    for (int rank = 0; rank < ranks_; ++rank) {
      attn::CopyParams copy{};
      copy.source_element = copy.output_element = element_of(partial_.dtype());
      copy.source = source_ + rank * rank_elements() * size();
      copy.output = sent_ + rank * rank_elements() * size();
      copy.extents[0] = ranks_;
      copy.extents[1] = tokens_;
      copy.extents[2] = 1;
      copy.width = i64{own_heads_} * width_;
      copy.source_strides[0] = copy.output_strides[1] = copy.width;
      copy.source_strides[1] = i64{heads_} * width_;
      copy.output_strides[0] = own_elements();
      op_.ops().copy(copy);
      sent.push_back(copy.output);
      received.push_back(received_bytes_ + rank * rank_elements() * size());
      sent_lses.push_back(lses_ + rank * lses);
      received_lses.push_back(received_lses_ + rank * lses);
    }
    comm_->all_to_all(sent, received, static_cast<std::size_t>(own_elements() * size()));
    comm_->all_to_all(sent_lses, received_lses,
                      static_cast<std::size_t>(i64{own_heads_} * tokens_) * sizeof(float));
  }

  void combine(int rank) {
    attn::DcpCombineParams p{};
    const i64 own_lses = i64{own_heads_} * tokens_;
    p.lses = {
        received_lses_ + rank * i64{heads_} * tokens_, own_lses, 1, tokens_, ranks_, base_two()};
    p.partial_element = p.output_element = element_of(partial_.dtype());
    p.partial = received_bytes_ + rank * rank_elements() * size();
    p.partial_rank_stride = own_elements();
    p.partial_token_stride = i64{own_heads_} * width_;
    p.partial_head_stride = p.output_head_stride = width_;
    p.output = output_ + i64{rank} * own_heads_ * width_ * size();
    p.output_token_stride = i64{heads_} * width_;
    p.output_lse = lse_ + rank * own_lses;
    p.lse_token_stride = 1;
    p.lse_head_stride = tokens_;
    p.num_tokens = tokens_;
    p.num_heads = own_heads_;
    p.head_size = width_;
    op_.ops().combine_dcp(p);
  }

  OpPipeline& op_;
  const Tensor& partial_;  // [W, T, H, D]
  int ranks_;
  i64 tokens_;
  int heads_;
  int own_heads_;
  int width_;
  std::unique_ptr<Communicator> comm_;
  const char* source_ = nullptr;
  const float* lses_ = nullptr;  // [W, H, T]
  char* output_ = nullptr;       // [T, H, D]
  float* lse_ = nullptr;         // [H, T]
  float* parts_ = nullptr;       // [W, W, T, H / W, D]: rank, part of the heads
  float* received_ = nullptr;
  char* sent_ = nullptr;
  char* received_bytes_ = nullptr;
  float* received_lses_ = nullptr;
};

}  // namespace

void queue_merge(OpPipeline& op) {
  const Problem& problem = op.problem();
  const Tensor& prefix = op.inputs().at("prefix_output");
  const Tensor& suffix = op.inputs().at("suffix_output");
  const bool fp8 = problem.output_quant.type == OutputQuantType::kFp8Static;
  attn::MergeParams merge{};
  merge.element = element_of(prefix.dtype());
  merge.output_element = fp8 ? attn::Element::kE4M3 : merge.element;
  merge.output_scale = fp8 ? static_cast<float>(problem.output_quant.scale) : 0.0f;
  merge.output =
      op.output("output", poisoned_tensor(fp8 ? Dtype::kE4M3 : prefix.dtype(), suffix.shape()));
  merge.output_lse = static_cast<float*>(
      op.output("lse", poisoned_tensor(Dtype::kF32, {suffix.dim(1), suffix.dim(0)})));
  merge.output_lse_stride = suffix.dim(0);
  merge.prefix_output = op.operand("prefix_output");
  merge.prefix_lse = op.operand_of<float>("prefix_lse");
  merge.suffix_output = op.operand("suffix_output");
  merge.suffix_lse = op.operand_of<float>("suffix_lse");
  merge.num_tokens = suffix.dim(0);
  merge.num_merged = problem.op.tokens_with_context.value_or(suffix.dim(0));
  merge.num_heads = static_cast<int>(suffix.dim(1));
  merge.head_size = static_cast<int>(suffix.dim(2));
  merge.prefix_head_stride = prefix.dim(2);
  op.add_step([&op, merge] { op.ops().merge(merge); });
}

void queue_dcp_correct(OpPipeline& op) {
  // Shared: the steps outlive this function.
  const auto exchange = std::make_shared<RankExchange>(op);
  const DcpSpec& dcp = op.problem().dcp;
  if (dcp.world_size == 1) {
    exchange->queue_identity();
  } else if (dcp.comm == DcpComm::kA2a) {
    exchange->queue_exchanged();
  } else {
    exchange->queue_corrected();
  }
  op.keep(exchange);
}

}  // namespace attnbench
