#include "core/parsing.h"

#include <nlohmann/json.hpp>
#include <regex>

namespace attnbench {
namespace {

Pattern::Groups groups_of(const std::smatch& match) { return {match.begin(), match.end()}; }

}  // namespace

struct Pattern::Compiled {
  std::regex regex;
};

Pattern::Pattern(const std::string& expression)
    : compiled_(std::make_shared<Compiled>(
          Compiled{std::regex(expression, std::regex::ECMAScript | std::regex::optimize)})) {}

bool Pattern::is_in(const std::string& text) const {
  return std::regex_search(text, compiled_->regex);
}

Pattern::Groups Pattern::match(const std::string& text) const {
  std::smatch match;
  return std::regex_match(text, match, compiled_->regex) ? groups_of(match) : Groups();
}

Pattern::Groups Pattern::search(const std::string& text) const {
  std::smatch match;
  return std::regex_search(text, match, compiled_->regex) ? groups_of(match) : Groups();
}

std::vector<Pattern::Groups> Pattern::search_all(const std::string& text) const {
  std::vector<Groups> all;
  const std::sregex_iterator end;
  for (std::sregex_iterator it(text.begin(), text.end(), compiled_->regex); it != end; ++it) {
    all.push_back(groups_of(*it));
  }
  return all;
}

template <typename Json>
Json parse_json(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template nlohmann::json parse_json(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);

}  // namespace attnbench
