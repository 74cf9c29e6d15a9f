// Observations from safetensors files: all headers are read first, tensors when they are asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/observations.h"
#include "calibrate/saved_problem.h"
#include "core/error.h"
#include "inputs/safetensors.h"
#include "inputs/scale_text.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// A tensor of one of the files.
struct Place {
  std::size_t file = 0;
  const SafetensorsEntry* entry = nullptr;
};

/// Everything that the files say of one layer; roles in the order of the files.
struct LayerPlaces {
  std::array<std::vector<Place>, kNumRoles> roles;
};

struct File {
  SafetensorsReader reader;
  bool is_saved_result = false;  // has the names of contract section 5
  SavedProblem saved;
};

std::vector<std::int32_t> read_lengths(const SafetensorsReader& reader,
                                       const SafetensorsEntry& entry) {
  const Tensor tensor = reader.read(entry);
  const bool wide = tensor.dtype() == Dtype::kI64;
  if (!wide && tensor.dtype() != Dtype::kI32) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': expected int32, got {}", reader.name(), entry.name,
         dtype_name(tensor.dtype()));
  }
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    const std::int64_t value =
        wide ? tensor.data<std::int64_t>()[i] : tensor.data<std::int32_t>()[i];
    if (value < 0 || value > INT32_MAX) {
      fail(ErrorKind::kValue, "{}: {}[{}]: expected 0 to 2^31 - 1, got {}", reader.name(),
           entry.name, i, value);
    }
    lengths.push_back(static_cast<std::int32_t>(value));
  }
  return lengths;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class TensorObservations final : public Observations {
 public:
  TensorObservations(const std::vector<fs::path>& files, ScaleFormat format,
                     const std::vector<std::string>& layers)
      : format_(format), wanted_(layers) {
    for (const fs::path& path : files) open(path);
    // Only now, so that pointers to entries stay valid.
    for (std::size_t file = 0; file < files_.size(); ++file) index(file);
    choose_layers();
    for (const std::string& layer : layers_) check_roles(layer);
  }

  const std::vector<std::string>& layers() const override { return layers_; }

  std::int64_t count(std::size_t layer) const override {
    const Role first = scaled_roles(format_).front();
    return static_cast<std::int64_t>(places_.at(layers_[layer]).roles[first].size());
  }

  Observation read(std::size_t layer, std::int64_t index) override {
    const std::string& name = layers_[layer];
    const LayerPlaces& places = places_.at(name);
    const auto i = static_cast<std::size_t>(index);
    Observation observation;
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      if (places.roles[role].empty()) continue;
      const Place& place = places.roles[role][i];
      const SafetensorsReader& reader = files_[place.file].reader;
      observation.tensors[role] = reader.read(*place.entry);
      if (observation.where.empty()) observation.where = reader.name();
    }
    describe_attention(name, places, i, observation);
    return observation;
  }

  std::vector<std::string> notices() const override { return notices_; }

 private:
  void open(const fs::path& path) {
    File file{SafetensorsReader(path), false, {}};
    const bool has_key = file.reader.find("key") != nullptr;
    file.is_saved_result = has_key && file.reader.find("value") != nullptr;
    if (file.is_saved_result) {
      file.saved = saved_problem(file.reader);
      if (wanted_.size() == 1) file.saved.layer = wanted_.front();
    }
    files_.push_back(std::move(file));
  }

  void add(std::size_t file, const std::string& layer, std::size_t role,
           const SafetensorsEntry& entry) {
    const auto dtype = dtype_from_safetensors_name(entry.dtype);
    if (!dtype || !is_floating(*dtype)) {
      fail(ErrorKind::kDtype, "{}: layer '{}': tensor '{}': expected a floating dtype, got {}",
           files_[file].reader.name(), layer, entry.name, entry.dtype);
    }
    places_[layer].roles[role].push_back({file, &entry});
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
    }
  }

  void index_saved(std::size_t file) {
    const SafetensorsReader& reader = files_[file].reader;
    const std::string& layer = files_[file].saved.layer;
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

  void choose_layers() {
    std::vector<std::string> found;
    for (const auto& [layer, places] : places_) found.push_back(layer);
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return natural_less(a, b); });
    if (found.empty()) {
      fail(ErrorKind::kFormat,
           "{}: expected tensors <layer>.q, <layer>.k and <layer>.v, or query, key and value; "
           "found none",
           files_.empty() ? "--tensors" : files_.front().reader.name());
    }
    for (const std::string& layer : wanted_) {
      if (places_.contains(layer)) continue;
      fail(ErrorKind::kValue, "layer '{}' is missing from the tensors. Available layers: ['{}']",
           layer, fmt::join(found, "', '"));
    }
    layers_ = wanted_.empty() ? found : wanted_;
    if (layers_.size() < found.size()) {
      notices_.push_back(fmt::format("{} of the {} layers of the tensors are not asked for",
                                     found.size() - layers_.size(), found.size()));
    }
  }

  void check_roles(const std::string& layer) const {
    const LayerPlaces& places = places_.at(layer);
    const std::vector<Role> needed = scaled_roles(format_);
    for (const Role role : needed) {
      if (!places.roles[role].empty()) continue;
      fail(ErrorKind::kFormat, "layer '{}': tensor '{}.{}' is missing (format {})", layer, layer,
           kRoleNames[role], to_string(format_));
    }
    const std::size_t count = places.roles[needed.front()].size();
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const std::size_t own = places.roles[role].size();
      if (own == 0 || own == count) continue;
      fail(ErrorKind::kFormat, "layer '{}': tensor {} is there {} times, {} {} times", layer,
           kRoleNames[needed.front()], count, kRoleNames[role], own);
    }
  }

  /// Fills in heads and lengths, or why there is no attention.
  void describe_attention(const std::string& layer, const LayerPlaces& places, std::size_t index,
                          Observation& observation) const {
    const auto& [q, k, v] = observation.tensors;
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      if (!observation.tensors[role]) {
        observation.no_attention = fmt::format("there is no {}", kRoleNames[role]);
        return;
      }
      if (observation.tensors[role]->shape().size() != 3) {
        observation.no_attention =
            fmt::format("{} is not [tokens, heads, head size]", kRoleNames[role]);
        return;
      }
    }
    const auto disagree = [&](const char* what) {
      fail(ErrorKind::kShape, "{}: layer '{}': {}: q {}, k {}, v {}", observation.where, layer,
           what, shape_text(q->shape()), shape_text(k->shape()), shape_text(v->shape()));
    };
    if (k->dim(0) != v->dim(0)) disagree("k and v have different numbers of tokens");
    if (k->dim(1) != v->dim(1)) disagree("k and v have different numbers of heads");
    if (q->dim(2) != k->dim(2)) disagree("q and k have different head sizes");
    if (k->dim(1) == 0 || q->dim(1) % k->dim(1) != 0) {
      disagree("the heads of q are no multiple of those of k");
    }
    constexpr std::int64_t kMostExtent = 1 << 20;
    if (q->dim(1) > kMostExtent || q->dim(2) > kMostExtent || v->dim(2) > kMostExtent) {
      disagree("more heads or larger ones than 2^20");
    }
    const File& file = files_[places.roles[kQueryRole][index].file];
    Problem& problem = observation.problem;
    AttentionSpec& a = problem.attention;
    const bool encoder = format_ == ScaleFormat::kVllmMm;
    a.type = encoder ? AttentionType::kMmEncoder : AttentionType::kDecoder;
    a.num_heads = static_cast<int>(q->dim(1));
    a.num_kv_heads = static_cast<int>(k->dim(1));
    a.head_size = static_cast<int>(q->dim(2));
    a.v_head_size = static_cast<int>(v->dim(2));
    a.causal = file.saved.causal.value_or(!encoder);
    a.scale = file.saved.scale.value_or(1 / std::sqrt(static_cast<double>(a.head_size)));
    a.sliding_window = file.saved.sliding_window;
    a.logits_soft_cap = file.saved.logits_soft_cap;
    if (file.is_saved_result) add_per_head(file, observation);
    problem.batch = batch_of(layer, file, *q, *k, observation.where);
    if (!a.causal) return;
    for (const Request& request : problem.batch) {
      if (request.query_len > request.seq_len) disagree("more tokens of q than of k");
    }
  }

  /// Sinks and slopes that the saved result was computed with.
  static void add_per_head(const File& file, Observation& observation) {
    AttentionSpec& a = observation.problem.attention;
    const auto read = [&](const char* name) {
      std::vector<float> values;
      const SafetensorsEntry* entry = file.reader.find(name);
      if (entry == nullptr) return values;
      const Tensor tensor = file.reader.read(*entry);
      if (tensor.num_elements() != a.num_heads) {
        fail(ErrorKind::kShape, "{}: tensor '{}': expected [{}], got [{}]", file.reader.name(),
             name, a.num_heads, fmt::join(tensor.shape(), ", "));
      }
      for (std::int64_t i = 0; i < a.num_heads; ++i) values.push_back(tensor.at(i));
      return values;
    };
    observation.sinks = read("sinks");
    if (!observation.sinks.empty()) a.sinks = SinksKind::kValues;
    observation.alibi_slopes = read("alibi_slopes");
    if (!observation.alibi_slopes.empty()) a.alibi = file.saved.alibi;
  }

  std::vector<Request> batch_of(const std::string& layer, const File& file, const Tensor& query,
                                const Tensor& key, const std::string& where) const {
    const SafetensorsReader& reader = file.reader;
    const SafetensorsEntry* starts =
        reader.find(file.is_saved_result ? "query_start_loc" : layer + ".cu_seqlens");
    if (starts == nullptr) return {{query.dim(0), key.dim(0)}};
    const std::vector<std::int32_t> cumulative = read_lengths(reader, *starts);
    const std::string name = fmt::format("{}: {}", where, starts->name);
    check_cumulative(cumulative, query.dim(0), name);
    const std::vector<std::int32_t> query_lens = query_lens_of(cumulative, name);
    std::vector<std::int32_t> seq_lens = query_lens;
    const SafetensorsEntry* lens = file.is_saved_result ? reader.find("seq_lens") : nullptr;
    if (lens != nullptr) seq_lens = read_lengths(reader, *lens);
    std::int64_t num_keys = 0;
    for (const std::int32_t length : seq_lens) num_keys += length;
    if (seq_lens.size() != query_lens.size() || num_keys != key.dim(0)) {
      fail(ErrorKind::kShape,
           "{}: layer '{}': the lengths of {} sequences add up to {}, but k has "
           "{} tokens",
           where, layer, seq_lens.size(), num_keys, key.dim(0));
    }
    std::vector<Request> batch;
    for (std::size_t b = 0; b < seq_lens.size(); ++b) batch.push_back({query_lens[b], seq_lens[b]});
    return batch;
  }

  ScaleFormat format_;
  std::vector<std::string> wanted_;
  std::vector<File> files_;
  std::map<std::string, LayerPlaces> places_;
  std::vector<std::string> layers_;
  std::vector<std::string> notices_;
};

}  // namespace

std::unique_ptr<Observations> tensor_observations(const std::vector<fs::path>& files,
                                                  ScaleFormat format,
                                                  const std::vector<std::string>& layers) {
  return std::make_unique<TensorObservations>(files, format, layers);
}

}  // namespace attnbench
