// Which kernels the compile tests compile by default. All of them take minutes of every core, and
// most are one entry with other values of its constants.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "jit/kernel_spec.h"

namespace attnbench::cuda {

struct SpecForArch {
  KernelSpec spec;
  std::string arch;
};

/// What a choice of kernels leaves out nothing of.
enum class Chosen {
  kNothing,  // the kernels of another case stand for these
  kFiles,    // every device file, by one of its entries for one architecture at least
  kEntries,  // every entry of every device file
  kNames,    // and every value that has a name, such as types of operands
};

/// Every spec is in one of the two.
struct SplitSpecs {
  std::vector<SpecForArch> chosen;
  std::vector<SpecForArch> others;
};

/// What of a spec has to be in a chosen one.
inline std::set<std::string> covered_by(const SpecForArch& c, Chosen chosen) {
  if (chosen == Chosen::kNothing) return {};
  if (chosen == Chosen::kFiles) return {c.spec.source};
  std::set<std::string> names{c.spec.source + " " + c.spec.function};
  for (const auto& [name, value] : c.spec.constants) {
    if (chosen == Chosen::kNames && name.starts_with("attn::")) {
      names.insert(c.spec.source + " " + name + " = " + value);
    }
  }
  return names;
}

/// Takes the spec that covers most of what is not covered yet, of equal ones the first, until all
/// is. With `source` only specs of that device file are chosen.
inline SplitSpecs split_specs(std::vector<SpecForArch> specs, Chosen chosen,
                              const std::string& source = "") {
  std::vector<std::set<std::string>> missing;  // what each would add
  for (const SpecForArch& c : specs) {
    const bool is_candidate = source.empty() || c.spec.source == source;
    missing.push_back(is_candidate ? covered_by(c, chosen) : std::set<std::string>());
  }
  std::vector<bool> is_chosen(specs.size());
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  for (;;) {
    const auto most = std::max_element(missing.begin(), missing.end(), fewer);
    if (most == missing.end() || most->empty()) break;
    is_chosen[static_cast<std::size_t>(most - missing.begin())] = true;
    const std::set<std::string> covered = *most;
    for (std::set<std::string>& names : missing) {
      std::erase_if(names, [&](const std::string& name) { return covered.contains(name); });
    }
  }
  SplitSpecs split;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    (is_chosen[i] ? split.chosen : split.others).push_back(std::move(specs[i]));
  }
  return split;
}

}  // namespace attnbench::cuda
