#include "interop/trace/definition.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail(ErrorKind::kIo, "{}: cannot be read", path.string());
  return text;
}

/// Members of an object, with the place for messages: a file, or a file and a line.
class Members {
 public:
  Members(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) wrong("", "an object", json);
  }

  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const char* key) const {
    const Json* found = find(key);
    if (found == nullptr || !found->is_string() || found->get_ref<const std::string&>().empty()) {
      wrong(key, "a text", found == nullptr ? Json() : *found);
    }
    return found->get<std::string>();
  }
  std::string text_or(const char* key, const std::string& other) const {
    return find(key) == nullptr ? other : text(key);
  }
  const Json& object(const char* key) const {
    const Json* found = find(key);
    if (found == nullptr || !found->is_object()) {
      wrong(key, "an object", found == nullptr ? Json() : *found);
    }
    return *found;
  }
  [[noreturn]] void wrong(const std::string& key, const char* expected, const Json& found) const {
    std::string value = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (value.size() > 40) value = value.substr(0, 40) + "...";
    fail(ErrorKind::kFormat, "{}: {}{}expected {}, found {}", place_, key, key.empty() ? "" : ": ",
         expected, value);
  }
  const std::string& place() const { return place_; }

 private:
  const Json& json_;
  std::string place_;
};

Json parse(const std::string& text, const std::string& place) {
  Json json = parse_json<Json>(text);
  if (json.is_discarded()) fail(ErrorKind::kFormat, "{}: not JSON", place);
  return json;
}

std::vector<TraceTensor> tensors_of(const Members& members, const char* key) {
  std::vector<TraceTensor> tensors;
  for (const auto& [name, json] : members.object(key).items()) {
    const Members member(json, members.place() + ": " + key + "." + name);
    TraceTensor tensor;
    tensor.name = name;
    tensor.dtype = member.text("dtype");
    if (const Json* optional = member.find("optional")) tensor.optional = *optional == true;
    if (const Json* shape = member.find("shape")) {
      if (!shape->is_array()) member.wrong("shape", "a list of axes, or null", *shape);
      for (const Json& axis : *shape) {
        if (!axis.is_string()) member.wrong("shape", "names of axes", axis);
        tensor.axes.push_back(axis.get<std::string>());
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void read_axes(const Members& members, TraceDefinition& definition) {
  for (const auto& [name, json] : members.object("axes").items()) {
    const Members axis(json, members.place() + ": axes." + name);
    const std::string type = axis.text("type");
    if (type == "const") {
      const Json* value = axis.find("value");
      if (value == nullptr) continue;  // FlashInfer's own dumps leave out a size that nobody reads
      if (!value->is_number_integer() || *value < 0) axis.wrong("value", "an integer >= 0", *value);
      definition.constants[name] = value->get<std::int64_t>();
    } else if (type == "expr") {
      definition.expressions[name] = axis.text("expression");
    } else if (type != "var") {
      axis.wrong("type", "const, var or expr", Json(type));
    }
  }
}

TraceInput input_of(const Members& members) {
  TraceInput input;
  const std::string type = members.text("type");
  if (type == "scalar") {
    const Json* value = members.find("value");
    if (value == nullptr || !(value->is_number() || value->is_boolean())) {
      members.wrong("value", "a number, true or false", value == nullptr ? Json() : *value);
    }
    input.kind = TraceInput::Kind::kScalar;
    input.value = value->is_boolean() ? (value->get<bool>() ? 1 : 0) : value->get<double>();
  } else if (type == "safetensors") {
    input.kind = TraceInput::Kind::kSafetensors;
    input.path = members.text("path");
    input.tensor_key = members.text("tensor_key");
  } else if (type != "random" && type != "custom") {  // custom: a function of SOL-ExecBench draws
    members.wrong("type", "random, scalar, safetensors or custom", Json(type));
  }
  return input;
}

TraceWorkload workload_of(const Json& line, const std::string& place) {
  const Members outer(line, place);
  const bool wrapped = outer.find("workload") != nullptr;
  const Json& json = wrapped ? outer.object("workload") : line;
  const Members members(json, place);
  TraceWorkload workload;
  workload.definition = outer.text_or("definition", "");
  workload.uuid = members.text("uuid");
  for (const auto& [axis, size] : members.object("axes").items()) {
    if (!size.is_number_integer() || size < 0) {
      members.wrong("axes." + axis, "an integer >= 0", size);
    }
    workload.axes[axis] = size.get<std::int64_t>();
  }
  for (const auto& [name, input] : members.object("inputs").items()) {
    workload.inputs[name] = input_of(Members(input, place + ": inputs." + name));
  }
  workload.json = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return workload;
}

/// Sums, products and powers of axes: "batch_size * seq_len", with parentheses.
class Expression {
 public:
  Expression(const TraceDefinition& definition, const TraceWorkload& workload,
             const std::string& text)
      : definition_(definition), workload_(workload), text_(text) {}

  std::int64_t value() {
    const double result = sum();
    skip_spaces();
    constexpr double kMost = 9007199254740992.0;  // 2^53, beyond which a double skips numbers
    if (at_ != text_.size() || !(std::fabs(result) < kMost)) refuse();
    return static_cast<std::int64_t>(std::floor(result));
  }

 private:
  [[noreturn]] void refuse() const {
    fail(ErrorKind::kFormat, "{}: expected an expression of axes, found '{}'", definition_.path,
         text_);
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(const std::string& sign) {
    skip_spaces();
    if (text_.compare(at_, sign.size(), sign) != 0) return false;
    at_ += sign.size();
    return true;
  }
  double sum() {
    double result = product();
    for (;;) {
      if (take("+"))
        result += product();
      else if (take("-"))
        result -= product();
      else
        return result;
    }
  }
  double product() {
    double result = power();
    for (;;) {
      if (take("//"))
        result = std::floor(result / power());
      else if (take("*"))
        result *= power();
      else if (take("/"))
        result /= power();
      else if (take("%"))
        result = std::fmod(result, power());
      else
        return result;
    }
  }
  double power() {
    const double base = atom();
    return take("**") ? std::pow(base, power()) : base;
  }
  double atom() {
    if (++depth_ > 1000) refuse();
    if (take("-")) return -atom();
    if (take("+")) return atom();
    if (take("(")) {
      const double result = sum();
      if (!take(")")) refuse();
      return result;
    }
    skip_spaces();
    std::string word;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || text_[at_] == '.')) {
      word += text_[at_++];
    }
    if (word.empty()) refuse();
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0) return std::atof(word.c_str());
    const auto known = definition_.constants.find(word);
    if (known != definition_.constants.end()) return static_cast<double>(known->second);
    const auto given = workload_.axes.find(word);
    if (given == workload_.axes.end()) refuse();
    return static_cast<double>(given->second);
  }

  const TraceDefinition& definition_;
  const TraceWorkload& workload_;
  const std::string& text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

const TraceTensor* TraceDefinition::input(const std::string& tensor) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const TraceTensor& one) { return one.name == tensor; });
  return found == inputs.end() ? nullptr : &*found;
}

const TraceInput* TraceWorkload::input(const std::string& tensor) const {
  const auto found = inputs.find(tensor);
  return found == inputs.end() ? nullptr : &found->second;
}

TraceDefinition read_trace_definition(const std::filesystem::path& path) {
  const Json json = parse(read_text(path), path.string());
  const Members members(json, path.string());
  TraceDefinition definition;
  definition.path = path.string();
  definition.name = members.text("name");
  definition.op_type = members.text_or("op_type", members.text_or("type", ""));
  read_axes(members, definition);
  definition.inputs = tensors_of(members, "inputs");
  definition.outputs = tensors_of(members, "outputs");
  return definition;
}

std::vector<TraceWorkload> read_trace_workloads(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::vector<TraceWorkload> workloads;
  std::set<std::string> seen;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    TraceWorkload workload = workload_of(parse(line, place), place);
    if (seen.insert(workload.definition + "\n" + workload.uuid).second) {
      workloads.push_back(std::move(workload));
    }
  }
  return workloads;
}

TraceSolution read_trace_solution(const std::filesystem::path& path) {
  const Json json = parse(read_text(path), path.string());
  const Members members(json, path.string());
  return {members.text("name"), members.text("definition"), path.string()};
}

std::optional<std::int64_t> axis_size(const TraceDefinition& definition,
                                      const TraceWorkload& workload, const std::string& axis) {
  const auto fixed = definition.constants.find(axis);
  if (fixed != definition.constants.end()) return fixed->second;
  const auto given = workload.axes.find(axis);
  if (given != workload.axes.end()) return given->second;
  const auto computed = definition.expressions.find(axis);
  if (computed == definition.expressions.end()) return std::nullopt;
  return Expression(definition, workload, computed->second).value();
}

}  // namespace attnbench
