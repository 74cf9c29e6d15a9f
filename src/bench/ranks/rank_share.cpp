// Only what the pipelines of a rank read: keys and values of the whole case stay with rank 0, whose
// references need them.
#include "bench/ranks/rank_share.h"

#include <memory>
#include <utility>

#include "core/error.h"
#include "core/problem/fields.h"
#include "scenario/text/yaml_reader.h"

namespace attnbench {
namespace {

template <typename Lengths>
void write_lengths(ParcelWriter& parcel, const Lengths& inputs) {
  parcel.numbers(inputs.query_start_loc);
  parcel.numbers(inputs.seq_lens);
  parcel.numbers(inputs.key_start_loc);
}

template <typename Lengths>
void read_lengths(ParcelReader& parcel, Lengths& inputs) {
  inputs.query_start_loc = parcel.numbers<std::int32_t>();
  inputs.seq_lens = parcel.numbers<std::int32_t>();
  inputs.key_start_loc = parcel.numbers<std::int64_t>();
}

void write_layout(ParcelWriter& parcel, const KvLayout& layout) {
  for (const std::int64_t value : {layout.total_elements, layout.key_offset, layout.value_offset,
                                   layout.block_stride, layout.slot_stride, layout.head_stride,
                                   std::int64_t{layout.padded_head_size}, layout.scale_offset}) {
    parcel.number(value);
  }
}

KvLayout read_layout(ParcelReader& parcel) {
  KvLayout layout;
  for (std::int64_t* value : {&layout.total_elements, &layout.key_offset, &layout.value_offset,
                              &layout.block_stride, &layout.slot_stride, &layout.head_stride}) {
    *value = parcel.number<std::int64_t>();
  }
  layout.padded_head_size = static_cast<int>(parcel.number<std::int64_t>());
  layout.scale_offset = parcel.number<std::int64_t>();
  return layout;
}

void write_attention(ParcelWriter& parcel, const BackendInputs& inputs, int rank) {
  if (!inputs.cache) fail(ErrorKind::kInternal, "no paged cache to share among ranks");
  const PagedCache& cache = *inputs.cache;
  write_lengths(parcel, *inputs.inputs);
  parcel.numbers(inputs.inputs->alibi_slopes);
  parcel.tensor(inputs.query.query);
  parcel.number(inputs.query.scale);
  write_layout(parcel, cache.layout);
  parcel.tensor(cache.data, rank, 1);
  parcel.tensor(cache.slot_mapping, rank, 1);
  parcel.tensor(cache.block_table);
  parcel.tensor(cache.new_key);
  parcel.tensor(cache.new_value);
}

void write_mla(ParcelWriter& parcel, const BackendInputs& inputs, int rank) {
  const MlaInputs& mla = *inputs.mla;
  const MlaCache& cache = *inputs.mla_cache;
  write_lengths(parcel, mla);
  for (const Tensor* tensor : {&mla.query, &mla.w_uk, &mla.w_uv}) parcel.tensor(*tensor);
  parcel.tensor(cache.data, rank, 1);
  parcel.tensor(cache.slot_mapping, rank, 1);
  for (const Tensor* tensor : {&cache.block_table, &cache.new_kv_c, &cache.new_k_pe}) {
    parcel.tensor(*tensor);
  }
}

std::int64_t whole(const Value& row, const char* key) {
  const Value* const value = row.find(key);
  if (value == nullptr || !value->is_int()) {
    fail(ErrorKind::kFormat, "a rank was sent a batch without {}", key);
  }
  return value->integer;
}

}  // namespace

Problem problem_from_json(const std::string& text) {
  const Value document = read_yaml(text, std::make_shared<const std::string>("problem"));
  Problem problem;
  if (const Value* name = document.find("name")) problem.scenario = name->text;
  for (const Field& field : problem_fields()) {
    const Value* const value = document.find_path(field.key);
    if (value == nullptr) continue;
    if (const auto mismatch = field.set(*value, problem)) {
      fail(ErrorKind::kFormat, "a rank was sent {}: expected {}", field.key, mismatch->expected);
    }
  }
  const Value* const batch = document.find("batch");
  if (batch == nullptr) fail(ErrorKind::kFormat, "a rank was sent a problem without batch");
  for (const Value& row : batch->items) {
    Request request{whole(row, "query_len"), whole(row, "seq_len")};
    if (const Value* prefilling = row.find("prefilling")) request.prefilling = prefilling->boolean;
    problem.batch.insert(problem.batch.end(), static_cast<std::size_t>(whole(row, "count")),
                         request);
  }
  return problem;
}

Parcel pack_share(const Problem& problem, const BackendInputs& inputs, int rank) {
  ParcelWriter parcel;
  parcel.string(problem_to_json(problem));
  if (inputs.mla != nullptr) {
    write_mla(parcel, inputs, rank);
  } else {
    write_attention(parcel, inputs, rank);
  }
  return parcel.take();
}

RankShare::RankShare(const Parcel& parcel, const RankSeat& seat) {
  ParcelReader reader(parcel.text, parcel.file);
  problem_ = problem_from_json(reader.string());
  inputs_.seat = &seat;
  if (problem_.attention.type == AttentionType::kMla) {
    read_mla(reader);
  } else {
    read_attention(reader);
  }
  reader.end();
}

void RankShare::read_attention(ParcelReader& parcel) {
  read_lengths(parcel, attention_);
  attention_.alibi_slopes = parcel.numbers<float>();
  inputs_.inputs = &attention_;
  inputs_.query.query = parcel.tensor();
  inputs_.query.scale = parcel.number<float>();
  PagedCache& cache = inputs_.cache.emplace();
  cache.layout = read_layout(parcel);
  cache.data = parcel.tensor();
  cache.slot_mapping = parcel.tensor();
  cache.block_table = parcel.tensor();
  cache.new_key = parcel.tensor();
  cache.new_value = parcel.tensor();
}

void RankShare::read_mla(ParcelReader& parcel) {
  read_lengths(parcel, mla_);
  for (Tensor* tensor : {&mla_.query, &mla_.w_uk, &mla_.w_uv}) *tensor = parcel.tensor();
  mla_cache_.data = parcel.tensor();
  mla_cache_.slot_mapping = parcel.tensor();
  for (Tensor* tensor : {&mla_cache_.block_table, &mla_cache_.new_kv_c, &mla_cache_.new_k_pe}) {
    *tensor = parcel.tensor();
  }
  inputs_.mla = &mla_;
  inputs_.mla_cache = &mla_cache_;
}

}  // namespace attnbench
