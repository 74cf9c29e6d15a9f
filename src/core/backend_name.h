// Names of backends as scenarios, options and results write them: "FLASH_ATTN", or with the
// attention kernel that it is held to, "FLASH_ATTN@prefill".
#pragma once

#include <string>
#include <string_view>

namespace attnbench {

struct BackendName {
  std::string_view backend;
  std::string_view kernel;  // empty = the first that fits
};

/// Views of `name`, cut at its last '@'.
inline BackendName parse_backend_name(std::string_view name) {
  const std::size_t at = name.rfind('@');
  if (at == std::string_view::npos) return {name, {}};
  return {name.substr(0, at), name.substr(at + 1)};
}

/// The inverse.
inline std::string backend_name(std::string_view backend, std::string_view kernel) {
  std::string name(backend);
  if (!kernel.empty()) name.append("@").append(kernel);
  return name;
}

}  // namespace attnbench
