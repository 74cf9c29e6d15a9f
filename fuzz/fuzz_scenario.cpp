// Any text either loads or is refused with an Error; what loads can be written as JSON and read
// again as the same problem.
#include <cstdlib>

#include "core/error.h"
#include "core/problem/fields.h"
#include "scenario/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  attnbench::Scenario scenario;
  try {
    scenario = attnbench::parse_scenario(text, "fuzz.yaml");
  } catch (const attnbench::Error&) {
    return 0;
  }
  if (scenario.cases.empty()) std::abort();
  const attnbench::Problem& problem = scenario.cases.back();
  if (problem.batch.size() > 1000) return 0;
  const std::string json = attnbench::problem_to_json(problem);
  const attnbench::Scenario again = attnbench::parse_scenario(json, "fuzz.yaml");
  if (again.cases.size() != 1 || attnbench::problem_to_json(again.cases[0]) != json) std::abort();
  return 0;
}
