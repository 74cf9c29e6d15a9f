# Embeds scenarios/schema.json in attnbench_scenario, so that the program and the editors of users
# judge by one text.
set(schema_file ${CMAKE_SOURCE_DIR}/scenarios/schema.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schema_file})
file(READ ${schema_file} ATTNBENCH_SCHEMA_TEXT)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/scenario_schema.cpp @ONLY CONTENT
"#include \"scenario/scenario.h\"

namespace attnbench {

const std::string& scenario_schema_text() {
  static const std::string text = R\"schema(@ATTNBENCH_SCHEMA_TEXT@)schema\";
  return text;
}

}  // namespace attnbench
")
target_sources(attnbench_scenario PRIVATE ${CMAKE_BINARY_DIR}/generated/scenario_schema.cpp)
