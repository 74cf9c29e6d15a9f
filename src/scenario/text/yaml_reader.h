// YAML or JSON text to a Value tree, guarded against hostile input.
#pragma once

#include <memory>
#include <string>

#include "core/value.h"

namespace attnbench {

inline constexpr std::size_t kMaxDocumentBytes = 16u << 20;
inline constexpr int kMaxNesting = 64;
inline constexpr std::size_t kMaxMapKeys = 10000;

/// Parses one document; `file` names it in messages and becomes the mark of every value. Scalars
/// follow the YAML 1.2 core schema (true/false, null, decimal, 0x and 0o integers, floats); quoted
/// ones are text. JSON is read by the same rules.
/// Errors, all E-FORMAT with "<file>:<line>: ": too long, not UTF-8 text, nested deeper than
/// kMaxNesting, not YAML, a duplicate key, a number out of range, an anchor, alias, tag, merge key
/// or second document, an empty document.
Value read_yaml(const std::string& text, std::shared_ptr<const std::string> file);

}  // namespace attnbench
