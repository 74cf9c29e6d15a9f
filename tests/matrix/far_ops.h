// Ops whose caches lie so far behind their base pointers that the offsets of all blocks exceed
// 2^31 elements (semantics §18.1), in address space that is reserved but not backed by memory: only
// the pages that hold the cache are. Block ids, slots and row starts are moved along.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "ops/forwarding_ops.h"

namespace attnbench::matrix {

class FarOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  ~FarOps() override;

  /// Caches and ragged tensors that were moved so far.
  int num_moves() const { return num_moves_; }

  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override;

  void attend(const attn::AttendParams& p) override;
  void attend_splits(const attn::AttendParams& p, const attn::SplitParams& split) override;
  void attend_segments(const attn::AttendParams& p, const attn::SegmentParams& segments) override;
  void attend_plan(const attn::AttendParams& p, const attn::PlanParams& plan) override;
  void attend_tiles(const attn::AttendParams& p, const attn::TileListParams& list) override;
  void attend_sparse(const attn::AttendParams& p, const attn::SparseParams& sparse) override;
  void attend_sparse_plan(const attn::AttendParams& p, const attn::SparseParams& sparse,
                          const attn::PlanParams& plan) override;
  void write_cache(const attn::CacheWriteParams& p) override;
  void write_cache_int8(const attn::Int8CacheWriteParams& p) override;
  void save_and_attend_int8(const attn::Int8CacheWriteParams& save,
                            const attn::AttendParams& p) override;
  void save_and_attend_splits_int8(const attn::Int8CacheWriteParams& save,
                                   const attn::AttendParams& p,
                                   const attn::SplitParams& split) override;
  void write_mla_cache(const attn::MlaCacheWriteParams& p) override;
  void write_index_cache(const attn::IndexCacheWriteParams& p) override;
  void rope_and_write_cache(const attn::RopeParams& rope, const attn::CacheWriteParams& p) override;
  void rope_and_write_mla_cache(const attn::RopeParams& rope,
                                const attn::MlaCacheWriteParams& p) override;
  void gather_mla(const attn::MlaGatherParams& p) override;
  void cp_gather(const attn::CpGatherParams& p) override;
  void upconvert_ds_mla(const attn::DsMlaUpconvertParams& p) override;

 private:
  /// Reserved address space that holds a copy of [original, original + size) at `shift`.
  struct Region {
    std::byte* base = nullptr;
    std::size_t reserved = 0;
    std::size_t shift = 0;
    std::byte* original = nullptr;
    std::size_t size = 0;
  };

  /// The base to use in place of `pointer` when everything behind it is `shift` bytes further on.
  /// What moves is its buffer, or only [begin, end) of it.
  std::byte* move(const void* pointer, std::size_t shift, const void* begin = nullptr,
                  const void* end = nullptr);
  const float* move_scales(const float* scales, std::int64_t blocks, attn::i64 block_stride);
  void move_block_scales(attn::BlockScales& scales, std::int64_t blocks);
  /// Gives the address space back, after writing the regions back when an operation wrote there.
  void finish(bool written);

  const int* moved_table(const attn::AttendParams& p, std::int64_t blocks);
  const attn::i64* moved_slots(const attn::i64* slots, std::int64_t count, std::int64_t by);
  attn::AttendParams moved(attn::AttendParams p);
  attn::AttendParams moved_ragged(attn::AttendParams p);
  attn::CacheWriteParams moved(attn::CacheWriteParams p);
  attn::MlaCacheWriteParams moved(attn::MlaCacheWriteParams p);
  attn::Int8CacheWriteParams moved(attn::Int8CacheWriteParams p);
  attn::MlaEntries moved(attn::MlaEntries entries, const int* cu_seq_lens, const int* seq_starts,
                         int requests);
  attn::AttendParams moved_sparse(attn::AttendParams p, attn::SparseParams& sparse);

  std::map<const std::byte*, std::size_t> buffers_;  // begin -> size
  std::vector<Region> regions_;
  std::deque<std::vector<int>> tables_;
  std::deque<std::vector<attn::i64>> slots_;
  int num_moves_ = 0;
};

}  // namespace attnbench::matrix
