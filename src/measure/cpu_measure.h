// What timing on the CPU needs of this machine: the sizes of its caches, a way to empty them
// between samples, and the rates that no kernel can exceed.
//
// What cannot be found out is said and not guessed: without known caches a sample is not called
// cold, without a ceiling a result has no roofline_pct. Sizes are of this machine as a whole and
// not of the cores that a container may use: another container's cores share the last-level cache.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "measure/measure.h"

namespace attnbench {

/// Bytes of all data caches from level 2 upwards, each shared cache counted once; nothing when the
/// machine does not tell. `sysfs` is /sys/devices/system/cpu.
std::optional<std::size_t> total_cache_bytes(
    const std::filesystem::path& sysfs = "/sys/devices/system/cpu");

/// "32768K", "1M", "512" -> bytes; nothing for anything else.
std::optional<std::size_t> parse_cache_size(const std::string& text);

/// Every core writes and reads its part of a host buffer of twice all caches from level 2 upwards
/// (sysfs / sysconf). Where the caches are unknown (64 MiB are used) or larger than 1 GiB,
/// caches count as warm.
std::unique_ptr<CacheFlusher> make_cpu_cache_flusher();
/// Flushes by `writer`, which must outlive it, and then reads as much of other memory, so that the
/// caches have no lines that must be written back before others fit. That memory was written once,
/// when it was made. As cold as after `writer`.
std::unique_ptr<CacheFlusher> make_cpu_clean_flusher(CacheFlusher& writer);

/// Single-precision matrix rate (1e9 operations/s) and streaming bandwidth (1e9 bytes/s) of this
/// CPU, measured in well under a second with `num_threads` threads: the ceilings of roofline_pct.
/// They are reached by simple loops, so a good operation comes near and a wrong count exceeds them.
struct CpuCeilings {
  double gflops = 0;
  double gbps = 0;
  /// The same of runs that no other program held up; 0 = there was none. Without
  /// them a ceiling says little: beside other programs it comes out at a tenth of what it is and
  /// less.
  double quiet_gflops = 0;
  double quiet_gbps = 0;
};
CpuCeilings measure_cpu_ceilings(int num_threads);
/// The larger of each: other programs make a measured ceiling lower, nothing makes it higher.
CpuCeilings best_of(const CpuCeilings& a, const CpuCeilings& b);

/// How many times faster than `gflops` the CPU multiplies 16-bit numbers, or with
/// `has_int8_products` codes of 8 bits, by its instructions; `cpu_flags` are words of
/// /proc/cpuinfo. f32 counts too: a product of f32 can be made of several in bf16.
double faster_units(const std::string& cpu_flags, bool has_int8_products);
/// The line of flags in /proc/cpuinfo; empty where there is none.
std::string cpu_flags(const std::filesystem::path& cpuinfo = "/proc/cpuinfo");

}  // namespace attnbench
