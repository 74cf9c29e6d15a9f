// Which tensors change in which file, the files anew, and the configuration.
#include "inputs/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Of scales that are new in a checkpoint with an index.
constexpr const char* kScaleShard = "model-kv-cache-scales.safetensors";

using ScaleTensors = std::map<std::string, Tensor>;

/// A tensor of a file that is written: of the old file, or a new one.
struct FileItem {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t size_bytes = 0;
  const SafetensorsEntry* old = nullptr;
  const Tensor* tensor = nullptr;

  /// 0 for elements of less than a byte.
  std::uint64_t element_bytes() const {
    std::uint64_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count == 0 ? 0 : size_bytes / count;
  }
};

/// Tensors of the old file but for those replaced, and the new ones, in an order in which each is
/// aligned to its elements: readers map them.
std::vector<FileItem> items_of(const SafetensorsReader* old, const ScaleTensors& tensors) {
  std::vector<FileItem> items;
  if (old != nullptr) {
    for (const SafetensorsEntry& entry : old->header().entries) {
      if (tensors.contains(entry.name)) continue;
      items.push_back(
          {entry.name, entry.dtype, entry.shape, entry.end - entry.begin, &entry, nullptr});
    }
    std::stable_sort(items.begin(), items.end(), [](const FileItem& a, const FileItem& b) {
      return a.old->begin < b.old->begin;
    });
  }
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, std::string(safetensors_name(tensor.dtype())), tensor.shape(),
                     tensor.size_bytes(), nullptr, &tensor});
  }
  std::stable_sort(items.begin(), items.end(), [](const FileItem& a, const FileItem& b) {
    return a.element_bytes() > b.element_bytes();
  });
  return items;
}

std::string header_of(const std::vector<FileItem>& items,
                      const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const FileItem& item : items) {
    header[item.name] = {{"dtype", item.dtype},
                         {"shape", item.shape},
                         {"data_offsets", {offset, offset + item.size_bytes}}};
    offset += item.size_bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string encoded;
  for (int i = 0; i < 8; ++i) encoded += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return encoded + text;
}

StagedFile stage_tensors(const fs::path& path, const SafetensorsReader* old,
                         const ScaleTensors& tensors) {
  const std::vector<FileItem> items = items_of(old, tensors);
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (old != nullptr) metadata = old->header().metadata;
  const std::string header = header_of(items, metadata);
  StagedFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const FileItem& item : items) {
    if (item.tensor != nullptr) {
      file.write({item.tensor->bytes(), item.tensor->size_bytes()});
    } else {
      old->stream(*item.old, [&](std::span<const std::byte> bytes) { file.write(bytes); });
    }
  }
  file.finish();
  return file;
}

/// Numbers that Python writes and JSON has not are marked strings after reading
/// (Checkpoint::config).
std::string python_json(const Json& document) {
  std::string text = document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  for (const char* number : {"-Infinity", "Infinity", "NaN"}) {
    const std::string quoted = fmt::format("\"{}{}\"", kNumberMark, number);
    for (std::size_t at = 0; (at = text.find(quoted, at)) != std::string::npos;) {
      text.replace(at, quoted.size(), number);
    }
  }
  return text;
}

StagedFile stage_text(const fs::path& path, const std::string& text) {
  StagedFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  return file;
}

CheckpointScheme scheme_of(const Checkpoint& checkpoint) {
  return checkpoint.configured_scheme().value_or(CheckpointScheme::kCompressedTensors);
}

/// The tensor that stands in the checkpoint for the scales of a role.
Tensor scale_tensor(const CheckpointTensor* old, CheckpointScheme scheme, const std::string& name,
                    const std::vector<double>& scales) {
  Dtype dtype = Dtype::kF32;
  if (old != nullptr) {
    const auto known = dtype_from_safetensors_name(old->entry->dtype);
    if (known && is_floating(*known) && dtype_size(*known) >= 2) dtype = *known;
  }
  std::vector<std::int64_t> shape;
  const auto count = static_cast<std::int64_t>(scales.size());
  if (count > 1) {
    shape = {count, 1, 1};
  } else if (scheme == CheckpointScheme::kCompressedTensors) {
    shape = {1};
  }
  Tensor tensor(dtype, shape);
  for (std::int64_t i = 0; i < count; ++i) {
    const double scale = scales[static_cast<std::size_t>(i)];
    tensor.set(i, static_cast<float>(scale));
    if (is_scale(tensor.at(i))) continue;
    fail(ErrorKind::kValue, "'{}': the scale {} is not finite and > 0 in {}", shown(name),
         python_repr(scale), dtype_name(dtype));
  }
  return tensor;
}

/// What is to be written where.
class CheckpointPlan {
 public:
  CheckpointPlan(const Checkpoint& checkpoint, const ScaleFile& file, QueryScales query)
      : checkpoint_(checkpoint), scheme_(scheme_of(checkpoint)), query_(query) {
    for (const std::string& layer : checkpoint.layers()) add_layer(require_layer(file, layer));
  }

  WrittenCheckpoint write() {
    WrittenCheckpoint written{scheme_, {}};
    std::vector<StagedFile> files;
    const auto add = [&](const std::string& name, StagedFile file) {
      files.push_back(std::move(file));
      written.files.push_back(name);
    };
    const std::vector<std::string>& names = checkpoint_.shard_names();
    for (const auto& [shard, tensors] : by_shard_) {
      const SafetensorsReader* old = shard < names.size() ? &checkpoint_.shards()[shard] : nullptr;
      const std::string name = old != nullptr ? names[shard] : kScaleShard;
      add(name, stage_tensors(checkpoint_.folder() / name, old, tensors));
    }
    if (!size_of_new_.empty()) {
      add(kIndexName, stage_text(checkpoint_.folder() / kIndexName, index_text()));
    }
    for (const auto& [name, text] : configurations()) {
      add(name, stage_text(checkpoint_.folder() / name, text));
    }
    for (StagedFile& file : files) file.publish();
    return written;
  }

 private:
  void add_layer(const LayerScales& layer) {
    for (std::size_t role = 0; role < layer.scale.size(); ++role) {
      const std::string name = Checkpoint::scale_name(scheme_, layer.layer, role);
      const CheckpointTensor* old = checkpoint_.find(name);
      if (role == 0 && old == nullptr && query_ == QueryScales::kReplaced) continue;
      std::vector<double> scales = layer.scale[role];
      is_per_head_ = is_per_head_ || (role != 0 && scales.size() > 1);
      if (role == 0 && old != nullptr && old->entry->shape.size() == 3) {
        scales.assign(static_cast<std::size_t>(old->entry->shape.front()), scales.at(0));
      }
      Tensor tensor = scale_tensor(old, scheme_, name, scales);
      if (old == nullptr && checkpoint_.has_index()) size_of_new_[name] = tensor.size_bytes();
      by_shard_[shard_of(old)].emplace(name, std::move(tensor));
    }
  }

  /// Where a tensor goes: to its old place; a new one of a checkpoint with an index to the file of
  /// scales, for which the number behind the last one stands where there is none yet.
  std::size_t shard_of(const CheckpointTensor* old) const {
    if (old != nullptr) return old->shard;
    if (!checkpoint_.has_index()) return 0;
    const std::vector<std::string>& names = checkpoint_.shard_names();
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), kScaleShard) -
                                    names.begin());
  }

  std::string index_text() const {
    const fs::path path = checkpoint_.folder() / kIndexName;
    nlohmann::json index = read_index_json(path);
    std::uint64_t size_bytes = 0;
    for (const auto& [name, bytes] : size_of_new_) {
      index["weight_map"][name] = kScaleShard;
      size_bytes += bytes;
    }
    if (index.contains("metadata") && index["metadata"].contains("total_size") &&
        index["metadata"]["total_size"].is_number_unsigned()) {
      nlohmann::json& total = index["metadata"]["total_size"];
      total = total.get<std::uint64_t>() + size_bytes;
    }
    return index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  Json scheme_json() const {
    return {{"num_bits", 8},
            {"type", "float"},
            {"symmetric", true},
            {"strategy", is_per_head_ ? "attn_head" : "tensor"},
            {"dynamic", false},
            {"group_size", nullptr},
            {"block_structure", nullptr}};
  }

  /// Texts of the configuration files that have to say that the cache is fp8.
  std::vector<std::pair<std::string, std::string>> configurations() const {
    std::vector<std::pair<std::string, std::string>> texts;
    Json config = checkpoint_.config();
    if (config.is_null()) config = Json::object();
    if (scheme_ == CheckpointScheme::kCompressedTensors) {
      Json& quantization = config["quantization_config"];
      if (!quantization.is_object()) {
        quantization = {{"quant_method", "compressed-tensors"},
                        {"format", "dense"},
                        {"quantization_status", "frozen"},
                        {"config_groups", Json::object()},
                        {"ignore", Json::array()}};
      }
      quantization["kv_cache_scheme"] = scheme_json();
      texts.emplace_back(kModelConfigName, python_json(config));
      return texts;
    }
    if (Json modelopt = checkpoint_.modelopt_config(); !modelopt.is_null()) {
      modelopt["quantization"]["kv_cache_quant_algo"] = "FP8";
      texts.emplace_back(kModelOptConfigName, python_json(modelopt));
    }
    if (config.contains("quantization_config") && config["quantization_config"].is_object()) {
      config["quantization_config"]["kv_cache_scheme"] = {
          {"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
      texts.emplace_back(kModelConfigName, python_json(config));
    }
    return texts;
  }

  const Checkpoint& checkpoint_;
  CheckpointScheme scheme_;
  const QueryScales query_;
  bool is_per_head_ = false;
  std::map<std::size_t, ScaleTensors> by_shard_;
  std::map<std::string, std::uint64_t> size_of_new_;  // tensors that the index does not have
};

}  // namespace

void check_checkpoint_layers(const Checkpoint& checkpoint, const std::vector<std::string>& layers,
                             bool is_per_head, QueryScales query) {
  const CheckpointScheme scheme = scheme_of(checkpoint);
  const std::string folder = checkpoint.folder().string();
  if (is_per_head && scheme == CheckpointScheme::kModelOpt) {
    fail(ErrorKind::kValue, "checkpoint {}: ModelOpt has no scales by head, expected no --per-head",
         folder);
  }
  if (query == QueryScales::kAdded && scheme == CheckpointScheme::kModelOpt) {
    fail(ErrorKind::kValue,
         "checkpoint {}: ModelOpt has no scales of the query, expected no --query-scales", folder);
  }
  const CheckpointScheme other = scheme == CheckpointScheme::kModelOpt
                                     ? CheckpointScheme::kCompressedTensors
                                     : CheckpointScheme::kModelOpt;
  for (const std::string& layer : checkpoint.layers()) {
    for (const std::size_t role : {1u, 2u}) {
      const std::string name = Checkpoint::scale_name(other, layer, role);
      if (checkpoint.find(name) == nullptr) continue;
      fail(ErrorKind::kValue, "checkpoint {}: it has '{}' of {}, and its configuration is of {}",
           folder, shown(name), to_string(other), to_string(scheme));
    }
    if (std::find(layers.begin(), layers.end(), layer) != layers.end()) continue;
    fail(ErrorKind::kValue,
         "checkpoint {}: layer '{}' would have no scales, as there are no tensors of it. Layers of "
         "the tensors: [{}]",
         folder, shown(layer), quoted_names(layers));
  }
  for (const std::string& layer : layers) {
    const std::vector<std::string>& known = checkpoint.layers();
    if (std::find(known.begin(), known.end(), layer) != known.end()) continue;
    fail(ErrorKind::kValue, "checkpoint {}: it has no layer '{}'. Available layers: [{}]", folder,
         shown(layer), quoted_names(known));
  }
}

WrittenCheckpoint write_checkpoint_scales(const Checkpoint& checkpoint, const ScaleFile& file,
                                          QueryScales query) {
  std::vector<std::string> layers;
  bool is_per_head = false;
  for (const LayerScales& layer : file.layers) {
    layers.push_back(layer.layer);
    is_per_head = is_per_head || layer.scale[1].size() > 1 || layer.scale[2].size() > 1;
  }
  check_checkpoint_layers(checkpoint, layers, is_per_head, query);
  std::error_code error;
  const bool is_new = checkpoint.has_index() &&
                      std::find(checkpoint.shard_names().begin(), checkpoint.shard_names().end(),
                                kScaleShard) == checkpoint.shard_names().end();
  if (is_new && fs::exists(checkpoint.folder() / kScaleShard, error)) {
    fail(ErrorKind::kIo, "'{}' exists and is not in {}",
         (checkpoint.folder() / kScaleShard).string(), kIndexName);
  }
  return CheckpointPlan(checkpoint, file, query).write();
}

}  // namespace attnbench
