// YAML or JSON text to a Value tree, guarded against hostile input.
//
// A scenario uses a small, unambiguous part of YAML: mappings, lists and scalars of the YAML 1.2
// core schema (true/false, null, decimal, 0x and 0o integers, floats; quoted ones are text), one
// document a file. JSON is read by the same rules. Anchors, aliases, merge keys and tags are
// refused, because a few lines of them can stand for gigabytes and because a message must be able
// to name the one place where a value was written. Duplicate keys are refused, too: most parsers
// silently take one of the two.
//
// The tree is built from the parser's events and not from its nodes, which resolve aliases and have
// no place for the line of a key. JSON needs no reader of its
// own: it is YAML in flow style.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/value.h"

namespace attnbench {

/// Of one mapping. A scenario has some dozens; the limit bounds time and memory, not style.
inline constexpr std::size_t kMaxMapKeys = 10000;

/// Parses one document, from memory, since scenarios also come from --set and from tests; `file`
/// names it in messages and becomes the mark of every value. A value that opens a block has the
/// line of its key, where users look for it. Errors, all E-FORMAT with "<file>:<line>: ": those of
/// check_text, not YAML, a duplicate key, more than kMaxMapKeys keys in a mapping, a number out of
/// range, what is refused above, an empty document.
Value read_yaml(const std::string& text, std::shared_ptr<const std::string> file);

}  // namespace attnbench
