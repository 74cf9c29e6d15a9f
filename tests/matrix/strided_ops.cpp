#include "strided_ops.h"

#include <algorithm>
#include <cstring>

namespace attnbench::matrix {
namespace {

std::size_t size_of(attn::Element element) { return dtype_size(static_cast<Dtype>(element)); }

}  // namespace

const void* StridedOps::spread(const void* source, attn::i64& stride, std::int64_t rows,
                               std::int64_t width, attn::Element element, std::int64_t gap) {
  if (rows == 0) return source;
  ++num_views_;
  const auto from = static_cast<std::size_t>(stride) * size_of(element);
  const auto to = static_cast<std::size_t>(width + gap) * size_of(element);
  const std::size_t bytes = static_cast<std::size_t>(width) * size_of(element);
  std::vector<std::byte>& copy =
      copies_.emplace_back(static_cast<std::size_t>(rows) * to, std::byte{0xFF});
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    std::memcpy(copy.data() + row * to, static_cast<const std::byte*>(source) + row * from, bytes);
  }
  stride = width + gap;
  return copy.data();
}

attn::AttendParams StridedOps::spread_views(attn::AttendParams p) {
  const int requests = p.first_request + p.num_requests;
  p.query =
      spread(p.query, p.query_token_stride, p.query_start_loc[requests],
             std::int64_t{p.num_heads - 1} * p.query_head_stride + p.head_size, p.query_element);
  if (p.kv.kv_start_loc == nullptr || p.num_requests == 0) return p;
  // Requests need not be in order: V of a context chunk may be the key's own rows.
  std::int64_t rows = 0;
  for (int b = 0; b < requests; ++b) {
    rows = std::max<std::int64_t>(rows, p.kv.kv_start_loc[b] + p.seq_lens[b]);
  }
  p.kv.key =
      spread(p.kv.key, p.kv.token_stride_key, rows,
             std::int64_t{p.num_kv_heads - 1} * p.kv.head_stride_key + p.head_size, p.kv.element);
  p.kv.value = spread(p.kv.value, p.kv.token_stride_value, rows,
                      std::int64_t{p.num_kv_heads - 1} * p.kv.head_stride_value + p.v_head_size,
                      p.kv.element);
  return p;
}

attn::Int8CacheWriteParams StridedOps::spread_rows(attn::Int8CacheWriteParams p) {
  const std::int64_t last_head = p.num_kv_heads - 1;
  p.key = static_cast<const signed char*>(spread(p.key, p.key_token_stride, p.num_tokens,
                                                 last_head * p.key_head_stride + p.head_size,
                                                 attn::Element::kI8));
  p.value = spread(p.value, p.value_token_stride, p.num_tokens,
                   last_head * p.value_head_stride + p.head_size, p.value_element);
  return p;
}

void StridedOps::attend(const attn::AttendParams& p) {
  inner().attend(spread_views(p));
  copies_.clear();
}
void StridedOps::attend_splits(const attn::AttendParams& p, const attn::SplitParams& split) {
  inner().attend_splits(spread_views(p), split);
  copies_.clear();
}
void StridedOps::attend_segments(const attn::AttendParams& p, const attn::SegmentParams& segments) {
  inner().attend_segments(spread_views(p), segments);
  copies_.clear();
}
void StridedOps::attend_plan(const attn::AttendParams& p, const attn::PlanParams& plan) {
  inner().attend_plan(spread_views(p), plan);
  copies_.clear();
}
void StridedOps::attend_sparse(const attn::AttendParams& p, const attn::SparseParams& sparse) {
  inner().attend_sparse(spread_views(p), sparse);
  copies_.clear();
}
void StridedOps::attend_sparse_plan(const attn::AttendParams& p, const attn::SparseParams& sparse,
                                    const attn::PlanParams& plan) {
  inner().attend_sparse_plan(spread_views(p), sparse, plan);
  copies_.clear();
}

void StridedOps::write_cache(const attn::CacheWriteParams& params) {
  attn::CacheWriteParams p = params;
  p.key = spread(p.key, p.key_token_stride, p.num_slots, std::int64_t{p.num_kv_heads} * p.head_size,
                 p.source_element);
  p.value = spread(p.value, p.value_token_stride, p.num_slots,
                   std::int64_t{p.num_kv_heads} * p.v_head_size, p.source_element);
  inner().write_cache(p);
  copies_.clear();
}

void StridedOps::write_cache_int8(const attn::Int8CacheWriteParams& p) {
  inner().write_cache_int8(spread_rows(p));
  copies_.clear();
}

void StridedOps::save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                                      const attn::AttendParams& p) {
  inner().save_and_attend_int8(spread_rows(save), spread_views(p));
  copies_.clear();
}

void StridedOps::save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                             const attn::AttendParams& p,
                                             const attn::SplitParams& split) {
  inner().save_and_attend_splits_int8(spread_rows(save), spread_views(p), split);
  copies_.clear();
}

void StridedOps::write_mla_cache(const attn::MlaCacheWriteParams& params) {
  attn::MlaCacheWriteParams p = params;
  p.kv_c = spread(p.kv_c, p.kv_c_token_stride, p.num_slots, p.kv_lora_rank, p.source_element);
  p.k_pe = spread(p.k_pe, p.k_pe_token_stride, p.num_slots, p.rope_head_dim, p.source_element);
  inner().write_mla_cache(p);
  copies_.clear();
}

void StridedOps::rotate_heads(const attn::RotateHeadsParams& params) {
  attn::RotateHeadsParams p = params;
  p.source = spread(p.source, p.source_token_stride, p.num_tokens,
                    std::int64_t{p.num_heads - 1} * p.source_head_stride + p.head_size, p.element);
  inner().rotate_heads(p);
  copies_.clear();
}

void StridedOps::quantise_int8(const attn::Int8QuantiseParams& params) {
  attn::Int8QuantiseParams p = params;
  p.source =
      spread(p.source, p.source_token_stride, p.num_tokens,
             std::int64_t{p.num_heads - 1} * p.source_head_stride + p.head_size, p.source_element);
  inner().quantise_int8(p);
  copies_.clear();
}

void StridedOps::quantise_pad_fp8(const attn::PadQuantiseParams& params) {
  attn::PadQuantiseParams p = params;
  p.source =
      spread(p.source, p.source_token_stride, p.num_tokens,
             std::int64_t{p.num_heads - 1} * p.source_head_stride + p.head_size, p.source_element);
  inner().quantise_pad_fp8(p);
  copies_.clear();
}

void StridedOps::amax(const attn::AmaxParams& params) {
  attn::AmaxParams p = params;
  p.source = spread(p.source, p.token_stride, p.num_tokens,
                    std::int64_t{p.num_heads - 1} * p.head_stride + p.head_size, p.element);
  inner().amax(p);
  copies_.clear();
}

void StridedOps::matmul(const attn::MatmulParams& params) {
  attn::MatmulParams p = params;
  const std::int64_t row = (p.num_batches - 1) * p.a_batch_stride + p.k;
  // Rows that hold a part of every batch: those of the query, and of the latent output.
  if (p.k > 0 && row <= p.a_row_stride) {
    p.a = spread(p.a, p.a_row_stride, p.m, row, p.element);
  }
  inner().matmul(p);
  copies_.clear();
}

void StridedOps::quantise_fp8(const attn::StaticQuantiseParams& p) {
  inner().quantise_fp8(spread_source(p));
  copies_.clear();
}
void StridedOps::quantise_fp8_groups(const attn::GroupQuantiseParams& p) {
  inner().quantise_fp8_groups(spread_source(p));
  copies_.clear();
}
void StridedOps::quantise_nvfp4(const attn::Nvfp4QuantiseParams& p) {
  inner().quantise_nvfp4(spread_source(p));
  copies_.clear();
}

void StridedOps::correct_dcp(const attn::DcpCorrectParams& params) {
  attn::DcpCorrectParams p = params;
  // In place, the output has the strides of the partial result.
  if (p.output != p.partial) {
    p.partial = spread(p.partial, p.partial_token_stride, p.num_tokens,
                       std::int64_t{p.num_heads - 1} * p.partial_head_stride + p.head_size,
                       p.partial_element);
  }
  inner().correct_dcp(p);
  copies_.clear();
}

void StridedOps::combine_dcp(const attn::DcpCombineParams& params) {
  attn::DcpCombineParams p = params;
  // Tokens of all ranks follow each other, as one tensor.
  if (p.partial_rank_stride == p.num_tokens * p.partial_token_stride) {
    p.partial = spread(p.partial, p.partial_token_stride, p.lses.world_size * p.num_tokens,
                       std::int64_t{p.num_heads - 1} * p.partial_head_stride + p.head_size,
                       p.partial_element);
    p.partial_rank_stride = p.num_tokens * p.partial_token_stride;
  }
  inner().combine_dcp(p);
  copies_.clear();
}

void StridedOps::write_index_cache(const attn::IndexCacheWriteParams& params) {
  attn::IndexCacheWriteParams p = params;
  p.key = spread(p.key, p.key_token_stride, p.num_slots, attn::kIndexKey, p.source_element);
  inner().write_index_cache(p);
  copies_.clear();
}

void StridedOps::index_logits(const attn::IndexLogitsParams& params) {
  // Rows of queries have to lie on multiples of 16 bytes.
  constexpr std::int64_t kQueryGap = 32;
  attn::IndexLogitsParams p = params;
  p.query = static_cast<const unsigned char*>(
      spread(p.query, p.query_token_stride, p.num_tokens,
             std::int64_t{p.num_heads - 1} * p.query_head_stride + attn::kIndexKey,
             attn::Element::kE4M3, kQueryGap));
  p.weights = static_cast<const float*>(
      spread(p.weights, p.weights_token_stride, p.num_tokens, p.num_heads, attn::Element::kF32));
  inner().index_logits(p);
  copies_.clear();
}

void StridedOps::index_topk(const attn::IndexTopkParams& params) {
  attn::IndexTopkParams p = params;
  const int columns =
      p.num_requests == 0 ? 0 : *std::max_element(p.seq_lens, p.seq_lens + p.num_requests);
  p.logits = static_cast<const float*>(
      spread(p.logits, p.logits_stride, p.num_tokens, columns, attn::Element::kF32));
  inner().index_topk(p);
  copies_.clear();
}

}  // namespace attnbench::matrix
