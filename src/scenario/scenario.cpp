#include "scenario/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/problem/fields.h"
#include "core/sha256.h"
#include "scenario/batch/batch.h"
#include "scenario/resolve/case_values.h"
#include "scenario/resolve/resolve.h"
#include "scenario/resolve/unread.h"
#include "scenario/structure.h"
#include "scenario/text/files.h"
#include "scenario/text/merge.h"
#include "scenario/text/yaml_reader.h"

namespace attnbench {
namespace {

constexpr std::size_t kMaxCases = 100000;
// A hundred thousand cases with a hundred requests each stay far below it.
constexpr std::size_t kMaxProblemBytes = std::size_t{512} << 20;

/// One dimension of the product of cases.
struct Axis {
  std::string key;
  bool named = true;                 // appears in case names
  std::vector<const Value*> values;  // null: no batch is given
  Mark mark;
};

std::vector<Axis> make_axes(const Value& document) {
  std::vector<Axis> axes;
  const Value* sweep = document.find("sweep");
  const bool batch_swept = sweep != nullptr && sweep->find("batch") != nullptr;
  if (!batch_swept) {
    const Value* batch = document.find("batch");
    axes.push_back(
        {"batch", false,
         batch == nullptr ? std::vector<const Value*>{nullptr} : BatchReader::split(*batch),
         document.mark});
  }
  if (sweep == nullptr) return axes;
  for (const Value::Entry& entry : sweep->entries) {
    Axis axis{entry.key, true, {}, entry.key_mark};
    for (const Value& value : entry.value.items) axis.values.push_back(&value);
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::size_t count_cases(const std::vector<Axis>& axes) {
  std::size_t cases = 1;
  for (const Axis& axis : axes) {
    // Why no overflow: both factors are bounded, by kMaxCases and by the size of a file.
    cases *= axis.values.size();
    if (cases > kMaxCases) {
      fail(ErrorKind::kConfig, "{}sweep: expected at most {} cases, found more",
           location(axis.mark), kMaxCases);
    }
  }
  return cases;
}

/// The schema is checked for the document and for each swept value in place.
void check_documents(const Value& document) {
  check_schema(document);
  const Value* sweep = document.find("sweep");
  if (sweep == nullptr) return;
  for (const Value::Entry& entry : sweep->entries) {
    Value single = Value::map();
    single.mark = entry.key_mark;
    single.at_or_add("name") = *document.find("name");
    for (const Value& value : entry.value.items) {
      single.at_or_add_path(entry.key) = value;
      check_schema(single);
    }
  }
}

/// Bytes that a problem's lists hold.
std::size_t list_bytes(const Problem& problem) {
  const AttentionSpec& attention = problem.attention;
  std::size_t bytes = problem.batch.size() * sizeof(Request) + problem.description.size();
  bytes += (attention.sink_values.size() + problem.triton.capture_sizes.size() +
            problem.kv_cache.k_scale.size() + problem.kv_cache.v_scale.size()) *
           sizeof(double);
  if (attention.alibi_slopes) bytes += attention.alibi_slopes->size() * sizeof(double);
  for (const auto& [request, ranges] : attention.mm_prefix_ranges) {
    bytes += sizeof(ranges) + ranges.size() * sizeof(ranges[0]);
  }
  const MmEncoderSpec& mm = problem.mm_encoder;
  if (mm.images) bytes += mm.images->size() * sizeof(mm.images->front());
  for (const std::string& name : mm.layer_names) bytes += sizeof(name) + name.size();
  return bytes;
}

constexpr std::size_t kLongestCaseName = 120;
constexpr std::size_t kKeptBytes = 100;

std::string value_text(const Value& value) {
  const std::string json = to_json_text(value);
  return value.is_string() ? json.substr(1, json.size() - 2) : json;
}

std::string shortened(const std::string& name) {
  if (name.size() <= kLongestCaseName) return name;
  std::size_t end = kKeptBytes;
  while (end > 0 && (name[end] & 0xC0) == 0x80) --end;
  return fmt::format("{}-{}", name.substr(0, end), sha256_hex(name).substr(0, 8));
}

/// Gives each case its name, the second part of every result id (contract section 4), and keeps
/// names unique.
class CaseNamer {
 public:
  /// `label`, then ",key=value" per swept key but `batch`, whose value the label is; values are
  /// JSON, texts without quotes. '/' becomes '_'. Over 120 bytes: the first 100 (less, where that
  /// would cut a UTF-8 character), '-' and 8 hex digits of the SHA-256 of the whole. A name that
  /// was given before gets "#2", "#3", ....
  std::string name(std::string_view label,
                   const std::vector<std::pair<std::string, const Value*>>& swept) {
    std::string full(label);
    for (const auto& [key, value] : swept) {
      if (key != "batch") full += fmt::format(",{}={}", key, value_text(*value));
    }
    std::replace(full.begin(), full.end(), '/', '_');
    const std::string name = shortened(full);
    const int uses = ++uses_[name];
    return uses == 1 ? name : fmt::format("{}#{}", name, uses);
  }

 private:
  std::unordered_map<std::string, int> uses_;
};

/// The cases of a checked document.
class Expander {
 public:
  /// Throws when there are too many cases, before anything is built for them. `path` is the
  /// scenario's own file, as marks name it.
  Expander(const Value& document, const std::filesystem::path& path)
      : document_(document),
        axes_(make_axes(document)),
        count_(count_cases(axes_)),
        unread_(document, path.string()) {
    read_fields(document, base_);
  }

  std::vector<Problem> expand() {
    std::vector<Problem> cases;
    cases.reserve(count_);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      cases.push_back(make_case(i));
      bytes += list_bytes(cases.back());
      if (bytes <= kMaxProblemBytes) continue;
      fail(ErrorKind::kCapacity,
           "{}expected batches and lists of at most {} MiB over all cases, "
           "found more in the first {} of {} cases",
           location(document_.mark), kMaxProblemBytes >> 20, i + 1, count_);
    }
    return cases;
  }
  /// After expand().
  const UnreadKeys& unread() const { return unread_; }

 private:
  /// The values of case `index`; the first axis varies slowest.
  std::vector<const Value*> values_of(std::size_t index) const {
    std::vector<const Value*> values(axes_.size());
    for (std::size_t a = axes_.size(); a-- > 0;) {
      values[a] = axes_[a].values[index % axes_[a].values.size()];
      index /= axes_[a].values.size();
    }
    return values;
  }

  Problem make_case(std::size_t index) {
    Problem problem = base_;
    CaseValues values(document_);
    std::vector<std::pair<std::string, const Value*>> named;
    const Value* batch = nullptr;
    const std::vector<const Value*> chosen = values_of(index);
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      if (chosen[a] == nullptr) continue;
      if (axes_[a].named) named.emplace_back(axes_[a].key, chosen[a]);
      values.sweep(axes_[a].key, *chosen[a]);
      if (axes_[a].key == "batch") {
        batch = chosen[a];
      } else {
        set_field(axes_[a].key, *chosen[a], problem);
      }
    }
    const std::string label = resolve_case(values, batch, reader_, problem);
    unread_.see(problem);
    problem.case_name = namer_.name(label, named);
    return problem;
  }

  const Value& document_;
  std::vector<Axis> axes_;
  std::size_t count_;
  Problem base_;
  BatchReader reader_;
  CaseNamer namer_;
  UnreadKeys unread_;
};

std::map<std::string, std::string> places_of(const Value& document) {
  constexpr std::array kScales{"kv_cache.k_scale", "kv_cache.v_scale", "kv_cache.q_scale"};
  std::map<std::string, std::string> places;
  const Value* sweep = document.find("sweep");
  for (const Field& field : problem_fields()) {
    const bool is_scale = std::find(kScales.begin(), kScales.end(), field.key) != kScales.end();
    if (!field.is_input_path && !is_scale) continue;
    const Value* value = sweep == nullptr ? nullptr : sweep->find(field.key);
    if (value == nullptr) value = document.find_path(field.key);
    if (value != nullptr) places[field.key] = location(value->mark);
  }
  return places;
}

/// Adds where the value and its parts were written, and the traces that they name.
void add_files(const Value& value, std::set<std::filesystem::path>& files) {
  if (value.mark.file && value.mark.line > 0) files.insert(*value.mark.file);
  for (const Value& item : value.items) add_files(item, files);
  for (const Value::Entry& entry : value.entries) {
    add_files(entry.value, files);
    if (entry.key == "trace" && entry.value.is_string()) files.insert(resolve_path(entry.value));
  }
}

/// A document with all options applied, and what it says.
struct Expanded {
  Value document;
  std::vector<Problem> cases;
  std::vector<UnreadKeys::Key> unread;
  IssueList issues;  // of what is unread
};

Expanded expand(Value document, const std::filesystem::path& path) {
  if (Value* batch = document.find("batch")) BatchReader::expand_steps(*batch);
  if (Value* sweep = document.find("sweep")) {
    if (Value* batch = sweep->find("batch")) BatchReader::expand_steps(*batch);
  }
  IssueList issues;
  check_structure(document, issues);
  issues.throw_if_any();
  Expander expander(document, path);
  check_documents(document);
  Expanded expanded;
  expanded.cases = expander.expand();
  expanded.unread = expander.unread().keys();
  expander.unread().add_issues(expanded.issues);
  expanded.document = std::move(document);
  return expanded;
}

/// Keys of files that nothing reads because of `--set`. Why they are no errors: whoever overrides
/// one key would have to take back every key that goes with it. In files themselves, and in a
/// sweep, whose cases have names by it, they stay errors.
std::vector<UnreadKeys::Key> unread_by_options(const Expanded& expanded, const Value& written,
                                               const std::filesystem::path& path) {
  std::vector<UnreadKeys::Key> keys;
  for (const UnreadKeys::Key& key : expanded.unread) {
    if (!key.is_option && !key.is_swept) keys.push_back(key);
  }
  if (keys.empty()) return keys;
  std::set<std::string_view> unread_anyway;
  try {
    for (const UnreadKeys::Key& key : expand(written, path).unread) unread_anyway.insert(key.name);
  } catch (const Error&) {  // it is no scenario without its options: nobody knows what it reads
    return {};
  }
  std::erase_if(keys, [&](const auto& key) { return unread_anyway.contains(key.name); });
  return keys;
}

}  // namespace

Scenario parse_scenario(const std::string& text, const std::filesystem::path& path,
                        const ScenarioOptions& options) {
  const Value written = load_document(text, path, options.search_path);
  const auto with_options = [&](const std::vector<std::pair<std::string, std::string>>& overrides) {
    Value document = written;
    apply_overrides(document, overrides);
    return expand(std::move(document), path);
  };
  Scenario scenario;
  Expanded expanded = with_options(options.overrides);
  if (!expanded.unread.empty() && !options.overrides.empty()) {
    auto overrides = options.overrides;
    for (const UnreadKeys::Key& key : unread_by_options(expanded, written, path)) {
      overrides.emplace_back(key.name, "null");
      scenario.notices.push_back(
          fmt::format("{}{}: left out, since with the options of the command line nothing reads "
                      "it ({})",
                      key.place, key.name, key.why));
    }
    if (!scenario.notices.empty()) expanded = with_options(overrides);
  }
  expanded.issues.throw_if_any();

  const Value& document = expanded.document;
  scenario.cases = std::move(expanded.cases);
  scenario.name = document.find("name")->text;
  if (const Value* description = document.find("description")) {
    scenario.description = description->text;
  }
  scenario.path = path;
  if (const Value* backends = document.find("backends")) {
    for (const Value& backend : backends->items) {
      scenario.backends.push_back(backend.text);
      scenario.backend_places.push_back(location(backend.mark));
    }
  }
  add_files(document, scenario.files);
  scenario.places = places_of(document);
  for (Problem& problem : scenario.cases) problem.backends = scenario.backends;
  return scenario;
}

Scenario load_scenario(const std::filesystem::path& path, const ScenarioOptions& options) {
  return parse_scenario(read_text_file(path, kMaxDocumentBytes), path, options);
}

}  // namespace attnbench
