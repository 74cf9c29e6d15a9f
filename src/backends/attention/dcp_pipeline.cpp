// Simulated ranks take turns on one device; a real one is by itself here, and the others are in
// pipelines like this one elsewhere. All buffers are allocated by the constructor, so that the
// steps only queue operations.
#include "backends/attention/dcp_pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "backends/attention/dcp_window.h"
#include "backends/attention/pipeline.h"
#include "backends/ranks/communicator.h"
#include "backends/ranks/exchange.h"
#include "metadata/batch.h"
#include "metadata/int_math.h"
#include "metadata/parts/dcp.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

/// Buffers of one rank of this process; h = H / W heads are its own.
struct Rank {
  int number = 0;                     // in the group
  const void* query = nullptr;        // [T, h, D] own heads
  float* fresh = nullptr;             // [T, h, Dv] own heads over this step's keys
  float* fresh_lse = nullptr;         // [h, T]
  char* output = nullptr;             // [T, h, Dv] in the attention dtype
  const int* context_lens = nullptr;  // [B] local
  std::vector<HeadRun> runs;
};

/// The keys of this step as a quantised cache holds them: pages of their own, which the new tokens
/// of a request begin at a page of. Every rank has all of them.
struct NewKeyCache {
  attn::CacheWriteParams write{};
  const int* block_table = nullptr;  // [B, columns]
  std::int64_t columns = 0;
};

/// WindowRows of a rank in memory.
struct WindowedContext {
  const int* query_start_loc = nullptr;
  const int* seq_lens = nullptr;
  const int* positions = nullptr;
  const int* first_keys = nullptr;
  const int* block_table = nullptr;
  std::int64_t columns = 0;
  std::vector<WindowSlice> slices;
};

/// Leading requests of one token. None where all rows take one way: a window makes a request of
/// each token, and batch-invariant results do not depend on what else is in the batch.
int leading_decodes(const Problem& problem) {
  if (problem.attention.batch_invariant || problem.attention.sliding_window) return 0;
  const auto is_longer = [](const Request& request) { return request.query_len != 1; };
  const auto first = std::find_if(problem.batch.begin(), problem.batch.end(), is_longer);
  return static_cast<int>(first - problem.batch.begin());
}

class DcpPipeline : public AttentionPipeline {
 public:
  DcpPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
              const KernelRules& rules, DcpUsersKernel* users)
      : AttentionPipeline(problem, inputs, ops, rules),
        world_size_(problem.dcp.world_size),
        heads_(problem.attention.num_heads / problem.dcp.world_size),
        simulated_(inputs.seat == nullptr ? make_ops_communicator(world_size_, ops) : nullptr),
        comm_(inputs.seat == nullptr ? *simulated_ : *inputs.seat->communicator),
        gather_(comm_, memory(), params().query_element, num_tokens(), heads_,
                problem.attention.head_size),
        exchange_(
            problem.dcp.comm, comm_, memory(),
            {num_tokens(), heads_, problem.attention.num_heads, problem.attention.v_head_size}),
        ranks_(static_cast<std::size_t>(comm_.num_local_ranks())) {
    for (int i = 0; i < num_local(); ++i) {
      make_rank(i, inputs.query.query, inputs.cache->block_table);
    }
    make_shared(inputs);
    if (is_quantised(problem.kv_cache.dtype)) new_keys_ = make_new_keys();
    add_step(side_step(
        "write_cache", [this] { write_caches(); }, write_bytes()));
    const bool is_real = inputs.seat != nullptr;
    if (problem.dcp.overlap) {
      add_overlapped_gather(is_real);
    } else {
      add_step(side_step(
          "all_gather_query", [this] { gather_.run(own_queries()); },
          is_real ? gather_.received_bytes() : 0));
    }
    if (users != nullptr) add_users_calls(*users);
    add_attend_step("attend_context", [this] { attend_context(); });
    for (DcpStage& stage : exchange_.stages()) {
      add_step(side_step(stage.name, std::move(stage.run), is_real ? stage.received_bytes : 0));
    }
    if (!problem.dcp.overlap) add_step(counted_step("attend_new", [this] { attend_new(); }));
    add_step(counted_step("merge", [this] { merge(); }));
  }

  PipelineOutput read_output(bool with_cache) override {
    collect_heads();
    PipelineOutput result = AttentionPipeline::read_output(with_cache);
    const AttentionSpec& a = problem().attention;
    Tensor output(Dtype::kF32, {num_local(), num_tokens(), a.num_heads, a.v_head_size});
    Tensor lse(Dtype::kF32, {num_local(), a.num_heads, num_tokens()});
    const std::size_t output_bytes = output.size_bytes() / ranks_.size();
    const std::size_t lse_bytes = lse.size_bytes() / ranks_.size();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int local = static_cast<int>(i);
      ops().download(output.bytes() + i * output_bytes,
                     memory().starting_at(exchange_.partial(local)), output_bytes);
      ops().download(lse.bytes() + i * lse_bytes,
                     memory().starting_at(exchange_.partial_lse(local)), lse_bytes);
    }
    result.more.emplace_back("rank_output", std::move(output));
    result.more.emplace_back("rank_lse", std::move(lse));
    return result;
  }

  std::optional<SampleSide> sample_side() override {
    std::optional<SampleSide> side = AttentionPipeline::sample_side();
    const AttentionSpec& a = problem().attention;
    side->query.clear();
    side->outputs.erase(side->outputs.begin());  // which read_output() makes of those of the ranks
    for (const Rank& rank : ranks_) {
      const HeadSpan span = dcp_heads_of_rank(a.num_heads, rank.number, world_size_);
      side->query.push_back({const_cast<void*>(rank.query), static_cast<int>(query_size()),
                             num_tokens(), std::int64_t{heads_} * a.head_size,
                             std::int64_t{span.begin} * a.head_size,
                             std::int64_t{a.num_heads} * a.head_size});
      side->add_output(memory(), rank.output, element_of(a.dtype));
    }
    return side;
  }

 private:
  /// Elements of [T, h, D] or [T, h, Dv].
  std::int64_t own_elements(int width) const { return num_tokens() * heads_ * width; }
  std::int64_t own_lses() const { return num_tokens() * heads_; }
  std::size_t query_size() const { return element_size(params().query_element); }

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

  int num_local() const { return static_cast<int>(ranks_.size()); }

  void make_rank(int local, const Tensor& query, const Tensor& table) {
    const AttentionSpec& a = problem().attention;
    Rank& rank = ranks_[static_cast<std::size_t>(local)];
    const int r = rank.number = comm_.first_rank() + local;
    const std::string name = fmt::format("rank {} ", r);
    const std::int64_t own = own_elements(a.v_head_size);
    rank.query = memory().upload(own_query(query, r), name + "query");
    rank.fresh = memory().workspace_of<float>(own, name + "new");
    rank.fresh_lse = memory().workspace_of<float>(own_lses(), name + "new lse");
    rank.output = memory().workspace_of<char>(own * static_cast<std::int64_t>(dtype_size(a.dtype)),
                                              name + "output");
    if (params().score.window_left >= 0) windowed_.push_back(window_of_rank(r, table));
    rank.context_lens =
        memory().upload(dcp_local_seq_lens(context_lens_of(problem()), r, DcpGroup::of(problem())),
                        name + "context");
    rank.runs = dcp_head_runs(a, dcp_heads_of_rank(a.num_heads, r, world_size_));
  }

  WindowedContext window_of_rank(int rank, const Tensor& table) {
    const WindowRows rows = window_rows(problem(), rank, params().score.window_left, table);
    const std::string name = fmt::format("rank {} window ", rank);
    return {memory().upload(rows.query_start_loc, name + "query_start_loc"),
            memory().upload(rows.seq_lens, name + "seq_lens"),
            memory().upload(rows.positions, name + "positions"),
            memory().upload(rows.first_keys, name + "first keys"),
            memory().upload(rows.block_table, name + "block_table"),
            rows.columns,
            rows.slices};
  }

  /// What all ranks read: lengths and keys of this step, and the splits they take turns with.
  void make_shared(const BackendInputs& inputs) {
    query_lens_ = memory().upload(query_lens_of(problem()), "query_lens");
    if (params().score.alibi != attn::Alibi::kNone) {
      contexts_ = memory().upload(context_lens_of(problem()), "context lengths of all ranks");
    }
    const std::vector<std::int32_t>& starts = inputs.inputs->query_start_loc;
    key_starts_ =
        memory().upload(std::vector<attn::i64>(starts.begin(), starts.end()), "new key starts");
    num_decodes_ = leading_decodes(problem());
    split_.num_splits = dcp_context_splits(problem(), ops().num_sms());
    split_.num_tokens = num_decodes_;
    if (split_.num_splits <= 1) return;
    const std::int64_t rows = std::int64_t{split_.num_splits} * num_decodes_ * params().num_heads;
    split_.partial_output =
        memory().workspace_of<float>(rows * params().v_head_size, "split output");
    split_.partial_lse = memory().workspace_of<float>(rows, "split lse");
  }

  NewKeyCache make_new_keys() {
    const int block_size = problem().kv_cache.block_size;
    NewKeyCache fresh;
    std::vector<attn::i64> slots(static_cast<std::size_t>(cache_write().num_slots), -1);
    std::vector<std::vector<int>> pages;
    int num_pages = 0;
    std::size_t token = 0;
    for (const Request& request : problem().batch) {
      std::vector<int>& own = pages.emplace_back();
      for (std::int64_t i = 0; i < request.query_len; ++i) {
        if (i % block_size == 0) own.push_back(num_pages++);
        slots[token++] = std::int64_t{own.back()} * block_size + i % block_size;
      }
      fresh.columns = std::max(fresh.columns, static_cast<std::int64_t>(own.size()));
    }
    fresh.columns = std::max<std::int64_t>(1, fresh.columns);
    std::vector<int> table;
    for (std::vector<int>& own : pages) {
      own.resize(static_cast<std::size_t>(fresh.columns), 0);
      table.insert(table.end(), own.begin(), own.end());
    }
    fresh.block_table = memory().upload(table, "block_table of new keys");
    attn::CacheWriteParams& write = fresh.write = cache_write();
    write.head_stride = std::max(write.head_size, write.v_head_size);
    write.slot_stride = write.num_kv_heads * write.head_stride;
    write.block_stride = block_size * write.slot_stride;
    const std::int64_t size = std::max(1, num_pages) * write.block_stride;
    write.key_cache = memory().workspace_of(write.cache_element, size, "new keys");
    write.value_cache = memory().workspace_of(write.cache_element, size, "new values");
    write.slot_mapping = memory().upload(slots, "slots of new keys");
    return fresh;
  }

  /// Read and written once each: by the slots of all ranks together, and where they are quantised
  /// once more as the new keys.
  double write_bytes() const {
    const attn::CacheWriteParams& write = cache_write();
    const auto read = static_cast<double>(element_size(write.source_element));
    const auto written = static_cast<double>(element_size(write.cache_element));
    return static_cast<double>(write.num_slots) * write.num_kv_heads *
           (write.head_size + write.v_head_size) * (new_keys_ ? 2 : 1) * (read + written);
  }

  std::int64_t rank_bytes() const { return cache_bytes() / num_local(); }

  /// Cache update first; slots of other ranks' tokens are -1.
  void write_caches() {
    for (int i = 0; i < num_local(); ++i) {
      attn::CacheWriteParams write = cache_write();
      write.key_cache = static_cast<char*>(write.key_cache) + i * rank_bytes();
      write.value_cache = static_cast<char*>(write.value_cache) + i * rank_bytes();
      write.slot_mapping += i * write.num_slots;
      ops().write_cache(write);
    }
    if (new_keys_) ops().write_cache(new_keys_->write);
  }

  /// The new tokens need the rank's own queries only, so they are attended to while those of the
  /// others arrive. Why one step where ranks are real: a GPU gathers on a stream of its own, which
  /// has to come back within what is recorded in one graph.
  void add_overlapped_gather(bool is_real) {
    const auto begin = [this] { gather_.begin(own_queries()); };
    const auto finish = [this] { gather_.finish(); };
    if (is_real) {
      add_step(counted_step("gather_and_attend_new", [this, begin, finish] {
        begin();
        attend_new();
        finish();
      }));
      return;
    }
    add_step(side_step("all_gather_query", begin, 0));
    add_step(counted_step("attend_new", [this] { attend_new(); }));
    add_step(side_step("await_query", finish, 0));
  }

  /// Of q_all = all_gather(q, head dim).
  std::vector<const void*> own_queries() const {
    std::vector<const void*> own;
    for (const Rank& rank : ranks_) own.push_back(rank.query);
    return own;
  }

  static void set_strides(attn::i64 (&target)[3], attn::i64 a, attn::i64 b, attn::i64 c) {
    target[0] = a;
    target[1] = b;
    target[2] = c;
  }

  /// All heads over the local context tokens, non-causal.
  attn::AttendParams context_params(int i) const {
    attn::AttendParams part = params();
    part.query = gather_.query_of_all(i);
    part.seq_lens = ranks_[static_cast<std::size_t>(i)].context_lens;
    // Every context key is older than every query row, so nothing is masked but by a window.
    part.score.window_right = -1;
    place_context(ranks_[static_cast<std::size_t>(i)].number, part.score);
    part.kv.key = static_cast<const char*>(part.kv.key) + i * rank_bytes();
    part.kv.value = static_cast<const char*>(part.kv.value) + i * rank_bytes();
    part.output_element = attn::Element::kF32;
    part.output = exchange_.partial(i);
    part.lse = exchange_.partial_lse(i);
    part.lse_stride = num_tokens();
    return part;
  }

  void add_users_calls(DcpUsersKernel& users) {
    for (const Rank& rank : ranks_) users.queries.push_back(rank.query);
    users.write = cache_write();
    users.attend_step = steps().size();
    for (int i = 0; i < num_local(); ++i) {
      users_calls_.push_back(
          users.add_call(memory(), context_params(i), ranks_[static_cast<std::size_t>(i)].number));
    }
  }

  void attend_context() {
    for (const auto& call : users_calls_) call();
    if (!users_calls_.empty()) return;
    for (int i = 0; i < num_local(); ++i) {
      const attn::AttendParams part = context_params(i);
      if (!windowed_.empty()) {
        attend_windowed(part, windowed_[static_cast<std::size_t>(i)]);
      } else {
        attend_decodes_apart(part);
      }
    }
  }

  /// Decodes and prefills each by the kernel that is made for them.
  void attend_decodes_apart(const attn::AttendParams& all) {
    attn::AttendParams decodes = all;
    decodes.num_requests = num_decodes_;
    decodes.max_query_len = 1;
    attn::AttendParams others = all;
    others.first_request = num_decodes_;
    others.num_requests -= num_decodes_;
    if (split_.num_splits > 1) {
      ops().attend_splits(decodes, split_);
      ops().combine_splits(decodes, split_);
    } else if (decodes.num_requests > 0) {
      ops().attend(decodes);
    }
    // A batch without requests is for the operation to see, as anywhere else.
    if (others.num_requests > 0 || all.num_requests == 0) ops().attend(others);
  }

  void attend_windowed(attn::AttendParams part, const WindowedContext& windowed) {
    part.query_start_loc = windowed.query_start_loc;
    part.seq_lens = windowed.seq_lens;
    part.kv.block_table = windowed.block_table;
    part.kv.block_table_stride = windowed.columns;
    part.max_query_len = 1;
    if (attn::is_global(part.score.alibi)) {
      part.score.positions.first_rows = windowed.positions;
      part.score.positions.first_keys = windowed.first_keys;
    }
    for (const WindowSlice& slice : windowed.slices) {
      part.first_request = slice.first;
      part.num_requests = slice.count;
      part.score.window_left = slice.window_left;
      ops().attend(part);
    }
  }

  /// Own heads over this step's keys as tensors; the mask is the problem's.
  void attend_new() {
    for (const Rank& rank : ranks_) {
      for (const HeadRun& run : rank.runs) ops().attend(new_params(rank, run));
    }
  }

  attn::AttendParams new_params(const Rank& rank, const HeadRun& run) const {
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
    // The keys of this step are a sequence of their own: as many keys as rows.
    part.seq_lens = query_lens_;
    place_new(rank, run, part.score);
    part.kv = new_keys_ ? stored_kv(run) : given_kv(run);
    return part;
  }

  /// Biases of the context go by the positions of its keys in the whole sequence (semantics §7.6).
  void place_context(int rank, attn::ScoreParams& score) const {
    if (score.alibi == attn::Alibi::kNone) return;
    score.alibi = attn::global_form(score.alibi);
    score.positions = {contexts_, nullptr, problem().dcp.interleave_size, world_size_, rank};
  }

  /// The new keys follow the context. Biases by distance are the same from any beginning.
  void place_new(const Rank& rank, const HeadRun& run, attn::ScoreParams& score) const {
    if (score.alibi == attn::Alibi::kNone) return;
    score.alibi_slopes += rank.number * heads_ + run.first_head;
    if (score.alibi != attn::Alibi::kKeyIndex) return;
    score.alibi = attn::global_form(score.alibi);
    score.positions = {contexts_, contexts_, 1, 1, 0};
  }

  attn::KvParams given_kv(const HeadRun& run) const {
    const attn::CacheWriteParams& write = cache_write();
    const int d = params().head_size;
    const int width = params().v_head_size;
    const auto size = static_cast<std::int64_t>(element_size(write.source_element));
    attn::KvParams kv{};
    kv.element = write.source_element;
    kv.key = static_cast<const char*>(write.key) + run.first_kv_head * d * size;
    kv.value = static_cast<const char*>(write.value) + run.first_kv_head * width * size;
    kv.token_stride_key = write.key_token_stride;
    kv.token_stride_value = write.value_token_stride;
    kv.head_stride_key = d;
    kv.head_stride_value = width;
    kv.kv_start_loc = key_starts_;
    return kv;
  }

  /// What was written of them, with the scales of the heads.
  attn::KvParams stored_kv(const HeadRun& run) const {
    const attn::CacheWriteParams& write = new_keys_->write;
    attn::KvParams kv = params().kv;
    const std::int64_t first = run.first_kv_head * write.head_stride *
                               static_cast<std::int64_t>(element_size(write.cache_element));
    kv.key = static_cast<const char*>(write.key_cache) + first;
    kv.value = static_cast<const char*>(write.value_cache) + first;
    kv.block_stride = write.block_stride;
    kv.token_stride_key = kv.token_stride_value = write.slot_stride;
    kv.head_stride_key = kv.head_stride_value = write.head_stride;
    kv.block_table = new_keys_->block_table;
    kv.block_table_stride = new_keys_->columns;
    if (kv.k_scale != nullptr) kv.k_scale += run.first_kv_head;
    if (kv.v_scale != nullptr) kv.v_scale += run.first_kv_head;
    return kv;
  }

  void merge() {
    for (int i = 0; i < num_local(); ++i) {
      const Rank& rank = ranks_[static_cast<std::size_t>(i)];
      attn::MergeParams merged{};
      merged.element = attn::Element::kF32;
      merged.output_element = params().output_element;
      merged.output = rank.output;
      merged.output_lse = params().lse + rank.number * heads_ * params().lse_stride;
      merged.output_lse_stride = params().lse_stride;
      merged.prefix_output = exchange_.output(i);
      merged.prefix_lse = exchange_.lse(i);
      merged.suffix_output = rank.fresh;
      merged.suffix_lse = rank.fresh_lse;
      merged.num_tokens = merged.num_merged = num_tokens();
      merged.num_heads = heads_;
      merged.head_size = params().v_head_size;
      merged.prefix_head_stride = params().v_head_size;
      ops().merge(merged);
    }
  }

  /// The heads of the ranks of this process in one tensor: what is compared and saved, no part of
  /// the forward.
  void collect_heads() {
    const std::int64_t row = std::int64_t{heads_} * params().v_head_size;
    const auto size = static_cast<std::int64_t>(dtype_size(problem().attention.dtype));
    for (const Rank& rank : ranks_) {
      attn::CopyParams copy{};
      copy.source_element = copy.output_element = params().output_element;
      copy.source = rank.output;
      copy.output = static_cast<char*>(params().output) + rank.number * row * size;
      set_strides(copy.source_strides, row, 0, 0);
      set_strides(copy.output_strides, params().output_token_stride, 0, 0);
      set_strides(copy.extents, num_tokens(), 1, 1);
      copy.width = row;
      ops().copy(copy);
    }
  }

  int world_size_;
  int heads_;                                // h = H / W, of one rank
  std::unique_ptr<Communicator> simulated_;  // null for one of several real ranks
  Communicator& comm_;
  DcpQueryGather gather_;
  DcpExchange exchange_;
  std::vector<Rank> ranks_;
  std::optional<NewKeyCache> new_keys_;    // of quantised caches
  std::vector<WindowedContext> windowed_;  // of each local rank; empty without a window
  int num_decodes_ = 0;                    // leading requests whose context is attended apart
  attn::SplitParams split_{};              // of their keys
  std::vector<std::function<void()>> users_calls_;  // of each local rank; empty with our kernels
  const int* query_lens_ = nullptr;
  const int* contexts_ = nullptr;  // [B] context lengths over all ranks, for ALiBi
  const attn::i64* key_starts_ = nullptr;
};

}  // namespace

int dcp_context_splits(const Problem& problem, int num_sms) {
  const int num_decodes = leading_decodes(problem);
  if (num_decodes == 0) return 1;
  const std::vector<std::int32_t> lens = context_lens_of(problem);
  const std::int64_t longest = *std::max_element(lens.begin(), lens.begin() + num_decodes);
  return num_splits_of(problem, num_decodes, problem.attention.num_kv_heads,
                       dcp_max_local_seq_len(longest, DcpGroup::of(problem)), num_sms);
}

std::unique_ptr<Pipeline> make_dcp_pipeline(const Problem& problem, const BackendInputs& inputs,
                                            Ops& ops, const KernelRules& rules,
                                            DcpUsersKernel* users) {
  return std::make_unique<DcpPipeline>(problem, inputs, ops, rules, users);
}

Facts explain_dcp(const Problem& problem, int num_sms) {
  const int world_size = problem.dcp.world_size;
  std::vector<std::int64_t> tokens;
  for (int r = 0; r < world_size; ++r) {
    const std::vector<std::int32_t> lens =
        dcp_local_seq_lens(context_lens_of(problem), r, DcpGroup::of(problem));
    tokens.push_back(0);
    for (const std::int32_t len : lens) tokens.back() += len;
  }
  return {{"path", "DCP: context of every rank, exchange, new tokens, merge"},
          {"ranks", explain_ranks(problem.dcp)},
          {"heads of a rank", std::to_string(problem.attention.num_heads / world_size)},
          {"context tokens by rank", fmt::format("{}", fmt::join(tokens, ", "))},
          {"exchange", to_string(problem.dcp.comm)},
          {"query gather", problem.dcp.overlap ? "beside attention over the new tokens"
                                               : "before attention (dcp.overlap: false)"},
          {"num_splits", std::to_string(dcp_context_splits(problem, num_sms))}};
}

}  // namespace attnbench
