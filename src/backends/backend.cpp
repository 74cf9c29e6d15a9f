// What is answered by the list of backends. The list is a table of functions (backend_list.h); this
// is the only file that expands it into objects.
#include "backends/backend.h"

#include "backends/backend_list.h"
#include "backends/sample_side.h"
#include "core/backend_name.h"

namespace attnbench {

std::optional<SampleSide> Pipeline::sample_side() { return std::nullopt; }

std::string full_name(const Backend& backend) {
  return backend_name(backend.name(), backend.forced_kernel());
}

const std::vector<const Backend*>& all_backends() {
#define ATTNBENCH_BACKEND_ADDRESS(function) &function(),
  static const std::vector<const Backend*> backends{ATTNBENCH_BACKENDS(ATTNBENCH_BACKEND_ADDRESS)};
#undef ATTNBENCH_BACKEND_ADDRESS
  return backends;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

std::optional<KernelRules> find_kernel_rules(std::string_view name) {
  const Backend* backend = find_backend(name);
  if (backend == nullptr) return std::nullopt;
  return backend->kernel_rules();
}

}  // namespace attnbench
