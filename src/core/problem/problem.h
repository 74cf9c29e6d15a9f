// One fully resolved case of a scenario: every field of contract.md section 1 with defaults filled
// in. Nesting and names are those of the scenario file, so that problem_to_json() is a plain walk.
//
// What all of the program works on. Whatever a Problem says was checked when it was loaded (types,
// bounds, contradictions between fields); what depends on a backend or a device is refused by
// those. Lengths and positions count tokens, sizes of heads count elements, times carry their unit
// in the name.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/numbers/dtype.h"
#include "core/numbers/kv_format.h"
#include "core/problem/enums.h"

namespace attnbench {

/// One request: new tokens and total KV length (encoder length for encoder_decoder).
struct Request {
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;
  /// Whether its new tokens are of its prompt (§1.3); nothing = as its lengths let guess.
  std::optional<bool> prefilling = std::nullopt;
  bool operator==(const Request&) const = default;
};

struct AttentionSpec {
  AttentionType type = AttentionType::kDecoder;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_size = 0;
  int v_head_size = 0;
  Dtype dtype = Dtype::kBF16;
  QueryDtype query_dtype = QueryDtype::kAuto;
  ProbabilityDtype probability_dtype = ProbabilityDtype::kAuto;  // of P where Q, K, V are e4m3
  Fp8Accumulation fp8_accumulation = Fp8Accumulation::kAuto;     // of P V where P is e4m3 too
  double scale = 0;
  bool causal = true;
  std::optional<std::int64_t> sliding_window;
  /// Chunked local attention: a row sees the keys of its own chunk of so many positions (§3.11).
  std::optional<std::int64_t> chunk_size;
  EncoderWindow encoder_window = EncoderWindow::kSource;
  double logits_soft_cap = 0;
  AlibiKind alibi = AlibiKind::kNone;
  std::optional<std::vector<double>> alibi_slopes;  // [H]; null = the geometric series
  SinksKind sinks = SinksKind::kNone;
  std::vector<double> sink_values;  // [H] with SinksKind::kValues, else empty
  std::map<int, std::vector<std::array<std::int64_t, 2>>> mm_prefix_ranges;  // ends inclusive
  int num_speculative_tokens = 0;
  bool batch_invariant = false;
  std::optional<int> num_splits;  // of the keys of decodes; null = as the device is filled
  SplitForm split_form = SplitForm::kAuto;  // how their keys are dealt out and put together
  bool kv_sharing = false;  // another layer has written the cache: this one only reads (§3.7)
};

struct TritonSpec {
  TritonPath path = TritonPath::kAuto;
  std::vector<int> capture_sizes;
};

struct MlaSpec {
  int kv_lora_rank = 512;
  int qk_nope_head_dim = 128;
  int qk_rope_head_dim = 64;
  int v_head_dim = 128;
  MlaRefForm ref_form = MlaRefForm::kBoth;
  std::optional<std::int64_t> workspace_tokens;  // null = auto
  std::string prefill_backend = "FLASH_ATTN_PREFILL";
  Switch v_pad = Switch::kAuto;
  bool emulate_fp8_prefill = false;
  bool use_prefill_query_quantization = false;
  std::optional<int> sparse_topk;
  double sparse_valid = 1.0;
  double sparse_duplicates = 0.0;
  SparseIndices sparse_indices = SparseIndices::kRandom;
  /// Leftmost entries of a list that count: one number, or [B]; empty = all.
  std::vector<int> sparse_topk_length;
  /// A second cache, whose keys every row attends to as well, by lists of its own; null = none.
  std::optional<int> sparse_extra_topk;
  std::optional<int> sparse_extra_keys;        // of each request
  std::optional<int> sparse_extra_block_size;  // null = kv_cache.block_size
  std::vector<int> sparse_extra_topk_length;
  int index_n_heads = 64;   // of the indexer
  bool index_ue8m0 = true;  // scales of its keys are powers of two
  std::optional<int> q_pad_num_heads;
  bool fused_steps = true;  // where the device has a kernel for several of a decode's steps, or one
                            // of prompts that reads keys before they are copied together
  WeightFormat kv_b_proj = WeightFormat::kAuto;
  std::optional<int>
      kv_b_proj_block;  // side of the blocks that have a scale each; null = one scale
};

/// Limits of the engine, which size the workspace of MLA prefills (§8.5); null = the batch's own.
struct EngineSpec {
  std::optional<std::int64_t> max_model_len;
  std::optional<std::int64_t> max_num_seqs;
};

struct MmEncoderSpec {
  MmAttnDtype attn_dtype = MmAttnDtype::kAuto;
  std::optional<std::vector<std::array<std::int64_t, 2>>> images;  // [height, width] in pixels
  int patch_size = 14;
  std::optional<int> window;
  std::optional<int> batch_size;
  std::optional<std::int64_t> kv_len;
  std::vector<std::string> layer_names;
  int hidden_size = 0;
  int tp_size = 1;
  std::optional<std::string> fp8_scale_path;
  std::optional<std::string> fp8_scale_save_path;
  double fp8_scale_save_margin = 1.5;
  AmaxKind amax = AmaxKind::kAbs;
  bool fp8_fused = false;  // one launch for scales and one for codes; no padded output
};

struct KvCacheSpec {
  KvCacheDtype dtype = KvCacheDtype::kAuto;
  int int8_level = 0;
  int block_size = 16;
  CacheLayout layout = CacheLayout::kNhd;
  std::int64_t num_blocks = 0;  // "auto" resolved: what the batch needs and spare blocks of poison
  bool shuffle_blocks = true;
  std::vector<double> k_scale{1.0};  // one number, or [Hk]
  std::vector<double> v_scale{1.0};
  double q_scale = 1.0;
  std::optional<std::string> scale_file;
  std::optional<std::string> value_scale_file;
  PthInt8Round pth_int8_round = PthInt8Round::kHalfAway;
  bool e5m2_as_e4m3 = false;
  bool calculate_kv_scales = false;  // q, k and v_scale by the data of the step (§5.4)
  double q_scale_constant = 200;     // what the largest element is divided by there
  double k_scale_constant = 200;
  double v_scale_constant = 100;
  std::optional<int> layers;  // of one allocation for all layers (§2); null = a cache each
  int layer = 0;              // which of them is this one
  std::optional<int> manager_block_size;  // tokens of a block of the KV manager (§1.7)
};

struct CascadeSpec {
  std::int64_t common_prefix_len = 0;
  CascadeMode mode = CascadeMode::kAuto;
  /// {requests, keys}: so many consecutive requests share so many keys, the next ones others; what
  /// is left of the batch shares nothing. Instead of common_prefix_len.
  std::vector<std::array<std::int64_t, 2>> groups{};
};

struct DcpSpec {
  int world_size = 1;
  int interleave_size = 1;
  DcpComm comm = DcpComm::kAgRs;
  DcpTransport transport = DcpTransport::kSimulated;
  bool overlap = false;  // the query is gathered beside attention over the new tokens
};

struct OutputQuantSpec {
  OutputQuantType type = OutputQuantType::kNone;
  double scale = 1.0;
  bool ue8m0 = false;
  bool column_major = false;
  bool tma_aligned = false;
  bool swizzle = true;
};

struct OpSpec {
  std::optional<OpKind> name;
  std::optional<std::int64_t> tokens;
  bool mla = false;  // latent entries by the section mla instead of K and V
  OpCacheLayout cache_layout = OpCacheLayout::kAuto;  // resolved where K and V are written
  bool raw = false;                                   // gather: bit copies (cp_gather_cache)
  std::optional<std::int64_t> tokens_with_context;    // merge: rows that have a prefix; null = all
  std::optional<int> rotary_dim;                      // resolved where something is rotated
  RopePairs rope_style = RopePairs::kNeox;
  double rope_base = 10000;
  CosSinDtype cos_sin_dtype = CosSinDtype::kAuto;
  LseBase lse_base = LseBase::kE;  // dcp_correct: base of the ranks' LSEs
};

struct InputsSpec {
  Distribution distribution = Distribution::kNormal;
  double std = 1.0;
  double mean = 0;       // added to values (of MLA: to latents), beside what the probe adds
  bool needles = false;  // keys that take about half of a row's weight; the probe has them anyway
  std::uint64_t seed = 0;
  std::optional<std::string> file;  // absolute, or relative to the working directory
  /// Not of the file: tensors have shapes and no values, for finding out what a case would launch.
  bool shapes_only = false;
};

struct ValidationSpec {
  std::optional<std::int64_t> max_rows;  // null = auto
  std::string rule = "auto";
  /// Most that quantising may cost: ||output - r|| / ||r||, r of attention on nothing quantised.
  std::optional<double> max_quantization_error;  // null = reported and not judged
};

struct TimingSpec {
  std::optional<int> samples;  // null = auto
  double min_time_ms = 100;
  double max_noise = 0.01;
  double timeout_s = 15;
  L2Mode l2 = L2Mode::kCold;
  Pace pace = Pace::kCool;  // of samples on a GPU
  TimingMode mode = TimingMode::kStream;
  TimingOrder order = TimingOrder::kSequential;  // of the backends of a case
  int rounds = 3;                                // turns of each backend in order alternate
};

struct Problem {
  std::string scenario;  // `name` of the file
  std::string description;
  std::string case_name;  // second part of every result id
  AttentionSpec attention;
  TritonSpec triton;
  MlaSpec mla;
  MmEncoderSpec mm_encoder;
  KvCacheSpec kv_cache;
  std::vector<Request> batch;  // in request order
  bool treat_short_extends_as_decodes = true;
  CascadeSpec cascade;
  DcpSpec dcp;
  EngineSpec engine;
  OutputQuantSpec output_quant;
  OpSpec op;
  InputsSpec inputs;
  std::vector<std::string> backends;  // as the scenario names them; empty = every native one
  ValidationSpec validation;
  TimingSpec timing;

  std::int64_t num_requests() const { return static_cast<std::int64_t>(batch.size()); }
  /// T: new tokens of all requests.
  std::int64_t num_tokens() const;
  /// Sum of seq_len.
  std::int64_t num_keys() const;
  std::int64_t max_query_len() const;
  std::int64_t max_seq_len() const;
};

/// The ALiBi slopes of the problem: the given ones, or the usual geometric series [H].
/// For H a power of two slope_h = 2^(-8(h+1)/H); otherwise the series of the next lower power of
/// two followed by every other element of the next higher one (Press et al. 2021).
std::vector<float> resolved_alibi_slopes(const AttentionSpec& attention);

}  // namespace attnbench
