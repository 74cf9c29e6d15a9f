#include "backends/dcp_pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "backends/ops_pipeline.h"
#include "comm/communicator.h"
#include "metadata/dcp.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

DcpGroup group_of(const Problem& problem) {
  return {problem.dcp.world_size, problem.dcp.interleave_size};
}

std::vector<std::int32_t> context_lens(const Problem& problem) {
  std::vector<std::int32_t> lens;
  for (const Request& request : problem.batch) {
    lens.push_back(checked_int32(request.seq_len - request.query_len, "context_len"));
  }
  return lens;
}

/// Splits of a rank's context keys: flash decoding, where every request is a decode.
int context_splits(const Problem& problem) {
  if (problem.attention.batch_invariant || problem.max_query_len() > 1) return 1;
  const std::vector<std::int32_t> lens = context_lens(problem);
  const std::int64_t longest = lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
  return choose_num_splits(problem.num_requests(), problem.attention.num_kv_heads,
                           dcp_max_local_seq_len(longest, group_of(problem)));
}

/// Neighbouring query heads of a rank that one call serves: all of them where its KV heads have
/// equally many, else those of one KV head.
struct HeadRun {
  int first_head = 0;  // within the rank
  int num_heads = 0;
  int first_kv_head = 0;
  int num_kv_heads = 0;
};

/// The KV head of global head h is h / (H / Hk) (§7.1).
std::vector<HeadRun> head_runs(const AttentionSpec& attention, HeadSpan heads) {
  const int group = attention.num_heads / attention.num_kv_heads;
  const int count = heads.end - heads.begin;
  if (heads.begin % group == 0 && count % group == 0) {
    return {{0, count, heads.begin / group, count / group}};
  }
  std::vector<HeadRun> runs;
  for (int head = heads.begin; head < heads.end;) {
    const int kv_head = head / group;
    const int end = std::min(heads.end, (kv_head + 1) * group);
    runs.push_back({head - heads.begin, end - head, kv_head, 1});
    head = end;
  }
  return runs;
}

/// Buffers of one rank; h = H / W heads are its own.
struct Rank {
  const void* query = nullptr;        // [T, h, D] own heads
  void* gathered_query = nullptr;     // [W, T, h, D]
  void* query_of_all = nullptr;       // [T, H, D]
  float* partial = nullptr;           // [T, H, Dv] over the local context
  float* partial_lse = nullptr;       // [H, T]
  float* gathered_lse = nullptr;      // ag_*: [W, H, T]; a2a: [W, h, T]
  float* parts = nullptr;             // [W, T, h, Dv]: part n goes to rank n
  float* received = nullptr;          // ag_rs: [T, h, Dv]; ag_ar and a2a: [W, T, h, Dv]
  float* all_lse = nullptr;           // ag_*: [H, T] combined
  float* context = nullptr;           // [T, h, Dv] own heads over the whole context
  float* context_lse = nullptr;       // [h, T]
  float* fresh = nullptr;             // [T, h, Dv] own heads over this step's keys
  float* fresh_lse = nullptr;         // [h, T]
  char* output = nullptr;             // [T, h, Dv] in the attention dtype
  const int* context_lens = nullptr;  // [B] local
  std::vector<HeadRun> runs;
};

class DcpPipeline : public OpsPipeline {
 public:
  DcpPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
              const std::string& backend)
      : OpsPipeline(problem, inputs, ops, backend),
        world_size_(problem.dcp.world_size),
        heads_(problem.attention.num_heads / problem.dcp.world_size),
        comm_(make_simulated_communicator(world_size_)),
        ranks_(static_cast<std::size_t>(world_size_)) {
    for (int r = 0; r < world_size_; ++r) make_rank(r, inputs.query.query);
    make_shared(inputs);
    add_step({"write_cache", false, write_bytes(), 0, [this] { write_caches(); }});
    add_step({"all_gather_query", false, 0, 0, [this] { all_gather_query(); }});
    add_step(attention_step("attend_context", [this] { attend_context(); }));
    add_step({"exchange", false, 0, 0, [this] { exchange(); }});
    add_step({"attend_new", true, 0, 0, [this] { attend_new(); }});
    add_step({"merge", true, 0, 0, [this] { merge(); }});
  }

  PipelineOutput read_output() override {
    collect_heads();
    PipelineOutput result = OpsPipeline::read_output();
    const AttentionSpec& a = problem().attention;
    Tensor output(Dtype::kF32, {world_size_, num_tokens(), a.num_heads, a.v_head_size});
    Tensor lse(Dtype::kF32, {world_size_, a.num_heads, num_tokens()});
    const auto world_size = static_cast<std::size_t>(world_size_);
    const std::size_t output_bytes = output.size_bytes() / world_size;
    const std::size_t lse_bytes = lse.size_bytes() / world_size;
    for (std::size_t r = 0; r < world_size; ++r) {
      download_workspace(ranks_[r].partial, output, r * output_bytes, output_bytes);
      download_workspace(ranks_[r].partial_lse, lse, r * lse_bytes, lse_bytes);
    }
    result.more.emplace_back("rank_output", std::move(output));
    result.more.emplace_back("rank_lse", std::move(lse));
    return result;
  }

 private:
  /// Elements of [T, h, D] or [T, h, Dv].
  std::int64_t own_elements(int width) const { return num_tokens() * heads_ * width; }
  std::int64_t own_lses() const { return num_tokens() * heads_; }
  std::size_t query_size() const { return dtype_size(static_cast<Dtype>(params().query_element)); }

  /// Heads [r * h, (r + 1) * h) of the first T rows.
  Tensor own_query(const Tensor& query, int r) const {
    const AttentionSpec& a = problem().attention;
    const HeadSpan span = dcp_heads_of_rank(a.num_heads, r, world_size_);
    Tensor own(query.dtype(), {num_tokens(), heads_, a.head_size});
    const std::size_t head_bytes = query_size() * static_cast<std::size_t>(a.head_size);
    const std::size_t row_bytes = head_bytes * static_cast<std::size_t>(heads_);
    for (std::int64_t t = 0; t < num_tokens(); ++t) {
      const auto source = static_cast<std::size_t>(t * a.num_heads + span.begin) * head_bytes;
      std::memcpy(own.bytes() + static_cast<std::size_t>(t) * row_bytes, query.bytes() + source,
                  row_bytes);
    }
    return own;
  }

  void make_rank(int r, const Tensor& query) {
    const AttentionSpec& a = problem().attention;
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    const std::string name = fmt::format("rank {} ", r);
    const std::int64_t query_bytes =
        own_elements(a.head_size) * static_cast<std::int64_t>(query_size());
    const std::int64_t own = own_elements(a.v_head_size);
    const bool scatters = problem().dcp.comm == DcpComm::kAgRs;
    rank.query = upload(own_query(query, r), name + "query");
    rank.gathered_query = workspace<char>(query_bytes * world_size_, name + "gathered query");
    rank.query_of_all = workspace<char>(query_bytes * world_size_, name + "query of all heads");
    rank.partial = workspace<float>(own * world_size_, name + "partial");
    rank.partial_lse = workspace<float>(own_lses() * world_size_, name + "partial lse");
    rank.parts = workspace<float>(own * world_size_, name + "parts");
    rank.received = workspace<float>(scatters ? own : own * world_size_, name + "received");
    if (problem().dcp.comm == DcpComm::kA2a) {
      rank.gathered_lse = workspace<float>(own_lses() * world_size_, name + "received lse");
      rank.context = workspace<float>(own, name + "context");
      rank.context_lse = workspace<float>(own_lses(), name + "context lse");
    } else {
      const std::int64_t all = own_lses() * world_size_;
      rank.gathered_lse = workspace<float>(all * world_size_, name + "gathered lse");
      rank.all_lse = workspace<float>(all, name + "combined lse");
      // all-reduce leaves every head on every rank.
      rank.context = rank.received + (scatters ? 0 : r * own);
      rank.context_lse = rank.all_lse + r * own_lses();
    }
    rank.fresh = workspace<float>(own, name + "new");
    rank.fresh_lse = workspace<float>(own_lses(), name + "new lse");
    rank.output =
        workspace<char>(own * static_cast<std::int64_t>(dtype_size(a.dtype)), name + "output");
    rank.context_lens = upload(dcp_local_seq_lens(context_lens(problem()), r, group_of(problem())),
                               name + "context");
    rank.runs = head_runs(a, dcp_heads_of_rank(a.num_heads, r, world_size_));
  }

  /// What all ranks read: lengths and keys of this step, and the splits they take turns with.
  void make_shared(const BackendInputs& inputs) {
    std::vector<std::int32_t> query_lens;
    for (const Request& request : problem().batch) {
      query_lens.push_back(checked_int32(request.query_len, "query_len"));
    }
    query_lens_ = upload(query_lens, "query_lens");
    const std::vector<std::int32_t>& starts = inputs.inputs->query_start_loc;
    key_starts_ = upload(std::vector<attn::i64>(starts.begin(), starts.end()), "new key starts");
    split_.num_splits = context_splits(problem());
    split_.num_tokens = num_tokens();
    if (split_.num_splits <= 1) return;
    const std::int64_t rows = split_.num_splits * num_tokens() * params().num_heads;
    split_.partial_output = workspace<float>(rows * params().v_head_size, "split output");
    split_.partial_lse = workspace<float>(rows, "split lse");
  }

  double write_bytes() const {
    const attn::CacheWriteParams& write = cache_write();
    return static_cast<double>(write.num_slots) * write.num_kv_heads *
           (write.head_size + write.v_head_size) * 2.0 *
           static_cast<double>(dtype_size(static_cast<Dtype>(write.source_element)));
  }

  std::int64_t rank_bytes() const { return static_cast<std::int64_t>(cache_bytes()) / world_size_; }

  /// Cache update first; slots of other ranks' tokens are -1.
  void write_caches() {
    for (int r = 0; r < world_size_; ++r) {
      attn::CacheWriteParams write = cache_write();
      write.key_cache = static_cast<char*>(write.key_cache) + r * rank_bytes();
      write.value_cache = static_cast<char*>(write.value_cache) + r * rank_bytes();
      write.slot_mapping += r * write.num_slots;
      ops().write_cache(write);
    }
  }

  /// q_all = all_gather(q, head dim): ranks arrive one behind the other and are put side by side.
  void all_gather_query() {
    std::vector<const void*> send;
    std::vector<void*> receive;
    for (const Rank& rank : ranks_) {
      send.push_back(rank.query);
      receive.push_back(rank.gathered_query);
    }
    const int d = problem().attention.head_size;
    comm_->all_gather(send, receive, static_cast<std::size_t>(own_elements(d)) * query_size());
    for (const Rank& rank : ranks_) {
      attn::CopyParams copy{};
      copy.source_element = copy.output_element = params().query_element;
      copy.source = rank.gathered_query;
      copy.output = rank.query_of_all;
      const attn::i64 row = attn::i64{heads_} * d;
      set_strides(copy.source_strides, own_elements(d), row, 0);
      set_strides(copy.output_strides, row, row * world_size_, 0);
      set_strides(copy.extents, world_size_, num_tokens(), 1);
      copy.width = row;
      ops().copy(copy);
    }
  }

  static void set_strides(attn::i64 (&target)[3], attn::i64 a, attn::i64 b, attn::i64 c) {
    target[0] = a;
    target[1] = b;
    target[2] = c;
  }

  /// All heads over the local context tokens, non-causal.
  void attend_context() {
    for (int r = 0; r < world_size_; ++r) {
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      attn::AttendParams part = params();
      part.query = rank.query_of_all;
      part.seq_lens = rank.context_lens;
      part.score.window_right = -1;
      part.kv.key = static_cast<const char*>(part.kv.key) + r * rank_bytes();
      part.kv.value = static_cast<const char*>(part.kv.value) + r * rank_bytes();
      part.output_element = attn::Element::kF32;
      part.output = rank.partial;
      part.lse = rank.partial_lse;
      part.lse_stride = num_tokens();
      if (split_.num_splits <= 1) {
        ops().attend(part);
      } else {
        ops().attend_splits(part, split_);
        ops().combine_splits(part, split_);
      }
    }
  }

  void exchange() {
    if (problem().dcp.comm == DcpComm::kA2a) {
      exchange_all_to_all();
    } else {
      exchange_gathered();
    }
  }

  /// §7.3 and §7.4. Sums stay float32, so that the output is rounded once, by the merge.
  void exchange_gathered() {
    std::vector<const void*> lses;
    std::vector<void*> gathered;
    std::vector<const void*> parts;
    std::vector<void*> received;
    for (const Rank& rank : ranks_) {
      lses.push_back(rank.partial_lse);
      gathered.push_back(rank.gathered_lse);
      parts.push_back(rank.parts);
      received.push_back(rank.received);
    }
    const std::int64_t own = own_elements(params().v_head_size);
    const std::int64_t all_lses = own_lses() * world_size_;
    comm_->all_gather(lses, gathered, static_cast<std::size_t>(all_lses) * sizeof(float));
    for (int r = 0; r < world_size_; ++r) {
      for (int part = 0; part < world_size_; ++part) correct_part(r, part);
    }
    if (problem().dcp.comm == DcpComm::kAgRs) {
      comm_->reduce_scatter_sum(parts, received, Dtype::kF32, own);
    } else {
      comm_->all_reduce_sum(parts, received, Dtype::kF32, own * world_size_);
    }
  }

  /// Heads of one part by themselves, so that the parts lie as reduce_scatter sends them.
  void correct_part(int r, int part) {
    const Rank& rank = ranks_[static_cast<std::size_t>(r)];
    const int width = params().v_head_size;
    attn::DcpCorrectParams correct{};
    correct.lses = {rank.gathered_lse + part * own_lses(),
                    own_lses() * world_size_,
                    1,
                    num_tokens(),
                    world_size_,
                    0};
    correct.rank = r;
    correct.partial_element = correct.output_element = attn::Element::kF32;
    correct.partial = rank.partial + std::int64_t{part} * heads_ * width;
    correct.partial_token_stride = std::int64_t{params().num_heads} * width;
    correct.partial_head_stride = correct.output_head_stride = width;
    correct.output = rank.parts + part * own_elements(width);
    correct.output_token_stride = std::int64_t{heads_} * width;
    correct.output_lse = rank.all_lse + part * own_lses();
    correct.lse_token_stride = 1;
    correct.lse_head_stride = num_tokens();
    correct.num_tokens = num_tokens();
    correct.num_heads = heads_;
    correct.head_size = width;
    ops().correct_dcp(correct);
  }

  /// §7.5: rank n receives everybody's partial of its heads, and combines.
  void exchange_all_to_all() {
    const int width = params().v_head_size;
    const std::int64_t own = own_elements(width);
    std::vector<const void*> parts;
    std::vector<void*> received;
    std::vector<const void*> lses;
    std::vector<void*> received_lses;
    for (const Rank& rank : ranks_) {
      attn::CopyParams copy{};
      copy.source_element = copy.output_element = attn::Element::kF32;
      copy.source = rank.partial;
      copy.output = rank.parts;
      const attn::i64 row = attn::i64{heads_} * width;
      set_strides(copy.source_strides, row, row * world_size_, 0);
      set_strides(copy.output_strides, own, row, 0);
      set_strides(copy.extents, world_size_, num_tokens(), 1);
      copy.width = row;
      ops().copy(copy);
      parts.push_back(rank.parts);
      received.push_back(rank.received);
      lses.push_back(rank.partial_lse);
      received_lses.push_back(rank.gathered_lse);
    }
    comm_->all_to_all(parts, received, static_cast<std::size_t>(own) * sizeof(float));
    comm_->all_to_all(lses, received_lses, static_cast<std::size_t>(own_lses()) * sizeof(float));
    for (const Rank& rank : ranks_) combine(rank);
  }

  void combine(const Rank& rank) {
    const int width = params().v_head_size;
    attn::DcpCombineParams combine{};
    combine.lses = {rank.gathered_lse, own_lses(), 1, num_tokens(), world_size_, 0};
    combine.partial_element = combine.output_element = attn::Element::kF32;
    combine.partial = rank.received;
    combine.partial_rank_stride = own_elements(width);
    combine.partial_token_stride = combine.output_token_stride = std::int64_t{heads_} * width;
    combine.partial_head_stride = combine.output_head_stride = width;
    combine.output = rank.context;
    combine.output_lse = rank.context_lse;
    combine.lse_token_stride = 1;
    combine.lse_head_stride = num_tokens();
    combine.num_tokens = num_tokens();
    combine.num_heads = heads_;
    combine.head_size = width;
    ops().combine_dcp(combine);
  }

  /// Own heads over this step's keys as tensors; the mask is the problem's.
  void attend_new() {
    for (const Rank& rank : ranks_) {
      for (const HeadRun& run : rank.runs) ops().attend(new_params(rank, run));
    }
  }

  attn::AttendParams new_params(const Rank& rank, const HeadRun& run) const {
    const attn::CacheWriteParams& write = cache_write();
    attn::AttendParams part = params();
    const int d = part.head_size;
    const int width = part.v_head_size;
    part.num_heads = run.num_heads;
    part.num_kv_heads = run.num_kv_heads;
    part.query = static_cast<const char*>(rank.query) +
                 std::int64_t{run.first_head} * d * static_cast<std::int64_t>(query_size());
    part.query_token_stride = std::int64_t{heads_} * d;
    part.output_element = attn::Element::kF32;
    part.output = rank.fresh + std::int64_t{run.first_head} * width;
    part.output_token_stride = std::int64_t{heads_} * width;
    part.lse = rank.fresh_lse + run.first_head * num_tokens();
    part.lse_stride = num_tokens();
    part.seq_lens = query_lens_;
    const auto size =
        static_cast<std::int64_t>(dtype_size(static_cast<Dtype>(write.source_element)));
    attn::KvParams kv{};
    kv.element = write.source_element;
    kv.key = static_cast<const char*>(write.key) + run.first_kv_head * d * size;
    kv.value = static_cast<const char*>(write.value) + run.first_kv_head * width * size;
    kv.token_stride_key = write.key_token_stride;
    kv.token_stride_value = write.value_token_stride;
    kv.head_stride_key = d;
    kv.head_stride_value = width;
    kv.kv_start_loc = key_starts_;
    part.kv = kv;
    return part;
  }

  void merge() {
    for (int r = 0; r < world_size_; ++r) {
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      attn::MergeParams merged{};
      merged.element = attn::Element::kF32;
      merged.output_element = params().output_element;
      merged.output = rank.output;
      merged.output_lse = params().lse + r * heads_ * params().lse_stride;
      merged.output_lse_stride = params().lse_stride;
      merged.prefix_output = rank.context;
      merged.prefix_lse = rank.context_lse;
      merged.suffix_output = rank.fresh;
      merged.suffix_lse = rank.fresh_lse;
      merged.num_tokens = merged.num_merged = num_tokens();
      merged.num_heads = heads_;
      merged.head_size = params().v_head_size;
      merged.prefix_head_stride = params().v_head_size;
      ops().merge(merged);
    }
  }

  /// The heads of all ranks as one tensor: what is compared and saved, no part of the forward.
  void collect_heads() {
    const std::int64_t row = std::int64_t{heads_} * params().v_head_size;
    const auto size = static_cast<std::int64_t>(dtype_size(problem().attention.dtype));
    for (int r = 0; r < world_size_; ++r) {
      attn::CopyParams copy{};
      copy.source_element = copy.output_element = params().output_element;
      copy.source = ranks_[static_cast<std::size_t>(r)].output;
      copy.output = static_cast<char*>(params().output) + r * row * size;
      set_strides(copy.source_strides, row, 0, 0);
      set_strides(copy.output_strides, params().output_token_stride, 0, 0);
      set_strides(copy.extents, num_tokens(), 1, 1);
      copy.width = row;
      ops().copy(copy);
    }
  }

  int world_size_;
  int heads_;  // h = H / W, of one rank
  std::unique_ptr<Communicator> comm_;
  std::vector<Rank> ranks_;
  attn::SplitParams split_{};
  const int* query_lens_ = nullptr;
  const attn::i64* key_starts_ = nullptr;
};

}  // namespace

std::unique_ptr<Pipeline> make_dcp_pipeline(const Problem& problem, const BackendInputs& inputs,
                                            Ops& ops, const std::string& backend) {
  return std::make_unique<DcpPipeline>(problem, inputs, ops, backend);
}

Facts explain_dcp(const Problem& problem) {
  const int world_size = problem.dcp.world_size;
  std::vector<std::int64_t> tokens;
  for (int r = 0; r < world_size; ++r) {
    const std::vector<std::int32_t> lens =
        dcp_local_seq_lens(context_lens(problem), r, group_of(problem));
    tokens.push_back(0);
    for (const std::int32_t len : lens) tokens.back() += len;
  }
  return {
      {"path", "DCP: context of every rank, exchange, new tokens, merge"},
      {"ranks", fmt::format("{} simulated, times are those of all of them in turn", world_size)},
      {"heads of a rank", std::to_string(problem.attention.num_heads / world_size)},
      {"context tokens by rank", fmt::format("{}", fmt::join(tokens, ", "))},
      {"exchange", to_string(problem.dcp.comm)},
      {"num_splits", std::to_string(context_splits(problem))}};
}

}  // namespace attnbench
