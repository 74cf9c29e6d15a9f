// Cache writes of the int8 attention, by slot mapping or at the end of each request (semantics
// §11.6), and the decode that saves before it attends. Keys and values come quantised; bits and
// scales are copied.
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Key, value and key scale of every head; the scale lies in an array of its own.
void write_token(const attn::Int8CacheWriteParams& params, std::int64_t token, attn::i64 block,
                 attn::i64 offset) {
  const attn::i64 value_size = element_size(params.value_element);
  const auto width = static_cast<std::size_t>(params.head_size);
  for (int head = 0; head < params.num_kv_heads; ++head) {
    const attn::i64 cell =
        block * params.block_stride + offset * params.slot_stride + head * params.head_stride;
    std::memcpy(params.key_cache + cell,
                params.key + token * params.key_token_stride + head * params.key_head_stride,
                width);
    const attn::i64 source = token * params.value_token_stride + head * params.value_head_stride;
    std::memcpy(static_cast<char*>(params.value_cache) + cell * value_size,
                static_cast<const char*>(params.value) + source * value_size,
                width * static_cast<std::size_t>(value_size));
    params.key_scale_cache[block * params.scale_block_stride + offset * params.scale_slot_stride +
                           head * params.scale_head_stride] =
        params
            .key_scale[token * params.key_scale_token_stride + head * params.key_scale_head_stride];
  }
}

/// The new tokens of a request take its last positions. A length of 0 has none (§11.6).
void save_request(const attn::Int8CacheWriteParams& params, std::int64_t request) {
  const attn::i64 seq_len = params.seq_lens[request];
  if (seq_len == 0) return;
  const int* blocks = params.block_table + request * params.block_table_stride;
  const int first = params.query_start_loc[request];
  const int query_len = params.query_start_loc[request + 1] - first;
  for (int i = 0; i < query_len; ++i) {
    const attn::i64 position = seq_len - query_len + i;
    write_token(params, first + i, blocks[position / params.block_size],
                position % params.block_size);
  }
}

}  // namespace

void write_cache_int8(const attn::Int8CacheWriteParams& params, Workers& workers) {
  if (params.slot_mapping == nullptr) {
    workers.pool.parallel_for(params.num_requests,
                              [&](std::int64_t request, int) { save_request(params, request); });
    return;
  }
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t token, int) {
    const attn::i64 slot = params.slot_mapping[token];
    if (slot < 0) return;
    write_token(params, token, slot / params.block_size, slot % params.block_size);
  });
}

void save_and_attend_int8(const attn::Int8CacheWriteParams& save, const attn::AttendParams& params,
                          Workers& workers) {
  write_cache_int8(save, workers);
  attend(params, workers);
}

void save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                 const attn::AttendParams& params, const attn::SplitParams& split,
                                 Workers& workers) {
  write_cache_int8(save, workers);
  attend_splits(params, split, workers);
}

}  // namespace attnbench::cpu
