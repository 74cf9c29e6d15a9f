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
/// What a server could spare beside its cache.
constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;

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

bool can_widen(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  return is_16_bit(params.query_element) && is_float_code(kv.element) &&
         kv.coding == attn::KvCoding::kElements && kv.block_table != nullptr &&
         kv.key_scales == nullptr && kv.rope == nullptr && params.batch_invariant == 0 &&
         page_elements(params) > 0;
}

}  // namespace

bool wide_pages_pay(const std::vector<Request>& requests, std::int64_t group, std::int64_t window,
                    std::int64_t key_bytes) {
  std::int64_t keys = 0;
  std::int64_t reads = 0;
  for (const Request& request : requests) {
    const std::int64_t tiles = ceil_div(request.query_len * group, kTileRows);
    std::int64_t seen = request.seq_len - request.query_len / 2;  // by a row in the middle
    if (window >= 0) seen = std::min(seen, window + kTileRows / group);
    keys += request.seq_len;
    reads += tiles * (seen + kTileKeys / 2);
  }
  return keys * key_bytes <= kMostBytes && 10 * reads >= kLeastReads10 * keys && keys > 0;
}

std::optional<WidePages> make_wide_pages(const std::vector<Request>& batch,
                                         const attn::AttendParams& part, DeviceBuffers& memory) {
  if (!can_widen(part)) return std::nullopt;
  const auto first = batch.begin() + part.first_request;
  const std::vector<Request> requests(first, first + part.num_requests);
  const std::int64_t page = page_elements(part);
  const std::int64_t row = page / part.kv.block_size;
  const std::int64_t window = part.score.mm_ranges == nullptr ? part.score.window_left : -1;
  if (!wide_pages_pay(requests, part.num_heads / part.num_kv_heads, window, row * 4)) {
    return std::nullopt;
  }
  WidePages wide{{}, {}, part};
  attn::KvParams& kv = wide.attend.kv;
  kv.element = part.query_element;
  kv.k_scale = kv.v_scale = nullptr;
  kv.round_dequantized = 0;
  kv.block_stride = page;
  if (!memory.ops().wants_wide_pages(wide.attend)) return std::nullopt;
  // Pages one behind the other, request behind request; a row of a table for every request of the
  // batch, since requests are named by their numbers in it.
  const std::int64_t columns =
      std::max<std::int64_t>(ceil_div(part.max_seq_len, part.kv.block_size), 1);
  std::vector<int> table(batch.size() * static_cast<std::size_t>(columns), -1);
  std::vector<int> starts(batch.size() + 1, 0);  // of a request's rows, whole pages of them
  std::vector<int> request_of_row;
  int pages = 0;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const auto in_part = static_cast<std::int64_t>(b) - part.first_request;
    if (in_part >= 0 && in_part < part.num_requests) {
      const auto count = checked_int32(ceil_div(batch[b].seq_len, part.kv.block_size), "pages");
      for (int i = 0; i < count; ++i) {
        table[b * static_cast<std::size_t>(columns) + static_cast<std::size_t>(i)] = pages++;
      }
    }
    starts[b + 1] = checked_int32(std::int64_t{pages} * part.kv.block_size, "rows of pages");
    request_of_row.resize(static_cast<std::size_t>(starts[b + 1]), static_cast<int>(b));
  }
  kv.block_table = memory.upload(table, "wide block_table");
  kv.block_table_stride = columns;
  attn::MlaGatherParams gather{};
  gather.entries.element = part.kv.element;
  gather.entries.block_stride = part.kv.block_stride;
  gather.entries.slot_stride = row;
  gather.entries.block_table = part.kv.block_table;
  gather.entries.block_table_stride = part.kv.block_table_stride;
  gather.entries.block_size = part.kv.block_size;
  gather.entries.entry_size = checked_int32(row, "elements of a row");
  gather.output_element = kv.element;
  gather.output_token_stride = row;
  gather.cu_seq_lens = memory.upload(starts, "starts of wide pages");
  gather.token_to_seq = memory.upload(request_of_row, "requests of wide rows");
  gather.num_tokens = starts.back();
  wide.keys = wide.values = gather;
  const std::int64_t elements = gather.num_tokens * row;
  wide.keys.entries.cache = part.kv.key;
  wide.keys.k_scale = part.kv.k_scale;
  wide.keys.output = memory.workspace_of(kv.element, elements, "wide keys");
  wide.values.entries.cache = part.kv.value;
  wide.values.k_scale = part.kv.v_scale;
  wide.values.output = memory.workspace_of(kv.element, elements, "wide values");
  kv.key = wide.keys.output;
  kv.value = wide.values.output;
  return wide;
}

}  // namespace attnbench
