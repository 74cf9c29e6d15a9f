#include "jit/kernel_spec.h"

#include <string_view>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr std::string_view kAlias = "using ";

std::string member(const KernelSpec& spec, const std::pair<std::string, std::string>& constant) {
  const auto& [name, value] = constant;
  if (name.empty() || value.empty()) {
    fail(ErrorKind::kConfig,
         "kernel spec '{}': expected constants with name and value, found '{}'"
         " = '{}'",
         spec.name, name, value);
  }
  const bool is_alias = name.compare(0, kAlias.size(), kAlias) == 0;
  return fmt::format("  {}{} = {};\n", is_alias ? "" : "static constexpr ", name, value);
}

}  // namespace

std::string program_text(const KernelSpec& spec) {
  if (spec.source.empty() || spec.function.empty()) {
    fail(ErrorKind::kConfig,
         "kernel spec '{}': expected a source and a function, found '{}' and"
         " '{}'",
         spec.name, spec.source, spec.function);
  }
  // Why the include first: values may be enumerators and types of the device files.
  std::string text = fmt::format("#include \"kernels/{}\"\n\nstruct Config {{\n", spec.source);
  for (const auto& constant : spec.constants) text += member(spec, constant);
  return text + "};\n";
}

std::string entry_expression(const KernelSpec& spec) { return spec.function + "<Config>"; }

}  // namespace attnbench
