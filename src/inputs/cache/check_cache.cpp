// The check works block by block on all cores: it builds the plane that a correct step leaves
// (bytes before the step, live positions overwritten by what is to be stored) and compares the
// bytes. Only for the lowest block that differs is a sentence made, so the message does not depend
// on which thread found a difference first.
#include "inputs/cache/check_cache.h"

#include <atomic>
#include <cstring>

#include "core/error.h"
#include "core/system/parallel.h"
#include "inputs/cache/cache_cells.h"

namespace attnbench {
namespace {

constexpr std::int64_t kBlocksPerTask = 64;

class CacheCheck {
 public:
  CacheCheck(const Problem& problem, const StoredKv& stored, const PagedCache& before,
             const Tensor& after, const Tensor* key_scales_after, int rank)
      : problem_(problem),
        before_(before),
        rank_(problem, rank),
        before_data_(rank_data(problem, before.data, rank)),
        after_data_(rank_data(problem, after, rank)),
        key_scales_after_(key_scales_after),
        cells_(before.layout, stored, problem.kv_cache.block_size),
        owners_(block_owners(problem, before.block_table)),
        starts_(first_rows(problem)) {}

  std::string run() const {
    const std::int64_t num_blocks = physical_blocks(problem_);
    std::atomic<std::int64_t> first_wrong{num_blocks};
    for_each_chunk(num_blocks, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::byte> expected;
      for (std::int64_t block = begin; block < end && block < first_wrong; ++block) {
        if (is_right(block, true, expected) && is_right(block, false, expected) &&
            written_layer(block) < 0) {
          continue;
        }
        std::int64_t known = first_wrong;
        while (block < known && !first_wrong.compare_exchange_weak(known, block)) {
        }
      }
    });
    if (first_wrong < num_blocks) return describe(first_wrong);
    return before_.key_scale_cache.empty() ? std::string() : check_key_scales();
  }

 private:
  static const std::byte* rank_data(const Problem& problem, const Tensor& data, int rank) {
    const auto world_size = static_cast<std::size_t>(problem.dcp.world_size);
    return data.bytes() + data.size_bytes() / world_size * static_cast<std::size_t>(rank);
  }

  std::int64_t plane(std::int64_t block, bool is_key) const {
    return is_key ? cells_.key_plane(block) : cells_.value_plane(block);
  }

  /// Whether the plane holds what is left in `expected`.
  bool is_right(std::int64_t block, bool is_key, std::vector<std::byte>& expected) const {
    set_expected(block, is_key, expected);
    return expected.empty() ||
           std::memcmp(expected.data(), after_data_ + plane(block, is_key), expected.size()) == 0;
  }

  /// Another layer of the allocation whose planes of the block have changed; -1 = none.
  int written_layer(std::int64_t block) const {
    const KvCacheSpec& spec = problem_.kv_cache;
    for (int layer = 0; layer < spec.layers.value_or(0); ++layer) {
      if (layer == spec.layer) continue;
      for (const bool is_key : {true, false}) {
        const std::int64_t apart = (layer - spec.layer) * before_.layout.layer_stride;
        const std::int64_t first = plane(block, is_key) + apart * cells_.element_size(is_key);
        const auto size = static_cast<std::size_t>(cells_.plane_bytes(is_key));
        if (std::memcmp(before_data_ + first, after_data_ + first, size) != 0) return layer;
      }
    }
    return -1;
  }

  /// The plane's bytes before the step with every live position overwritten by its stored bytes.
  void set_expected(std::int64_t block, bool is_key, std::vector<std::byte>& expected) const {
    expected.resize(static_cast<std::size_t>(cells_.plane_bytes(is_key)));
    if (expected.empty()) return;  // of values that share the slots of keys
    std::memcpy(expected.data(), before_data_ + plane(block, is_key), expected.size());
    for (std::int64_t slot = 0; slot < problem_.kv_cache.block_size; ++slot) {
      if (!is_live(block, slot)) break;
      if (is_key) {
        cells_.write_key(expected.data(), row(block, slot), slot);
      } else {
        cells_.write_value(expected.data(), row(block, slot), slot);
      }
    }
  }

  /// The same for the cache of int8 key scales, [NB, Hk, bs].
  std::string check_key_scales() const {
    const std::int64_t block_size = problem_.kv_cache.block_size;
    const std::int64_t heads = problem_.attention.num_kv_heads;
    const auto block_scales = static_cast<std::size_t>(heads * block_size);
    std::vector<float> expected(block_scales);
    for (std::int64_t block = 0; block < physical_blocks(problem_); ++block) {
      const std::int64_t first = block * heads * block_size;
      std::memcpy(expected.data(), before_.key_scale_cache.data<float>() + first,
                  block_scales * sizeof(float));
      for (std::int64_t slot = 0; slot < block_size && is_live(block, slot); ++slot) {
        cells_.write_key_scales(expected.data(), row(block, slot), slot);
      }
      const float* actual = key_scales_after_->data<float>() + first;
      for (std::size_t i = 0; i < block_scales; ++i) {
        if (std::memcmp(&expected[i], actual + i, sizeof(float)) == 0) continue;
        const auto index = static_cast<std::int64_t>(i);
        return fmt::format("{}, K scale, head {}: expected {:.9g}, got {:.9g}",
                           place(block, index % block_size), index / block_size, expected[i],
                           actual[i]);
      }
    }
    return {};
  }

  /// A sentence on the first cell of the block that differs.
  std::string describe(std::int64_t block) const {
    if (const int layer = written_layer(block); layer >= 0) {
      return fmt::format("block {}, layer {} (another layer's, must stay unchanged) was written",
                         block, layer);
    }
    std::vector<std::byte> wanted;
    const bool is_key = !is_right(block, true, wanted);
    set_expected(block, is_key, wanted);
    const std::byte* actual = after_data_ + plane(block, is_key);
    const char* name = before_.layout.slot_bytes > 0 ? "K and V" : (is_key ? "K" : "V");
    for (std::int64_t slot = 0; slot < problem_.kv_cache.block_size; ++slot) {
      for (std::int64_t head = 0; head < problem_.attention.num_kv_heads; ++head) {
        const std::int64_t first = cells_.cell(slot, head, is_key);
        for (std::int64_t i = first; i < first + cells_.cell_bytes(is_key); ++i) {
          const std::byte expected = wanted[static_cast<std::size_t>(i)];
          if (expected == actual[i]) continue;
          return fmt::format("{}, {}, head {}, {}: expected byte {:#04x}, got {:#04x}",
                             place(block, slot), name, head, element(i - first, is_key),
                             std::to_integer<int>(expected), std::to_integer<int>(actual[i]));
        }
      }
    }
    // Scales that stand behind the codes of a plane, those of several slots together (§5.7).
    for (auto i = static_cast<std::size_t>(before_.layout.block_scale_offset); i < wanted.size();
         ++i) {
      if (i == 0 || wanted[i] == actual[i]) continue;
      return fmt::format("block {}, {}, byte {} of the block scales: expected {:#04x}, got {:#04x}",
                         block, name,
                         static_cast<std::int64_t>(i) - before_.layout.block_scale_offset,
                         std::to_integer<int>(wanted[i]), std::to_integer<int>(actual[i]));
    }
    fail(ErrorKind::kInternal, "cells do not cover plane {} of block {}", name, block);
  }

  const BlockOwner& owner(std::int64_t block) const {
    return owners_[static_cast<std::size_t>(block)];
  }
  std::int64_t position(std::int64_t block, std::int64_t slot) const {
    return owner(block).page * page_tokens(problem_) + rank_.offset_in_page(slot);
  }
  /// Row of StoredKv that a live slot holds.
  std::int64_t row(std::int64_t block, std::int64_t slot) const {
    return starts_[static_cast<std::size_t>(owner(block).request)] + position(block, slot);
  }
  bool is_live(std::int64_t block, std::int64_t slot) const {
    return owner(block).exists() &&
           position(block, slot) <
               problem_.batch[static_cast<std::size_t>(owner(block).request)].seq_len;
  }

  std::string place(std::int64_t block, std::int64_t slot) const {
    if (is_live(block, slot)) {
      return fmt::format("request {}, position {}", owner(block).request, position(block, slot));
    }
    return fmt::format("block {}, slot {} (unused, must stay unchanged)", block, slot);
  }

  std::string element(std::int64_t byte_in_cell, bool is_key) const {
    const std::int64_t index = byte_in_cell / cells_.element_size(is_key);
    const std::int64_t scale_offset = before_.layout.scale_offset;
    if (scale_offset >= 0 && index >= scale_offset) return "scale";
    if (before_.layout.slot_bytes > 0) return fmt::format("byte {} of the slot", index);
    return fmt::format("element {}", index);
  }

  const Problem& problem_;
  const PagedCache& before_;
  RankSlots rank_;
  const std::byte* before_data_;
  const std::byte* after_data_;
  const Tensor* key_scales_after_;
  CellWriter cells_;
  std::vector<BlockOwner> owners_;
  std::vector<std::int64_t> starts_;
};

}  // namespace

std::string check_cache(const Problem& problem, const StoredKv& stored, const PagedCache& before,
                        const Tensor& after, const Tensor* key_scales_after) {
  if (after.dtype() != before.data.dtype() || after.size_bytes() != before.data.size_bytes()) {
    fail(ErrorKind::kShape, "cache after the step: expected {} bytes of {}, got {} of {}",
         before.data.size_bytes(), dtype_name(before.data.dtype()), after.size_bytes(),
         dtype_name(after.dtype()));
  }
  if (!before.key_scale_cache.empty() &&
      (key_scales_after == nullptr ||
       key_scales_after->shape() != before.key_scale_cache.shape())) {
    fail(ErrorKind::kShape, "key scales after the step: expected float32 [NB, Hk, bs]");
  }
  const int world_size = problem.dcp.world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string wrong =
        CacheCheck(problem, stored, before, after, key_scales_after, rank).run();
    if (!wrong.empty()) return world_size == 1 ? wrong : fmt::format("rank {}: {}", rank, wrong);
  }
  return {};
}

}  // namespace attnbench
