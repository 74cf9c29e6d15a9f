// Reading and writing of list-valued fields. Every reader checks the kind before the content and
// points its Mismatch at the innermost item that is wrong; the caller puts key, file and line
// before it.
#include "core/problem/field_lists.h"

#include <charconv>

#include "core/problem/field_builders.h"

namespace attnbench::fields {
namespace {

using MaybeMismatch = std::optional<Mismatch>;
using Pair = std::array<std::int64_t, 2>;

// Field texts; kept short so that a message fits a line.
constexpr std::string_view kPairs = "a list of [start, end] pairs of integers";
constexpr std::string_view kRanges = "{request index: [[start, end], ...]}";

std::string found_name(int index, std::string_view form) {
  const std::string name(form);
  const std::size_t hole = name.find("{}");
  return name.substr(0, hole) + std::to_string(index) + name.substr(hole + 2);
}

/// Reads each item with `read`; on a mismatch `out` is unspecified.
template <typename T, typename Read>
MaybeMismatch read_list(const Value& value, std::vector<T>& out, Read read) {
  out.clear();
  for (const Value& item : value.items) {
    T element{};
    if (MaybeMismatch mismatch = read(item, element)) return mismatch;
    out.push_back(element);
  }
  return std::nullopt;
}

MaybeMismatch read_pair(const Value& value, std::string_view expected, Range range, Pair& out) {
  if (!value.is_list() || value.items.size() != 2) {
    return Mismatch{ErrorKind::kFormat, std::string(expected), &value};
  }
  for (std::size_t i = 0; i < 2; ++i) {
    double number = 0;
    if (auto mismatch = read_number(value.items[i], range, true, "", number)) return mismatch;
    out[i] = value.items[i].integer;
  }
  return std::nullopt;
}

template <typename T>
Value list_of(const std::vector<T>& elements) {
  Value list = Value::list();
  for (const T& element : elements) list.items.push_back(Value::of(element));
  return list;
}

Value list_of_pairs(const std::vector<Pair>& pairs) {
  Value list = Value::list();
  for (const Pair& pair : pairs) {
    list.items.push_back(list_of(std::vector<std::int64_t>{pair[0], pair[1]}));
  }
  return list;
}

/// A sink is a logit: any number but NaN. JSON has no infinity, so the words "inf" and "-inf" that
/// to_json_text writes are read too.
MaybeMismatch read_sink(const Value& value, double& out) {
  if (value.is_string("inf") || value.is_string("-inf")) {
    out = value.is_string("inf") ? std::numeric_limits<double>::infinity()
                                 : -std::numeric_limits<double>::infinity();
    return std::nullopt;
  }
  if (!value.is_number()) return Mismatch{ErrorKind::kFormat, "a number", &value};
  if (std::isnan(value.as_double())) {
    return Mismatch{ErrorKind::kValue, "a number, not NaN", &value};
  }
  out = value.as_double();
  return std::nullopt;
}

MaybeMismatch read_ranges(const Value& value, Problem& problem) {
  std::map<int, std::vector<Pair>> ranges;
  if (!value.is_map()) return Mismatch{ErrorKind::kFormat, std::string(kRanges), &value};
  for (const Value::Entry& entry : value.entries) {
    int request = -1;
    const char* end = entry.key.data() + entry.key.size();
    const auto [stop, error] = std::from_chars(entry.key.data(), end, request);
    if (error != std::errc{} || stop != end || request < 0 || !entry.value.is_list()) {
      return Mismatch{ErrorKind::kFormat, std::string(kRanges), &entry.value};
    }
    // Why any integer: a negative start is bad content (E-VALUE), which resolving says better.
    const Range any{.low = -kMaxInt, .high = kMaxInt};
    const auto read = [&](const Value& item, Pair& pair) {
      return read_pair(item, kPairs, any, pair);
    };
    if (auto mismatch = read_list(entry.value, ranges[request], read)) return mismatch;
  }
  problem.attention.mm_prefix_ranges = std::move(ranges);
  return std::nullopt;
}

MaybeMismatch read_layer_template(const Value& value, std::vector<std::string>& names) {
  const Value* form = value.find("template");
  const Value* count = value.find("count");
  if (value.entries.size() != 2 || form == nullptr || count == nullptr || !form->is_string() ||
      form->text.find("{}") == std::string::npos) {
    return Mismatch{ErrorKind::kFormat, "{template: text with {}, count: integer}", &value};
  }
  double checked = 0;
  const Range range{.low = 1, .high = 100000};
  if (auto mismatch = read_number(*count, range, true, "", checked)) return mismatch;
  names.clear();
  for (int i = 0; i < count->integer; ++i) names.push_back(found_name(i, form->text));
  return std::nullopt;
}

}  // namespace

Field alibi_slopes_field() {
  Field field{.key = "attention.alibi_slopes"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    auto& slopes = problem.attention.alibi_slopes;
    slopes.reset();
    if (value.is_null()) return std::nullopt;
    if (!value.is_list()) {
      return Mismatch{ErrorKind::kFormat, "a list of num_heads numbers, or null", &value};
    }
    return read_list(value, slopes.emplace(), [](const Value& item, double& slope) {
      const Range any{.low = -std::numeric_limits<double>::infinity(), .kind = ErrorKind::kValue};
      return read_number(item, any, false, "", slope);
    });
  };
  field.get = [](const Problem& problem) {
    const auto& slopes = problem.attention.alibi_slopes;
    return slopes ? list_of(*slopes) : Value::null();
  };
  return field;
}

Field sinks_field() {
  Field field{.key = "attention.sinks"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    AttentionSpec& attention = problem.attention;
    attention.sink_values.clear();
    if (value.is_null() || value.is_string("normal")) {
      attention.sinks = value.is_null() ? SinksKind::kNone : SinksKind::kNormal;
      return std::nullopt;
    }
    if (!value.is_list()) {
      return Mismatch{ErrorKind::kFormat, "null, normal, or a list of num_heads numbers", &value};
    }
    attention.sinks = SinksKind::kValues;
    return read_list(value, attention.sink_values, read_sink);
  };
  field.get = [](const Problem& problem) {
    switch (problem.attention.sinks) {
      case SinksKind::kNone:
        return Value::null();
      case SinksKind::kNormal:
        return Value::of("normal");
      case SinksKind::kValues:
        return list_of(problem.attention.sink_values);
    }
    return Value::null();
  };
  return field;
}

Field mm_prefix_ranges_field() {
  Field field{.key = "attention.mm_prefix_ranges"};
  field.set = read_ranges;
  field.get = [](const Problem& problem) {
    Value map = Value::map();
    for (const auto& [request, ranges] : problem.attention.mm_prefix_ranges) {
      map.at_or_add(std::to_string(request)) = list_of_pairs(ranges);
    }
    return map;
  };
  return field;
}

Field capture_sizes_field() {
  Field field{.key = "triton.capture_sizes"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    if (!value.is_list()) return Mismatch{ErrorKind::kFormat, "a list of integers", &value};
    return read_list(value, problem.triton.capture_sizes, [](const Value& item, int& size) {
      double number = 0;
      auto mismatch = read_number(item, {.low = 1, .high = kMaxInt}, true, "", number);
      size = static_cast<int>(number);
      return mismatch;
    });
  };
  field.get = [](const Problem& problem) {
    const auto& sizes = problem.triton.capture_sizes;
    return list_of(std::vector<std::int64_t>(sizes.begin(), sizes.end()));
  };
  return field;
}

Field topk_length_field(std::string key, std::vector<int> MlaSpec::*member) {
  Field field{.key = std::move(key)};
  field.set = [member](const Value& value, Problem& problem) -> MaybeMismatch {
    std::vector<int>& lengths = problem.mla.*member;
    const auto read = [](const Value& item, int& length) {
      double number = 0;
      auto mismatch = read_number(item, {.low = 0, .high = kMaxInt}, true, "", number);
      length = static_cast<int>(number);
      return mismatch;
    };
    lengths.clear();
    if (value.is_null()) return std::nullopt;
    if (value.is_list()) return read_list(value, lengths, read);
    if (!value.is_int()) {
      return Mismatch{ErrorKind::kFormat, "null, an integer, or a list of one a request", &value};
    }
    return read(value, lengths.emplace_back());
  };
  field.get = [member](const Problem& problem) {
    const std::vector<int>& lengths = problem.mla.*member;
    if (lengths.empty()) return Value::null();
    if (lengths.size() == 1) return Value::of(std::int64_t{lengths.front()});
    return list_of(std::vector<std::int64_t>(lengths.begin(), lengths.end()));
  };
  return field;
}

Field cascade_groups_field() {
  Field field{.key = "cascade.groups"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    constexpr std::string_view kForm = "a list of [requests, keys of their shared prefix]";
    if (!value.is_list()) return Mismatch{ErrorKind::kFormat, std::string(kForm), &value};
    return read_list(value, problem.cascade.groups, [&](const Value& item, Pair& group) {
      return read_pair(item, kForm, {.low = 1, .high = kMaxInt}, group);
    });
  };
  field.get = [](const Problem& problem) { return list_of_pairs(problem.cascade.groups); };
  return field;
}

Field images_field() {
  Field field{.key = "mm_encoder.images"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    auto& images = problem.mm_encoder.images;
    images.reset();
    if (value.is_null()) return std::nullopt;
    if (!value.is_list() || value.items.empty()) {
      return Mismatch{ErrorKind::kFormat, "a list of [height, width], or null", &value};
    }
    return read_list(value, images.emplace(), [](const Value& item, Pair& image) {
      return read_pair(item, "[height, width] in pixels", {.low = 1, .high = 1048576}, image);
    });
  };
  field.get = [](const Problem& problem) {
    const auto& images = problem.mm_encoder.images;
    return images ? list_of_pairs(*images) : Value::null();
  };
  return field;
}

Field layer_names_field() {
  Field field{.key = "mm_encoder.layer_names"};
  field.set = [](const Value& value, Problem& problem) -> MaybeMismatch {
    auto& names = problem.mm_encoder.layer_names;
    if (value.is_map()) return read_layer_template(value, names);
    if (!value.is_list() || value.items.empty()) {
      return Mismatch{ErrorKind::kFormat, "a list of names, or {template, count}", &value};
    }
    return read_list(value, names, [](const Value& item, std::string& name) -> MaybeMismatch {
      if (!item.is_string()) return Mismatch{ErrorKind::kFormat, "text", &item};
      name = item.text;
      return std::nullopt;
    });
  };
  field.get = [](const Problem& problem) { return list_of(problem.mm_encoder.layer_names); };
  return field;
}

Field scale_field(std::string key, std::vector<double>& (*access)(Problem&)) {
  Field field{.key = std::move(key)};
  field.set = [access](const Value& value, Problem& problem) -> MaybeMismatch {
    const auto read = [](const Value& item, double& scale) {
      return read_number(item, kPositiveScale, false, "", scale);
    };
    if (value.is_list() && !value.items.empty()) return read_list(value, access(problem), read);
    double scale = 0;
    if (auto mismatch = read(value, scale)) {
      mismatch->expected += ", or a list of num_kv_heads of them";
      return mismatch;
    }
    access(problem) = {scale};
    return std::nullopt;
  };
  field.get = [access](const Problem& problem) {
    // The accessor is not const-correct because a function pointer cannot be overloaded on const.
    const std::vector<double>& scales = access(const_cast<Problem&>(problem));
    return scales.size() == 1 ? Value::of(scales.front()) : list_of(scales);
  };
  return field;
}

}  // namespace attnbench::fields
