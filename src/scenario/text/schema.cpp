// Why: GCC 12 mistakes a string replacement in valijson for an overlapping copy (GCC bug 105329).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wrestrict"
#endif

#include "scenario/text/schema.h"

#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "core/error.h"
#include "scenario/scenario.h"
#include "scenario/text/issues.h"

namespace attnbench {
namespace {

using Adapter = valijson::adapters::NlohmannJsonAdapter;

const valijson::Schema& shipped_schema() {
  static const auto schema = [] {
    auto parsed = std::make_unique<valijson::Schema>();
    const auto json = nlohmann::json::parse(scenario_schema_text());
    valijson::SchemaParser(valijson::SchemaParser::kDraft7).populateSchema(Adapter(json), *parsed);
    return parsed;
  }();
  return *schema;
}

}  // namespace

void check_schema(const Value& document) {
  const auto json = nlohmann::json::parse(to_json_text(document));
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(shipped_schema(), Adapter(json), &results)) return;
  std::string text;
  valijson::ValidationResults::Error error;
  // The last error is the innermost one: where the document departs from the schema.
  while (results.popError(error)) {
    text.clear();
    for (const std::string& part : error.context) text += part;
    text += ": " + error.description;
  }
  fail(ErrorKind::kFormat, "{}{} (scenarios/schema.json)", location({document.mark.file, 0}), text);
}

}  // namespace attnbench
