// What the stages of the MLA pipeline share: sizes, device memory, ranks, and the steps that they
// add to (semantics §8).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/device_buffers.h"
#include "backends/kv_scale_step.h"
#include "backends/mla/plan.h"
#include "backends/ranks/communicator.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/mla_inputs.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {

/// In the letters of §8.1.
struct MlaSizes {
  attn::i64 heads = 0;   // N
  attn::i64 latent = 0;  // Lkv
  attn::i64 nope = 0;    // P
  attn::i64 rope = 0;    // R
  attn::i64 value = 0;   // V
  attn::i64 entry() const { return latent + rope; }
  attn::i64 qk() const { return nope + rope; }
  attn::i64 kv() const { return nope + value; }  // of a head, out of kv_b_proj
};

/// One rank of a DCP group, or the only one: heads [first_head, first_head + heads) are its own.
struct MlaRank {
  int index = 0;   // in MlaWork::ranks
  int number = 0;  // in the group
  attn::i64 first_head = 0;
  attn::i64 heads = 0;
  char* cache = nullptr;                    // [NB, bs, entry]
  const attn::i64* slot_mapping = nullptr;  // [T + padding]
};

/// Borrows everything that it is made from.
class MlaWork {
 public:
  using i64 = attn::i64;

  MlaWork(const MlaCapability& capability, const Problem& problem, const BackendInputs& inputs,
          Ops& ops);

  const MlaCapability& capability;
  const Problem& problem;
  const MlaInputs& inputs;
  const MlaCache& cache_before;
  const MlaCache* extra_cache;  // the second one (§8.9), which no step writes; or null
  MlaPlan plan;
  Ops& ops;
  DeviceBuffers memory;
  attn::Element element;  // of the activations
  i64 size;               // its bytes
  MlaSizes sizes;
  i64 num_tokens = 0;
  i64 num_rows = 0;              // of query and output: T_pad
  Communicator* comm = nullptr;  // null without DCP
  std::vector<MlaRank> ranks;    // of this process: all of a simulated group, one of a real one
  std::vector<Step> steps;
  /// What ranks computed before the exchange, f32 [Td, heads, Lkv] and [heads, Td]; empty without
  /// DCP or without decodes.
  std::vector<std::pair<const float*, const float*>> partials;

  const void* query = nullptr;     // [T_pad, N, P + R]
  const void* w_uk = nullptr;      // [N, P, Lkv]
  const void* w_uv = nullptr;      // [N, Lkv, V]
  const void* new_kv_c = nullptr;  // [T + padding, Lkv]
  const void* new_k_pe = nullptr;  // [T + padding, R]
  const int* block_table = nullptr;
  const float* k_scale = nullptr;
  const float* q_scale = nullptr;
  std::unique_ptr<KvScaleStep> kv_scales;  // where the two are made from the data
  void* output = nullptr;                  // [T_pad, N, V] in the activation type
  float* lse = nullptr;                    // [at least N, T_pad]
  Buffer* cache = nullptr;

  /// A user's kernel for the attention of prefills, or nothing. It is given the parameters of a
  /// call, with an output [T, N, V] of `element` and an LSE, and its number of keys a request;
  /// what it gives back runs the call.
  std::function<std::function<void()>(const attn::AttendParams&, const std::vector<std::int32_t>&)>
      users_prefill;

  bool has_ranks() const { return comm != nullptr; }
  /// One of several processes or devices.
  bool is_real_rank() const { return comm != nullptr && simulated_ == nullptr; }
  attn::MlaEntry entry_format() const;
  /// The paged entries of a rank as the requests from `first_request` on see them.
  attn::MlaEntries entries(const MlaRank& rank, int first_request) const;
  i64 block_table_columns() const { return cache_before.block_table.dim(1); }

  void* workspace(i64 count, attn::Element of, const std::string& name) {
    return memory.workspace_of(of, count, name);
  }
  /// The cache of all ranks as it is now, after Ops::synchronize().
  Tensor read_cache() {
    return memory.read(cache->data(), cache_before.data.dtype(), cache_before.data.shape());
  }
  /// Element `index` of an array.
  static const char* at(const void* base, i64 index, attn::Element of) {
    return static_cast<const char*>(base) + index * static_cast<i64>(element_size(of));
  }
  static char* at(void* base, i64 index, attn::Element of) {
    return static_cast<char*>(base) + index * static_cast<i64>(element_size(of));
  }
  /// Heads of padding behind the real ones are a multiple of `multiple`, at least q_pad_num_heads.
  i64 padded_heads(i64 multiple = 1) const;

  /// A plan of decodes on the device, with room for the partial results of `heads` heads.
  /// query_start_loc: of its decodes.
  attn::PlanParams plan_params(const DecodePlan& decodes,
                               std::span<const std::int32_t> query_start_loc, i64 heads);

  void add_step(Step step) { steps.push_back(std::move(step)); }
  /// The first attention step of a run carries the work of all of them.
  void add_attend_step(std::string name, std::function<void()> run);
  /// A step that runs one operation with each of the parameters, rank after rank.
  template <typename Params>
  void add_each(std::string name, bool in_median, void (Ops::*operation)(const Params&),
                std::vector<Params> all, double bytes = 0, double flops = 0) {
    add_step({std::move(name), in_median, bytes, flops, [this, operation, all = std::move(all)] {
                for (const Params& params : all) (ops.*operation)(params);
              }});
  }
  void add_write_step();
  /// What write_cache does, if that is the last step so far, of one rank; else null.
  const attn::MlaCacheWriteParams* last_write() const;
  /// The value projection of decodes, of one rank or several.
  void add_projection(std::vector<attn::MatmulParams> products, double flops);
  /// Codes of the output from the step that projects it, if that is the last one so far and can
  /// make them: then it does, and the answer is true.
  bool joins_projection(attn::ValueOutputParams codes);

 private:
  void set_memory();
  void calculate_scales();
  void set_ranks(const RankSeat* seat);

  std::unique_ptr<Communicator> simulated_;
  std::vector<attn::MlaCacheWriteParams> writes_;
  std::vector<attn::MatmulParams> projections_;
  bool has_attention_step_ = false;
};

/// Tokens of the longest of the queries that start there, [B+1]. Not that of the whole batch, where
/// only some of its requests are attended: kernels have a place for every token of the longest.
int longest_query(std::span<const std::int32_t> query_start_loc);

}  // namespace attnbench
