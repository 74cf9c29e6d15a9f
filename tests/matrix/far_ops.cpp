#include "far_ops.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace attnbench::matrix {
namespace {

constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 1;  // elements

std::size_t size_of(attn::Element element) { return dtype_size(static_cast<Dtype>(element)); }

/// Units of `stride` elements that make more than 2^31 elements.
std::int64_t far_units(attn::i64 stride) { return (kFar + stride - 1) / stride; }

std::size_t bytes_of(std::int64_t units, attn::i64 stride, std::size_t size) {
  return static_cast<std::size_t>(units * stride) * size;
}

std::int64_t columns_of(std::int64_t positions, int block_size) {
  return (positions + block_size - 1) / block_size;
}

}  // namespace

FarOps::~FarOps() { finish(false); }

std::unique_ptr<Buffer> FarOps::allocate(std::size_t size_bytes, const std::string& name) {
  std::unique_ptr<Buffer> buffer = inner().allocate(size_bytes, name);
  buffers_[static_cast<const std::byte*>(buffer->data())] = size_bytes;
  return buffer;
}

std::byte* FarOps::move(const void* pointer, std::size_t shift, const void* begin,
                        const void* end) {
  const auto* wanted = static_cast<const std::byte*>(pointer);
  auto owner = buffers_.upper_bound(wanted);
  if (owner == buffers_.begin()) throw std::logic_error("a pointer into no buffer");
  --owner;
  const auto* first = begin == nullptr ? owner->first : static_cast<const std::byte*>(begin);
  const auto* last =
      end == nullptr ? owner->first + owner->second : static_cast<const std::byte*>(end);
  const auto size = static_cast<std::size_t>(last - first);
  for (const Region& region : regions_) {
    if (region.original == first && region.size == size && region.shift == shift) {
      return region.base + (wanted - first);
    }
  }
  Region region{nullptr, shift + size + 1, shift, const_cast<std::byte*>(first), size};
  // Why the system call itself: a sanitizer would clear its own record of gigabytes at each mmap.
  void* mapped =
      reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, region.reserved, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (mapped == MAP_FAILED) throw std::runtime_error("no address space for a far cache");
  region.base = static_cast<std::byte*>(mapped);
  std::memcpy(region.base + shift, first, size);
  regions_.push_back(region);
  ++num_moves_;
  return region.base + (wanted - first);
}

const float* FarOps::move_scales(const float* scales, std::int64_t blocks, attn::i64 block_stride) {
  if (scales == nullptr) return nullptr;
  return reinterpret_cast<const float*>(
      move(scales, bytes_of(blocks, block_stride, sizeof(float))));
}

void FarOps::finish(bool written) {
  for (const Region& region : regions_) {
    if (written) std::memcpy(region.original, region.base + region.shift, region.size);
    syscall(SYS_munmap, region.base, region.reserved);
  }
  regions_.clear();
  tables_.clear();
  slots_.clear();
}

const int* FarOps::moved_table(const attn::AttendParams& p, std::int64_t blocks) {
  const auto requests = static_cast<std::size_t>(p.first_request + p.num_requests);
  const auto stride = static_cast<std::size_t>(p.kv.block_table_stride);
  std::vector<int>& table = tables_.emplace_back(requests * stride, -1);
  for (std::size_t b = 0; b < requests; ++b) {
    const auto used = static_cast<std::size_t>(columns_of(p.seq_lens[b], p.kv.block_size));
    for (std::size_t c = 0; c < used; ++c) {
      table[b * stride + c] = p.kv.block_table[b * stride + c] + static_cast<int>(blocks);
    }
  }
  return table.data();
}

const attn::i64* FarOps::moved_slots(const attn::i64* slots, std::int64_t count, std::int64_t by) {
  if (slots == nullptr) return nullptr;
  std::vector<attn::i64>& moved = slots_.emplace_back(slots, slots + count);
  for (attn::i64& slot : moved) {
    if (slot >= 0) slot += by;
  }
  return moved.data();
}

attn::AttendParams FarOps::moved_ragged(attn::AttendParams p) {
  const std::int64_t rows = far_units(std::min(p.kv.token_stride_key, p.kv.token_stride_value));
  const std::size_t size = size_of(p.kv.element);
  p.kv.key = move(p.kv.key, bytes_of(rows, p.kv.token_stride_key, size));
  p.kv.value = move(p.kv.value, bytes_of(rows, p.kv.token_stride_value, size));
  p.kv.kv_start_loc = moved_slots(p.kv.kv_start_loc, p.first_request + p.num_requests + 1, rows);
  return p;
}

attn::AttendParams FarOps::moved(attn::AttendParams p) {
  if (p.kv.block_table == nullptr) return moved_ragged(p);
  const std::int64_t blocks = far_units(p.kv.block_stride);
  const bool mixed = p.int8.query_scale != nullptr && p.int8.value_element != p.kv.element;
  const attn::Element value = mixed ? p.int8.value_element : p.kv.element;
  p.kv.block_table = moved_table(p, blocks);
  p.kv.key = move(p.kv.key, bytes_of(blocks, p.kv.block_stride, size_of(p.kv.element)));
  p.kv.value = move(p.kv.value, bytes_of(blocks, p.kv.block_stride, size_of(value)));
  p.kv.key_scales = move_scales(p.kv.key_scales, blocks, p.kv.scale_block_stride);
  p.kv.value_scales = move_scales(p.kv.value_scales, blocks, p.kv.scale_block_stride);
  move_block_scales(p.kv.block_scales, blocks);
  return p;
}

void FarOps::move_block_scales(attn::BlockScales& scales, std::int64_t blocks) {
  if (scales.key == nullptr) return;
  const std::size_t shift = bytes_of(blocks, scales.block_stride, 1);
  scales.key = reinterpret_cast<unsigned char*>(move(scales.key, shift));
  scales.value = reinterpret_cast<unsigned char*>(move(scales.value, shift));
}

void FarOps::attend(const attn::AttendParams& p) {
  inner().attend(moved(p));
  finish(false);
}
void FarOps::attend_splits(const attn::AttendParams& p, const attn::SplitParams& split) {
  inner().attend_splits(moved(p), split);
  finish(false);
}
void FarOps::attend_segments(const attn::AttendParams& p, const attn::SegmentParams& segments) {
  inner().attend_segments(moved(p), segments);
  finish(false);
}
void FarOps::attend_plan(const attn::AttendParams& p, const attn::PlanParams& plan) {
  inner().attend_plan(moved(p), plan);
  finish(false);
}

void FarOps::attend_tiles(const attn::AttendParams& p, const attn::TileListParams& list) {
  inner().attend_tiles(moved(p), list);
  finish(false);
}

attn::AttendParams FarOps::moved_sparse(attn::AttendParams p, attn::SparseParams& sparse) {
  // Slots are 32 bits, so the distance is what they can name; the offsets exceed 2^31 elements all
  // the same, because a slot has hundreds of them.
  const std::int64_t blocks = far_units(p.kv.block_stride);
  const auto slots = static_cast<int>(blocks * p.kv.block_size);
  std::vector<int>& moved = tables_.emplace_back();
  const std::int64_t tokens = p.query_start_loc[p.first_request + p.num_requests];
  moved.assign(sparse.slots, sparse.slots + tokens * sparse.slots_stride);
  for (int& slot : moved) {
    if (slot >= 0 && slot < sparse.num_slots) slot += slots;
  }
  sparse.slots = moved.data();
  sparse.num_slots += slots;
  p.kv.key = move(p.kv.key, bytes_of(blocks, p.kv.block_stride, size_of(p.kv.element)));
  return p;
}

void FarOps::attend_sparse(const attn::AttendParams& p, const attn::SparseParams& sparse) {
  attn::SparseParams list = sparse;
  const attn::AttendParams params = moved_sparse(p, list);
  inner().attend_sparse(params, list);
  finish(false);
}
void FarOps::attend_sparse_plan(const attn::AttendParams& p, const attn::SparseParams& sparse,
                                const attn::PlanParams& plan) {
  attn::SparseParams list = sparse;
  const attn::AttendParams params = moved_sparse(p, list);
  inner().attend_sparse_plan(params, list, plan);
  finish(false);
}

attn::CacheWriteParams FarOps::moved(attn::CacheWriteParams p) {
  const std::int64_t blocks = far_units(p.block_stride);
  const std::size_t shift = bytes_of(blocks, p.block_stride, size_of(p.cache_element));
  p.key_cache = move(p.key_cache, shift);
  p.value_cache = move(p.value_cache, shift);
  p.key_scales = const_cast<float*>(move_scales(p.key_scales, blocks, p.scale_block_stride));
  p.value_scales = const_cast<float*>(move_scales(p.value_scales, blocks, p.scale_block_stride));
  move_block_scales(p.block_scales, blocks);
  p.slot_mapping = moved_slots(p.slot_mapping, p.num_slots, blocks * p.block_size);
  return p;
}

void FarOps::write_cache(const attn::CacheWriteParams& p) {
  inner().write_cache(moved(p));
  finish(true);
}
void FarOps::rope_and_write_cache(const attn::RopeParams& rope, const attn::CacheWriteParams& p) {
  inner().rope_and_write_cache(rope, moved(p));
  finish(true);
}

attn::Int8CacheWriteParams FarOps::moved(attn::Int8CacheWriteParams p) {
  const std::int64_t blocks = far_units(p.block_stride);
  const std::size_t key_shift = bytes_of(blocks, p.block_stride, 1);
  const std::size_t value_shift = bytes_of(blocks, p.block_stride, size_of(p.value_element));
  // The planes of K and V move apart, so that each is written back by itself.
  const void* value_plane = p.value_cache;
  p.value_cache = move(value_plane, value_shift, value_plane);
  p.key_cache = reinterpret_cast<signed char*>(move(p.key_cache, key_shift, nullptr, value_plane));
  p.key_scale_cache =
      const_cast<float*>(move_scales(p.key_scale_cache, blocks, p.scale_block_stride));
  p.slot_mapping = moved_slots(p.slot_mapping, p.num_tokens, blocks * p.block_size);
  if (p.slot_mapping != nullptr) return p;
  attn::AttendParams table{};
  table.num_requests = p.num_requests;
  table.seq_lens = p.seq_lens;
  table.kv.block_table = p.block_table;
  table.kv.block_table_stride = p.block_table_stride;
  table.kv.block_size = p.block_size;
  p.block_table = moved_table(table, blocks);
  return p;
}

void FarOps::write_cache_int8(const attn::Int8CacheWriteParams& p) {
  inner().write_cache_int8(moved(p));
  finish(true);
}

void FarOps::save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                                  const attn::AttendParams& p) {
  // Why in two: the planes of a save and of an attention are moved differently; the bytes are the
  // same by definition (§11.6).
  write_cache_int8(save);
  attend(p);
}

void FarOps::save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                         const attn::AttendParams& p,
                                         const attn::SplitParams& split) {
  write_cache_int8(save);
  attend_splits(p, split);
}

attn::MlaCacheWriteParams FarOps::moved(attn::MlaCacheWriteParams p) {
  const std::int64_t blocks = far_units(p.block_stride);
  const std::size_t size = p.format == attn::MlaEntry::kCopy ? size_of(p.source_element) : 1;
  p.cache = move(p.cache, bytes_of(blocks, p.block_stride, size));
  p.slot_mapping = moved_slots(p.slot_mapping, p.num_slots, blocks * p.block_size);
  return p;
}

void FarOps::write_mla_cache(const attn::MlaCacheWriteParams& p) {
  inner().write_mla_cache(moved(p));
  finish(true);
}
void FarOps::write_index_cache(const attn::IndexCacheWriteParams& p) {
  const std::int64_t blocks = far_units(p.block_stride);
  attn::IndexCacheWriteParams far = p;
  far.cache = static_cast<unsigned char*>(
      static_cast<void*>(move(p.cache, bytes_of(blocks, p.block_stride, 1))));
  far.slot_mapping = moved_slots(p.slot_mapping, p.num_slots, blocks * p.block_size);
  inner().write_index_cache(far);
  finish(true);
}
void FarOps::rope_and_write_mla_cache(const attn::RopeParams& rope,
                                      const attn::MlaCacheWriteParams& p) {
  inner().rope_and_write_mla_cache(rope, moved(p));
  finish(true);
}

attn::MlaEntries FarOps::moved(attn::MlaEntries entries, const int* cu_seq_lens,
                               const int* seq_starts, int requests) {
  const std::int64_t blocks = far_units(entries.block_stride);
  const auto stride = static_cast<std::size_t>(entries.block_table_stride);
  std::vector<int>& table = tables_.emplace_back(static_cast<std::size_t>(requests) * stride, -1);
  for (int b = 0; b < requests; ++b) {
    const int first = seq_starts == nullptr ? 0 : seq_starts[b];
    const std::int64_t count = cu_seq_lens[b + 1] - cu_seq_lens[b];
    const auto used =
        static_cast<std::size_t>(count == 0 ? 0 : columns_of(first + count, entries.block_size));
    for (std::size_t c = static_cast<std::size_t>(first / entries.block_size); c < used; ++c) {
      const std::size_t at = static_cast<std::size_t>(b) * stride + c;
      table[at] = entries.block_table[at] + static_cast<int>(blocks);
    }
  }
  entries.block_table = table.data();
  entries.cache =
      move(entries.cache, bytes_of(blocks, entries.block_stride, size_of(entries.element)));
  return entries;
}

void FarOps::gather_mla(const attn::MlaGatherParams& params) {
  attn::MlaGatherParams p = params;
  int requests = 0;
  for (attn::i64 t = 0; t < p.num_tokens; ++t) requests = std::max(requests, p.token_to_seq[t] + 1);
  p.entries = moved(p.entries, p.cu_seq_lens, p.seq_starts, requests);
  inner().gather_mla(p);
  finish(false);
}

void FarOps::upconvert_ds_mla(const attn::DsMlaUpconvertParams& params) {
  attn::DsMlaUpconvertParams p = params;
  std::vector<int> cu_seq_lens{0};
  for (int b = 0; b < p.num_requests; ++b)
    cu_seq_lens.push_back(cu_seq_lens.back() + p.seq_lens[b]);
  p.entries = moved(p.entries, cu_seq_lens.data(), nullptr, p.num_requests);
  inner().upconvert_ds_mla(p);
  finish(false);
}

void FarOps::cp_gather(const attn::CpGatherParams& params) {
  attn::CpGatherParams p = params;
  p.entries = moved(p.entries, p.cu_seq_lens, p.seq_starts, p.num_requests);
  inner().cp_gather(p);
  finish(false);
}

}  // namespace attnbench::matrix
