// Small cases of every operation that has a kernel, written once: run on two Ops they are compared,
// run on a recording Ops they are the specs that must compile.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/numbers/dtype.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace attnbench::cuda {

struct OperationCase {
  std::string name;
  /// Relative and absolute difference of two realisations; 0 = the same bytes.
  double tolerance;
  /// Runs the operation on tensors drawn from a fixed seed and returns what it wrote to.
  std::function<std::vector<Tensor>(Ops&)> run;
  /// Difference allowed beside that; sums of many terms have one that does not shrink with them.
  double absolute_tolerance = 0;
};

/// "name f32 to bf16".
inline std::string title(const std::string& name, Dtype from, Dtype to) {
  return name + " " + std::string(dtype_name(from)) + " to " + std::string(dtype_name(to));
}

/// Tensors on the device of an Ops, read back at the end.
class CaseMemory {
 public:
  explicit CaseMemory(Ops& ops) : ops_(ops) {}

  void* upload(const void* data, std::size_t size_bytes) {
    buffers_.push_back(ops_.allocate(size_bytes, "case tensor"));
    ops_.upload(*buffers_.back(), data, size_bytes);
    return buffers_.back()->data();
  }
  void* upload(const Tensor& tensor) { return upload(tensor.bytes(), tensor.size_bytes()); }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    return static_cast<T*>(upload(values.data(), values.size() * sizeof(T)));
  }
  /// A tensor that the operation changes; part of results().
  void* result(const Tensor& tensor) {
    void* data = upload(tensor);
    results_.emplace_back(buffers_.back().get(), tensor);
    return data;
  }
  std::vector<Tensor> results() {
    ops_.synchronize();
    std::vector<Tensor> read;
    for (auto& [buffer, tensor] : results_) {
      ops_.download(tensor.bytes(), *buffer, tensor.size_bytes());
      read.push_back(tensor);
    }
    return read;
  }

 private:
  Ops& ops_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::pair<Buffer*, Tensor>> results_;
};

/// The first `count` of what `make(normal, random)` gives for a seed. Kept: hundreds of cases draw
/// the same ones.
template <typename Make>
const auto& draws_of(unsigned seed, std::size_t count, Make make) {
  using Normal = std::normal_distribution<float>;
  struct Drawn {
    std::mt19937 random;
    Normal normal;
    std::vector<std::invoke_result_t<Make, Normal&, std::mt19937&>> draws;
  };
  thread_local std::map<unsigned, Drawn> known;
  const auto [at, is_new] = known.try_emplace(seed);
  Drawn& drawn = at->second;
  if (is_new) drawn.random.seed(seed);
  while (drawn.draws.size() < count) drawn.draws.push_back(make(drawn.normal, drawn.random));
  return drawn.draws;
}

inline const std::vector<float>& normal_numbers(unsigned seed, std::size_t count) {
  return draws_of(seed, count, [](auto& normal, auto& random) { return normal(random); });
}

/// A number of a normal distribution, and one of 97 kinds.
struct Draw {
  float normal;
  unsigned kind;
};

/// Normal values, now and then a large one, a zero or something that is no number.
inline Tensor drawn(Dtype dtype, std::vector<std::int64_t> shape, unsigned seed,
                    bool with_specials = true) {
  Tensor tensor(dtype, std::move(shape));
  const auto count = static_cast<std::size_t>(tensor.num_elements());
  const std::vector<Draw>& draws = draws_of(seed, count, [](auto& normal, auto& random) {
    const float value = normal(random);
    return Draw{value, static_cast<unsigned>(random() % 97)};
  });
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    float& value = values[i] = draws[i].normal;
    const unsigned kind = draws[i].kind;
    if (kind == 0) value = 0.0f;
    if (kind == 1) value *= 1000.0f;
    if (with_specials && kind == 2) value = std::numeric_limits<float>::infinity();
    if (with_specials && kind == 3) value = std::numeric_limits<float>::quiet_NaN();
  }
  store_floats(dtype, values.data(), tensor.num_elements(), tensor.bytes());
  return tensor;
}

/// 0xFF bytes: what an operation must overwrite, or leave alone.
inline Tensor poisoned(Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  std::memset(tensor.bytes(), 0xFF, tensor.size_bytes());
  return tensor;
}

struct CacheWriteCase {
  Dtype source;
  Dtype cache;
  int quantise;
  int head_size;
  int v_head_size;
  bool hnd;
  int truncate = 0;
  int heads = 3;
};

/// Cells of a paged cache [2, NB, (bs, Hk | Hk, bs), D + padding].
inline std::vector<Tensor> run_cache_write(Ops& ops, const CacheWriteCase& c) {
  constexpr int kTokens = 83;
  constexpr int kBlocks = 9;
  constexpr int kBlockSize = 16;
  CaseMemory memory(ops);
  const int width = std::max(c.head_size, c.v_head_size);
  const int cell = c.quantise == 2 ? width + 4 : width;
  const std::int64_t plane = std::int64_t{kBlocks} * kBlockSize * c.heads * cell;
  const auto size = static_cast<std::int64_t>(dtype_size(c.cache));
  std::vector<attn::i64> slots;
  // The odd tokens of the last blocks backwards, every fifth token nowhere.
  for (int t = 0; t < kTokens; ++t) slots.push_back(t % 5 == 3 ? -1 : kBlocks * kBlockSize - 1 - t);
  attn::CacheWriteParams p{};
  p.source_element = element_of(c.source);
  p.cache_element = element_of(c.cache);
  // One row more than there are slots: padding that is not written.
  p.key = memory.upload(drawn(c.source, {kTokens + 1, c.heads, c.head_size}, 1));
  p.value = memory.upload(drawn(c.source, {kTokens + 1, c.heads, c.v_head_size}, 2));
  p.key_token_stride = std::int64_t{c.heads} * c.head_size;
  p.value_token_stride = std::int64_t{c.heads} * c.v_head_size;
  auto* cache = static_cast<char*>(memory.result(poisoned(c.cache, {2, plane})));
  p.key_cache = cache;
  p.value_cache = cache + plane * size;
  p.block_stride = std::int64_t{kBlockSize} * c.heads * cell;
  p.slot_stride = c.hnd ? cell : c.heads * cell;
  p.head_stride = c.hnd ? kBlockSize * cell : cell;
  p.slot_mapping = memory.upload(slots);
  p.num_slots = kTokens;
  p.block_size = kBlockSize;
  p.num_kv_heads = c.heads;
  p.head_size = c.head_size;
  p.v_head_size = c.v_head_size;
  p.quantise = c.quantise;
  p.k_scale = memory.upload(std::vector<float>{0.03f, 1.0f, 7.5f, 0.3f});
  p.v_scale = memory.upload(std::vector<float>{0.5f, 1e-3f, 0.2f, 3.0f});
  p.int8_truncate = c.truncate;
  if (c.quantise == 2) {
    p.key_scales = static_cast<float*>(p.key_cache) + c.head_size / 4;
    p.value_scales = static_cast<float*>(p.value_cache) + c.v_head_size / 4;
    p.scale_block_stride = p.block_stride / 4;
    p.scale_slot_stride = p.slot_stride / 4;
    p.scale_head_stride = p.head_stride / 4;
  }
  ops.write_cache(p);
  return memory.results();
}

struct MergeCase {
  Dtype dtype;
  Dtype output;
  int head_size;
  int prefix_head_stride;
  float output_scale = 0.0f;
};

inline std::vector<Tensor> run_merge(Ops& ops, const MergeCase& c) {
  constexpr int kTokens = 45;
  constexpr int kMerged = 31;
  constexpr int kHeads = 5;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CaseMemory memory(ops);
  Tensor prefix_lse = drawn(Dtype::kF32, {kHeads, kTokens}, 3, false);
  Tensor suffix_lse = drawn(Dtype::kF32, {kHeads, kTokens}, 4, false);
  for (int i = 0; i < 8; ++i) prefix_lse.set(i, i % 2 == 0 ? -kInf : kInf);
  for (int i = 4; i < 12; ++i) suffix_lse.set(i, i % 2 == 0 ? kInf : -kInf);
  suffix_lse.set(20, std::numeric_limits<float>::quiet_NaN());
  attn::MergeParams p{};
  p.element = element_of(c.dtype);
  p.output_element = element_of(c.output);
  p.prefix_output =
      memory.upload(drawn(c.dtype, {kTokens, kHeads, c.prefix_head_stride}, 5, false));
  p.suffix_output = memory.upload(drawn(c.dtype, {kTokens, kHeads, c.head_size}, 6, false));
  p.prefix_lse = static_cast<float*>(memory.upload(prefix_lse));
  p.suffix_lse = static_cast<float*>(memory.upload(suffix_lse));
  p.output = memory.result(poisoned(c.output, {kTokens, kHeads, c.head_size}));
  p.output_lse = static_cast<float*>(memory.result(poisoned(Dtype::kF32, {kHeads, kTokens + 3})));
  p.output_lse_stride = kTokens + 3;
  p.num_tokens = kTokens;
  p.num_merged = kMerged;
  p.num_heads = kHeads;
  p.head_size = c.head_size;
  p.prefix_head_stride = c.prefix_head_stride;
  p.output_scale = c.output_scale;
  ops.merge(p);
  return memory.results();
}

struct RopeCase {
  Dtype dtype;
  Dtype angles;
  bool neox;
  int head_size;
  int rotary_dim;
  int row_padding;  // elements between tokens, which spoil the alignment
  bool has_write = false;
  Dtype cache = Dtype::kBF16;
};

inline std::vector<Tensor> run_rope(Ops& ops, const RopeCase& c) {
  constexpr int kTokens = 29;
  constexpr int kHeads = 6;
  constexpr int kKvHeads = 2;
  constexpr int kPositions = 64;
  constexpr int kBlocks = 4;
  constexpr int kBlockSize = 16;
  CaseMemory memory(ops);
  const auto size = static_cast<std::int64_t>(dtype_size(c.dtype));
  const int row = (kHeads + 2 * kKvHeads) * c.head_size + c.row_padding;
  Tensor angles(c.angles, {kPositions, c.rotary_dim});
  for (std::int64_t i = 0; i < angles.num_elements(); ++i) {
    angles.set(i, static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
  }
  std::vector<attn::i64> positions;
  std::vector<attn::i64> slots;
  for (int t = 0; t < kTokens; ++t) {
    positions.push_back(t * 41 % kPositions);
    slots.push_back(t % 4 == 2 ? -1 : (t * 2 + 1) % (kBlocks * kBlockSize));
  }
  auto* fused = static_cast<char*>(memory.result(drawn(c.dtype, {kTokens, row}, 7, false)));
  attn::RopeParams p{};
  p.element = element_of(c.dtype);
  p.cache_element = element_of(c.angles);
  p.positions = memory.upload(positions);
  p.cos_sin_cache = memory.upload(angles);
  p.query = fused;
  p.key = fused + kHeads * c.head_size * size;
  p.query_token_stride = p.key_token_stride = row;
  p.query_head_stride = p.key_head_stride = c.head_size;
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.num_kv_heads = kKvHeads;
  p.rotary_dim = c.rotary_dim;
  p.is_neox = c.neox ? 1 : 0;
  if (!c.has_write) {
    ops.rope(p);
    return memory.results();
  }
  const std::int64_t plane = std::int64_t{kBlocks} * kBlockSize * kKvHeads * c.head_size;
  auto* cache = static_cast<char*>(memory.result(poisoned(c.cache, {2, plane})));
  attn::CacheWriteParams write{};
  write.source_element = p.element;
  write.cache_element = element_of(c.cache);
  write.key = p.key;
  write.value = fused + (kHeads + kKvHeads) * c.head_size * size;
  write.key_token_stride = write.value_token_stride = row;
  write.key_cache = cache;
  write.value_cache = cache + plane * static_cast<std::int64_t>(dtype_size(c.cache));
  write.block_stride = std::int64_t{kBlockSize} * kKvHeads * c.head_size;
  write.slot_stride = std::int64_t{kKvHeads} * c.head_size;
  write.head_stride = c.head_size;
  write.slot_mapping = memory.upload(slots);
  write.num_slots = kTokens;
  write.block_size = kBlockSize;
  write.num_kv_heads = kKvHeads;
  write.head_size = write.v_head_size = c.head_size;
  write.quantise = c.cache == c.dtype ? 0 : 1;
  write.k_scale = memory.upload(std::vector<float>{0.03f, 1.5f});
  write.v_scale = memory.upload(std::vector<float>{0.5f, 0.2f});
  ops.rope_and_write_cache(p, write);
  return memory.results();
}

struct GatherCase {
  Dtype cache;
  Dtype output;
  int entry_size;
  bool copies = false;  // cp_gather
  int num_requests = 3;
};

inline std::vector<Tensor> run_gather(Ops& ops, const GatherCase& c) {
  constexpr int kBlocks = 12;
  constexpr int kBlockSize = 4;
  constexpr int kColumns = 4;
  CaseMemory memory(ops);
  // Every third request gathers nothing; two rows of gather_mla are past the end of the last one.
  std::vector<int> cu_seq_lens{0}, seq_starts, token_to_seq, table;
  for (int b = 0; b < c.num_requests; ++b) {
    const int len = b % 3 == 1 ? 0 : 7 - b % 3;
    const int start = b % 3 == 1 ? 0 : 3 + b % 3 * 2;
    cu_seq_lens.push_back(cu_seq_lens.back() + len);
    seq_starts.push_back(start);
    token_to_seq.insert(token_to_seq.end(), static_cast<std::size_t>(len), b);
    for (int column = 0; column < kColumns; ++column) {
      const bool is_read =
          len > 0 && column >= start / kBlockSize && column <= (start + len - 1) / kBlockSize;
      table.push_back(is_read ? (b * 5 + column * 7) % kBlocks : 1 << 30);
    }
  }
  token_to_seq.insert(token_to_seq.end(), 2, c.num_requests - 1);
  attn::MlaEntries entries{};
  entries.element = element_of(c.cache);
  entries.cache = memory.upload(drawn(c.cache, {kBlocks, kBlockSize, c.entry_size}, 8, false));
  entries.block_stride = std::int64_t{kBlockSize} * c.entry_size;
  entries.slot_stride = c.entry_size;
  entries.block_table = memory.upload(table);
  entries.block_table_stride = kColumns;
  entries.block_size = kBlockSize;
  entries.entry_size = c.entry_size;
  const auto rows = static_cast<std::int64_t>(token_to_seq.size());
  void* output = memory.result(poisoned(c.output, {rows, c.entry_size}));
  if (c.copies) {
    attn::CpGatherParams p{};
    p.entries = entries;
    p.output = output;
    p.output_token_stride = c.entry_size;
    p.cu_seq_lens = memory.upload(cu_seq_lens);
    p.seq_starts = memory.upload(seq_starts);
    p.num_requests = c.num_requests;
    p.num_tokens = cu_seq_lens.back();
    ops.cp_gather(p);
    return memory.results();
  }
  attn::MlaGatherParams p{};
  p.entries = entries;
  p.output_element = element_of(c.output);
  p.output = output;
  p.output_token_stride = c.entry_size;
  p.cu_seq_lens = memory.upload(cu_seq_lens);
  p.token_to_seq = memory.upload(token_to_seq);
  p.seq_starts = memory.upload(seq_starts);
  p.num_tokens = rows;
  p.k_scale = memory.upload(std::vector<float>{0.25f});
  ops.gather_mla(p);
  return memory.results();
}

inline void add_cache_cases(std::vector<OperationCase>& cases) {
  using enum Dtype;
  const std::vector<CacheWriteCase> writes{
      {kBF16, kBF16, 0, 128, 128, false},    {kBF16, kBF16, 0, 128, 128, true},
      {kF16, kF16, 0, 72, 40, false},        {kF32, kF32, 0, 36, 36, false},
      {kBF16, kBF16, 0, 35, 35, false},      {kBF16, kE4M3, 1, 128, 128, false},
      {kF16, kE5M2, 1, 64, 64, true},        {kBF16, kE5M2, 1, 40, 40, false},
      {kF32, kE4M3, 1, 80, 80, false},       {kF16, kE4M3, 1, 33, 17, false},
      {kBF16, kI8, 2, 128, 128, false},      {kBF16, kE4M3, 2, 128, 128, false},
      {kF16, kI8, 2, 64, 64, true, 1},       {kF32, kI8, 2, 36, 36, false},
      {kBF16, kE4M3, 2, 256, 256, false},    {kF16, kE4M3, 2, 80, 80, false},
      {kBF16, kI8, 2, 8, 8, false},          {kBF16, kI8, 2, 128, 128, false, 0, 4},
      {kF16, kE4M3, 2, 64, 64, false, 0, 4}, {kF32, kI8, 2, 96, 96, false, 1, 4}};
  for (const CacheWriteCase& c : writes) {
    cases.push_back({"write_cache " + std::string(dtype_name(c.source)) + " to " +
                         std::string(dtype_name(c.cache)) + " quantise " +
                         std::to_string(c.quantise) + " d" + std::to_string(c.head_size) + " h" +
                         std::to_string(c.heads),
                     0, [c](Ops& ops) { return run_cache_write(ops, c); }});
  }
  const std::vector<GatherCase> gathers{{kBF16, kBF16, 576, false, 21},
                                        {kE4M3, kBF16, 576, false, 21},
                                        {kF16, kF16, 44},
                                        {kE4M3, kF16, 45},
                                        {kE4M3, kF32, 48},
                                        {kBF16, kBF16, 576, true, 21},
                                        {kU8, kU8, 656, true},
                                        {kF32, kF32, 9, true}};
  for (const GatherCase& c : gathers) {
    cases.push_back({"gather " + std::string(dtype_name(c.cache)) + " entries of " +
                         std::to_string(c.entry_size),
                     0, [c](Ops& ops) { return run_gather(ops, c); }});
  }
}

inline std::vector<OperationCase> operation_cases() {
  using enum Dtype;
  std::vector<OperationCase> cases;
  add_cache_cases(cases);
  const std::vector<std::pair<MergeCase, double>> merges{
      {{kBF16, kBF16, 128, 128}, 8e-3},       {{kF16, kF16, 64, 64}, 1e-3},
      {{kF32, kF32, 128, 128}, 1e-5},         {{kF32, kBF16, 128, 128}, 8e-3},
      {{kBF16, kE4M3, 128, 128, 0.5f}, 0.13}, {{kBF16, kBF16, 72, 80}, 8e-3},
      {{kF16, kF16, 35, 35}, 1e-3},           {{kF32, kE4M3, 64, 64, 0.25f}, 0.13}};
  for (const auto& [c, tolerance] : merges) {
    cases.push_back({"merge " + std::string(dtype_name(c.dtype)) + " to " +
                         std::string(dtype_name(c.output)) + " d" + std::to_string(c.head_size),
                     tolerance, [c = c](Ops& ops) { return run_merge(ops, c); }});
  }
  const std::vector<RopeCase> ropes{{kBF16, kF32, true, 128, 128, 0},
                                    {kBF16, kBF16, false, 128, 64, 0},
                                    {kF16, kF16, true, 64, 20, 0},
                                    {kF32, kF32, false, 64, 64, 5},
                                    {kBF16, kF32, true, 128, 128, 0, true, kBF16},
                                    {kBF16, kBF16, true, 128, 64, 0, true, kE4M3},
                                    {kF16, kF16, false, 64, 64, 0, true, kF16},
                                    {kF16, kF32, false, 40, 20, 3, true, kE5M2}};
  for (const RopeCase& c : ropes) {
    cases.push_back({std::string(c.has_write ? "rope and write " : "rope ") +
                         std::string(dtype_name(c.dtype)) + (c.neox ? " neox" : " gptj") + " d" +
                         std::to_string(c.head_size) + " rot " + std::to_string(c.rotary_dim),
                     0, [c](Ops& ops) { return run_rope(ops, c); }});
  }
  return cases;
}

}  // namespace attnbench::cuda
