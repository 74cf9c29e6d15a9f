// The keys of a scenario's problems: which vary from result to result, and so are axes of a plot.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/result/result_file.h"

namespace attnbench {

/// Every value of a resolved problem by its dotted key ("attention.head_size"), lists as text; for
/// a batch its text and vLLM's numbers of it: num_reqs, num_actual_tokens, max_query_len,
/// max_seq_len.
class ScenarioFields {
 public:
  /// Takes a result's problem into account.
  void add(const Result& result);

  /// Keys that cases are named by, and what varies of the batch; where names were shortened, every
  /// key that varies.
  std::vector<std::string> axes() const;
  /// Keys whose value is the same in all results.
  nlohmann::ordered_json common() const;
  /// The other keys of one result.
  nlohmann::ordered_json varying_of(const Result& result) const;

 private:
  struct Key {
    std::string value;  // as JSON, of the first result
    bool varies = false;
    bool is_swept = false;  // a case name holds ",<key>="
  };
  std::vector<std::string> order_;
  std::map<std::string, Key> keys_;
  bool has_short_names_ = false;
};

/// `case_name` up to the first swept key.
std::string batch_text(const std::string& case_name);
/// Whether a case name stands for a longer one (contract section 4): 100 characters, "-", and 8
/// hexadecimal digits.
bool is_shortened(const std::string& case_name);
/// Whether the value of a key follows from other keys, so that nobody sweeps it.
bool follows_from_others(std::string_view key);

/// Bytes of keys and values of one token in the form in which attention reads them, scales that lie
/// beside them included; of MLA its latent entry. `problem`: that of a result file. NaN for a
/// single operation, and where the problem does not say.
double kv_bytes_per_token(const nlohmann::ordered_json& problem);

/// By name of the scenario, over all files.
std::map<std::string, ScenarioFields> scenario_fields(const std::vector<ResultFile>& files);

}  // namespace attnbench
