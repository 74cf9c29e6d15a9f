#include "metadata/kv_layout.h"

#include <set>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using enum CacheLayoutKind;
using enum HeadOrder;
using Shape = std::vector<int64_t>;
using Order = std::vector<int>;

constexpr int64_t kBlocks = 3;
constexpr int kBlockSize = 16;
constexpr int kKvHeads = 2;
constexpr int kHeadSize = 8;

KvLayout layout(CacheLayoutKind kind, HeadOrder order, bool per_token_head = false) {
  return make_kv_layout(kind, order, kBlocks, kBlockSize, kKvHeads, kHeadSize, per_token_head);
}

TEST_CASE("logical shapes are those of the three layouts") {
  CHECK(kv_cache_shape(kFa, 3, 16, 2, 8) == Shape{2, 3, 16, 2, 8});
  CHECK(kv_cache_shape(kIx, 3, 16, 2, 8) == Shape{2, 3, 2, 16, 8});
  CHECK(kv_cache_shape(kIx, 3, 16, 2, 8, false, 0, 3) == Shape{3, 3, 2, 16, 8});
  CHECK(kv_cache_shape(kTr, 3, 16, 2, 8) == Shape{3, 2, 16, 2, 8});
  CHECK(kv_cache_shape(kTr, 3, 16, 2, 8, true) == Shape{3, 2, 16, 2, 12});
  CHECK(kv_cache_shape(kFa, 3, 16, 2, 8, false, 5) == Shape{5, 2, 3, 16, 2, 8});
}

TEST_CASE("stride orders are those of the sources") {
  CHECK(kv_cache_stride_order(kFa, kNhd, false) == Order{0, 1, 2, 3, 4});
  CHECK(kv_cache_stride_order(kFa, kHnd, false) == Order{0, 1, 3, 2, 4});
  CHECK(kv_cache_stride_order(kFa, kNhd, true) == Order{2, 0, 1, 3, 4, 5});
  CHECK(kv_cache_stride_order(kFa, kHnd, true) == Order{2, 4, 0, 1, 3, 5});
  CHECK(kv_cache_stride_order(kIx, kNhd, false) == Order{0, 1, 2, 3, 4});
  CHECK(kv_cache_stride_order(kIx, kHnd, false) == Order{0, 1, 2, 3, 4});
  CHECK(kv_cache_stride_order(kIx, kNhd, true) == Order{2, 0, 1, 3, 4, 5});
  CHECK(kv_cache_stride_order(kIx, kHnd, true) == Order{2, 4, 0, 1, 3, 5});
  CHECK(kv_cache_stride_order(kTr, kNhd, false) == Order{0, 1, 2, 3, 4});
  CHECK(kv_cache_stride_order(kTr, kHnd, false) == Order{0, 1, 3, 2, 4});
  CHECK(kv_cache_stride_order(kTr, kNhd, true) == Order{1, 0, 2, 3, 4, 5});
  CHECK(kv_cache_stride_order(kTr, kHnd, true) == Order{1, 2, 4, 0, 3, 5});
}

TEST_CASE("physical shapes with layers are the ones the semantics spells out") {
  const auto physical = [](CacheLayoutKind kind, HeadOrder order) {
    return make_layered_kv_layout(kind, order, 5, 3, 16, 2, 8).physical_shape;
  };
  CHECK(physical(kFa, kNhd) == Shape{3, 5, 2, 16, 2, 8});  // NB, L, 2, bs, Hk, D
  CHECK(physical(kFa, kHnd) == Shape{3, 2, 5, 2, 16, 8});  // NB, Hk, L, 2, bs, D
  CHECK(physical(kTr, kNhd) == Shape{3, 5, 2, 16, 2, 8});  // NB, L, 2, bs, Hk, D
  CHECK(physical(kTr, kHnd) == Shape{3, 2, 2, 5, 16, 8});  // NB, 2, Hk, L, bs, D
}

TEST_CASE("strides of the layouts match hand-computed values") {
  // NB 3, bs 16, Hk 2, D 8: a block of one plane has 16 * 2 * 8 = 256 elements.
  const KvLayout fa = layout(kFa, kNhd);
  CHECK(fa.value_offset == 3 * 256);
  CHECK(fa.block_stride == 256);
  CHECK(fa.slot_stride == 16);
  CHECK(fa.head_stride == 8);
  const KvLayout fa_hnd = layout(kFa, kHnd);
  CHECK(fa_hnd.slot_stride == 8);
  CHECK(fa_hnd.head_stride == 128);
  for (const HeadOrder order : {kNhd, kHnd}) {
    const KvLayout ix = layout(kIx, order);
    CHECK(ix.value_offset == 3 * 256);
    CHECK(ix.slot_stride == 8);
    CHECK(ix.head_stride == 128);
  }
  const KvLayout tr = layout(kTr, kNhd);
  CHECK(tr.value_offset == 256);
  CHECK(tr.block_stride == 512);
  CHECK(tr.total_elements == 3 * 512);
  CHECK(tr.scale_offset == -1);
}

TEST_CASE("every cell of every layout has its own place inside the cache") {
  for (const auto kind : {kFa, kIx, kTr}) {
    for (const auto order : {kNhd, kHnd}) {
      for (const int layers : {0, 2}) {
        const KvLayout l = layers == 0 ? layout(kind, order)
                                       : make_layered_kv_layout(kind, order, layers, kBlocks,
                                                                kBlockSize, kKvHeads, kHeadSize);
        std::set<int64_t> places;
        for (int layer = 0; layer < std::max(layers, 1); ++layer)
          for (const int64_t plane : {l.key_offset, l.value_offset})
            for (int64_t block = 0; block < kBlocks; ++block)
              for (int slot = 0; slot < kBlockSize; ++slot)
                for (int head = 0; head < kKvHeads; ++head)
                  for (int d = 0; d < kHeadSize; ++d)
                    places.insert(layer * l.layer_stride + plane + block * l.block_stride +
                                  slot * l.slot_stride + head * l.head_stride + d);
        CHECK(static_cast<int64_t>(places.size()) == l.total_elements);
        CHECK(*places.begin() == 0);
        CHECK(*places.rbegin() == l.total_elements - 1);
      }
    }
  }
}

TEST_CASE("the NHD scale view has the strides of the semantics") {
  const KvLayout l = layout(kTr, kNhd, true);
  CHECK(l.padded_head_size == kHeadSize + 4);
  CHECK(l.scale_offset == kHeadSize);
  const ScaleView view = per_token_head_scale_view(l);
  const int64_t cell = (kHeadSize + 4) / 4;
  CHECK(view.block_stride == 2 * kBlockSize * kKvHeads * cell);
  CHECK(view.slot_stride == kKvHeads * cell);
  CHECK(view.head_stride == cell);
  CHECK(view.key_offset == kHeadSize / 4);
  CHECK(view.value_offset == kBlockSize * kKvHeads * cell + kHeadSize / 4);
}

TEST_CASE("a scale lies in the last four bytes of its own cell under both head orders") {
  for (const auto order : {kNhd, kHnd}) {
    const KvLayout l = layout(kTr, order, true);
    const ScaleView view = per_token_head_scale_view(l);
    for (int64_t block = 0; block < kBlocks; ++block)
      for (int slot = 0; slot < kBlockSize; ++slot)
        for (int head = 0; head < kKvHeads; ++head) {
          const int64_t cell =
              block * l.block_stride + slot * l.slot_stride + head * l.head_stride + kHeadSize;
          const int64_t index =
              block * view.block_stride + slot * view.slot_stride + head * view.head_stride;
          REQUIRE(4 * (view.key_offset + index) == l.key_offset + cell);
          REQUIRE(4 * (view.value_offset + index) == l.value_offset + cell);
        }
  }
}

TEST_CASE("int4 cells are half as wide, with the scale behind the codes") {
  const KvLayout l =
      make_kv_layout(kTr, kHnd, kBlocks, kBlockSize, kKvHeads, 32, KvCacheDtype::kInt4PerTokenHead);
  CHECK(l.logical_shape == Shape{kBlocks, 2, kBlockSize, kKvHeads, 20});
  CHECK(l.scale_offset == 16);
  CHECK(l.slot_stride == 20);
  CHECK(l.block_scales == 0);
  const auto make = [](CacheLayoutKind kind, int head_size) {
    make_kv_layout(kind, kNhd, 3, 16, 2, head_size, KvCacheDtype::kInt4PerTokenHead);
  };
  CHECK(error_of([&] { make(kTr, 24); }) == "E-CONFIG");
  CHECK(error_of([&] { make(kFa, 32); }) == "E-CONFIG");
}

TEST_CASE("codes and scales of nvfp4 planes cover the plane, each byte once") {
  for (const auto order : {kNhd, kHnd}) {
    const KvLayout l =
        make_kv_layout(kTr, order, kBlocks, kBlockSize, kKvHeads, 64, KvCacheDtype::kNvfp4);
    CHECK(l.logical_shape == Shape{kBlocks, 2, kBlockSize, kKvHeads, 36});
    REQUIRE(l.block_scales == 4);
    std::set<int64_t> bytes;
    for (int slot = 0; slot < kBlockSize; ++slot)
      for (int head = 0; head < kKvHeads; ++head) {
        for (int i = 0; i < 32; ++i) bytes.insert(slot * l.slot_stride + head * l.head_stride + i);
        for (int i = 0; i < 4; ++i) {
          bytes.insert(l.block_scale_offset + slot * l.block_scale_slot_stride +
                       head * l.block_scale_head_stride + i);
        }
      }
    CHECK(static_cast<int64_t>(bytes.size()) == l.value_offset);
    CHECK(*bytes.rbegin() == l.value_offset - 1);
  }
  const auto make = [](CacheLayoutKind kind, int head_size) {
    make_kv_layout(kind, kNhd, 3, 16, 2, head_size, KvCacheDtype::kNvfp4);
  };
  CHECK(error_of([&] { make(kTr, 32); }) == "E-CONFIG");
  CHECK(error_of([&] { make(kFa, 64); }) == "E-CONFIG");
}

TEST_CASE("slots that keys and values share have one plane, and the value behind the key") {
  for (const auto order : {kNhd, kHnd}) {
    const KvLayout l =
        make_kv_layout(kTr, order, kBlocks, kBlockSize, kKvHeads, 64, KvCacheDtype::kTurbo3Bit);
    CHECK(l.logical_shape == Shape{kBlocks, 1, kBlockSize, kKvHeads, 54});
    CHECK(l.slot_bytes == 54);
    CHECK(l.value_offset == 26);
    CHECK(l.block_stride == kBlockSize * kKvHeads * 54);
    CHECK(l.slot_stride == (order == kNhd ? kKvHeads * 54 : 54));
    CHECK(l.head_stride == (order == kNhd ? 54 : kBlockSize * 54));
    CHECK(l.total_elements == kBlocks * l.block_stride);
  }
  const auto make = [](CacheLayoutKind kind, int head_size) {
    make_kv_layout(kind, kNhd, 3, 16, 2, head_size, KvCacheDtype::kTurbo4Bit);
  };
  CHECK(error_of([&] { make(kTr, 96); }) == "E-CONFIG");
  CHECK(error_of([&] { make(kFa, 64); }) == "E-CONFIG");
}

TEST_CASE("MLA caches have one latent head, or 656-byte entries") {
  CHECK(mla_cache_shape(7, 64, 512, 64) == Shape{7, 64, 576});
  CHECK(mla_cache_shape(7, 64, 512, 64, KvCacheDtype::kFp8DsMla) == Shape{7, 64, 656});
  CHECK(mla_cache_shape(7, 64, 512, 64, KvCacheDtype::kAuto, 3) == Shape{3, 7, 64, 576});
  CHECK(error_of([] { mla_cache_shape(7, 64, 256, 64, KvCacheDtype::kFp8DsMla); }) == "E-SHAPE");
}

TEST_CASE("bad layouts are refused") {
  CHECK(error_of([] { kv_cache_shape(kFa, 3, 24, 2, 8); }) == "E-CONFIG");
  CHECK(error_of([] { kv_cache_shape(kFa, 3, 0, 2, 8); }) == "E-CONFIG");
  CHECK(error_of([] { mla_cache_shape(3, 24, 512, 64); }) == "E-CONFIG");
  CHECK(error_of([] { kv_cache_shape(kFa, 0, 16, 2, 8); }) == "E-SHAPE");
  CHECK(error_of([] { kv_cache_shape(kFa, 3, 16, 2, 8, true); }) == "E-CONFIG");
  CHECK(error_of([] { kv_cache_shape(kTr, 3, 16, 2, 6, true); }) == "E-CONFIG");
  CHECK(error_of([] { head_order_from_name("DHN"); }) == "E-CONFIG");
  CHECK(head_order_from_name("HND") == kHnd);
  CHECK(error_of([] { per_token_head_scale_view(layout(kTr, kNhd)); }) == "E-CONFIG");
  CHECK(error_of([] { make_kv_layout(kFa, kNhd, int64_t{1} << 60, 16, 2, 8); }) == "E-CAPACITY");
}

TEST_CASE("offsets past 2^31 elements keep 64 bits") {
  const KvLayout l = make_kv_layout(kTr, kNhd, 100000, 256, 8, 128);
  CHECK(l.total_elements == int64_t{100000} * 2 * 256 * 8 * 128);
  CHECK(99999 * l.block_stride == int64_t{99999} * 2 * 256 * 8 * 128);
}

}  // namespace
}  // namespace attnbench
