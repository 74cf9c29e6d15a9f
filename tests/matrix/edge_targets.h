// The columns of the edge-case matrix: every attention operation and backend, each with the small
// problem that its cells start from.
#pragma once

#include <string>
#include <vector>

#include "run_case.h"

namespace attnbench::matrix {

enum class Family { kPaged, kEncoder, kCross, kMla, kMm };

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
  bool ds_mla = false;  // the 656-byte entry
  bool dense = false;   // the encoder's form without cu_seqlens

  bool is_triton() const { return backend == "TRITON_ATTN"; }
  bool is_ix() const { return backend == "FLASH_ATTN_IX"; }
  /// Whether keys stand in pages.
  bool has_pages() const { return family != Family::kEncoder && family != Family::kMm; }
  int block_size() const { return family == Family::kMla ? 64 : 16; }
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
