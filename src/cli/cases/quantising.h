// Whether quantising attention pays on a GPU: what was measured of it, as data. docs/performance.md
// has the same figures with what belongs to them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cases/device.h"
#include "core/problem/problem.h"

namespace attnbench {

/// What attention is measured by; a mixed batch is both of the first two.
enum class MeasuredWork { kPrefill, kDecode, kEncoder, kLatentDecode };

/// One figure beside that of the program's own 16-bit kernels for the same work. Each is a time, or
/// else a rate of which more is better.
struct MeasuredQuantising {
  std::string_view gpu;  // as the driver names it
  MeasuredWork work = MeasuredWork::kPrefill;
  int heads = 0;  // their size; of latent decodes, whose sizes are DeepSeek's, their number
  std::string_view format;  // what is quantised, "int8 level 1"
  std::string_view batch;   // "2q8k"; 32 query heads on 8 KV heads
  double value = 0;
  double own_16_bit = 0;
  bool is_time = false;  // microseconds, else TFLOP/s or TOP/s
  std::string_view commit;
  std::string_view date;  // "2026-11-23"

  /// How many times as fast as 16 bits.
  double gain() const { return is_time ? own_16_bit / value : value / own_16_bit; }
};

/// The whole table.
std::span<const MeasuredQuantising> measured_quantising();

/// "pays", "about even" or "does not pay": by 5 % at least.
std::string_view verdict_of(const MeasuredQuantising& row);

/// For `attnbench explain`: a name and a text for each figure of the table for the GPU, for the
/// heads of the problem and its kind of work, or one that says what was not measured. Empty for
/// prompts and lists of latent attention, and for operations.
std::vector<std::pair<std::string, std::string>> quantising_facts(const Problem& problem,
                                                                  std::string_view gpu);

/// The name of the device's GPU; on the CPU that of the GPU which is assumed where figures of one
/// with its compute capability exist, else "SM 8.0".
std::string gpu_of(const DeviceChoice& device);

}  // namespace attnbench
