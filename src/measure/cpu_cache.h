// Sizes of this machine's CPU caches, for the buffers that must not fit into them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace attnbench {

/// Bytes of all data caches from level 2 upwards, each shared cache counted once; nothing when the
/// machine does not tell. `sysfs` is /sys/devices/system/cpu.
std::optional<std::size_t> total_cache_bytes(
    const std::filesystem::path& sysfs = "/sys/devices/system/cpu");

/// "32768K", "1M", "512" -> bytes; nothing for anything else.
std::optional<std::size_t> parse_cache_size(const std::string& text);

}  // namespace attnbench
