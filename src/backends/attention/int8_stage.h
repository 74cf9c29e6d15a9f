// The int8 side of FLASH_ATTN_IX at levels 1 and 2 (semantics §11): query, new keys and values
// quantised on the device, the cache of key scales, and what is saved where.
#pragma once

#include <string>

#include "backends/backend.h"
#include "backends/device_buffers.h"
#include "backends/sample_side.h"

namespace attnbench {

class Int8Stage {
 public:
  /// What the stage takes over from a pipeline: `params` gets the codes in place of the query and
  /// all int8 fields; `write` says where the 16-bit keys and values lie on the device.
  /// `save_by_position` is for a batch without prefills: decode stores its own keys through the
  /// block table (§11.6), and the query scales are [T, H]; otherwise slot_mapping is used and the
  /// scales are [H, T] (§11.5). `inputs` and `memory` must outlive the stage.
  Int8Stage(const Problem& problem, const BackendInputs& inputs, DeviceBuffers& memory,
            bool save_by_position, const attn::CacheWriteParams& write, attn::AttendParams& params);

  bool save_by_position() const { return save_by_position_; }
  void quantise();
  const attn::Int8CacheWriteParams& write() const { return write_; }
  double quantise_bytes() const;
  double write_bytes() const;

  /// What is other about this stage's pipeline between timed samples.
  void change(SampleSide& side) const;

  /// The cache of key scales after the step; a defect when the query's codes or scales are not
  /// those of §11.2, where the query `is_own`: that of the case.
  void read(PipelineOutput& output, bool is_own = true);
  /// The query before it is quantised.
  const void* query_source() const { return query_.source; }

 private:
  attn::Int8QuantiseParams by_token(const void* source, std::int64_t rows, std::int64_t scale_rows,
                                    int heads, bool transposed, const std::string& name);
  void set_query(attn::AttendParams& params);
  void set_key_scales(attn::AttendParams& params);
  void set_write(const attn::CacheWriteParams& write, const attn::AttendParams& params);
  void set_values(const attn::CacheWriteParams& write, attn::AttendParams& params);
  std::string query_defect();

  Problem problem_;
  const BackendInputs& inputs_;
  DeviceBuffers& memory_;
  bool save_by_position_;
  attn::Int8QuantiseParams query_{};
  attn::Int8QuantiseParams key_{};
  attn::Int8QuantiseParams value_{};  // level 1 only
  attn::Int8CacheWriteParams write_{};
};

}  // namespace attnbench
