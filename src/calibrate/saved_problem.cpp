#include "calibrate/saved_problem.h"

#include <nlohmann/json.hpp>

namespace attnbench {

SavedProblem saved_problem(const SafetensorsReader& reader) {
  SavedProblem result;
  const auto text = reader.header().metadata.find("problem");
  if (text == reader.header().metadata.end()) return result;
  const auto problem = nlohmann::json::parse(text->second, nullptr, false);
  if (!problem.is_object()) return result;
  try {
    const auto& attention = problem.at("attention");
    result.causal = attention.at("causal").get<bool>();
    result.scale = attention.at("scale").get<double>();
    result.logits_soft_cap = attention.at("logits_soft_cap").get<double>();
    const auto& window = attention.at("sliding_window");
    if (!window.is_null()) result.sliding_window = window.get<std::int64_t>();
    for (const AlibiKind kind : {AlibiKind::kLinear, AlibiKind::kSqrt}) {
      if (attention.at("alibi") == to_string(kind)) result.alibi = kind;
    }
    if (attention.at("type") == "mm_encoder") {
      result.layer = problem.at("mm_encoder").at("layer_names").at(0).get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    // Another version's metadata: defaults are as good as for a file without any.
  }
  return result;
}

}  // namespace attnbench
