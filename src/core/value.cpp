// Values: construction, look-up by dotted keys and printing. Maps are lists of entries, searched
// one by one: they have a few dozen keys, and their order is part of messages and of written files.
#include "core/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace attnbench {
namespace {

nlohmann::ordered_json to_json(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kBool:
      return value.boolean;
    case Value::Kind::kInt:
      return value.integer;
    case Value::Kind::kString:
      return value.text;
    case Value::Kind::kFloat:
      if (std::isnan(value.number)) return "nan";
      if (std::isinf(value.number)) return value.number > 0 ? "inf" : "-inf";
      return value.number;
    case Value::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Value& item : value.items) list.push_back(to_json(item));
      return list;
    }
    case Value::Kind::kMap: {
      auto map = nlohmann::ordered_json::object();
      for (const Value::Entry& entry : value.entries) map[entry.key] = to_json(entry.value);
      return map;
    }
  }
  return nullptr;
}

std::pair<std::string_view, std::string_view> split_first(std::string_view dotted_key) {
  const std::size_t dot = dotted_key.find('.');
  if (dot == std::string_view::npos) return {dotted_key, {}};
  return {dotted_key.substr(0, dot), dotted_key.substr(dot + 1)};
}

}  // namespace

Value Value::with_kind(Kind kind) {
  Value result;
  result.kind = kind;
  return result;
}
Value Value::null() { return {}; }
Value Value::list() { return with_kind(Kind::kList); }
Value Value::map() { return with_kind(Kind::kMap); }
Value Value::of(const char* value) { return of(std::string(value)); }
Value Value::of(bool value) {
  Value result = with_kind(Kind::kBool);
  result.boolean = value;
  return result;
}
Value Value::of(std::int64_t value) {
  Value result = with_kind(Kind::kInt);
  result.integer = value;
  return result;
}
Value Value::of(double value) {
  Value result = with_kind(Kind::kFloat);
  result.number = value;
  return result;
}
Value Value::of(std::string value) {
  Value result = with_kind(Kind::kString);
  result.text = std::move(value);
  return result;
}

const Value* Value::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}
Value* Value::find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(key));
}

Value& Value::at_or_add(std::string_view key) {
  if (Value* found = find(key)) return *found;
  kind = Kind::kMap;
  entries.push_back({std::string(key), mark, {}});
  entries.back().value.mark = mark;
  return entries.back().value;
}

const Value* Value::find_path(std::string_view dotted_key) const {
  const auto [first, rest] = split_first(dotted_key);
  const Value* child = find(first);
  return child == nullptr || rest.empty() ? child : child->find_path(rest);
}

Value& Value::at_or_add_path(std::string_view dotted_key) {
  const auto [first, rest] = split_first(dotted_key);
  Value& child = at_or_add(first);
  return rest.empty() ? child : child.at_or_add_path(rest);
}

void Value::erase(std::string_view key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

bool same_content(const Value& a, const Value& b) {
  const auto same_entry = [](const Value::Entry& x, const Value::Entry& y) {
    return x.key == y.key && same_content(x.value, y.value);
  };
  return a.kind == b.kind && a.boolean == b.boolean && a.integer == b.integer &&
         (a.number == b.number || (std::isnan(a.number) && std::isnan(b.number))) &&
         a.text == b.text &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_content) &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    same_entry);
}

std::string to_json_text(const Value& value, int indent) {
  return to_json(value).dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string describe(const Value& value) {
  constexpr std::size_t kLongest = 60;
  switch (value.kind) {
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Value::Kind::kInt:
    case Value::Kind::kFloat:
      return to_json_text(value);
    case Value::Kind::kList:
      return fmt::format("a list of {}", value.items.size());
    case Value::Kind::kMap:
      return "a mapping";
    case Value::Kind::kString:
      break;
  }
  if (value.text.size() <= kLongest) return fmt::format("'{}'", value.text);
  std::size_t end = kLongest;
  while (end > 0 && (value.text[end] & 0xC0) == 0x80) --end;  // not inside a UTF-8 character
  return fmt::format("'{}...'", value.text.substr(0, end));
}

}  // namespace attnbench
