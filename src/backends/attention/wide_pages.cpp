#include "backends/attention/wide_pages.h"

#include <algorithm>
#include <span>

#include "metadata/int_math.h"

namespace attnbench {
namespace {

/// Converting reads a byte and writes two for every element; a tile of query rows that converts
/// codes for itself takes 1.7 times as long as one that does not. One NVIDIA H200, 2026-12-01, bf16
/// queries over e4m3, D128, on the way and in front of the attention, us: two requests of 8,192
/// tokens 2520 and 1480, 64 of 512 623 and 407, 64 of 256 259 and 182, 64 of 128 117 and 89, 16 of
/// 128 behind 4k keys 390 and 328. Fewer rows were not measured.
constexpr std::int64_t kTileRows = 192;
constexpr std::int64_t kTileKeys = 80;      // whole ones of which a tile of rows goes through
constexpr std::int64_t kLeastReads10 = 23;  // of a key, by tiles of rows, in tenths
/// Of values alone (ops/cuda/attention/hopper_wide_values.h): 64 requests of 512 tokens, whose
/// values are read 6 times, lose 10 % with 128 columns and gain 12 % with 256; 32 of 1,024, 12
/// times, lose 1.5 % and gain 21; 8 of 2,048, 22 times, gain 3 and 28 %. The rows of a tile of more
/// than 128 columns are fewer, 128.
constexpr std::int64_t kLeastValueReads10 = 150;
constexpr std::int64_t kLeastWideValueReads10 = 50;
constexpr int kMostColumnsOfTile = 128;
/// What a server could spare beside its cache.
constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;

std::int64_t least_value_reads10(int columns) {
  return columns > kMostColumnsOfTile ? kLeastWideValueReads10 : kLeastValueReads10;
}

bool is_float_code(attn::Element element) {
  return element == attn::Element::kE4M3 || element == attn::Element::kE5M2;
}
bool is_16_bit(attn::Element element) {
  return element == attn::Element::kBF16 || element == attn::Element::kF16;
}

/// Elements of a page of keys, or of values, that lies in one piece, token behind token or head
/// behind head; 0 where it does not.
std::int64_t page_elements(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const std::int64_t head = params.head_size;
  const std::int64_t all = head * params.num_kv_heads * kv.block_size;
  const bool by_tokens =
      kv.head_stride_key == head && kv.token_stride_key == head * params.num_kv_heads;
  const bool by_heads = kv.token_stride_key == head && kv.head_stride_key == head * kv.block_size;
  return params.v_head_size == params.head_size && (by_tokens || by_heads) ? all : 0;
}

/// Of keys and values, or of values alone.
bool has_plain_pages(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  return kv.coding == attn::KvCoding::kElements && kv.block_table != nullptr &&
         kv.rope == nullptr && params.batch_invariant == 0 && page_elements(params) > 0;
}

bool can_widen(const attn::AttendParams& params) {
  return is_16_bit(params.query_element) && is_float_code(params.kv.element) &&
         params.kv.key_scales == nullptr && has_plain_pages(params);
}

bool can_widen_values(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const bool is_int8 = params.int8.query_scale != nullptr;
  const bool has_codes = is_int8 ? params.int8.value_element == attn::Element::kI8
                                 : params.query_element == attn::Element::kE4M3 &&
                                       kv.element == attn::Element::kE4M3 &&
                                       kv.key_scales == nullptr && kv.round_dequantized == 0;
  return has_codes && params.e4m3_probability == 0 && has_plain_pages(params);
}

/// Whether keys are read by so many tiles of rows, in tenths, and pages of so many bytes a key fit.
bool are_read(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
              std::int64_t key_bytes, std::int64_t least_reads10) {
  std::int64_t keys = 0;
  std::int64_t reads = 0;
  for (const Request& request : requests) {
    const std::int64_t tiles = ceil_div(request.query_len * group, kTileRows);
    std::int64_t seen = request.seq_len - request.query_len / 2;  // by a row in the middle
    if (window >= 0) seen = std::min(seen, window + kTileRows / group);
    keys += request.seq_len;
    reads += tiles * (seen + kTileKeys / 2);
  }
  return keys * key_bytes <= kMostBytes && 10 * reads >= least_reads10 * keys && keys > 0;
}

/// Whether the requests of `part` get pages of so many bytes a key.
bool is_wanted(WideUse use, const std::vector<Request>& batch, const attn::AttendParams& part,
               std::int64_t key_bytes, std::int64_t least_reads10) {
  if (use == WideUse::kNever) return false;
  const auto first = batch.begin() + part.first_request;
  const std::int64_t window = part.score.mm_ranges == nullptr ? part.score.window_left : -1;
  return are_read({first, first + part.num_requests}, part.num_heads / part.num_kv_heads, window,
                  key_bytes, use == WideUse::kAlways ? 0 : least_reads10);
}

/// Pages one behind the other, request behind request; a row of a table for every request of the
/// batch, since requests are named by their numbers in it, in rows as long as those of `part`.
attn::MlaGatherParams gather_of_pages(const std::vector<Request>& batch,
                                      const attn::AttendParams& part, attn::Element to,
                                      const int*& wide_table, DeviceBuffers& memory) {
  const attn::KvParams& from = part.kv;
  const std::int64_t row = page_elements(part) / from.block_size;
  const std::int64_t columns = from.block_table_stride;
  std::vector<int> table(batch.size() * static_cast<std::size_t>(columns), -1);
  std::vector<int> starts(batch.size() + 1, 0);  // of a request's rows, whole pages of them
  std::vector<int> request_of_row;
  int pages = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const auto in_part = static_cast<std::int64_t>(b) - part.first_request;
    if (in_part >= 0 && in_part < part.num_requests) {
      const auto count = checked_int32(ceil_div(batch[b].seq_len, from.block_size), "pages");
      for (int i = 0; i < count; ++i) {
        table[b * static_cast<std::size_t>(columns) + static_cast<std::size_t>(i)] = pages++;
      }
    }
    starts[b + 1] = checked_int32(std::int64_t{pages} * from.block_size, "rows of pages");
    request_of_row.resize(static_cast<std::size_t>(starts[b + 1]), static_cast<int>(b));
  }
  wide_table = memory.upload(table, "wide block_table");
  attn::MlaGatherParams gather{};
  gather.entries.element = from.element;
  gather.entries.block_stride = from.block_stride;
  gather.entries.slot_stride = row;
  gather.entries.block_table = from.block_table;
  gather.entries.block_table_stride = from.block_table_stride;
  gather.entries.block_size = from.block_size;
  gather.entries.entry_size = checked_int32(row, "elements of a row");
  gather.output_element = to;
  gather.output_token_stride = row;
  gather.cu_seq_lens = memory.upload(starts, "starts of wide pages");
  gather.token_to_seq = memory.upload(request_of_row, "requests of wide rows");
  gather.num_tokens = starts.back();
  return gather;
}

/// One side of the cache to `name`.
void set_side(attn::MlaGatherParams& gather, const void* cache, const float* scale,
              const char* name, DeviceBuffers& memory) {
  gather.entries.cache = cache;
  gather.k_scale = scale;
  gather.output = memory.workspace_of(gather.output_element,
                                      gather.num_tokens * gather.entries.entry_size, name);
}

}  // namespace

bool wide_pages_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                    std::int64_t key_bytes) {
  return are_read(requests, group, window, key_bytes, kLeastReads10);
}
bool wide_values_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                     std::int64_t value_bytes, int columns) {
  return are_read(requests, group, window, value_bytes, least_value_reads10(columns));
}

std::optional<WidePages> make_wide_pages(const std::vector<Request>& batch,
                                         const attn::AttendParams& part, DeviceBuffers& memory) {
  if (!can_widen(part)) return std::nullopt;
  const std::int64_t page = page_elements(part);
  WidePages wide{{}, {}, part};
  attn::KvParams& kv = wide.attend.kv;
  kv.element = part.query_element;
  kv.k_scale = kv.v_scale = nullptr;
  kv.round_dequantized = 0;
  kv.block_stride = page;
  const WideUse use = memory.ops().wide_use(wide.attend);
  if (!is_wanted(use, batch, part, page / kv.block_size * 4, kLeastReads10)) return std::nullopt;
  wide.values = gather_of_pages(batch, part, kv.element, kv.block_table, memory);
  wide.keys = wide.values;
  set_side(*wide.keys, part.kv.key, part.kv.k_scale, "wide keys", memory);
  set_side(wide.values, part.kv.value, part.kv.v_scale, "wide values", memory);
  kv.key = wide.keys->output;
  kv.value = wide.values.output;
  return wide;
}

std::optional<WidePages> make_wide_values(const std::vector<Request>& batch,
                                          const attn::AttendParams& part, DeviceBuffers& memory) {
  if (!can_widen_values(part)) return std::nullopt;
  const std::int64_t page = page_elements(part);
  WidePages wide{{}, {}, part};
  attn::KvParams& kv = wide.attend.kv;
  kv.value_block_table = part.kv.block_table;  // which there will be, for the question
  kv.value_block_stride = page;
  if (wide.attend.int8.query_scale != nullptr) {
    wide.attend.int8.value_element = attn::Element::kF16;
  }
  const WideUse use = memory.ops().wide_use(wide.attend);
  const std::int64_t least_reads10 = least_value_reads10(part.v_head_size);
  if (!is_wanted(use, batch, part, page / kv.block_size * 2, least_reads10)) return std::nullopt;
  wide.values = gather_of_pages(batch, part, attn::Element::kF16, kv.value_block_table, memory);
  set_side(wide.values, part.kv.value, nullptr, "wide values", memory);
  kv.value = wide.values.output;
  return wide;
}

}  // namespace attnbench
