// TRITON_ATTN: vLLM's unified attention, cache layout [NB, 2, bs, Hk, D], with its 2D and 3D paths
// (semantics §4).
#include <algorithm>
#include <iterator>

#include "backends/attention/capability.h"
#include "backends/attention/pipeline.h"
#include "backends/attention/tile_list.h"
#include "backends/backend_list.h"
#include "core/error.h"
#include "metadata/parts/local_chunks.h"
#include "metadata/parts/segments.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

Capability triton_capability() {
  Capability c;
  c.name = "TRITON_ATTN";
  c.rules = {.alibi = LinearAlibiRule::kContextRelative,
             .honours_e5m2_as_e4m3 = true,
             .rounds_dequantised = true};
  c.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  c.kv_dtypes = {kAuto,
                 kFloat16,
                 kBFloat16,
                 kFp8,
                 kFp8E4M3,
                 kFp8E5M2,
                 kInt8PerTokenHead,
                 kFp8PerTokenHead,
                 kInt4PerTokenHead,
                 kNvfp4};
  c.min_head_size = 32;
  c.min_sm_per_head_scales = -1;
  c.mm_prefix = true;
  c.alibi_sqrt = true;
  c.static_fp8_output = true;
  return c;
}

int path_threshold(const Problem& problem) {
  return seq_threshold_3d(problem.attention.num_kv_heads, problem.triton.capture_sizes);
}

/// The 3D path cuts keys into segments that are reduced afterwards; it is for few, short query
/// rows, where the 2D path would leave most of the device idle (§4.2, §4.3).
bool takes_3d_path(const Problem& whole) {
  if (is_encoder_type(whole.attention.type)) return false;
  const Problem problem = problem_of_chunks(whole);
  std::optional<bool> forced;
  if (problem.triton.path != TritonPath::kAuto) forced = problem.triton.path == TritonPath::k3d;
  return use_3d_path(forced, static_cast<int>(problem.max_query_len()), problem.num_requests(),
                     path_threshold(problem), problem.attention.batch_invariant);
}

/// Key tile of a decode: 16, but 32 for one window and head size that upstream tuned (§4.2).
int decode_tile(const AttentionSpec& attention) {
  const bool tuned = attention.sliding_window == 1024 &&
                     (attention.head_size == 128 || attention.head_size == 256);
  return tuned ? 32 : 16;
}

/// Of a launch: one of its requests may be a chunk of a longer one.
int num_segments(const Problem& whole, int num_sms) {
  return num_softmax_segments(problem_of_chunks(whole).num_requests(), whole.attention.num_kv_heads,
                              num_sms);
}

class TritonPipeline : public AttentionPipeline {
 public:
  TritonPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                 const KernelRules& rules)
      : AttentionPipeline(problem, inputs, ops, rules) {
    add_write_step();
    add_rotate_query_step();
    if (takes_3d_path(problem)) {
      add_3d_steps();
    } else {
      add_2d_steps();
    }
    add_rotate_output_step();
  }

  Facts facts() const override {
    Facts facts;
    if (is_listed_) facts.emplace_back("path", "2d, by a list of tiles");
    for (auto& fact : AttentionPipeline::facts()) facts.push_back(std::move(fact));
    return facts;
  }

 private:
  /// One launch for the whole batch, by a list of tiles where that pays. Where the codes of prompts
  /// are converted in front, the decodes before them read theirs as they are, in a launch of their
  /// own.
  void add_2d_steps() {
    if (goes_by_tiles(problem(), params(), false, ops())) {
      const TileSteps tiles = make_tile_steps(problem(), params(), false, ops(), memory());
      add_attend_step("attend", [this, tiles] { ops().attend_tiles(tiles.params, tiles.list); });
      is_listed_ = true;
      return;
    }
    const std::vector<Request>& batch = attended().batch;
    const auto is_prompt = [](const Request& request) { return request.query_len > 1; };
    const auto first = static_cast<int>(
        std::distance(batch.begin(), std::find_if(batch.begin(), batch.end(), is_prompt)));
    const int total = static_cast<int>(num_requests());
    const std::optional<attn::AttendParams> prompts =
        first < total ? widened(slice(first, total - first)) : std::nullopt;
    if (!prompts) {
      add_attend_step("attend", [this] { ops().attend(params()); });
      return;
    }
    const attn::AttendParams decodes = slice(0, first);
    add_attend_step("attend", [this, decodes, wide = *prompts] {
      if (decodes.num_requests > 0) ops().attend(decodes);
      ops().attend(wide);
    });
  }
  /// Segments are a fixed number whatever the lengths are, so that a captured graph serves every
  /// batch; those without keys stay empty and are skipped by the reduction.
  void add_3d_steps() {
    attn::SegmentParams segments{};
    segments.num_segments = num_segments(problem(), ops().num_sms());
    segments.tile = decode_tile(problem().attention);
    const std::int64_t rows = num_tokens() * params().num_heads * segments.num_segments;
    segments.segment_output =
        memory().workspace_of<float>(rows * params().v_head_size, "segment output");
    segments.segment_max = memory().workspace_of<float>(rows, "segment max");
    segments.segment_expsum = memory().workspace_of<float>(rows, "segment expsum");
    add_attend_step("attend_segments",
                    [this, segments] { ops().attend_segments(params(), segments); });
    add_step(counted_step("reduce_segments",
                          [this, segments] { ops().reduce_segments(params(), segments); }));
  }

  bool is_listed_ = false;
};

class TritonAttn : public NativeBackend {
 public:
  TritonAttn() : NativeBackend(triton_capability()) {}
  std::string_view description() const override {
    return "vLLM Triton unified attention: pages [NB, 2, bs, Hk, D], 2D and 3D paths, mm_prefix, "
           "per-token-head caches";
  }
  bool states_rules() const override { return false; }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kTr; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return std::make_unique<TritonPipeline>(problem, inputs, ops, kernel_rules());
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    if (is_encoder_type(problem.attention.type)) return {{"path", "context attention, no cache"}};
    Facts facts{{"path", takes_3d_path(problem) ? "3d" : "2d"},
                {"3d threshold", std::to_string(path_threshold(problem))}};
    if (takes_3d_path(problem)) {
      const int tile = decode_tile(problem.attention);
      const int segments = num_segments(problem, device.num_sms);
      const SegmentPlan plan =
          plan_segments(problem_of_chunks(problem).max_seq_len(), tile, segments);
      facts.emplace_back("segments",
                         fmt::format("{} of {} active in the longest request, {} tile{} "
                                     "of {} keys each",
                                     plan.num_active, segments, plan.tiles_per_segment,
                                     plan.tiles_per_segment == 1 ? "" : "s", tile));
    }
    add_cache_facts(problem, CacheLayoutKind::kTr, kernel_rules(), facts);
    return facts;
  }
};

}  // namespace

const Backend& triton_attn_backend() {
  static const TritonAttn backend;
  return backend;
}

}  // namespace attnbench
