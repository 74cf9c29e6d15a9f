// Everything that more than one stage reads is uploaded here, once. A stage allocates what only it
// needs when it adds its steps.
#include "backends/mla/work.h"

#include <algorithm>

#include "backends/kernel_params.h"
#include "backends/ranks/communicator.h"
#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/kv_scales.h"
#include "metadata/int_math.h"
#include "ops/plan_rows.h"

namespace attnbench {
namespace {

constexpr const char* kWriteStep = "write_cache";
constexpr const char* kProjectionStep = "project_value";

}  // namespace

MlaWork::MlaWork(const MlaCapability& of, const Problem& described, const BackendInputs& given,
                 Ops& device)
    : capability(of),
      problem(described),
      inputs(*given.mla),
      cache_before(*given.mla_cache),
      extra_cache(given.mla_extra_cache),
      plan(plan_mla(of, described, device.num_sms(), device.sm())),
      ops(device),
      memory(device),
      element(element_of(described.attention.dtype)),
      size(static_cast<i64>(element_size(element))) {
  const MlaSpec& mla = problem.mla;
  sizes = {problem.attention.num_heads, mla.kv_lora_rank, mla.qk_nope_head_dim,
           mla.qk_rope_head_dim, mla.v_head_dim};
  num_tokens = inputs.num_tokens();
  num_rows = inputs.query.dim(0);
  set_memory();
  set_ranks(given.seat);
}

void MlaWork::set_memory() {
  query = memory.upload(inputs.query, "query");
  w_uk = memory.upload(inputs.w_uk, "w_uk");
  w_uv = memory.upload(inputs.w_uv, "w_uv");
  new_kv_c = memory.upload(cache_before.new_kv_c, "kv_c");
  new_k_pe = memory.upload(cache_before.new_k_pe, "k_pe");
  block_table = memory.upload_of<int>(cache_before.block_table, "block_table");
  cache = &memory.starting_at(memory.upload(cache_before.data, "kv_cache"));
  k_scale = memory.upload(std::vector<float>{static_cast<float>(problem.kv_cache.k_scale.at(0))},
                          "k_scale");
  q_scale =
      memory.upload(std::vector<float>{static_cast<float>(problem.kv_cache.q_scale)}, "q_scale");
  if (calculates_kv_scales(problem) && entry_format() == attn::MlaEntry::kE4M3) calculate_scales();
  output = workspace(num_rows * sizes.heads * sizes.value, element, "output");
  // Padded heads have an LSE too; nobody reads it.
  constexpr i64 kLargestPadding = 64;
  lse = memory.workspace_of<float>(num_rows * padded_heads(kLargestPadding), "lse");
}

/// The scales of the cache are made from the latents; k_pe is stored with the same scale, but not
/// looked at (§5.4).
void MlaWork::calculate_scales() {
  const i64 num_new = cache_before.new_kv_c.dim(0) - static_cast<i64>(kPaddingSlots.size());
  const ScaledRows latents{element, new_kv_c, num_new, 1, static_cast<int>(sizes.latent)};
  kv_scales = std::make_unique<KvScaleStep>(
      memory, kv_scale_constants(problem),
      ScaledRows{element, query, num_tokens, static_cast<int>(sizes.heads),
                 static_cast<int>(sizes.nope + sizes.rope)},
      latents, latents, 1);
  k_scale = kv_scales->k_scale();
  q_scale = kv_scales->q_scale();
}

/// Every rank gets its heads and its part of one buffer that holds the caches of all ranks of this
/// process, one behind the other; slot mappings likewise.
void MlaWork::set_ranks(const RankSeat* seat) {
  const int world_size = problem.dcp.world_size;
  if (seat != nullptr) {
    comm = seat->communicator;
  } else if (world_size > 1) {
    simulated_ = make_ops_communicator(world_size, ops);
    comm = simulated_.get();
  }
  const int num_local = comm != nullptr ? comm->num_local_ranks() : 1;
  const int first = comm != nullptr ? comm->first_rank() : 0;
  const i64* slots = memory.upload_of<i64>(cache_before.slot_mapping, "slot_mapping");
  const i64 num_slots = cache_before.slot_mapping.num_elements() / num_local;
  const i64 cache_bytes = static_cast<i64>(cache->size_bytes()) / num_local;
  for (int i = 0; i < num_local; ++i) {
    const HeadSpan own = dcp_heads_of_rank(problem.attention.num_heads, first + i, world_size);
    ranks.push_back({i, first + i, own.begin, own.end - own.begin,
                     static_cast<char*>(cache->data()) + i * cache_bytes, slots + i * num_slots});
  }
}

attn::MlaEntry MlaWork::entry_format() const {
  return mla_entry_of(mla_cache_dtype(capability, problem));
}

attn::MlaEntries MlaWork::entries(const MlaRank& rank, int first_request) const {
  const i64 entry = cache_before.data.shape().back();
  attn::MlaEntries result{};
  result.element = element_of(cache_before.data.dtype());
  result.cache = rank.cache;
  result.slot_stride = entry - footer_bytes(mla_cache_dtype(capability, problem));
  result.block_stride = problem.kv_cache.block_size * entry;
  result.block_table = block_table + i64{first_request} * block_table_columns();
  result.block_table_stride = block_table_columns();
  result.block_size = problem.kv_cache.block_size;
  result.entry_size = checked_int32(entry, "entry size");
  return result;
}

attn::i64 MlaWork::padded_heads(i64 multiple) const {
  return ceil_div(i64{mla_padded_heads(capability, problem)}, multiple) * multiple;
}

attn::PlanParams MlaWork::plan_params(const DecodePlan& decodes,
                                      std::span<const std::int32_t> query_start_loc, i64 heads) {
  const std::vector<i64> rows = plan_partial_start_loc(decodes.num_splits, query_start_loc);
  attn::PlanParams params{};
  params.num_parts = plan.num_parts;
  params.parts = static_cast<const int*>(memory.upload(
      decodes.parts.data(), decodes.parts.size() * sizeof(DecodePart), "decode plan"));
  params.num_splits = memory.upload(decodes.num_splits, "num_splits");
  params.partial_start_loc = memory.upload(rows, "partial rows");
  const i64 num_partials = std::max<i64>(1, rows.back()) * heads;
  params.partial_output = memory.workspace_of<float>(num_partials * sizes.latent, "partial output");
  params.partial_lse = memory.workspace_of<float>(num_partials, "partial lse");
  return params;
}

/// Decodes and prefills are attended by different steps. The work of both is put on the first of
/// them, since rates are made from the sum over a run.
void MlaWork::add_attend_step(std::string name, std::function<void()> run) {
  const bool first = !has_attention_step_;
  has_attention_step_ = true;
  add_step(counted_step(std::move(name), std::move(run),
                        first ? mla_traffic(problem, capability).unique_bytes : 0,
                        first ? mla_flops(problem, capability) : 0));
}

void MlaWork::add_write_step() {
  if (kv_scales) {
    add_step(side_step(
        "calc_kv_scales", [this] { kv_scales->run(); }, kv_scales->bytes()));
  }
  const i64 num_slots = cache_before.new_kv_c.dim(0);
  for (const MlaRank& rank : ranks) {
    const attn::MlaEntries to = entries(rank, 0);
    attn::MlaCacheWriteParams write{};
    write.format = entry_format();
    write.source_element = element;
    write.kv_c = new_kv_c;
    write.kv_c_token_stride = sizes.latent;
    write.k_pe = new_k_pe;
    write.k_pe_token_stride = sizes.rope;
    write.cache = rank.cache;
    write.slot_stride = to.slot_stride;
    write.block_stride = to.block_stride;
    write.slot_mapping = rank.slot_mapping;
    write.num_slots = num_slots;
    write.block_size = to.block_size;
    write.kv_lora_rank = static_cast<int>(sizes.latent);
    write.rope_head_dim = static_cast<int>(sizes.rope);
    write.k_scale = k_scale;
    writes_.push_back(write);
  }
  const i64 entry_bytes =
      cache_before.data.shape().back() * static_cast<i64>(dtype_size(cache_before.data.dtype()));
  add_each(kWriteStep, false, &Ops::write_mla_cache, writes_,
           static_cast<double>(num_slots * (sizes.entry() * size + entry_bytes)));
}

const attn::MlaCacheWriteParams* MlaWork::last_write() const {
  const bool is_last = !steps.empty() && steps.back().name == kWriteStep;
  return is_last && writes_.size() == 1 ? writes_.data() : nullptr;
}

void MlaWork::add_projection(std::vector<attn::MatmulParams> products, double flops) {
  projections_ = std::move(products);
  attn::ValueOutputParams whole{};
  whole.project = projections_.front();
  if (problem.mla.fused_steps && projections_.size() == 1 && ops.fuses(whole)) {
    add_each(kProjectionStep, false, &Ops::project_values, std::vector{whole}, 0, flops);
  } else {
    for (const attn::MatmulParams& product : projections_) ops.prepare_matmul(product);
    add_each(kProjectionStep, false, &Ops::matmul, projections_, 0, flops);
  }
}

bool MlaWork::joins_projection(attn::ValueOutputParams codes) {
  const bool is_last = !steps.empty() && steps.back().name == kProjectionStep;
  if (!is_last || !problem.mla.fused_steps || projections_.size() != 1) return false;
  codes.project = projections_.front();
  if (codes.project.m != num_tokens || !ops.fuses(codes)) return false;
  const double flops = steps.back().flops;
  steps.pop_back();
  add_each(kProjectionStep, false, &Ops::project_values, std::vector{codes}, 0, flops);
  return true;
}

int longest_query(std::span<const std::int32_t> query_start_loc) {
  std::int32_t longest = 0;
  for (std::size_t b = 1; b < query_start_loc.size(); ++b) {
    longest = std::max(longest, query_start_loc[b] - query_start_loc[b - 1]);
  }
  return longest;
}

}  // namespace attnbench
