// The columns of the edge-case matrix: every attention operation and backend, each with the small
// problem that its cells start from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run_case.h"

namespace attnbench::matrix {

enum class Family { kPaged, kEncoder, kCross, kMla, kMm, kOp };

struct Target {
  std::string name;
  std::string backend;
  Family family = Family::kPaged;
  std::vector<Setting> settings = {};
  bool decode_only = false;  // queries of one token
  /// A request of this many keys behind the others, so that the keys of decodes are cut.
  std::int64_t long_request = 0;
  bool cascade = false;
  bool dcp = false;
  int int8_level = 0;
  bool sparse = false;
  int least_heads = 1;  // MLA: of a rank each, or of a group of outputs
  bool ds_mla = false;  // the 656-byte entry
  bool e4m3_probability = false;
  bool rounds_context = false;  // to 16 bits, after a scale that is no power of two

  int mla_block_size = 64;
  int sm = kAssumedSm;  // of the device that the case is judged for
  bool dense = false;   // the encoder's form without cu_seqlens
  std::optional<OpKind> op = {};
  bool latents = false;  // an operation on entries of MLA
  bool whole = false;    // an operation that takes requests without context

  bool is_triton() const { return backend == "TRITON_ATTN"; }
  bool is_ix() const { return backend == "FLASH_ATTN_IX"; }
  /// Whether keys are in pages.
  bool has_pages() const {
    return family == Family::kOp ? writes_cache() || op == OpKind::kGather
                                 : !is_encoder() && !is_reference();
  }
  bool is_encoder() const { return family == Family::kEncoder || family == Family::kMm; }
  bool is_reference() const { return backend == "REFERENCE"; }
  /// An operation that writes to pages.
  bool writes_cache() const {
    return op == OpKind::kReshapeAndCache || op == OpKind::kRopeAndCache;
  }
  bool rotates() const { return op == OpKind::kRope || op == OpKind::kRopeAndCache; }
  /// An operation to which a batch is a number of tokens.
  bool only_tokens() const {
    return family == Family::kOp && !has_pages() && !rotates() && op != OpKind::kMetadata;
  }
  int block_size() const { return family == Family::kMla ? mla_block_size : 16; }
};

const std::vector<Target>& edge_targets();

/// The problem of a target with `settings` on top.
Problem target_problem(const Target& target, const std::vector<Setting>& settings);

/// `requests` of a decoder as this target takes them: behind a shared prefix, as whole sequences
/// for encoders, one token each on the 3D path. A setting of `batch`.
Setting batch_setting(const Target& target, const std::vector<Request>& requests);

/// Keys of the shared prefix of the cascade targets.
constexpr std::int64_t kCascadePrefix = 32;

}  // namespace attnbench::matrix
