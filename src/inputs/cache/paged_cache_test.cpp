#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/check_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/draw_rows.h"
#include "inputs/make_inputs.h"
#include "inputs/test_problem.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench {
namespace {

/// A problem with its inputs, stored K/V and cache.
struct Case {
  Case(Problem p, CacheLayoutKind kind, const KernelRules& rules)
      : problem(std::move(p)),
        inputs(make_inputs(problem)),
        stored(store_kv(inputs, resolve_store_rule(problem, rules))),
        cache(make_paged_cache(problem, inputs, stored, kind)),
        fresh(new_key_ranges(problem)) {}

  std::int64_t seq_len(std::int64_t b) const {
    return problem.batch[static_cast<std::size_t>(b)].seq_len;
  }
  const std::int32_t* table_row(std::int64_t b) const {
    return cache.block_table.data<std::int32_t>() + b * cache.block_table.dim(1);
  }
  std::int64_t pages(std::int64_t b) const { return (seq_len(b) + 15) / 16; }

  Problem problem;
  AttentionInputs inputs;
  StoredKv stored;
  PagedCache cache;
  std::vector<PositionRange> fresh;
};

/// Element of (block, plane, slot, head, d) straight from the logical shapes of semantics §2, by
/// walking the physical dimensions: shares nothing with the strides under test.
std::int64_t index_of(const Problem& problem, CacheLayoutKind kind, std::int64_t width,
                      std::int64_t block, std::int64_t plane, std::int64_t slot, std::int64_t head,
                      std::int64_t d) {
  const std::int64_t num_blocks = problem.kv_cache.num_blocks;
  const std::int64_t slots = problem.kv_cache.block_size;
  const std::int64_t heads = problem.attention.num_kv_heads;
  const bool head_major =
      kind == CacheLayoutKind::kIx || problem.kv_cache.layout == CacheLayout::kHnd;
  const std::int64_t cell = head_major ? head * slots + slot : slot * heads + head;
  const std::int64_t outer =
      kind == CacheLayoutKind::kTr ? block * 2 + plane : plane * num_blocks + block;
  return (outer * slots * heads + cell) * width + d;
}

struct Variant {
  CacheLayoutKind kind;
  KernelRules rules;
  KvCacheDtype dtype;
};
const Variant kVariants[] = {
    {CacheLayoutKind::kFa, kFlashRules, KvCacheDtype::kAuto},
    {CacheLayoutKind::kFa, kFlashRules, KvCacheDtype::kFp8},
    {CacheLayoutKind::kIx, kFlashIxRules, KvCacheDtype::kAuto},
    {CacheLayoutKind::kTr, kTritonRules, KvCacheDtype::kBFloat16},
    {CacheLayoutKind::kTr, kTritonRules, KvCacheDtype::kFp8E5M2},
    {CacheLayoutKind::kTr, kTritonRules, KvCacheDtype::kFp8PerTokenHead},
    {CacheLayoutKind::kTr, kTritonRules, KvCacheDtype::kInt8PerTokenHead},
};

/// Calls check(case, kind) for every layout, head order and cache dtype.
template <typename Check>
void for_each_variant(Check check) {
  for (const Variant& variant : kVariants) {
    for (CacheLayout layout : {CacheLayout::kNhd, CacheLayout::kHnd}) {
      Problem problem = small_problem();
      problem.kv_cache.dtype = variant.dtype;
      problem.kv_cache.layout = layout;
      CAPTURE(variant.rules);
      CAPTURE(to_string(variant.dtype));
      CAPTURE(to_string(layout));
      check(Case(problem, variant.kind, variant.rules), variant.kind);
    }
  }
}

TEST_CASE("context positions hold the stored bytes and every other byte is poison") {
  for_each_variant([](const Case& c, CacheLayoutKind kind) {
    const std::int64_t heads = 2;
    const std::int64_t head_size = 8;
    const bool scaled = is_per_token_head(c.problem.kv_cache.dtype);
    const std::int64_t width = head_size + (scaled ? 4 : 0);
    const auto size = static_cast<std::int64_t>(dtype_size(c.cache.data.dtype()));
    REQUIRE(c.cache.data.num_elements() == 2 * 24 * 16 * heads * width);
    // Row of StoredKv that every (block, slot) holds before the step, or -1.
    std::vector<std::int64_t> holds(24 * 16, -1);
    for (std::int64_t b = 0; b < 4; ++b) {
      const PositionRange fresh = c.fresh[static_cast<std::size_t>(b)];
      for (std::int64_t p = 0; p < c.seq_len(b); ++p) {
        if (p >= fresh.begin && p < fresh.end) continue;
        const std::int64_t slot = c.table_row(b)[p / 16] * 16 + p % 16;
        holds[static_cast<std::size_t>(slot)] =
            c.inputs.key_start_loc[static_cast<std::size_t>(b)] + p;
      }
    }
    int wrong = 0;
    for (std::int64_t slot = 0; slot < 24 * 16; ++slot) {
      const std::int64_t row = holds[static_cast<std::size_t>(slot)];
      for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t plane = 0; plane < 2; ++plane) {
          const Tensor& codes = plane == 0 ? c.stored.key_codes : c.stored.value_codes;
          const Tensor& scales = plane == 0 ? c.stored.key_scales : c.stored.value_scales;
          const std::int64_t first =
              index_of(c.problem, kind, width, slot / 16, plane, slot % 16, head, 0);
          const std::byte* cell = c.cache.data.bytes() + first * size;
          if (row >= 0) {
            const std::int64_t source = (row * heads + head) * head_size * size;
            wrong += std::memcmp(cell, codes.bytes() + source,
                                 static_cast<std::size_t>(head_size * size)) != 0;
          } else {
            for (std::int64_t d = 0; d < head_size; ++d) {
              const float value = c.cache.data.at(first + d);
              wrong += c.cache.data.dtype() == Dtype::kI8 ? std::fabs(value) < 127
                                                          : std::isfinite(value);
            }
          }
          if (scaled) {
            float scale = 0;
            std::memcpy(&scale, cell + head_size, sizeof(scale));
            wrong += scale != (row >= 0 ? scales.at(row * heads + head) : 1.0f);
          }
        }
      }
    }
    CHECK(wrong == 0);
  });
}

/// Writes the new rows through slot_mapping as a backend would, with the stored codes.
Tensor written(const Case& c, CacheLayoutKind kind) {
  Tensor after = c.cache.data;
  const std::int64_t width = c.cache.layout.padded_head_size;
  const auto size = static_cast<std::int64_t>(dtype_size(after.dtype()));
  std::int64_t n = 0;
  for (std::size_t b = 0; b < c.fresh.size(); ++b) {
    for (std::int64_t p = c.fresh[b].begin; p < c.fresh[b].end; ++p, ++n) {
      const std::int64_t slot = c.cache.slot_mapping.data<std::int64_t>()[n];
      for (std::int64_t head = 0; head < 2; ++head) {
        const std::int64_t source = (c.inputs.key_start_loc[b] + p) * 2 + head;
        for (std::int64_t plane = 0; plane < 2; ++plane) {
          const Tensor& codes = plane == 0 ? c.stored.key_codes : c.stored.value_codes;
          const Tensor& scales = plane == 0 ? c.stored.key_scales : c.stored.value_scales;
          std::byte* cell = after.bytes() + size * index_of(c.problem, kind, width, slot / 16,
                                                            plane, slot % 16, head, 0);
          std::memcpy(cell, codes.bytes() + source * 8 * size, static_cast<std::size_t>(8 * size));
          if (!scales.empty()) std::memcpy(cell + 8, scales.data<float>() + source, 4);
        }
      }
    }
  }
  return after;
}

TEST_CASE("a correct write through slot_mapping passes the check in every layout") {
  for_each_variant([](const Case& c, CacheLayoutKind kind) {
    CHECK(check_cache(c.problem, c.stored, c.cache, written(c, kind)) == "");
    CHECK(check_cache(c.problem, c.stored, c.cache, c.cache.data) != "");
  });
}

TEST_CASE("a change of any single byte of the cache is found") {
  for_each_variant([](const Case& c, CacheLayoutKind kind) {
    const Tensor good = written(c, kind);
    for (std::size_t i = 0; i < good.size_bytes(); i += 97) {
      Tensor bad = good;
      bad.bytes()[i] ^= std::byte{0x40};
      CHECK_MESSAGE(check_cache(c.problem, c.stored, c.cache, bad) != "", i);
    }
  });
}

TEST_CASE("the check names request, position, plane, head and element of the first difference") {
  Problem problem = small_problem();
  problem.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  const Case c(problem, CacheLayoutKind::kTr, kTritonRules);
  const Tensor good = written(c, CacheLayoutKind::kTr);
  const auto message_after_change = [&](std::int64_t block, std::int64_t plane, std::int64_t slot,
                                        std::int64_t head, std::int64_t d) {
    Tensor bad = good;
    bad.bytes()[index_of(c.problem, CacheLayoutKind::kTr, 12, block, plane, slot, head, d)] ^=
        std::byte{1};
    return check_cache(c.problem, c.stored, c.cache, bad);
  };
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(message_after_change(c.table_row(1)[2], 1, 13, 1, 5),
                 "request 1, position 45, V, head 1, element 5"));
  CHECK(contains(message_after_change(c.table_row(0)[0], 0, 3, 0, 9),
                 "request 0, position 3, K, head 0, scale"));
  // Request 0 has 33 positions: slot 1 of its page 2 is unused.
  CHECK(contains(message_after_change(c.table_row(0)[2], 0, 1, 0, 0), "slot 1 (unused"));
  CHECK_THROWS_AS(check_cache(c.problem, c.stored, c.cache, Tensor(Dtype::kI8, {3})), Error);
}

TEST_CASE("pages are distinct, inside the cache, shuffled by the seed, and the rest is garbage") {
  Problem problem = small_problem();
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  CHECK(c.cache.block_table.shape() == std::vector<std::int64_t>{4, 3 + 2});
  std::vector<std::int32_t> used;
  for (std::int64_t b = 0; b < 4; ++b) {
    for (std::int64_t page = 0; page < c.cache.block_table.dim(1); ++page) {
      const std::int32_t id = c.table_row(b)[page];
      if (page < c.pages(b)) {
        used.push_back(id);
      } else {
        CHECK((id < 0 || id >= 24));
      }
    }
  }
  CHECK(used.size() == 8);
  CHECK(std::set<std::int32_t>(used.begin(), used.end()).size() == 8);
  CHECK(*std::min_element(used.begin(), used.end()) >= 0);
  CHECK(*std::max_element(used.begin(), used.end()) < 24);
  CHECK_FALSE(std::is_sorted(used.begin(), used.end()));
  problem.kv_cache.shuffle_blocks = false;
  const Case plain(problem, CacheLayoutKind::kFa, kFlashRules);
  CHECK(plain.table_row(1)[0] == 3);
  CHECK(plain.table_row(3)[1] == 7);
}

TEST_CASE("every order of pages is about equally likely") {
  Problem problem = small_problem();
  problem.kv_cache.num_blocks = 3;
  problem.batch = {{1, 48}};
  std::map<std::vector<std::int32_t>, int> counts;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    problem.inputs.seed = seed;
    const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
    ++counts[{c.table_row(0)[0], c.table_row(0)[1], c.table_row(0)[2]}];
  }
  CHECK(counts.size() == 6);
  for (const auto& [order, count] : counts) CHECK(std::abs(count - 100) < 40);
}

TEST_CASE("whole pages of the common prefix are shared, the page after it is not") {
  Problem problem = small_problem();
  problem.cascade.common_prefix_len = 40;  // two pages and a half
  problem.batch = {{1, 50}, {1, 60}, {4, 45}};
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  for (std::int64_t b = 1; b < 3; ++b) {
    CHECK(c.table_row(b)[0] == c.table_row(0)[0]);
    CHECK(c.table_row(b)[1] == c.table_row(0)[1]);
    CHECK(c.table_row(b)[2] != c.table_row(0)[2]);
  }
  CHECK(check_cache(problem, c.stored, c.cache, written(c, CacheLayoutKind::kFa)) == "");
}

TEST_CASE("groups share pages and keys among themselves only") {
  Problem problem = small_problem();
  problem.cascade.groups = {{2, 32}, {2, 16}};
  problem.batch = {{1, 50}, {1, 60}, {4, 45}, {1, 40}, {1, 40}};
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  CHECK(c.table_row(0)[0] == c.table_row(1)[0]);
  CHECK(c.table_row(0)[1] == c.table_row(1)[1]);
  CHECK(c.table_row(0)[2] != c.table_row(1)[2]);
  CHECK(c.table_row(2)[0] == c.table_row(3)[0]);
  CHECK(c.table_row(2)[1] != c.table_row(3)[1]);
  CHECK(c.table_row(2)[0] != c.table_row(0)[0]);
  CHECK(c.table_row(4)[0] != c.table_row(2)[0]);
  CHECK(check_cache(problem, c.stored, c.cache, written(c, CacheLayoutKind::kFa)) == "");
  // The keys of one group are not those of another, or a kernel that mixes them up would pass.
  const std::vector<SourceRow> sources = key_sources(problem);
  const auto source = [&](std::size_t b, std::int64_t p) {
    std::int64_t row = p;
    for (std::size_t i = 0; i < b; ++i) row += problem.batch[i].seq_len;
    const SourceRow& at = sources[static_cast<std::size_t>(row)];
    return std::pair(at.shared, at.index);
  };
  CHECK(source(0, 5) == source(1, 5));
  CHECK(source(2, 5) == source(3, 5));
  CHECK(source(0, 5) != source(2, 5));
  CHECK(source(2, 20) != source(3, 20));
  CHECK_FALSE(source(4, 5).first);
}

TEST_CASE("a page that a request writes in this step is never shared") {
  Problem problem = small_problem();
  problem.cascade.common_prefix_len = 32;
  problem.batch = {{20, 34}, {1, 50}};  // request 0 writes positions 14 to 33
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  CHECK(c.table_row(0)[0] != c.table_row(1)[0]);
  CHECK(c.table_row(0)[1] != c.table_row(1)[1]);
}

TEST_CASE("slot_mapping lists the new tokens in order, then padding rows whose data is NaN") {
  const Case c(small_problem(), CacheLayoutKind::kFa, kFlashRules);
  const std::int64_t* slots = c.cache.slot_mapping.data<std::int64_t>();
  const std::int64_t count = c.cache.slot_mapping.num_elements();
  REQUIRE(count > 26);
  CHECK(c.cache.new_key.dim(0) == count);
  CHECK(slots[0] == c.table_row(0)[2] * 16);
  CHECK(slots[1] == c.table_row(1)[2] * 16 + 11);
  CHECK(slots[25] == c.table_row(3)[1] * 16 + 3);
  CHECK(std::set<std::int64_t>(slots, slots + 26).size() == 26);
  CHECK(c.cache.new_key.at(0) == c.inputs.key.at(32 * 16));
  CHECK(c.cache.new_value.at(25 * 16 + 15) == c.inputs.value.at(100 * 16 + 15));
  for (std::int64_t n = 26; n < count; ++n) {
    CHECK(slots[n] < 0);
    for (std::int64_t i = n * 16; i < (n + 1) * 16; ++i) {
      CHECK(std::isnan(c.cache.new_key.at(i)));
      CHECK(std::isnan(c.cache.new_value.at(i)));
    }
  }
}

TEST_CASE("cross attention writes the keys of fresh encoder outputs and finds the others stored") {
  Problem problem = small_problem();
  problem.attention.type = AttentionType::kEncoderDecoder;
  problem.batch = {{1, 20}, {4, 18}, {3, 0}};
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  const std::int64_t* slots = c.cache.slot_mapping.data<std::int64_t>();
  CHECK(slots[17] == c.table_row(1)[1] * 16 + 1);
  CHECK(slots[18] < 0);
  CHECK(check_cache(problem, c.stored, c.cache, written(c, CacheLayoutKind::kFa)) == "");
}

TEST_CASE("an empty batch still has a cache of poison") {
  Problem problem = small_problem();
  problem.batch = {};
  const Case c(problem, CacheLayoutKind::kTr, kTritonRules);
  CHECK(c.cache.block_table.dim(0) == 0);
  CHECK(c.cache.slot_mapping.num_elements() > 0);
  for (std::int64_t i = 0; i < c.cache.data.num_elements(); ++i) {
    CHECK_FALSE(std::isfinite(c.cache.data.at(i)));
  }
}

TEST_CASE("a batch of padding rows alone, which needs no block, gets one of poison") {
  Problem problem = small_problem();
  problem.batch = {{0, 0}, {0, 0}};
  problem.kv_cache.num_blocks = 0;
  problem.kv_cache.dtype = KvCacheDtype::kFp8PerTokenHead;
  const Case c(problem, CacheLayoutKind::kTr, kTritonRules);
  CHECK(c.cache.layout.logical_shape[0] == 1);
  CHECK(check_cache(problem, c.stored, c.cache, c.cache.data) == "");
  Tensor changed = c.cache.data;
  changed.bytes()[40] ^= std::byte{1};
  CHECK(check_cache(problem, c.stored, c.cache, changed) != "");
}

TEST_CASE("too few blocks and unequal head sizes are refused") {
  Problem problem = small_problem();
  const auto kind_of_error = [](const Problem& bad) {
    try {
      Case(bad, CacheLayoutKind::kFa, kFlashRules);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  problem.kv_cache.num_blocks = 7;  // the batch needs 3 + 3 + 0 + 2
  CHECK(kind_of_error(problem) == ErrorKind::kConfig);
  problem.kv_cache.num_blocks = 8;
  CHECK_NOTHROW(Case(problem, CacheLayoutKind::kFa, kFlashRules));
  problem.attention.v_head_size = 4;
  CHECK(kind_of_error(problem) == ErrorKind::kShape);
}

TEST_CASE("a block of the manager is several kernel blocks in a row") {
  Problem problem = small_problem();
  problem.kv_cache.manager_block_size = 64;
  const Case c(problem, CacheLayoutKind::kFa, kFlashRules);
  std::set<std::int32_t> taken;
  for (std::int64_t b = 0; b < c.problem.num_requests(); ++b) {
    for (std::int64_t page = 0; page < c.pages(b); ++page) {
      const std::int32_t block = c.table_row(b)[page];
      CHECK(block % 4 == page % 4);
      if (page % 4 != 0) CHECK(block == c.table_row(b)[page - 1] + 1);
      CHECK(taken.insert(block).second);
    }
  }
}

TEST_CASE("a layer of a cross-layer cache lies beside the others, which a write must not touch") {
  for (const Variant& variant : kVariants) {
    Problem problem = small_problem();
    problem.kv_cache.dtype = variant.dtype;
    const Case alone(problem, variant.kind, variant.rules);
    problem.kv_cache.layers = 3;
    problem.kv_cache.layer = 1;
    const Case c(problem, variant.kind, variant.rules);
    CAPTURE(to_string(variant.dtype));
    CHECK(c.cache.data.num_elements() == 3 * alone.cache.data.num_elements());
    const KvLayout& layout = c.cache.layout;
    const auto size = static_cast<std::int64_t>(dtype_size(c.cache.data.dtype()));
    // The cells of the layer hold what those of a cache of its own hold.
    int wrong = 0;
    for (std::int64_t block = 0; block < 24; ++block) {
      for (std::int64_t slot = 0; slot < 16; ++slot) {
        for (std::int64_t head = 0; head < 2; ++head) {
          const auto at = [&](const KvLayout& l, std::int64_t offset) {
            return (offset + block * l.block_stride + slot * l.slot_stride + head * l.head_stride) *
                   size;
          };
          const KvLayout& own = alone.cache.layout;
          const auto same = [&](std::int64_t offset, std::int64_t own_offset) {
            return std::memcmp(c.cache.data.bytes() + at(layout, offset),
                               alone.cache.data.bytes() + at(own, own_offset),
                               static_cast<std::size_t>(own.padded_head_size * size)) == 0;
          };
          wrong += same(layout.key_offset, own.key_offset) ? 0 : 1;
          wrong += same(layout.value_offset, own.value_offset) ? 0 : 1;
        }
      }
    }
    CHECK(wrong == 0);
    // A byte of the next layer.
    Tensor after = c.cache.data;
    for (std::int64_t b = 0; b < c.problem.num_requests(); ++b) {
      for (std::int64_t p = 0; p < c.seq_len(b); ++p) {
        const CellWriter cells(layout, c.stored, 16);
        const std::int64_t row = c.inputs.key_start_loc[static_cast<std::size_t>(b)] + p;
        const std::int64_t block = c.table_row(b)[p / 16];
        cells.write_key(after.bytes() + cells.key_plane(block), row, p % 16);
        cells.write_value(after.bytes() + cells.value_plane(block), row, p % 16);
      }
    }
    CHECK(check_cache(c.problem, c.stored, c.cache, after) == "");
    const std::int64_t next = (layout.key_offset + layout.layer_stride) * size;
    after.bytes()[next] ^= std::byte{1};
    CHECK(check_cache(c.problem, c.stored, c.cache, after).find("layer 2") != std::string::npos);
  }
}

}  // namespace
}  // namespace attnbench
