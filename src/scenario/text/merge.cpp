#include "scenario/text/merge.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "scenario/text/files.h"
#include "scenario/text/hf_config.h"
#include "scenario/text/issues.h"
#include "scenario/text/yaml_reader.h"

namespace attnbench {
namespace {

constexpr std::size_t kLongestChain = 32;

/// Files from the scenario to the one being read, as canonical paths.
using Chain = std::vector<std::filesystem::path>;

std::filesystem::path identity(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path.lexically_normal() : canonical;
}

std::filesystem::path find_base(const Value& extends,
                                const std::vector<std::filesystem::path>& search_path) {
  if (!extends.is_string() || extends.text.empty()) {
    fail(ErrorKind::kFormat, "{}extends: expected the path of a scenario or config.json, found {}",
         location(extends.mark), describe(extends));
  }
  std::vector<std::filesystem::path> candidates = {resolve_path(extends)};
  for (const auto& folder : search_path) candidates.push_back(folder / extends.text);
  std::vector<std::string> tried;
  for (const auto& candidate : candidates) {
    std::error_code error;
    if (std::filesystem::is_regular_file(candidate, error)) return candidate;
    tried.push_back(candidate.string());
  }
  fail(ErrorKind::kIo, "{}extends: expected a file, found none at {}", location(extends.mark),
       fmt::join(tried, ", "));
}

void check_chain(const Chain& chain, const std::filesystem::path& next, const Mark& mark) {
  std::vector<std::string> names;
  for (const auto& file : chain) names.push_back(file.filename().string());
  names.push_back(next.filename().string());
  if (std::find(chain.begin(), chain.end(), next) != chain.end()) {
    fail(ErrorKind::kConfig, "{}extends: expected no recursion, found {}", location(mark),
         fmt::join(names, " -> "));
  }
  if (chain.size() >= kLongestChain) {
    fail(ErrorKind::kConfig, "{}extends: expected a chain of at most {} files, found more",
         location(mark), kLongestChain);
  }
}

Value load_chain(const std::string& text, const std::filesystem::path& path,
                 const std::vector<std::filesystem::path>& search_path, Chain& chain) {
  Value document = read_yaml(text, std::make_shared<const std::string>(path.string()));
  if (!document.is_map()) {
    fail(ErrorKind::kFormat, "{}expected a mapping of scenario keys, found {}",
         location(document.mark), describe(document));
  }
  if (is_hf_config(document)) return scenario_of_hf_config(document);
  const Value* extends = document.find("extends");
  if (extends == nullptr || extends->is_null()) {
    document.erase("extends");
    return document;
  }
  const std::filesystem::path base_path = find_base(*extends, search_path);
  check_chain(chain, identity(base_path), extends->mark);
  chain.push_back(identity(base_path));
  Value base =
      load_chain(read_text_file(base_path, kMaxDocumentBytes), base_path, search_path, chain);
  document.erase("extends");
  return deep_merge(std::move(base), std::move(document));
}

/// The value of one --set, as the only entries of a document.
Value parse_override(const std::string& key, const std::string& text) {
  const auto file = std::make_shared<const std::string>(fmt::format("--set {}={}", key, text));
  Value parsed = read_yaml("value: " + text, file);
  if (!parsed.is_map() || parsed.entries.size() != 1 || parsed.entries[0].key != "value") {
    fail(ErrorKind::kFormat, "{}: expected one YAML value, found more", *file);
  }
  Value document = Value::map();
  document.mark = {file, 0};
  Value& target = document.at_or_add_path(key);
  target = std::move(parsed.entries[0].value);
  target.mark = document.mark;
  for (Value& item : target.items) item.mark = document.mark;
  for (Value::Entry& entry : target.entries) {
    entry.key_mark = entry.value.mark = document.mark;
  }
  return document;
}

/// Takes the value of a dotted key out of the document.
void erase_path(Value& document, std::string_view key) {
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return document.erase(key);
  if (document.find_path(key.substr(0, dot)) == nullptr) return;
  document.at_or_add_path(key.substr(0, dot)).erase(key.substr(dot + 1));
}

bool is_at_or_under(const std::string& key, const std::string& section) {
  return key.starts_with(section) && (key.size() == section.size() || key[section.size()] == '.');
}

}  // namespace

Value deep_merge(Value base, Value over) {
  if (!base.is_map() || !over.is_map()) return over;
  for (Value::Entry& entry : over.entries) {
    const auto same_key = [&](const Value::Entry& other) { return other.key == entry.key; };
    const auto found = std::find_if(base.entries.begin(), base.entries.end(), same_key);
    if (found == base.entries.end()) {
      base.entries.push_back(std::move(entry));
      continue;
    }
    found->key_mark = entry.key_mark;
    found->value = deep_merge(std::move(found->value), std::move(entry.value));
  }
  base.mark = over.mark;
  return base;
}

Value load_document(const std::string& text, const std::filesystem::path& path,
                    const std::vector<std::filesystem::path>& search_path) {
  Chain chain = {identity(path)};
  return load_chain(text, path, search_path, chain);
}

void apply_overrides(Value& document,
                     const std::vector<std::pair<std::string, std::string>>& overrides) {
  for (const auto& [key, text] : overrides) {
    if (is_at_or_under(key, "sweep") || is_at_or_under(key, "extends")) {
      fail(ErrorKind::kConfig, "--set {}={}: expected a key of one case, found '{}'", key, text,
           key);
    }
    Value change = parse_override(key, text);
    const Value* const swept = document.find("sweep");
    const bool is_given =
        document.find_path(key) != nullptr || (swept != nullptr && swept->find(key) != nullptr);
    if (is_given && change.find_path(key)->is_null()) {
      erase_path(document, key);
    } else {
      document = deep_merge(std::move(document), std::move(change));
    }
    Value* sweep = document.find("sweep");
    if (sweep == nullptr) continue;
    std::erase_if(sweep->entries, [&key = key](const Value::Entry& entry) {
      return is_at_or_under(entry.key, key);
    });
  }
}

}  // namespace attnbench
