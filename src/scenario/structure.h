// The structure of a merged document: known keys, types and ranges, all by the table of fields
// (core/problem/problem_fields.h).
//
// A field is a row of that table; checks, reading, the nearest word in messages and the comparison
// with scenarios/schema.json follow from it. Documents are judged twice: check_structure() finds
// all faults at once and says them with the place and the nearest valid key, check_schema() then
// holds the document against the shipped JSON Schema, which editors of users judge by. A document
// that passes the first and fails the second shows that the two have drifted apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/problem/problem.h"
#include "core/value.h"
#include "scenario/text/issues.h"

namespace attnbench {

/// Every key of a document that holds a value or is a section, dotted, for comparison with the JSON
/// Schema: the fields, their sections, and name, schema, batch, sweep, ....
std::vector<std::string> document_keys();

/// Collects unknown keys (with the nearest valid one), wrong types and values out of range. Values
/// of `sweep` are judged like the fields that they are put in place of.
void check_structure(const Value& document, IssueList& issues);

/// Throws E-FORMAT with the schema's own words, "<file>: <path>: ...".
void check_schema(const Value& document);

/// `problem` with every field that a checked document gives. Input paths are made relative to the
/// folder of the file in which they stand. name and description too.
void read_fields(const Value& document, Problem& problem);

/// One field from a checked value, whose key must be one of the table: what a sweep varies from
/// case to case.
void set_field(std::string_view key, const Value& value, Problem& problem);

}  // namespace attnbench
