// The structure of a merged document: known keys, types and ranges, all by the table of fields.
#pragma once

#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/value.h"
#include "scenario/text/issues.h"

namespace attnbench {

/// Every key of a document that holds a value or is a section, dotted, for comparison with the JSON
/// Schema: the fields, their sections, and name, schema, batch, sweep, ....
std::vector<std::string> document_keys();

/// Collects unknown keys (with the nearest valid one), wrong types and values out of range.
void check_structure(const Value& document, IssueList& issues);

/// `problem` with every field that a checked document gives. Input paths are made relative to the
/// folder of the file in which they stand. name and description too.
void read_fields(const Value& document, Problem& problem);

/// One field from a checked value.
void set_field(std::string_view key, const Value& value, Problem& problem);

}  // namespace attnbench
