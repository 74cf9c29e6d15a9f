// Gathering the context of MLA prefill out of the paged cache (semantics §8.4.2 to §8.4.4). A row
// of the output is the unit of work. Workspaces are larger than what a chunk fills: rows past the
// end of the last request, or between requests, are left as they were.
#include <algorithm>
#include <cstring>

#include "kernels/params_mla.h"
#include "ops/cpu/cache/ds_mla_entry.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// Where the entry of a request's position lies; strides are in elements of the cache.
const char* entry_at(const attn::MlaEntries& entries, attn::i64 request, attn::i64 position) {
  const attn::i64 block =
      entries.block_table[request * entries.block_table_stride + position / entries.block_size];
  return element_at(
      entries.element, entries.cache,
      block * entries.block_stride + position % entries.block_size * entries.slot_stride);
}

/// Last request that starts at or before `row`: among requests that start there, the one that is
/// not empty.
attn::i64 request_of_row(const int* starts, int num_requests, attn::i64 row) {
  return std::upper_bound(starts, starts + num_requests, row) - starts - 1;
}

/// Whether an entry is codes, which a scale belongs to.
bool is_coded(attn::Element element) { return element_size(element) == 1; }

/// The values of all codes, scale included: one product in f32 for each, as the definition has it.
void fill_codes(const attn::MlaGatherParams& params, CodeTable& codes) {
  if (!is_coded(params.entries.element)) return;
  const float scale = params.k_scale == nullptr ? 1.0f : params.k_scale[0];
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    codes[static_cast<std::size_t>(code)] =
        load_float(static_cast<Dtype>(params.entries.element), &byte, 0) * scale;
  }
}

}  // namespace

void gather_mla(const attn::MlaGatherParams& params, Workers& workers) {
  const attn::MlaEntries& entries = params.entries;
  CodeTable codes{};
  fill_codes(params, codes);
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t row, int thread) {
    const int request = params.token_to_seq[row];
    if (row >= params.cu_seq_lens[request + 1]) return;
    const int start = params.seq_starts == nullptr ? 0 : params.seq_starts[request];
    const char* entry = entry_at(entries, request, row - params.cu_seq_lens[request] + start);
    char* output =
        element_at(params.output_element, params.output, row * params.output_token_stride);
    if (entries.element == params.output_element && !is_coded(entries.element)) {
      std::memcpy(output, entry,
                  static_cast<std::size_t>(entries.entry_size * element_size(entries.element)));
      return;
    }
    float* values =
        room_for(workers.scratch[static_cast<std::size_t>(thread)].line, entries.entry_size);
    decode_row(entries.element, entry, entries.entry_size, codes, values);
    store_row(params.output_element, values, entries.entry_size, output);
  });
}

void cp_gather(const attn::CpGatherParams& params, Workers& workers) {
  const attn::MlaEntries& entries = params.entries;
  workers.pool.parallel_for(params.num_tokens, [&](std::int64_t row, int) {
    const attn::i64 request = request_of_row(params.cu_seq_lens, params.num_requests, row);
    if (request < 0 || row >= params.cu_seq_lens[request + 1]) return;
    const int start = params.seq_starts == nullptr ? 0 : params.seq_starts[request];
    std::memcpy(element_at(entries.element, params.output, row * params.output_token_stride),
                entry_at(entries, request, row - params.cu_seq_lens[request] + start),
                static_cast<std::size_t>(entries.entry_size * element_size(entries.element)));
  });
}

void upconvert_ds_mla(const attn::DsMlaUpconvertParams& params, Workers& workers) {
  CodeTable codes;
  fill_e4m3_codes(codes);
  workers.pool.parallel_for(params.num_rows, [&](std::int64_t row, int thread) {
    const attn::i64 request = request_of_row(params.workspace_starts, params.num_requests, row);
    if (request < 0) return;
    const attn::i64 position = row - params.workspace_starts[request];
    if (position >= params.seq_lens[request]) return;
    const bool is_model1 = params.is_model1 != 0;
    const int width =
        is_model1 ? attn::kModel1Latent + attn::kModel1Rope : attn::kDsMlaLatent + attn::kDsMlaRope;
    float* values = room_for(workers.scratch[static_cast<std::size_t>(thread)].line, width);
    const auto* entry =
        reinterpret_cast<const std::uint8_t*>(entry_at(params.entries, request, position));
    if (is_model1) {
      const attn::i64 offset = position % params.entries.block_size;
      read_model1_entry(entry,
                        entry - offset * params.entries.slot_stride +
                            model1_scales_at(params.entries.block_size, offset),
                        codes, values);
    } else {
      read_ds_mla_entry(entry, codes, values);
    }
    store_row(attn::Element::kBF16, values, width,
              element_at(attn::Element::kBF16, params.output, row * params.output_token_stride));
  });
}

}  // namespace attnbench::cpu
