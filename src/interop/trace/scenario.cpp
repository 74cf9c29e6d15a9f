#include "interop/trace/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/sha256.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"
#include "interop/trace/tensors.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSmallestBlock = 16;
// Of a batch of a scenario (contract section 1.1). What is beyond is refused before anything of
// that size is made, since one damaged line must not end an import.
constexpr std::int64_t kMostRequests = 1000000;
constexpr std::int64_t kMostTokens = 2147483647;

std::string json_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct KindRow {
  TraceKind kind;
  std::vector<const char*> inputs;
};
const std::vector<KindRow>& kind_rows() {
  static const std::vector<KindRow> rows{
      {TraceKind::kSparseMla, {"q_nope", "q_pe", "ckv_cache", "kpe_cache", "sparse_indices"}},
      {TraceKind::kMlaPaged,
       {"q_nope", "q_pe", "ckv_cache", "kpe_cache", "kv_indptr", "kv_indices"}},
      {TraceKind::kGqaPaged, {"q", "k_cache", "v_cache", "kv_indptr", "kv_indices"}},
      {TraceKind::kRagged, {"q", "k", "v", "kv_indptr"}},
  };
  return rows;
}

/// A text in the letters of scenario names.
std::string as_name(const std::string& text) {
  std::string name;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    const bool is_plain =
        std::isalnum(code) != 0 || letter == '.' || letter == '_' || letter == '-';
    name += is_plain ? static_cast<char>(std::tolower(code)) : '-';
  }
  return name;
}

/// `count` whole numbers that are as equal as they can be, of the given sum.
std::vector<std::int64_t> even_parts(std::int64_t sum, std::int64_t count) {
  std::vector<std::int64_t> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back(sum / count + (i < sum % count ? 1 : 0));
  return parts;
}

std::vector<std::int64_t> differences(const std::vector<std::int64_t>& offsets) {
  std::vector<std::int64_t> parts;
  for (std::size_t i = 1; i < offsets.size(); ++i) parts.push_back(offsets[i] - offsets[i - 1]);
  return parts;
}

class Import {
 public:
  Import(const TraceDefinition& definition, const TraceWorkload& workload,
         const std::filesystem::path& root)
      : definition_(definition),
        workload_(workload),
        kind_(trace_kind(definition)),
        tensors_(definition, workload, root) {}

  TraceScenario scenario(const std::vector<std::string>& backends,
                         const std::set<std::string>& taken) {
    const std::string whole_name = definition_.name + "." + workload_.uuid;
    result_.name = as_name(whole_name);
    if (taken.contains(result_.name)) result_.name += "-" + sha256_hex(whole_name).substr(0, 8);
    read_lengths();
    check_lengths();
    result_.text = fmt::format(
        "# FlashInfer-Trace: {}, workload {}\nschema: 1\nname: {}\nattention: {}\n",
        printable(definition_.name), printable(workload_.uuid), result_.name, attention());
    if (is_mla()) result_.text += mla();
    if (kind_ != TraceKind::kRagged) result_.text += cache();
    result_.text += batch();
    read_values();
    if (!result_.tensors.empty()) {
      result_.text += fmt::format("inputs: {{file: {}.safetensors}}\n", result_.name);
    }
    if (!backends.empty()) {
      result_.text += fmt::format("backends: [\"{}\"]\n", fmt::join(backends, "\", \""));
    }
    result_.workload =
        fmt::format(R"({{"definition":{},"workload":{},"solution":null,"evaluation":null}})",
                    json_text(definition_.name), workload_.json);
    return std::move(result_);
  }

 private:
  bool is_mla() const { return kind_ == TraceKind::kMlaPaged || kind_ == TraceKind::kSparseMla; }

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kValue, "{}: workload {}: {}", definition_.name, workload_.uuid,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void read_lengths() {
    if (kind_ == TraceKind::kSparseMla) {
      read_lists();
      return;
    }
    const char* query = is_mla() ? "q_nope" : "q";
    const auto query_offsets = counts("qo_indptr");
    if (query_offsets) {
      queries_ = differences(*query_offsets);
    } else if (definition_.input("qo_indptr") != nullptr) {
      const std::int64_t requests = std::max<std::int64_t>(tensors_.dim("qo_indptr", 0) - 1, 1);
      check_range("qo_indptr", "requests", requests, kMostRequests);
      const std::int64_t rows = tensors_.dim(query, 0);
      check_range(query, "rows", rows, kMostTokens);
      queries_ = even_parts(rows, requests);
      drawn("qo_indptr");
    } else {
      const std::int64_t rows = tensors_.dim(query, 0);
      check_range(query, "rows", rows, kMostRequests);
      queries_.assign(static_cast<std::size_t>(rows), 1);
    }
    read_keys();
  }

  void check_range(const char* name, const char* what, std::int64_t found,
                   std::int64_t most) const {
    if (found >= 0 && found <= most) return;
    refuse("{}: expected 0 to {} {}, found {}", name, most, what, found);
  }

  /// Values of an input that counts or numbers something.
  std::optional<std::vector<std::int64_t>> counts(const char* name) const {
    auto values = tensors_.integers(name);
    if (!values) return values;
    check_range(name, "values", static_cast<std::int64_t>(values->size()), kMostTokens);
    for (const std::int64_t value : *values) check_range(name, "as a value", value, kMostTokens);
    return values;
  }

  void read_keys() {
    const std::int64_t page = kind_ == TraceKind::kRagged ? 1 : page_size();
    check_range("page_size", "keys", page, kMostTokens);
    const auto offsets = counts("kv_indptr");
    if (offsets) {
      firsts_.assign(offsets->begin(), offsets->end() - (offsets->empty() ? 0 : 1));
      keys_ = differences(*offsets);
    } else {
      const auto count = static_cast<std::int64_t>(queries_.size());
      check_range("kv_indptr", "pages", num_pages(), kMostTokens);
      keys_ = even_parts(num_pages(), std::max<std::int64_t>(count, 1));
      drawn("kv_indptr");
    }
    for (std::int64_t& keys : keys_) {
      keys *= page;  // of at most 31 bits each
      if (keys > kMostTokens) check_range("kv_indptr", "keys of a request", keys, kMostTokens);
    }
    if (keys_.size() != queries_.size()) {
      refuse("kv_indptr has {} requests, the queries have {}", keys_.size(), queries_.size());
    }
    shorten_last_pages(page);
    if (offsets) return;
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = std::max(keys_[i], queries_[i]);
  }

  /// Keys do not fill the last page where the workload says how many are in it.
  void shorten_last_pages(std::int64_t page) {
    for (const char* name : {"kv_last_page_len", "paged_kv_last_page_len"}) {
      const auto lengths = counts(name);
      if (!lengths) continue;
      for (std::size_t i = 0; i < std::min(lengths->size(), keys_.size()); ++i) {
        if (keys_[i] > 0) keys_[i] += (*lengths)[i] - page;
      }
    }
    const auto lengths = counts("kv_len_arr");
    if (lengths && lengths->size() == keys_.size()) keys_ = *lengths;
  }

  void read_lists() {
    const std::int64_t rows = tensors_.dim("sparse_indices", 0);
    topk_ = tensors_.dim("sparse_indices", 1);
    check_range("sparse_indices", "rows", rows, kMostRequests);
    check_range("sparse_indices", "keys of a row", topk_, kMostTokens);
    queries_.assign(static_cast<std::size_t>(rows), 1);
    lists_ = tensors_.integers("sparse_indices");
    if (!lists_) {
      const std::int64_t pages = tensors_.dim("ckv_cache", 0);
      check_range("ckv_cache", "pages", pages, kMostTokens);
      check_range("page_size", "keys", page_size(), kMostTokens);
      const std::int64_t entries = pages * page_size();
      keys_.assign(static_cast<std::size_t>(rows), std::min(topk_, entries));
      drawn("sparse_indices");
      return;
    }
    if (topk_ < 1 || static_cast<std::int64_t>(lists_->size()) != rows * topk_) {
      refuse("sparse_indices: expected [{}, {}] values, found {}", rows, topk_, lists_->size());
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto first = lists_->begin() + row * topk_;
      keys_.push_back(topk_ - std::count(first, first + topk_, -1));
    }
  }

  void check_lengths() const {
    if (queries_.empty()) refuse("no requests");
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      if (queries_[i] < 0 || keys_[i] < 0) refuse("request {}: offsets that fall", i);
      if (keys_[i] >= queries_[i]) continue;
      refuse("request {} has {} new tokens and {} keys; attnbench counts new tokens among the keys",
             i, queries_[i], keys_[i]);
    }
  }

  std::int64_t num_pages() const {
    if (kind_ == TraceKind::kRagged) return tensors_.dim("k", 0);
    const std::optional<std::int64_t> listed = tensors_.dim_if_known("kv_indices", 0);
    return listed ? *listed : tensors_.dim(is_mla() ? "ckv_cache" : "k_cache", 0);
  }
  std::int64_t page_size() const { return tensors_.dim(is_mla() ? "ckv_cache" : "k_cache", 1); }

  void drawn(const char* name) {
    result_.notices.push_back(fmt::format(
        "workload {}: no values of {}: lengths are as equal as they can be", workload_.uuid, name));
  }

  /// "float16" of a tensor; of another one where its type is not known.
  std::string dtype() const {
    const char* query = is_mla() ? "q_nope" : "q";
    for (const std::string& name : {tensors_.dtype(query), output_dtype()}) {
      for (const char* known : {"bfloat16", "float16", "float32"}) {
        if (name == known) return name;
      }
    }
    refuse("dtype of {}: expected bfloat16, float16 or float32, found {}", query,
           tensors_.dtype(query));
  }
  std::string output_dtype() const {
    return definition_.outputs.empty() ? "unknown" : definition_.outputs.front().dtype;
  }

  std::string attention() const {
    const char* query = is_mla() ? "q_nope" : "q";
    const std::int64_t heads = tensors_.dim(query, 1);
    std::string text = is_mla() ? fmt::format("{{type: mla, num_heads: {}", heads)
                                : fmt::format("{{type: decoder, num_heads: {}", heads);
    if (!is_mla()) {
      const char* key = kind_ == TraceKind::kRagged ? "k" : "k_cache";
      const char* value = kind_ == TraceKind::kRagged ? "v" : "v_cache";
      const int axis = kind_ == TraceKind::kRagged ? 1 : 2;
      const std::int64_t kv_heads = tensors_.dim(key, axis);
      if (kv_heads < 1 || heads % kv_heads != 0) {
        refuse(
            "{}: expected a number of KV heads that divides the {} query heads, found {} in axis "
            "{}",
            key, heads, kv_heads, axis);
      }
      text += fmt::format(", num_kv_heads: {}, head_size: {}", kv_heads, tensors_.dim(query, 2));
      const std::int64_t value_size = tensors_.dim(value, axis + 1);
      if (value_size != tensors_.dim(query, 2))
        text += fmt::format(", v_head_size: {}", value_size);
    }
    text += fmt::format(", dtype: {}", dtype());
    if (tensors_.dtype(query) == "float8_e4m3fn") text += ", query_dtype: fp8_e4m3";
    if (const auto scale = softmax_scale()) text += fmt::format(", scale: {}", *scale);
    if (!is_causal()) text += ", causal: false";
    return text + "}";
  }

  /// What the workload gives; else for MLA that of DeepSeek, as FlashInfer has it: (128 + R)^-1/2.
  std::optional<double> softmax_scale() const {
    const std::optional<double> given = tensors_.number("sm_scale");
    if (given || !is_mla()) return given;
    return 1 / std::sqrt(128.0 + static_cast<double>(tensors_.dim("q_pe", 2)));
  }

  bool is_causal() const {
    for (const char* word : {"noncausal", "non_causal"}) {
      if (definition_.name.find(word) != std::string::npos) return false;
    }
    return tensors_.number("causal").value_or(1) != 0;
  }

  bool has_values() const {
    const std::array<const char*, 4> mla{"q_nope", "q_pe", "ckv_cache", "kpe_cache"};
    const std::array<const char*, 3> paged{"q", "k_cache", "v_cache"};
    const std::array<const char*, 3> ragged{"q", "k", "v"};
    const auto all = [&](const auto& names) {
      return std::all_of(names.begin(), names.end(),
                         [&](const char* name) { return tensors_.is_given(name); });
    };
    return is_mla() ? all(mla) : all(kind_ == TraceKind::kRagged ? ragged : paged);
  }

  std::string mla() const {
    const std::int64_t rank = tensors_.dim("ckv_cache", 2);
    const std::int64_t rope = tensors_.dim("kpe_cache", 2);
    std::string text = fmt::format("mla: {{kv_lora_rank: {}, qk_rope_head_dim: {}", rank, rope);
    // Unit matrices where the values are given: the query is absorbed already.
    if (has_values()) text += fmt::format(", qk_nope_head_dim: {0}, v_head_dim: {0}", rank);
    if (kind_ == TraceKind::kSparseMla) {
      if (topk_ % 128 != 0) refuse("topk: expected a multiple of 128, found {}", topk_);
      text += fmt::format(", sparse_topk: {}", topk_);
    }
    return text + "}\n";
  }

  std::string cache() const {
    const std::int64_t page = page_size();
    const bool is_part = page > 0 && kSmallestBlock % page == 0;
    if (!is_part && (page <= 0 || page % kSmallestBlock != 0)) {
      refuse("page_size: expected a divisor or a multiple of {}, found {}", kSmallestBlock, page);
    }
    std::string text = fmt::format("kv_cache: {{block_size: {}", std::max(page, kSmallestBlock));
    const std::string stored = tensors_.dtype(is_mla() ? "ckv_cache" : "k_cache");
    if (stored == "float8_e4m3fn" || stored == "float8_e5m2") {
      const char* key = is_mla() ? "ckv_scale" : "k_scale";
      text +=
          fmt::format(", dtype: {}, k_scale: {}", stored == "float8_e5m2" ? "fp8_e5m2" : "fp8_e4m3",
                      tensors_.number(key).value_or(1));
      // Latents have one scale.
      if (!is_mla()) text += fmt::format(", v_scale: {}", tensors_.number("v_scale").value_or(1));
    } else if (stored != "unknown" && stored != dtype()) {
      refuse("dtype of the cache: expected {} or fp8, found {}", dtype(), stored);
    }
    return text + "}\n";
  }

  std::string batch() const {
    std::string text = "batch:\n";
    for (std::size_t i = 0; i < queries_.size();) {
      std::size_t end = i;
      while (end < queries_.size() && queries_[end] == queries_[i] && keys_[end] == keys_[i]) ++end;
      text += fmt::format("  - {{count: {}, query_len: {}, seq_len: {}}}\n", end - i, queries_[i],
                          keys_[i]);
      i = end;
    }
    return text;
  }

  /// Rows of a cache that hold the keys of all requests, in the order of positions.
  std::vector<std::int64_t> key_rows() const {
    std::vector<std::int64_t> rows;
    const auto indices = tensors_.integers("kv_indices");
    const std::int64_t page = kind_ == TraceKind::kRagged ? 1 : page_size();
    const std::int64_t num_keys = kind_ == TraceKind::kRagged ? tensors_.dim("k", 0) : 0;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (kind_ == TraceKind::kRagged && firsts_[i] + keys_[i] > num_keys) {
        refuse("kv_indptr: request {} has keys {} to {}, and there are {}", i, firsts_[i],
               firsts_[i] + keys_[i], num_keys);
      }
      for (std::int64_t key = 0; key < keys_[i]; ++key) {
        if (kind_ == TraceKind::kRagged) {
          rows.push_back(firsts_[i] + key);
          continue;
        }
        const auto entry = static_cast<std::size_t>(firsts_[i] + key / page);
        if (!indices || entry >= indices->size()) refuse("kv_indices: no entry {}", entry);
        check_range("kv_indices", "as a page", (*indices)[entry], kMostTokens);
        rows.push_back((*indices)[entry] * page + key % page);
      }
    }
    return rows;
  }

  std::vector<std::int64_t> listed_rows() const {
    std::vector<std::int64_t> rows;
    for (const std::int64_t row : *lists_) {
      if (row != -1) rows.push_back(row);
    }
    return rows;
  }

  void read_values() {
    if (!has_values()) return;
    const bool placed = kind_ == TraceKind::kSparseMla
                            ? lists_.has_value()
                            : tensors_.is_given("kv_indptr") &&
                                  (kind_ == TraceKind::kRagged || tensors_.is_given("kv_indices"));
    if (!placed) refuse("values of the cache are given, but not which request has which of them");
    const std::vector<std::int64_t> rows =
        kind_ == TraceKind::kSparseMla ? listed_rows() : key_rows();
    if (is_mla()) {
      add_latents(rows);
      return;
    }
    const bool ragged = kind_ == TraceKind::kRagged;
    add("query", tensors_.rows("q", 1, {}, 1));
    add("key", tensors_.rows(ragged ? "k" : "k_cache", ragged ? 1 : 2, rows,
                             tensors_.number("k_scale").value_or(1)));
    add("value", tensors_.rows(ragged ? "v" : "v_cache", ragged ? 1 : 2, rows,
                               tensors_.number("v_scale").value_or(1)));
  }

  void add_latents(const std::vector<std::int64_t>& rows) {
    const double scale = tensors_.number("ckv_scale").value_or(1);
    add("query", side_by_side(tensors_.rows("q_nope", 1, {}, 1), tensors_.rows("q_pe", 1, {}, 1)));
    add("kv_c", tensors_.rows("ckv_cache", 2, rows, scale));
    add("k_pe", tensors_.rows("kpe_cache", 2, rows, tensors_.number("kpe_scale").value_or(scale)));
    const Tensor unit = unit_matrices(tensors_.dim("q_nope", 1), tensors_.dim("q_nope", 2));
    add("w_uk", unit);
    add("w_uv", unit);
    if (kind_ != TraceKind::kSparseMla) return;
    const auto count = static_cast<std::int64_t>(keys_.size());
    Tensor lists(Dtype::kI32, {count, topk_});
    for (std::int64_t i = 0; i < count * topk_; ++i) {
      const std::int64_t keys = keys_[static_cast<std::size_t>(i / topk_)];
      lists.data<std::int32_t>()[i] = i % topk_ < keys ? static_cast<std::int32_t>(i % topk_) : -1;
    }
    add("topk_indices", std::move(lists));
  }

  void add(const char* name, Tensor tensor) {
    result_.tensors.emplace_back(name, std::move(tensor));
  }

  const TraceDefinition& definition_;
  const TraceWorkload& workload_;
  const TraceKind kind_;
  TraceTensors tensors_;
  TraceScenario result_;
  std::vector<std::int64_t> queries_;  // new tokens by request
  std::vector<std::int64_t> keys_;     // keys by request, new ones included
  std::vector<std::int64_t> firsts_;   // first entry of kv_indices, or first key, by request
  std::int64_t topk_ = 0;
  std::optional<std::vector<std::int64_t>> lists_;  // sparse_indices [T, topk]
};

}  // namespace

TraceKind trace_kind(const TraceDefinition& definition) {
  std::vector<std::string> sets;
  for (const KindRow& row : kind_rows()) {
    const bool has_all = std::all_of(row.inputs.begin(), row.inputs.end(), [&](const char* name) {
      return definition.input(name) != nullptr;
    });
    if (has_all) return row.kind;
    sets.push_back(fmt::format("{}", fmt::join(row.inputs, ", ")));
  }
  std::vector<std::string> found;
  for (const TraceTensor& input : definition.inputs) found.push_back(input.name);
  fail(ErrorKind::kValue,
       "{}: {} is no attention that can be imported: expected the inputs {}; "
       "found {}",
       definition.path, definition.name, fmt::join(sets, "; or "), fmt::join(found, ", "));
}

TraceScenario trace_scenario(const TraceDefinition& definition, const TraceWorkload& workload,
                             const std::filesystem::path& root,
                             const std::vector<std::string>& backends,
                             const std::set<std::string>& taken) {
  return Import(definition, workload, root).scenario(backends, taken);
}

std::filesystem::path write_trace_scenario(const TraceScenario& scenario,
                                           const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorKind::kIo, "{}: {}", folder.string(), error.message());
  const std::filesystem::path stem = folder / scenario.name;
  if (!scenario.tensors.empty()) {
    std::vector<std::pair<std::string, const Tensor*>> borrowed;
    for (const auto& [name, tensor] : scenario.tensors) borrowed.emplace_back(name, &tensor);
    write_safetensors(stem.string() + ".safetensors", borrowed, {});
  }
  write_file_atomically(stem.string() + ".workload.json", scenario.workload + "\n");
  const std::filesystem::path path = stem.string() + ".yaml";
  write_file_atomically(path, scenario.text);
  return path;
}

}  // namespace attnbench
