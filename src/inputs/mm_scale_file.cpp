#include "inputs/mm_scale_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "core/error.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

/// The literals NaN, Infinity and -Infinity, which Python reads and writes, as strings: they are
/// then judged as values and not as syntax.
std::string quote_python_literals(std::string_view text) {
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      result += text.substr(i, 2);
      i += 2;
      continue;
    }
    if (c == '"') in_string = !in_string;
    std::string_view literal;
    for (const std::string_view candidate : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && text.substr(i).starts_with(candidate)) literal = candidate;
    }
    if (literal.empty()) {
      result += c;
      ++i;
    } else {
      result += fmt::format("\"{}\"", literal);
      i += literal.size();
    }
  }
  return result;
}

Json parse_json(std::string_view text, const std::string& name) {
  try {
    Json document = Json::parse(quote_python_literals(text));
    if (document.is_object()) return document;
    fail(ErrorKind::kFormat, "FP8 scale file {}: expected a JSON object, got {}", name,
         document.type_name());
  } catch (const Json::out_of_range& error) {
    fail(ErrorKind::kValue, "FP8 scale file {}: {}", name, error.what());
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, "FP8 scale file {}: not JSON: {}", name, error.what());
  }
}

/// A number in a string, with blanks around it, as Python's float() takes it.
std::optional<double> parse_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\v\f";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return HUGE_VAL;
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

double number_of(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;  // as Python's float()
  if (value.is_string()) {
    if (const auto number = parse_number(value.get_ref<const std::string&>())) return *number;
  }
  fail(ErrorKind::kFormat, "{}: expected a number, got {}", where, value.dump());
}

/// 2.0 as "2.0", the shortest digits that read back.
std::string python_repr(double value) {
  std::string text = fmt::format("{}", value);
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return whole ? text + ".0" : text;
}

/// Whether the float32 that the kernels use is finite and > 0 too.
bool is_scale(double value) {
  const auto narrow = static_cast<float>(value);
  return std::isfinite(value) && value > 0 && std::isfinite(narrow) && narrow > 0;
}

void check_scales(const MmLayerScales& scales, const std::string& layer) {
  const auto describe = [&] {
    return fmt::format("got q={}, k={}, v={} for layer '{}'", python_repr(scales.q),
                       python_repr(scales.k), python_repr(scales.v), layer);
  };
  for (const double scale : {scales.q, scales.k, scales.v}) {
    if (scale <= 0) {
      fail(ErrorKind::kValue, "FP8 scales must be positive, {}", describe());
    }
  }
  for (const double scale : {scales.q, scales.k, scales.v}) {
    if (!is_scale(scale)) {
      fail(ErrorKind::kValue, "FP8 scales must be finite and positive in float32, {}", describe());
    }
  }
}

/// `q`, or else `q_scale`; the short key wins when it is there, even as null.
const Json* scale_entry(const Json& entry, const char* key) {
  for (const std::string& name : {std::string(key), std::string(key) + "_scale"}) {
    const auto found = entry.find(name);
    if (found != entry.end()) return found->is_null() ? nullptr : &*found;
  }
  return nullptr;
}

void read_entry(const std::string& layer, const Json& entry, const std::string& name,
                MmScaleFile& file) {
  const auto skip = [&](const char* why) {
    file.notices.push_back(
        fmt::format("FP8 scale file {}: '{}' is left out: {}", name, layer, why));
  };
  if (!entry.is_object()) return skip("it is not an object");
  MmLayerScales scales;
  for (const auto& [key, scale] :
       {std::pair{"q", &scales.q}, std::pair{"k", &scales.k}, std::pair{"v", &scales.v}}) {
    const Json* value = scale_entry(entry, key);
    if (value == nullptr) return skip("it has not all of q, k and v");
    *scale =
        number_of(*value, fmt::format("FP8 scale file {}: {} of layer '{}'", name, key, layer));
  }
  check_scales(scales, layer);
  file.layers.emplace_back(layer, scales);
}

std::string read_text(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    fail(ErrorKind::kIo, "FP8 scale file not found: {}", path.string());
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  // An empty file leaves failbit on the stream that it is copied to, and is no JSON anyway.
  if (!stream || stream.bad()) {
    fail(ErrorKind::kIo, "FP8 scale file {}: cannot be read: {}", path.string(),
         std::strerror(errno));
  }
  return text.str();
}

void write_and_sync(int file, std::string_view text, const std::string& name) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::fsync(file) != 0) fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
}

void write_atomically(const fs::path& path, std::string_view text) {
  static std::atomic<int> counter{0};
  const std::string name = path.string();
  const std::string temporary = fmt::format("{}.tmp-{}-{}", name, ::getpid(), counter++);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
  try {
    write_and_sync(file, text, name);
    if (std::rename(temporary.c_str(), name.c_str()) != 0) {
      fail(ErrorKind::kIo, "cannot write '{}': {}", name, std::strerror(errno));
    }
  } catch (...) {
    ::close(file);
    ::unlink(temporary.c_str());
    throw;
  }
  ::close(file);
}

}  // namespace

const MmLayerScales* MmScaleFile::find(std::string_view layer) const {
  for (const auto& [name, scales] : layers) {
    if (name == layer) return &scales;
  }
  return nullptr;
}

MmScaleFile parse_mm_scales(std::string_view text, const std::string& name) {
  const Json document = parse_json(text, name);
  const auto nested = document.find("layers");
  const bool is_nested = nested != document.end() && nested->is_object();
  MmScaleFile file;
  for (const auto& [layer, entry] : (is_nested ? *nested : document).items()) {
    read_entry(layer, entry, name, file);
  }
  return file;
}

MmScaleFile read_mm_scales(const fs::path& path) {
  return parse_mm_scales(read_text(path), path.string());
}

const MmLayerScales& require_mm_scales(const MmScaleFile& file, const std::string& layer,
                                       const std::string& name) {
  if (const MmLayerScales* scales = file.find(layer)) return *scales;
  std::vector<std::string> available;
  for (const auto& entry : file.layers) available.push_back(fmt::format("'{}'", entry.first));
  fail(ErrorKind::kValue,
       "FP8 attention enabled but scales not found for layer '{}' in {}. Available layers: [{}]",
       layer, name, fmt::join(available, ", "));
}

void check_mm_scale_target(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail(ErrorKind::kIo, "FP8 scale save path '{}': expected a folder '{}', found none",
         path.string(), folder.string());
  }
  if (fs::is_directory(path, error)) {
    fail(ErrorKind::kIo, "FP8 scale save path '{}': expected a file, found a folder",
         path.string());
  }
}

void write_mm_scales(const fs::path& path,
                     const std::vector<std::pair<std::string, MmLayerScales>>& layers) {
  check_mm_scale_target(path);
  Json document = Json::object();
  for (const auto& [layer, scales] : layers) {
    check_scales(scales, layer);
    document[layer] = {{"q", scales.q}, {"k", scales.k}, {"v", scales.v}};
  }
  write_atomically(path, document.dump(2));
}

}  // namespace attnbench
