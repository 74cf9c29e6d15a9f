// The header's JSON, read as a stream of events instead of a document: a hostile header may be 100
// MB of nesting, duplicate names or numbers beyond 64 bits, and is refused at the first token that
// does not fit. The offsets are then checked to tile the data exactly, so no later read can leave
// it.
#include "inputs/files/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

using json = nlohmann::json;

/// Element sizes of every dtype of the format.
constexpr std::pair<std::string_view, std::uint64_t> kFormatDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},     {"I32", 4},
    {"F32", 4},  {"U64", 8}, {"I64", 8}, {"F64", 8},     {"C64", 8},
};

std::uint64_t format_dtype_size(std::string_view name) {
  for (const auto& [known, size] : kFormatDtypes) {
    if (known == name) return size;
  }
  return 0;
}

/// Receives the header's JSON event by event, so that a hostile document is refused at the first
/// token that is out of place and its nesting never becomes recursion.
class HeaderHandler : public json::json_sax_t {
 public:
  explicit HeaderHandler(std::string file) : file_(std::move(file)) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kRoot;
        return true;
      case State::kEntry:
        state_ = State::kField;
        fields_.clear();
        return true;
      case State::kMetadata:
        state_ = State::kMetadataKey;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kRoot:
        state_ = State::kEnd;
        return true;
      case State::kField:
        if (fields_.size() != 3) {
          fail(ErrorKind::kFormat, "{}: tensor '{}': expected dtype, shape and data_offsets", file_,
               shown(entry().name));
        }
        state_ = State::kRoot;
        return true;
      case State::kMetadataKey:
        state_ = State::kRoot;
        return true;
      default:
        return refuse("the end of an object");
    }
  }

  bool key(std::string& name) override {
    switch (state_) {
      case State::kRoot:
        if (!names_.insert(name).second) {
          fail(ErrorKind::kFormat, "{}: duplicate name '{}' in the header", file_, shown(name));
        }
        if (name == "__metadata__") {
          state_ = State::kMetadata;
        } else {
          header_.entries.push_back({.name = name, .dtype = {}, .shape = {}});
          state_ = State::kEntry;
        }
        return true;
      case State::kField:
        return field(name);
      case State::kMetadataKey:
        metadata_key_ = name;
        if (!header_.metadata.emplace(name, "").second) {
          fail(ErrorKind::kFormat, "{}: duplicate key '{}' in __metadata__", file_, shown(name));
        }
        state_ = State::kMetadataValue;
        return true;
      default:
        return refuse("a key");
    }
  }

  bool string(std::string& value) override {
    if (state_ == State::kDtype) {
      if (format_dtype_size(value) == 0) {
        fail(ErrorKind::kFormat, "{}: tensor '{}': unknown dtype '{}'", file_, shown(entry().name),
             shown(value));
      }
      entry().dtype = value;
      state_ = State::kField;
      return true;
    }
    if (state_ == State::kMetadataValue) {
      header_.metadata[metadata_key_] = value;
      state_ = State::kMetadataKey;
      return true;
    }
    return refuse("a string");
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShape) {
      state_ = State::kExtent;
    } else if (state_ == State::kOffsets) {
      state_ = State::kOffset;
      num_offsets_ = 0;
    } else {
      return refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffset && num_offsets_ != 2) {
      fail(ErrorKind::kFormat, "{}: tensor '{}': data_offsets: expected 2 numbers, got {}", file_,
           shown(entry().name), num_offsets_);
    }
    state_ = State::kField;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::kExtent) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(ErrorKind::kFormat, "{}: tensor '{}': extent {} is too large", file_,
             shown(entry().name), value);
      }
      entry().shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::kOffset) {
      if (num_offsets_ == 0) entry().begin = value;
      if (num_offsets_ == 1) entry().end = value;
      ++num_offsets_;
      return true;
    }
    return refuse("a number");
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t value) override { return refuse(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) override { return refuse(text); }
  bool binary(json::binary_t&) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const json::exception& e) override {
    fail(ErrorKind::kFormat, "{}: header is not valid JSON at byte {}: {}", file_, position,
         json_complaint(e.what()));
  }

 private:
  enum class State {
    kStart,
    kRoot,
    kEntry,  // expects the object of a tensor
    kField,  // inside it, expects a key
    kDtype,
    kShape,
    kExtent,  // inside the array of kShape
    kOffsets,
    kOffset,  // inside the array of kOffsets
    kMetadata,
    kMetadataKey,
    kMetadataValue,
    kEnd,
  };

  SafetensorsEntry& entry() { return header_.entries.back(); }

  bool field(const std::string& name) {
    if (!fields_.insert(name).second) {
      fail(ErrorKind::kFormat, "{}: tensor '{}': duplicate key '{}'", file_, shown(entry().name),
           shown(name));
    }
    if (name == "dtype") {
      state_ = State::kDtype;
    } else if (name == "shape") {
      state_ = State::kShape;
    } else if (name == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      fail(ErrorKind::kFormat, "{}: tensor '{}': unexpected key '{}'", file_, shown(entry().name),
           shown(name));
    }
    return true;
  }

  const char* expected() const {
    switch (state_) {
      case State::kStart:
        return "an object";
      case State::kRoot:
        return "a tensor name";
      case State::kEntry:
        return "an object with dtype, shape and data_offsets";
      case State::kField:
        return "dtype, shape or data_offsets";
      case State::kDtype:
        return "the name of a dtype";
      case State::kShape:
        return "an array of extents";
      case State::kExtent:
        return "an extent >= 0";
      case State::kOffsets:
        return "an array of two byte offsets";
      case State::kOffset:
        return "a byte offset >= 0";
      case State::kMetadata:
        return "an object of strings";
      case State::kMetadataKey:
        return "a key";
      case State::kMetadataValue:
        return "a string";
      case State::kEnd:
        return "nothing more";
    }
    return "";
  }

  bool refuse(std::string_view found) const {
    const bool in_tensor = state_ >= State::kEntry && state_ <= State::kOffset;
    const std::string where =
        in_tensor ? fmt::format("tensor '{}'", shown(header_.entries.back().name)) : "header";
    fail(ErrorKind::kFormat, "{}: {}: expected {}, got {}", file_, where, expected(), shown(found));
  }

  std::string file_;
  State state_ = State::kStart;
  SafetensorsHeader header_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::string metadata_key_;
  int num_offsets_ = 0;
};

/// E-FORMAT unless shape times element size is the length of the byte range.
void check_byte_count(const SafetensorsEntry& entry, const std::string& file) {
  std::uint64_t bytes = format_dtype_size(entry.dtype);
  for (std::int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
      fail(ErrorKind::kFormat, "{}: tensor '{}': the shape overflows 64 bits", file,
           shown(entry.name));
    }
  }
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    fail(ErrorKind::kFormat,
         "{}: tensor '{}': shape and dtype need {} bytes, data_offsets are {}..{}", file,
         shown(entry.name), bytes, entry.begin, entry.end);
  }
}

/// E-FORMAT unless the byte ranges tile [0, data_bytes).
void check_coverage(const SafetensorsHeader& header, std::uint64_t data_bytes,
                    const std::string& file) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& entry : header.entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry* entry : sorted) {
    if (entry->end > data_bytes) {
      fail(ErrorKind::kFormat, "{}: tensor '{}' ends at byte {} of the data, the file has {}", file,
           shown(entry->name), entry->end, data_bytes);
    }
    if (entry->begin != covered) {
      fail(ErrorKind::kFormat, "{}: tensor '{}' begins at byte {} of the data, expected {} ({})",
           file, shown(entry->name), entry->begin, covered,
           entry->begin < covered ? "overlap" : "hole");
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    fail(ErrorKind::kFormat, "{}: the tensors need {} bytes of data, the file has {}", file,
         covered, data_bytes);
  }
}

}  // namespace

std::uint64_t checked_header_length(const std::byte* prefix, std::uint64_t file_bytes,
                                    const std::string& file) {
  if (file_bytes < kSafetensorsPrefixBytes) {
    fail(ErrorKind::kFormat, "{}: expected a safetensors file of at least 8 bytes, got {}", file,
         file_bytes);
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  if (length > kMaxSafetensorsHeaderBytes) {
    fail(ErrorKind::kFormat, "{}: not a safetensors file: header of {} bytes, at most {} allowed",
         file, length, kMaxSafetensorsHeaderBytes);
  }
  if (length > file_bytes - kSafetensorsPrefixBytes) {
    fail(ErrorKind::kFormat, "{}: truncated: header of {} bytes in a file of {}", file, length,
         file_bytes);
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& file) {
  // Why: the JSON parser would skip a byte order mark, which the format does not allow.
  if (text.empty() || text.front() != '{') {
    fail(ErrorKind::kFormat, "{}: not a safetensors file: the header does not begin with '{{'",
         file);
  }
  HeaderHandler handler(file);
  json::sax_parse(text.begin(), text.end(), &handler);
  SafetensorsHeader header = handler.take();
  for (const SafetensorsEntry& entry : header.entries) check_byte_count(entry, file);
  check_coverage(header, data_bytes, file);
  return header;
}

}  // namespace attnbench
