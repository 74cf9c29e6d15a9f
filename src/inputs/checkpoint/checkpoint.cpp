// The folder's files, the attention layers among its tensors, and the judgement of its scales.
#include "inputs/checkpoint/checkpoint.h"
#include "core/parsing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kScaleRoles{"q", "k", "v"};
constexpr std::size_t kMaxShownFaults = 8;

/// Null for a file that is not there. Why NaN and Infinity are taken: configurations have them.
std::shared_ptr<const Json> read_json(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::make_shared<const Json>();
  std::vector<std::string> duplicates;
  return std::make_shared<const Json>(
      parse_scale_json(read_scale_text(path, "file"), path.string(), &duplicates, kNumberMark));
}

/// "model.layers.0.self_attn" of a tensor of one of its projections.
std::optional<std::string> attention_of(const std::string& tensor) {
  for (const char* projection : {".k_proj.", ".qkv_proj.", ".kv_a_proj_with_mqa.", ".kv_b_proj."}) {
    const std::size_t at = tensor.find(projection);
    if (at != std::string::npos) return tensor.substr(0, at);
  }
  return std::nullopt;
}

template <typename AnyJson>
const AnyJson* member_of(const AnyJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json* value) {
  return value == nullptr     ? "nothing"
         : value->is_string() ? value->get<std::string>()
                              : shown_json(*value);
}

/// What is wrong with the numbers of a checkpoint, collected: a model that was calibrated by half
/// is to be seen as such, not layer by layer.
class CheckpointFaults {
 public:
  void add(std::string fault) { faults_.push_back(std::move(fault)); }

  void fail_if_any(const fs::path& folder) const {
    if (faults_.empty()) return;
    std::string text;
    for (std::size_t i = 0; i < std::min(faults_.size(), kMaxShownFaults); ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : "; ", faults_[i]);
    }
    if (faults_.size() > kMaxShownFaults) {
      text += fmt::format("; and {} more", faults_.size() - kMaxShownFaults);
    }
    fail(ErrorKind::kValue, "checkpoint {}: {}", folder.string(), text);
  }

 private:
  std::vector<std::string> faults_;
};

/// Reads the scales of a checkpoint whose tool is known.
class CheckpointScaleReader {
 public:
  CheckpointScaleReader(const Checkpoint& checkpoint, CheckpointScheme scheme)
      : checkpoint_(checkpoint), scheme_(scheme) {}

  ScaleFile read() {
    file_.name = checkpoint_.folder().string();
    file_.format = ScaleFormat::kKvCache;
    for (const std::string& layer : checkpoint_.layers()) read_layer(layer);
    check_scheme();
    faults_.fail_if_any(checkpoint_.folder());
    return std::move(file_);
  }

 private:
  void read_layer(const std::string& layer) {
    LayerScales scales{layer, {}};
    for (std::size_t role = 0; role < kScaleRoles.size(); ++role) {
      const std::string name = Checkpoint::scale_name(scheme_, layer, role);
      const CheckpointTensor* tensor = checkpoint_.find(name);
      if (tensor != nullptr) {
        scales.scale[role] = read_scale(name, *tensor);
      } else if (role != 0) {
        faults_.add(fmt::format("layer '{}' has no {}_scale", shown(layer), kScaleRoles[role]));
      }
      check_zero_point(layer, role);
    }
    auto& [q, k, v] = scales.scale;
    is_per_head_ = is_per_head_ || k.size() > 1 || v.size() > 1;
    if (!k.empty()) complete_query(k, q);
    file_.layers.push_back(std::move(scales));
  }

  /// One number, as the kernels of this program have it.
  void complete_query(const std::vector<double>& k, std::vector<double>& q) {
    if (q.empty()) ++num_without_query_;
    if (q.size() > 1) has_query_heads_ = true;
    const std::vector<double>& from = q.empty() ? k : q;
    q = {*std::max_element(from.begin(), from.end())};
  }

  std::vector<double> read_scale(const std::string& name, const CheckpointTensor& place) {
    const Tensor tensor = checkpoint_.shards()[place.shard].read(*place.entry);
    if (!is_floating(tensor.dtype()) || tensor.num_elements() == 0) {
      faults_.add(fmt::format("tensor '{}' is {} of shape [{}], not a scale", shown(name),
                              place.entry->dtype, fmt::join(place.entry->shape, ", ")));
      return {1.0};
    }
    std::vector<double> scales;
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) scales.push_back(tensor.at(i));
    const auto bad = std::find_if_not(scales.begin(), scales.end(), is_scale);
    if (bad != scales.end()) {
      const std::string head =
          scales.size() == 1 ? "" : fmt::format(" of head {}", bad - scales.begin());
      faults_.add(fmt::format("'{}'{} is {}{}", shown(name), head, python_repr(*bad),
                              *bad == 0 ? ", which makes all that is cached 0" : ""));
    }
    return scales;
  }

  void check_zero_point(const std::string& layer, std::size_t role) {
    const std::string name = fmt::format("{}.{}_zero_point", layer, kScaleRoles[role]);
    const CheckpointTensor* place = checkpoint_.find(name);
    if (place == nullptr || !dtype_from_safetensors_name(place->entry->dtype)) return;
    const Tensor tensor = checkpoint_.shards()[place->shard].read(*place->entry);
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      if (tensor.at(i) == 0) continue;
      faults_.add(fmt::format("'{}' is not 0: the cache is symmetric", shown(name)));
      return;
    }
  }

  /// Whether the configuration lets an engine use what the tensors hold.
  void check_scheme() {
    if (num_without_query_ > 0) {
      file_.notices.push_back(
          fmt::format("{}: {} layers have no q_scale, which is taken as k_scale, as by vLLM",
                      file_.name, num_without_query_));
    }
    if (has_query_heads_) {
      file_.notices.push_back(
          fmt::format("{}: of a q_scale for each head the largest is taken for all", file_.name));
    }
    scheme_ == CheckpointScheme::kCompressedTensors ? check_compressed_tensors() : check_modelopt();
  }

  void check_compressed_tensors() {
    const Json* config = member_of(checkpoint_.config(), "quantization_config");
    const Json* scheme = config == nullptr ? nullptr : member_of(*config, "kv_cache_scheme");
    if (scheme == nullptr) {
      file_.notices.push_back(fmt::format(
          "{}: config.json has no quantization_config.kv_cache_scheme, without which engines may "
          "leave the scales unused",
          file_.name));
      return;
    }
    const std::string strategy = is_per_head_ ? "attn_head" : "tensor";
    for (const auto& [key, expected] :
         std::initializer_list<std::pair<const char*, Json>>{{"num_bits", 8},
                                                             {"type", "float"},
                                                             {"symmetric", true},
                                                             {"dynamic", false},
                                                             {"strategy", strategy}}) {
      const Json* found = member_of(*scheme, key);
      if (found == nullptr || *found == expected) continue;
      faults_.add(fmt::format("kv_cache_scheme.{} is {}, expected {} for these scales", key,
                              found->dump(), expected.dump()));
    }
  }

  void check_modelopt() {
    const Json* nested = member_of(checkpoint_.modelopt_config(), "quantization");
    const Json* config = member_of(checkpoint_.config(), "quantization_config");
    const Json* algo = nested == nullptr ? nullptr : member_of(*nested, "kv_cache_quant_algo");
    if (algo == nullptr && config != nullptr && member_of(*config, "kv_cache_scheme") != nullptr)
      return;
    if (algo != nullptr && *algo == "FP8") return;
    if (algo != nullptr) {
      faults_.add(fmt::format("kv_cache_quant_algo is {}, expected \"FP8\"", algo->dump()));
      return;
    }
    file_.notices.push_back(
        fmt::format("{}: {} has no quantization.kv_cache_quant_algo, without which engines may "
                    "leave the scales "
                    "unused",
                    file_.name, kModelOptConfigName));
  }

  const Checkpoint& checkpoint_;
  CheckpointScheme scheme_;
  ScaleFile file_;
  CheckpointFaults faults_;
  bool is_per_head_ = false;
  bool has_query_heads_ = false;
  std::size_t num_without_query_ = 0;
};

}  // namespace

std::span<const EnumRow<CheckpointScheme>> enum_rows(CheckpointScheme) {
  static constexpr auto kRows = every_value<EnumRow<CheckpointScheme>>({
      {CheckpointScheme::kCompressedTensors, "compressed-tensors", "as llm-compressor writes"},
      {CheckpointScheme::kModelOpt, "modelopt", "as NVIDIA's ModelOpt writes"},
  });
  return kRows;
}

nlohmann::json read_index_json(const fs::path& path) {
  nlohmann::json index = parse_json<nlohmann::json>(read_scale_text(path, "index"));
  if (index.is_object()) return index;
  fail(ErrorKind::kFormat, "{}: expected a JSON object", path.string());
}

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  const fs::path index = folder_ / kIndexName;
  std::error_code error;
  has_index_ = fs::exists(index, error);
  if (has_index_) {
    read_index(index);
  } else {
    open_shards();
  }
  std::set<std::string> layers;
  for (const auto& [name, tensor] : tensors_) {
    if (const auto layer = attention_of(name)) layers.insert(*layer);
  }
  layers_.assign(layers.begin(), layers.end());
  std::sort(layers_.begin(), layers_.end(),
            [](const auto& a, const auto& b) { return natural_less(a, b); });
  config_ = read_json(folder_ / kModelConfigName);
  modelopt_config_ = read_json(folder_ / kModelOptConfigName);
}

void Checkpoint::open_shards() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() == ".safetensors") {
      shard_names_.push_back(entry.path().filename().string());
    }
  }
  if (error) fail(ErrorKind::kIo, "cannot read '{}': {}", folder_.string(), error.message());
  if (shard_names_.size() != 1) {
    fail(ErrorKind::kIo, "checkpoint {}: expected one .safetensors file or a {}, found {} files",
         folder_.string(), kIndexName, shard_names_.size());
  }
  shards_.emplace_back(folder_ / shard_names_.front());
  for (const SafetensorsEntry& entry : shards_.front().header().entries) {
    tensors_[entry.name] = {0, &entry};
  }
}

void Checkpoint::read_index(const fs::path& path) {
  const nlohmann::json index = read_index_json(path);
  const nlohmann::json* weights = member_of(index, "weight_map");
  if (weights == nullptr || !weights->is_object() || weights->empty()) {
    fail(ErrorKind::kFormat, "{}: expected an object 'weight_map'", path.string());
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : weights->items()) {
    // Why no other folders: what is replaced there may belong to another model.
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      fail(ErrorKind::kFormat, "{}: '{}': expected the name of a file, found {}", path.string(),
           shown(tensor), shown(file.dump()));
    }
    names.insert(file.get<std::string>());
  }
  shard_names_.assign(names.begin(), names.end());
  shards_.reserve(shard_names_.size());
  std::vector<std::map<std::string, const SafetensorsEntry*>> entries;
  for (const std::string& name : shard_names_) {
    shards_.emplace_back(folder_ / name);
    entries.emplace_back();
    for (const SafetensorsEntry& entry : shards_.back().header().entries) {
      entries.back()[entry.name] = &entry;
    }
  }
  for (const auto& [tensor, file] : weights->items()) {
    const auto shard = static_cast<std::size_t>(
        std::lower_bound(shard_names_.begin(), shard_names_.end(), file.get<std::string>()) -
        shard_names_.begin());
    const auto found = entries[shard].find(tensor);
    if (found == entries[shard].end()) {
      fail(ErrorKind::kFormat, "{}: '{}' is not in {}", path.string(), shown(tensor),
           shown(file.dump()));
    }
    tensors_[tensor] = {shard, found->second};
  }
}

const CheckpointTensor* Checkpoint::find(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::optional<CheckpointScheme> Checkpoint::configured_scheme() const {
  const Json* config = member_of(*config_, "quantization_config");
  const Json* method = config == nullptr ? nullptr : member_of(*config, "quant_method");
  const std::string name = method == nullptr ? "" : text_of(method);
  if (name == "compressed-tensors") return CheckpointScheme::kCompressedTensors;
  if (name.starts_with("modelopt")) return CheckpointScheme::kModelOpt;
  if (!name.empty()) {
    fail(
        ErrorKind::kValue,
        "checkpoint {}: quantization_config.quant_method: expected compressed-tensors or modelopt, "
        "found '{}'",
        folder_.string(), printable(name));
  }
  if (!modelopt_config_->is_null()) return CheckpointScheme::kModelOpt;
  return std::nullopt;
}

std::string Checkpoint::scale_name(CheckpointScheme scheme, const std::string& layer,
                                   std::size_t role) {
  const char* name = kScaleRoles[role];
  return scheme == CheckpointScheme::kModelOpt
             ? fmt::format("{}.{}_proj.{}_scale", layer, name, name)
             : fmt::format("{}.{}_scale", layer, name);
}

bool Checkpoint::has_scales() const {
  for (const std::string& layer : layers_) {
    for (const EnumRow<CheckpointScheme>& row : enum_rows(CheckpointScheme{})) {
      for (const std::size_t role : {1u, 2u}) {
        if (find(scale_name(row.value, layer, role)) != nullptr) return true;
      }
    }
  }
  return false;
}

ScaleFile Checkpoint::scales() const {
  std::vector<CheckpointScheme> found;
  for (const EnumRow<CheckpointScheme>& row : enum_rows(CheckpointScheme{})) {
    const bool is_used = std::any_of(layers_.begin(), layers_.end(), [&](const auto& layer) {
      return find(scale_name(row.value, layer, 1)) != nullptr ||
             find(scale_name(row.value, layer, 2)) != nullptr;
    });
    if (is_used) found.push_back(row.value);
  }
  if (found.size() != 1) {
    fail(ErrorKind::kValue, "checkpoint {}: {}", folder_.string(),
         found.empty() ? fmt::format("none of its {} attention layers has a k_scale or v_scale",
                                     layers_.size())
                       : "it has scales under the names of compressed-tensors and of ModelOpt");
  }
  return CheckpointScaleReader(*this, found.front()).read();
}

}  // namespace attnbench
