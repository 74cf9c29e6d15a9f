// Names of backends as scenarios, options and results write them: "FLASH_ATTN", or with the
// attention kernel that it is held to, "FLASH_ATTN@prefill". A result of a held backend keeps the
// longer name, so that two kernels of one backend can be compared side by side in one run.
//
// Split where a name comes from a user (scenario, --backend) or from a result of an earlier run,
// and put together where one is shown.
//
// Only the form is known here. Which backends exist is for backend_list.h, which kernels each has
// for the backend itself.
#pragma once

#include <string>
#include <string_view>

namespace attnbench {

/// Views of a name; they live as long as its text does.
struct BackendName {
  std::string_view backend;
  std::string_view kernel;  // empty = the first that fits
};

/// `name` cut at its last '@': kernels have none in their names. A name without one means any
/// kernel. Accepts every text, since whether such a backend and kernel exist is found out by
/// looking for them.
inline BackendName parse_backend_name(std::string_view name) {
  const std::size_t at = name.rfind('@');
  if (at == std::string_view::npos) return {name, {}};
  return {name.substr(0, at), name.substr(at + 1)};
}

/// The inverse: the name under which results, tables and commands that repeat a case show a
/// backend.
inline std::string backend_name(std::string_view backend, std::string_view kernel) {
  std::string name(backend);
  if (!kernel.empty()) name.append("@").append(kernel);
  return name;
}

}  // namespace attnbench
