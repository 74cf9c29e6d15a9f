#include "bench/judge/device_screen.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backends/device_buffers.h"
#include "backends/kernel_params.h"
#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/measure/screen.h"
#include "reference/mla/batch.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

/// What each token sees, as the reference finds it and not as kernels do: always one interval,
/// since mm_prefix ranges hold the position whose window they add to.
struct Visible {
  std::vector<std::int32_t> begin;
  std::vector<std::int32_t> end;

  Visible(const AttentionMath& math, const ReferenceInputs& inputs) {
    std::vector<KeyRange> ranges;
    for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
      const std::int64_t seq_len = inputs.seq_lens[b];
      for (std::int64_t t = inputs.query_start_loc[b]; t < inputs.query_start_loc[b + 1]; ++t) {
        ranges.clear();
        append_visible_ranges(math, static_cast<std::int64_t>(b),
                              t - inputs.query_start_loc[b + 1] + seq_len, seq_len, ranges);
        if (ranges.size() > 1) fail(ErrorKind::kInternal, "screening: row {} sees no interval", t);
        begin.push_back(ranges.empty() ? 0 : static_cast<std::int32_t>(ranges[0].begin));
        end.push_back(ranges.empty() ? 0 : static_cast<std::int32_t>(ranges[0].end));
      }
    }
  }
};

/// Latents of some requests as the device reads them: which keys each row sees, in which order.
struct LatentPart {
  std::vector<std::int32_t> query_start_loc;
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int64_t> key_start_loc;
  std::vector<std::int32_t> key_index;  // of sparse attention
  std::vector<std::int32_t> visible_begin;
  std::vector<std::int32_t> visible_end;

  explicit LatentPart(const MlaReferenceInputs& inputs)
      : visible_begin(static_cast<std::size_t>(inputs.query_start_loc.back())),
        visible_end(visible_begin.size()) {}

  /// Requests [begin, end), each row up to its own position.
  void add_causal(const MlaReferenceInputs& inputs, std::int64_t begin, std::int64_t end) {
    query_start_loc.push_back(inputs.query_start_loc[static_cast<std::size_t>(begin)]);
    for (std::int64_t request = begin; request < end; ++request) {
      const auto b = static_cast<std::size_t>(request);
      query_start_loc.push_back(inputs.query_start_loc[b + 1]);
      seq_lens.push_back(inputs.seq_lens[b]);
      key_start_loc.push_back(inputs.key_start_loc[b]);
      for (std::int32_t t = inputs.query_start_loc[b]; t < inputs.query_start_loc[b + 1]; ++t) {
        visible_end[static_cast<std::size_t>(t)] =
            static_cast<std::int32_t>(num_causal_keys(inputs, request, t));
      }
    }
  }

  /// The decodes on the keys that a rank holds: several tokens of a request see the local keys up
  /// to their own position, one token all of them.
  void add_rank(const MlaReferenceInputs& inputs, const DcpGroup& group, int rank) {
    query_start_loc.push_back(0);
    for (std::size_t b = 0; b < static_cast<std::size_t>(num_mla_decodes(inputs)); ++b) {
      const std::int32_t held = dcp_local_seq_len(inputs.seq_lens[b], rank, group);
      query_start_loc.push_back(inputs.query_start_loc[b + 1]);
      key_start_loc.push_back(static_cast<std::int64_t>(key_index.size()));
      seq_lens.push_back(held);
      for (std::int64_t local = 0; local < held; ++local) {
        key_index.push_back(checked_int32(
            inputs.key_start_loc[b] + dcp_global_position(local, rank, group), "key of a rank"));
      }
      const std::int32_t query_len = inputs.query_start_loc[b + 1] - inputs.query_start_loc[b];
      for (std::int32_t i = 0; i < query_len; ++i) {
        const std::int32_t last = i + inputs.seq_lens[b] - query_len;
        std::int32_t seen = query_len == 1 ? held : 0;
        while (seen < held && dcp_global_position(seen, rank, group) <= last) ++seen;
        visible_end[static_cast<std::size_t>(inputs.query_start_loc[b] + i)] = seen;
      }
    }
  }

  /// Every row is a request of its own, of the keys that its list names.
  void add_listed(const MlaReferenceInputs& inputs) {
    query_start_loc.push_back(0);
    for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
      for (std::int32_t t = inputs.query_start_loc[b]; t < inputs.query_start_loc[b + 1]; ++t) {
        const std::size_t first = key_index.size();
        append_listed(inputs, b, t);
        query_start_loc.push_back(t + 1);
        key_start_loc.push_back(static_cast<std::int64_t>(first));
        seq_lens.push_back(static_cast<std::int32_t>(key_index.size() - first));
        visible_end[static_cast<std::size_t>(t)] = seq_lens.back();
      }
    }
  }

 private:
  void append_listed(const MlaReferenceInputs& inputs, std::size_t request, std::int32_t token) {
    const std::int64_t topk = inputs.topk_indices->dim(1);
    const auto row = static_cast<std::size_t>(token);
    const std::int64_t listed =
        inputs.topk_lengths.empty() ? topk : std::min<std::int64_t>(topk, inputs.topk_lengths[row]);
    const auto* const list = inputs.topk_indices->data<std::int32_t>() + token * topk;
    for (std::int64_t i = 0; i < listed; ++i) {
      if (list[i] < 0 || list[i] >= inputs.seq_lens[request]) continue;
      key_index.push_back(checked_int32(inputs.key_start_loc[request] + list[i], "listed key"));
    }
  }
};

/// What prefills read of quantised latents: their own new tokens as they were before the cache.
struct PrefillLatents {
  Tensor kv_c;
  Tensor k_pe;

  explicit PrefillLatents(const MlaReferenceInputs& inputs)
      : kv_c(mixed(inputs, *inputs.kv_c, *inputs.kv_c_unquantized)),
        k_pe(mixed(inputs, *inputs.k_pe, *inputs.k_pe_unquantized)) {}

 private:
  static Tensor mixed(const MlaReferenceInputs& inputs, const Tensor& stored, const Tensor& fresh) {
    Tensor result(Dtype::kF32, stored.shape());
    const std::int64_t width = stored.dim(1);
    float* const values = result.data<float>();
    load_floats(stored.dtype(), stored.bytes(), stored.num_elements(), values);
    for (auto b = static_cast<std::size_t>(num_mla_decodes(inputs)); b < inputs.seq_lens.size();
         ++b) {
      const std::int64_t count = inputs.query_start_loc[b + 1] - inputs.query_start_loc[b];
      const std::int64_t first = inputs.key_start_loc[b] + inputs.seq_lens[b] - count;
      load_floats(
          fresh.dtype(),
          fresh.bytes() + static_cast<std::size_t>(first * width) * dtype_size(fresh.dtype()),
          count * width, values + first * width);
    }
    return result;
  }
};

ScreenedRow row_of(const attn::ScreenRecord& record) {
  ScreenedRow row;
  row.error = std::sqrt(record.error_squares);
  row.expected = std::sqrt(record.reference_squares);
  row.size = std::max(row.expected, kRowSpread * std::sqrt(record.spread_squares));
  row.largest = record.largest_error;
  row.lse = record.lse;
  row.misplaced = record.misplaced;
  return row;
}

template <typename T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

class DeviceScreen final : public RowScreen {
 public:
  DeviceScreen(Ops& ops, cuda::Launcher& launcher) : screen_(ops, launcher) {}
  explicit DeviceScreen(std::shared_ptr<Ops> ops)
      : ops_(std::move(ops)), screen_(*ops_, static_cast<CudaOps&>(*ops_).launcher()) {}

  ScreenTable compare(const AttentionMath& math, const ReferenceInputs& inputs,
                      const ScreenedOutput& output) override {
    return compare_listed(math, inputs, {}, output);
  }

  ScreenTable compare_listed(const AttentionMath& math, const ReferenceInputs& inputs,
                             std::span<const std::int32_t> keys,
                             const ScreenedOutput& output) override {
    ScreenTable table =
        compare_visible(Visible(math, inputs), math, inputs, {keys, {}, {}}, output);
    release();
    return table;
  }

  ScreenTable compare_part(const AttentionMath& math, const ReferenceInputs& inputs,
                           const ScreenedPart& part, const ScreenedOutput& output) override {
    Visible visible(math, inputs);
    hide_others(part.rows, visible.begin, visible.end);
    const Passing passing{screen_, part.passing};
    return rows_of_part(compare_visible(visible, math, inputs, part, output), part.rows);
  }

  ScreenTable compare_latent(const MlaReferenceInputs& inputs,
                             const ScreenedOutput& output) override {
    ScreenTable table = compare_latents(inputs, nullptr, output);
    release();
    return table;
  }

  ScreenTable compare_latent_part(const MlaReferenceInputs& inputs, const ScreenedPart& part,
                                  const ScreenedOutput& output) override {
    const Passing passing{screen_, part.passing};
    return rows_of_part(compare_latents(inputs, &part, output), part.rows);
  }

  ScreenTable compare_latent_rank(const MlaReferenceInputs& inputs, const DcpGroup& group, int rank,
                                  const ScreenedOutput& output) override {
    LatentPart decode(inputs);
    decode.add_rank(inputs, group, rank);
    cuda::LatentScreenInputs on_device = latents_of(inputs, decode);
    on_device.latent_query = inputs.latent_query;
    ScreenTable table = table_of(screen_.compare_latents(on_device, output_of(output)),
                                 decode.query_start_loc.back(), inputs.query->dim(1));
    release();
    return table;
  }

  void release() override { screen_.drop_large_uploads(); }

 private:
  /// Of what is passing nothing stays, whatever happens.
  struct Passing {
    cuda::Screen& screen;
    const std::vector<const Tensor*>& tensors;
    Passing(cuda::Screen& of, const std::vector<const Tensor*>& passing)
        : screen(of), tensors(passing) {}
    ~Passing() {
      for (const Tensor* const tensor : tensors) screen.forget(*tensor);
    }
    Passing(const Passing&) = delete;
    Passing& operator=(const Passing&) = delete;
  };

  /// All but `rows`, ascending, see nothing and cost nothing.
  static void hide_others(std::span<const std::int32_t> rows, std::vector<std::int32_t>& begin,
                          std::vector<std::int32_t>& end) {
    auto next = rows.begin();
    for (std::size_t row = 0; row < end.size(); ++row) {
      const bool is_chosen = next != rows.end() && *next == static_cast<std::int32_t>(row);
      if (is_chosen) {
        ++next;
      } else {
        begin[row] = end[row] = 0;
      }
    }
  }

  static ScreenTable rows_of_part(const ScreenTable& all, std::span<const std::int32_t> rows) {
    ScreenTable part;
    part.is_float64 = all.is_float64;
    part.num_heads = all.num_heads;
    part.rows.assign(rows.begin(), rows.end());
    part.of.reserve(rows.size() * static_cast<std::size_t>(all.num_heads));
    for (const std::int32_t row : rows) {
      const auto first = all.of.begin() + row * all.num_heads;
      part.of.insert(part.of.end(), first, first + all.num_heads);
    }
    return part;
  }

  ScreenTable compare_visible(const Visible& visible, const AttentionMath& math,
                              const ReferenceInputs& inputs, const ScreenedPart& part,
                              const ScreenedOutput& output) {
    cuda::ScreenInputs on_device;
    on_device.key_index = part.keys;
    on_device.keeps_rows = part.passing.empty();
    on_device.query = inputs.query;
    on_device.key = inputs.key;
    on_device.value = inputs.value;
    on_device.query_start_loc = inputs.query_start_loc;
    on_device.seq_lens = inputs.seq_lens;
    on_device.key_start_loc = inputs.key_start_loc;
    on_device.visible_begin = visible.begin;
    on_device.visible_end = visible.end;
    on_device.softmax_scale = math.softmax_scale;
    on_device.soft_cap = math.logits_soft_cap;
    on_device.alibi = alibi_of(math.alibi);
    on_device.alibi_slopes = inputs.alibi_slopes;
    on_device.sinks = inputs.sinks;
    return table_of(screen_.compare(on_device, output_of(output)), inputs.query_start_loc.back(),
                    inputs.query->dim(1));
  }

  /// `part` null: all of the case's own inputs.
  ScreenTable compare_latents(const MlaReferenceInputs& inputs, const ScreenedPart* part,
                              const ScreenedOutput& output) {
    const std::int64_t heads = inputs.query->dim(1);
    const std::int32_t tokens = inputs.query_start_loc.back();
    std::vector<attn::ScreenRecord> records(static_cast<std::size_t>(tokens * heads));
    const bool is_sparse = inputs.topk_indices != nullptr;
    const auto requests = static_cast<std::int64_t>(inputs.seq_lens.size());
    const std::int64_t decodes = is_sparse ? requests : num_mla_decodes(inputs);
    LatentPart decode(inputs);
    if (is_sparse) {
      decode.add_listed(inputs);
    } else {
      decode.add_causal(inputs, 0, decodes);
    }
    if (part != nullptr) take_part(*part, decode);
    cuda::LatentScreenInputs on_device = latents_of(inputs, decode);
    on_device.latent_query = inputs.latent_query;
    screen_.compare(on_device, output_of(output), records);
    if (decodes < requests) {
      LatentPart prefill(inputs);
      prefill.add_causal(inputs, decodes, requests);
      if (part != nullptr) take_part(*part, prefill);
      on_device = latents_of(inputs, prefill);
      if (inputs.kv_c_unquantized != nullptr) {
        const PrefillLatents& mixed = prefill_latents(inputs);
        on_device.kv_c = &mixed.kv_c;
        on_device.k_pe = &mixed.k_pe;
      }
      screen_.compare(on_device, output_of(output), records);
    }
    return table_of(records, tokens, heads);
  }

  /// Listed keys are those that the part has in their places.
  static void take_part(const ScreenedPart& part, LatentPart& latents) {
    hide_others(part.rows, latents.visible_begin, latents.visible_end);
    if (part.keys.empty()) return;
    if (latents.key_index.empty()) {
      latents.key_index = copied(part.keys);
      return;
    }
    for (std::int32_t& key : latents.key_index) key = part.keys[static_cast<std::size_t>(key)];
  }

  static cuda::ScreenOutput output_of(const ScreenedOutput& output) {
    return {output.output, output.scale(), output.limit(), output.e4m3_scale > 0};
  }

  static cuda::LatentScreenInputs latents_of(const MlaReferenceInputs& inputs,
                                             const LatentPart& part) {
    cuda::LatentScreenInputs result;
    result.query = inputs.query;
    result.kv_c = inputs.kv_c;
    result.k_pe = inputs.k_pe;
    result.w_uk = inputs.w_uk;
    result.w_uv = inputs.w_uv;
    result.key_index = part.key_index;
    result.query_start_loc = part.query_start_loc;
    result.seq_lens = part.seq_lens;
    result.key_start_loc = part.key_start_loc;
    result.visible_begin = part.visible_begin;
    result.visible_end = part.visible_end;
    result.softmax_scale = inputs.softmax_scale;
    return result;
  }

  static ScreenTable table_of(const std::vector<attn::ScreenRecord>& records, std::int32_t tokens,
                              std::int64_t heads) {
    ScreenTable table;
    table.is_float64 = true;
    table.num_heads = heads;
    table.rows.resize(static_cast<std::size_t>(tokens));
    std::iota(table.rows.begin(), table.rows.end(), 0);
    table.of.resize(records.size());
    for_each_chunk(std::ssize(records), 16384, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        table.of[i] = row_of(records[i]);
      }
    });
    return table;
  }

  /// Kept: screening knows tensors that it has uploaded by where they are.
  const PrefillLatents& prefill_latents(const MlaReferenceInputs& inputs) {
    std::unique_ptr<PrefillLatents>& known = prefill_latents_[inputs.kv_c];
    if (!known) known = std::make_unique<PrefillLatents>(inputs);
    return *known;
  }

  std::shared_ptr<Ops> ops_;  // of a screening that shares them
  cuda::Screen screen_;
  std::map<const Tensor*, std::unique_ptr<PrefillLatents>> prefill_latents_;
};

Tensor in_float32(const Tensor& tensor) {
  Tensor result(Dtype::kF32, tensor.shape());
  load_floats(tensor.dtype(), tensor.bytes(), tensor.num_elements(), result.data<float>());
  return result;
}

int window_of(std::int64_t reach) {
  return reach < 0 ? -1 : checked_int32(std::min<std::int64_t>(reach, 0x7FFFFFFF), "window");
}

}  // namespace

std::unique_ptr<RowScreen> make_device_screen(Ops& ops, cuda::Launcher& launcher) {
  return std::make_unique<DeviceScreen>(ops, launcher);
}

std::unique_ptr<RowScreen> make_device_screen(std::shared_ptr<Ops> ops) {
  return std::make_unique<DeviceScreen>(std::move(ops));
}

Tensor attend_in_float32(Ops& ops, const AttentionMath& math, const ReferenceInputs& inputs) {
  if (math.chunk_size > 0 || !math.mm_prefix_ranges.empty()) {
    fail(ErrorKind::kUnsupported, "attention in float32: it has no chunks and no ranges");
  }
  DeviceBuffers memory(ops);
  attn::AttendParams params{};
  const std::int64_t tokens = inputs.query_start_loc.back();
  const std::int64_t heads = inputs.query->dim(1);
  const std::int64_t kv_heads = inputs.key->dim(1);
  const std::int64_t width = inputs.value->dim(2);
  params.query_element = params.output_element = attn::Element::kF32;
  params.num_heads = static_cast<int>(heads);
  params.num_kv_heads = static_cast<int>(kv_heads);
  params.head_size = static_cast<int>(inputs.query->dim(2));
  params.v_head_size = static_cast<int>(width);
  params.query = memory.upload(in_float32(*inputs.query), "query");
  params.query_head_stride = params.head_size;
  params.query_token_stride = heads * params.head_size;
  float* const output = memory.workspace_of<float>(tokens * heads * width, "output");
  params.output = output;
  params.output_head_stride = width;
  params.output_token_stride = heads * width;
  params.lse = memory.workspace_of<float>(tokens * heads, "lse");
  params.lse_stride = tokens;
  params.query_start_loc = memory.upload(copied(inputs.query_start_loc), "query_start_loc");
  params.seq_lens = memory.upload(copied(inputs.seq_lens), "seq_lens");
  params.num_requests = checked_int32(std::ssize(inputs.seq_lens), "requests");
  for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
    params.max_query_len =
        std::max(params.max_query_len, inputs.query_start_loc[b + 1] - inputs.query_start_loc[b]);
  }
  attn::KvParams& kv = params.kv;
  kv.element = attn::Element::kF32;
  kv.key = memory.upload(in_float32(*inputs.key), "key");
  kv.value = memory.upload(in_float32(*inputs.value), "value");
  kv.head_stride_key = params.head_size;
  kv.head_stride_value = width;
  kv.token_stride_key = kv_heads * params.head_size;
  kv.token_stride_value = kv_heads * width;
  kv.kv_start_loc = memory.upload(
      std::vector<attn::i64>(inputs.key_start_loc.begin(), inputs.key_start_loc.end()),
      "key_start_loc");
  attn::ScoreParams& score = params.score;
  score.softmax_scale = static_cast<float>(math.softmax_scale);
  score.soft_cap = static_cast<float>(math.logits_soft_cap);
  score.window_left = window_of(math.window_left);
  score.window_right = window_of(math.causal ? 0 : math.window_right);
  score.alibi = alibi_of(math.alibi);
  if (!inputs.alibi_slopes.empty()) {
    score.alibi_slopes = memory.upload(copied(inputs.alibi_slopes), "alibi_slopes");
  }
  if (!inputs.sinks.empty()) score.sinks = memory.upload(copied(inputs.sinks), "sinks");
  ops.attend(params);
  ops.synchronize();
  return memory.read(output, Dtype::kF32, {tokens, heads, width});
}

}  // namespace attnbench
