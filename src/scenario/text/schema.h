// Validation of a document against the shipped JSON Schema (scenarios/schema.json).
#pragma once

#include "core/value.h"

namespace attnbench {

/// Throws E-FORMAT with the schema's own words, "<file>: <path>: ...". The table of fields finds
/// the same faults first and says them better; this is the net below it.
void check_schema(const Value& document);

}  // namespace attnbench
