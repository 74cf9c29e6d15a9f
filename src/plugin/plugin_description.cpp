// A table travels as the bytes of its struct, whose pointers mean nothing here, and the texts
// behind three of them.
#include "plugin/plugin_description.h"

#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/sha256.h"
#include "plugin/child_run.h"

namespace attnbench {
namespace {

constexpr char kTables = 'T';
constexpr char kRefused = 'E';  // an Error: its kind and its words

void put(std::string& text, const void* bytes, std::size_t count) {
  text.append(static_cast<const char*>(bytes), count);
}
void put(std::string& text, const std::string& value) {
  const std::uint64_t size = value.size();
  put(text, &size, sizeof size);
  text += value;
}
std::string text_of(const char* text) { return text == nullptr ? "" : text; }

/// What the child does.
std::string tables_of(const std::string& path) {
  std::string text;
  try {
    const PluginLibrary library(path);
    text = kTables;
    for (const PluginTable& table : library.tables()) {
      put(text, &table.table, sizeof table.table);
      put(text, text_of(table.table.name));
      put(text, text_of(table.table.version));
      put(text, text_of(table.table.description));
    }
  } catch (const Error& error) {
    text = kRefused;
    text += static_cast<char>(error.kind());
    text += error.what();
  }
  return text;
}

[[noreturn]] void fail_to_read(const std::string& path) {
  fail(ErrorKind::kFormat, "--plugin '{}': what it says of itself cannot be read", path);
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& path) : text_(text), path_(path) {}
  bool at_end() const { return at_ == text_.size(); }
  void get(void* bytes, std::size_t count) {
    if (count > text_.size() - at_) fail_to_read(path_);
    std::memcpy(bytes, text_.data() + at_, count);
    at_ += count;
  }
  std::string get_text() {
    std::uint64_t size = 0;
    get(&size, sizeof size);
    if (size > text_.size() - at_) fail_to_read(path_);
    at_ += size;
    return text_.substr(at_ - size, size);
  }

 private:
  const std::string& text_;
  const std::string& path_;
  std::size_t at_ = 1;  // behind the mark
};

constexpr const char* kNotLoaded = "its library is not loaded in this process";
const char* no_supports(const AttnbenchBackend*, const AttnbenchProblem*) { return kNotLoaded; }
const char* no_prepare(const AttnbenchBackend*, const AttnbenchProblem*, const AttnbenchTensors*,
                       const AttnbenchHost*, void**) {
  return kNotLoaded;
}
const char* no_run(void*, void*) { return kNotLoaded; }
void no_destroy(void*) {}

/// What a described table points to.
struct Texts {
  std::string name, version, description;
  AttnbenchBackend table{};
};

PluginTable read_table(Reader& reader, const std::string& path) {
  auto texts = std::make_shared<Texts>();
  AttnbenchBackend& table = texts->table;
  reader.get(&table, sizeof table);
  texts->name = reader.get_text();
  texts->version = reader.get_text();
  texts->description = reader.get_text();
  table.struct_size = sizeof table;
  table.name = texts->name.c_str();
  table.version = texts->version.c_str();
  table.description = texts->description.empty() ? nullptr : texts->description.c_str();
  table.user = nullptr;
  table.supports = table.supports == nullptr ? nullptr : no_supports;
  table.prepare = no_prepare;
  table.run = no_run;
  table.destroy = table.destroy == nullptr ? nullptr : no_destroy;
  // Why again: names go into ids, and the child may have said anything.
  PluginTable checked = check_table(&table, "--plugin '" + path + "'");
  checked.owner = std::move(texts);
  return checked;
}

/// Everything that the verdict goes by, in one text.
std::string facts_of(const AttnbenchBackend& table) {
  AttnbenchBackend data = table;
  data.struct_size = 0;
  data.name = data.version = data.description = nullptr;
  data.user = nullptr;
  data.supports = nullptr;
  data.prepare = nullptr;
  data.run = nullptr;
  data.destroy = nullptr;
  std::string facts;
  put(facts, &data, sizeof data);
  put(facts, text_of(table.name));
  return facts;
}

}  // namespace

PluginDescription describe_plugin(const std::string& path, double limit_s) {
  PluginDescription description{path, sha256_hex(library_bytes(path)), {}};
  const TrialOutput said = trial_output([&] { return tables_of(path); }, limit_s);
  if (said.hangs) {
    fail(ErrorKind::kFormat, "--plugin '{}': loading it: {}; killed (run --hang-limit)", path,
         said.trouble);
  }
  if (!said.trouble.empty()) {
    fail(ErrorKind::kFormat, "--plugin '{}': loading it ended a process: {}", path, said.trouble);
  }
  if (said.text.empty()) fail_to_read(path);
  if (said.text[0] == kRefused && said.text.size() >= 2) {
    const auto kind = static_cast<std::size_t>(said.text[1]);
    if (kind >= enum_rows(ErrorKind{}).size()) fail_to_read(path);
    fail(static_cast<ErrorKind>(kind), "{}", said.text.substr(2));
  }
  if (said.text[0] != kTables) fail_to_read(path);
  for (Reader reader(said.text, path); !reader.at_end();) {
    description.tables.push_back(read_table(reader, path));
  }
  if (description.tables.empty()) fail_to_read(path);
  return description;
}

const PluginTable& LazyPluginLibrary::table(std::size_t index) {
  if (!library_) library_.emplace(description_.path);
  const std::vector<PluginTable>& tables = library_->tables();
  const bool is_same =
      library_->sha256() == description_.sha256 && index < tables.size() &&
      facts_of(tables[index].table) == facts_of(description_.tables.at(index).table);
  if (!is_same) {
    fail(ErrorKind::kFormat, "--plugin '{}': it is not what it was when the run began",
         description_.path);
  }
  return tables[index];
}

}  // namespace attnbench
