// An index of all tensors by layer and role, made from headers; checks of that index; reading.
#include "calibrate/tensor_observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "calibrate/latents.h"
#include "calibrate/tensor_attention.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/safetensors.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStartsSuffix = ".cu_seqlens";

/// A tensor of one of the files.
struct Place {
  std::size_t file = 0;
  const SafetensorsEntry* entry = nullptr;
};

/// Tensors of latent attention, under these names both in captured files and in saved ones.
enum LatentPart : std::size_t { kQuery, kKvC, kKPe, kWUk, kWUv, kKvBProj, kTopk };
constexpr std::array<const char*, 7> kLatentNames{"query", "kv_c",      "k_pe",        "w_uk",
                                                  "w_uv",  "kv_b_proj", "topk_indices"};
bool is_weight(std::size_t part) { return part == kWUk || part == kWUv || part == kKvBProj; }

/// Everything that the files say of one layer; roles in the order of the files.
struct LayerPlaces {
  std::array<std::vector<Place>, kNumRoles> roles;
  std::array<std::vector<Place>, kLatentNames.size()> latents;
  std::vector<Place> starts;  // of sequences

  bool has_latents() const { return !latents[kKvC].empty() || !latents[kKPe].empty(); }
};

class TensorObservations final : public Observations {
 public:
  TensorObservations(const std::vector<fs::path>& files, ScaleFormat format,
                     const std::vector<std::string>& layers, const FindRules& find_rules)
      : format_(format), wanted_(layers) {
    for (const fs::path& path : files) open(path, find_rules);
    // Only now, so that pointers to entries stay valid.
    for (std::size_t file = 0; file < files_.size(); ++file) index(file);
    choose_layers();
    for (const std::string& layer : layers_) {
      check_roles(layer);
      check_starts(layer);
    }
  }

  const std::vector<std::string>& layers() const override { return layers_; }

  bool has_latents(std::size_t layer) const override {
    return places_.at(layers_[layer]).has_latents();
  }

  std::int64_t count(std::size_t layer) const override {
    const LayerPlaces& places = places_.at(layers_[layer]);
    if (places.has_latents()) return static_cast<std::int64_t>(places.latents[kKvC].size());
    const Role first = scaled_roles(format_).front();
    return static_cast<std::int64_t>(places.roles[first].size());
  }

  Observation read(std::size_t layer, std::int64_t index) override {
    const std::string& name = layers_[layer];
    const LayerPlaces& places = places_.at(name);
    const auto i = static_cast<std::size_t>(index);
    if (places.has_latents()) return read_latents(name, places, i);
    Observation observation;
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      if (places.roles[role].empty()) continue;
      const Place& place = places.roles[role][i];
      const SafetensorsReader& reader = files_[place.file].reader;
      observation.tensors[role] = reader.read(*place.entry);
      if (observation.where.empty()) observation.where = reader.name();
    }
    const bool has_query = observation.tensors[kQueryRole].has_value();
    const TensorFile& file = files_[has_query ? places.roles[kQueryRole][i].file : 0];
    describe_attention(name, file, sequence_starts(name, i), format_, observation);
    return observation;
  }

  std::vector<std::string> notices() const override { return notices_; }

 private:
  Observation read_latents(const std::string& layer, const LayerPlaces& places, std::size_t index) {
    const auto read = [&](LatentPart part) -> std::optional<Tensor> {
      const std::vector<Place>& found = places.latents[part];
      if (found.empty()) return std::nullopt;
      // Weights are those of all forwards where there is one of them.
      const Place& place = found[found.size() == 1 ? 0 : index];
      return files_[place.file].reader.read(*place.entry);
    };
    const Place& query = places.latents[kQuery][index];
    Observation observation;
    observation.where = files_[query.file].reader.name();
    LatentTensors tensors{*read(kQuery), *read(kKvC),    *read(kKPe), read(kWUk),
                          read(kWUv),    read(kKvBProj), read(kTopk)};
    set_latents(fmt::format("{}: layer '{}'", observation.where, shown(layer)), std::move(tensors),
                0, observation);
    describe_latent_attention(layer, files_[query.file], latent_starts(layer, query.file),
                              observation);
    return observation;
  }

  /// Where the query of a forward stands.
  SequenceStarts latent_starts(const std::string& layer, std::size_t file) const {
    for (const Place& start : places_.at(layer).starts) {
      if (start.file == file) return {&files_[start.file].reader, start.entry};
    }
    return {};
  }

  void open(const fs::path& path, const FindRules& find_rules) {
    TensorFile file{SafetensorsReader(path), false, {}, {}};
    const bool has_key = file.reader.find("key") != nullptr;
    const bool has_latents = file.reader.find("kv_c") != nullptr;
    file.is_saved_result = (has_key && file.reader.find("value") != nullptr) || has_latents;
    if (file.is_saved_result) {
      file.saved = saved_problem(file.reader, find_rules);
      file.layer = file.saved ? file.saved->layer : kUnnamedLayer;
      if (wanted_.size() == 1) file.layer = wanted_.front();
      if (!file.saved) {
        notices_.push_back(fmt::format(
            "{}: without metadata 'problem', its attention is taken as {}", file.reader.name(),
            is_for_encoders(format_) && !has_latents ? "that of an encoder" : "causal"));
      }
    }
    files_.push_back(std::move(file));
  }

  void add(std::size_t file, const std::string& layer, std::size_t role,
           const SafetensorsEntry& entry) {
    const auto dtype = dtype_from_safetensors_name(entry.dtype);
    if (!dtype || !is_floating(*dtype)) {
      fail(ErrorKind::kDtype, "{}: layer '{}': tensor '{}': expected a floating dtype, got {}",
           files_[file].reader.name(), shown(layer), shown(entry.name), entry.dtype);
    }
    places_[layer].roles[role].push_back({file, &entry});
  }

  void add_latents(std::size_t file, const std::string& layer, std::size_t part,
                   const SafetensorsEntry& entry) {
    const auto dtype = dtype_from_safetensors_name(entry.dtype);
    const bool is_list = part == kTopk;
    if (!dtype || (is_list ? *dtype != Dtype::kI32 : !is_floating(*dtype))) {
      fail(ErrorKind::kDtype, "{}: layer '{}': tensor '{}': expected {}, got {}",
           files_[file].reader.name(), shown(layer), shown(entry.name),
           is_list ? "int32" : "a floating dtype", entry.dtype);
    }
    places_[layer].latents[part].push_back({file, &entry});
  }

  void index(std::size_t file) {
    const SafetensorsReader& reader = files_[file].reader;
    if (files_[file].is_saved_result) return index_saved(file);
    for (const SafetensorsEntry& entry : reader.header().entries) {
      for (std::size_t role = 0; role < kNumRoles; ++role) {
        const std::string suffix = fmt::format(".{}", kRoleNames[role]);
        if (entry.name.size() <= suffix.size() || !entry.name.ends_with(suffix)) continue;
        add(file, entry.name.substr(0, entry.name.size() - suffix.size()), role, entry);
      }
      for (std::size_t part = 0; part < kLatentNames.size(); ++part) {
        const std::string suffix = fmt::format(".{}", kLatentNames[part]);
        if (entry.name.size() <= suffix.size() || !entry.name.ends_with(suffix)) continue;
        add_latents(file, entry.name.substr(0, entry.name.size() - suffix.size()), part, entry);
      }
      if (entry.name.size() > kStartsSuffix.size() && entry.name.ends_with(kStartsSuffix)) {
        const std::string layer = entry.name.substr(0, entry.name.size() - kStartsSuffix.size());
        places_[layer].starts.push_back({file, &entry});
      }
    }
  }

  void index_saved(std::size_t file) {
    const SafetensorsReader& reader = files_[file].reader;
    const std::string& layer = files_[file].layer;
    add_saved_starts(file, layer);
    if (reader.find("kv_c") != nullptr) return index_saved_latents(file, layer);
    // A quantised query stands beside the one that it was made of.
    for (const char* name : {"query_unquantized", "query_dequantized", "query"}) {
      const SafetensorsEntry* query = reader.find(name);
      if (query == nullptr) continue;
      if (std::string_view(name) == "query_dequantized") {
        notices_.push_back(
            fmt::format("{}: the query is there only as it was quantised", reader.name()));
      }
      add(file, layer, kQueryRole, *query);
      break;
    }
    add(file, layer, kKeyRole, *reader.find("key"));
    add(file, layer, kValueRole, *reader.find("value"));
  }

  void add_saved_starts(std::size_t file, const std::string& layer) {
    for (const char* name : {"query_start_loc", "cu_seqlens"}) {
      const SafetensorsEntry* starts = files_[file].reader.find(name);
      if (starts == nullptr) continue;
      places_[layer].starts.push_back({file, starts});
      break;
    }
  }

  /// Beside w_uk and w_uv, which it reads back as, a kv_b_proj is there for others.
  void index_saved_latents(std::size_t file, const std::string& layer) {
    const SafetensorsReader& reader = files_[file].reader;
    const bool has_split = reader.find("w_uk") != nullptr && reader.find("w_uv") != nullptr;
    for (std::size_t part = 0; part < kLatentNames.size(); ++part) {
      const SafetensorsEntry* entry = reader.find(kLatentNames[part]);
      if (entry == nullptr || (part == kKvBProj && has_split)) continue;
      add_latents(file, layer, part, *entry);
    }
  }

  void choose_layers() {
    std::vector<std::string> found;
    for (const auto& [layer, places] : places_) found.push_back(layer);
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return natural_less(a, b); });
    if (found.empty()) {
      fail(ErrorKind::kFormat,
           "{}: expected tensors <layer>.q, <layer>.k and <layer>.v, or query, key and value (of "
           "MLA query, kv_c and k_pe); found none",
           files_.empty() ? "--tensors" : files_.front().reader.name());
    }
    for (const std::string& layer : wanted_) {
      if (places_.contains(layer)) continue;
      fail(ErrorKind::kValue, "layer '{}' is missing from the tensors. Available layers: [{}]",
           shown(layer), quoted_names(found));
    }
    layers_ = wanted_.empty() ? found : wanted_;
    if (layers_.size() < found.size()) {
      notices_.push_back(fmt::format("{} of the {} layers of the tensors are not asked for",
                                     found.size() - layers_.size(), found.size()));
    }
  }

  /// Where the query, key or value of the forward `index` stands.
  SequenceStarts sequence_starts(const std::string& layer, std::size_t index) const {
    const LayerPlaces& places = places_.at(layer);
    for (const std::vector<Place>& role : places.roles) {
      if (role.empty()) continue;
      for (const Place& start : places.starts) {
        if (start.file == role[index].file) return {&files_[start.file].reader, start.entry};
      }
    }
    return {};
  }

  /// Why: lengths in a file of their own would be left out, and the sequences taken for one.
  void check_starts(const std::string& layer) const {
    const LayerPlaces& places = places_.at(layer);
    for (const Place& start : places.starts) {
      const auto has_one_beside = [&](const std::vector<Place>& all) {
        return std::ranges::any_of(all,
                                   [&](const Place& place) { return place.file == start.file; });
      };
      if (std::ranges::any_of(places.roles, has_one_beside)) continue;
      if (has_one_beside(places.latents[kQuery])) continue;
      fail(ErrorKind::kFormat, "{}: layer '{}': tensor '{}': expected q, k or v in the same file",
           files_[start.file].reader.name(), shown(layer), shown(start.entry->name));
    }
  }

  /// Of latents: a query, latents and rope parts for each forward, weights once or as often.
  void check_latents(const std::string& layer, const LayerPlaces& places) const {
    check_latent_format(fmt::format("layer '{}'", shown(layer)), format_);
    const std::size_t count = places.latents[kKvC].size();
    for (std::size_t part = 0; part < kLatentNames.size(); ++part) {
      const std::size_t own = places.latents[part].size();
      const bool is_needed = part == kQuery || part == kKvC || part == kKPe;
      if (is_needed && own == 0) {
        fail(ErrorKind::kFormat, "layer '{}': tensor '{}' is missing (latents)", shown(layer),
             kLatentNames[part]);
      }
      if (own == 0 || own == count || (is_weight(part) && own == 1)) continue;
      fail(ErrorKind::kFormat, "layer '{}': tensor kv_c is there {} times, {} {} times",
           shown(layer), count, kLatentNames[part], own);
    }
  }

  void check_roles(const std::string& layer) const {
    const LayerPlaces& places = places_.at(layer);
    if (places.has_latents()) return check_latents(layer, places);
    const std::vector<Role> needed = scaled_roles(format_);
    for (const Role role : needed) {
      if (!places.roles[role].empty()) continue;
      fail(ErrorKind::kFormat, "layer '{}': tensor '{}.{}' is missing (format {})", shown(layer),
           shown(layer), kRoleNames[role], to_string(format_));
    }
    const std::size_t count = places.roles[needed.front()].size();
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const std::size_t own = places.roles[role].size();
      if (own == 0 || own == count) continue;
      fail(ErrorKind::kFormat, "layer '{}': tensor {} is there {} times, {} {} times", shown(layer),
           kRoleNames[needed.front()], count, kRoleNames[role], own);
    }
  }

  ScaleFormat format_;
  std::vector<std::string> wanted_;
  std::vector<TensorFile> files_;
  std::map<std::string, LayerPlaces> places_;
  std::vector<std::string> layers_;
  std::vector<std::string> notices_;
};

}  // namespace

bool hold_latents(const std::vector<fs::path>& files) {
  const std::string name = kLatentNames[kKvC];
  return std::ranges::any_of(files, [&](const fs::path& path) {
    const SafetensorsReader reader(path);
    return std::ranges::any_of(reader.header().entries, [&](const SafetensorsEntry& entry) {
      return entry.name == name || entry.name.ends_with("." + name);
    });
  });
}

std::unique_ptr<Observations> tensor_observations(const std::vector<fs::path>& files,
                                                  ScaleFormat format,
                                                  const std::vector<std::string>& layers,
                                                  const FindRules& find_rules) {
  return std::make_unique<TensorObservations>(files, format, layers, find_rules);
}

}  // namespace attnbench
