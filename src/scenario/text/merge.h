// One document out of a file, the files it extends and the overrides of the command line.
//
// The later one wins: base file, then the file that extends it, then --set in the order of the
// command line. Mappings are merged key by key; lists and scalars are replaced whole, because
// there is no rule for merging two lists of batches that everyone would expect. Every value keeps
// the mark of the file or option that it came from, so a message about a merged document names the
// right file.
//
//   base.yaml:   attention: {num_heads: 8, head_size: 128}
//   this.yaml:   extends: base.yaml
//                attention: {num_heads: 16}
//   with --set attention.head_size=64:
//                attention: {num_heads: 16, head_size: 64}
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/value.h"

namespace attnbench {

/// `over` on top of `base`: mappings are merged, everything else (null included) replaces. So null
/// takes back what a base file says.
Value deep_merge(Value base, Value over);

/// The file's document on top of what it extends, to any depth, with `extends` taken out. The
/// config.json of a model counts as the scenario that hf_config.h makes of it. A path is looked for
/// beside the file in which it stands, then in each folder of `search_path`. Errors: E-IO not
/// found, E-CONFIG a file that extends itself, with the chain.
Value load_document(const std::string& text, const std::filesystem::path& path,
                    const std::vector<std::filesystem::path>& search_path);

/// Applies `--set key=value` in order; values are YAML, so that "[1, 2]" is a list, and null takes
/// the key out of the document. A key that is set, or whose section is, is no longer swept. Errors
/// as of read_yaml, and E-CONFIG for `sweep` and `extends`.
void apply_overrides(Value& document,
                     const std::vector<std::pair<std::string, std::string>>& overrides);

}  // namespace attnbench
