#include "interop/trace/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/sha256.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"
#include "interop/trace/head_lists.h"
#include "interop/trace/lengths.h"
#include "interop/trace/tensors.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSmallestBlock = 16;
constexpr std::int64_t kIndexSize = 128;  // elements of an index head (semantics §8.10)
std::string json_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
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

class Import {
 public:
  Import(const TraceDefinition& definition, const TraceWorkload& workload,
         const std::filesystem::path& root)
      : definition_(definition),
        workload_(workload),
        form_(trace_form(definition)),
        tensors_(definition, workload, root),
        lengths_(form_, tensors_) {}

  TraceScenario scenario(const std::vector<std::string>& backends,
                         const std::set<std::string>& taken) {
    const std::string whole_name = definition_.name + "." + workload_.uuid;
    result_.name = as_name(whole_name);
    if (taken.contains(result_.name)) result_.name += "-" + sha256_hex(whole_name).substr(0, 8);
    for (const std::string& name : lengths_.drawn()) {
      notice("no values of {}: lengths are as equal as they can be", name);
    }
    result_.text =
        fmt::format("# FlashInfer-Trace: {}, workload {}\nschema: 1\nname: {}\n",
                    printable(definition_.name), printable(workload_.uuid), result_.name);
    if (form_.kind == TraceKind::kIndexer) {
      result_.text += indexer();
    } else {
      result_.text += fmt::format("attention: {}\n", attention());
      if (form_.is_mla()) result_.text += mla();
      result_.text += cache();
    }
    result_.text += batch();
    if (form_.kind != TraceKind::kIndexer) read_values();
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
  template <typename... Args>
  void notice(fmt::format_string<Args...> format, Args&&... args) {
    result_.notices.push_back(fmt::format("workload {}: {}", workload_.uuid,
                                          fmt::format(format, std::forward<Args>(args)...)));
  }

  std::int64_t heads() const { return tensors_.dim(form_.query, query_axis(-2)); }
  /// Those of one KV head where each has a list of its own.
  std::int64_t heads_of_request() const {
    if (form_.kind != TraceKind::kHeadLists) return heads();
    return heads() / std::max<std::int64_t>(tensors_.dim(form_.key, form_.head_axis), 1);
  }
  std::int64_t head_size() const { return tensors_.dim(form_.query, query_axis(-1)); }
  int query_axis(int from_end) const { return tensors_.num_axes(form_.query) + from_end; }

  /// Columns of the latents, and of the rotated part of keys.
  std::int64_t rank() const {
    if (form_.packed != PackedLatents::kNone) {
      return form_.packed == PackedLatents::kModel1 ? 448 : 512;
    }
    if (!form_.key_pe.empty()) return tensors_.dim(form_.key, 2);
    for (const char* axis : {"kv_lora_rank", "head_dim_ckv"}) {
      if (const auto size = axis_size(definition_, workload_, axis)) return *size;
    }
    if (const auto given = tensors_.number("kv_lora_rank")) return std::llround(*given);
    return head_size() - 64;  // of the rotated part in every model of DeepSeek's kind
  }
  std::int64_t rope() const {
    if (!form_.key_pe.empty()) return tensors_.dim(form_.key_pe, 2);
    const std::int64_t size = head_size() - rank();
    if (size < 1) {
      tensors_.refuse("{}: expected more columns than the {} of the latents, found {}", form_.query,
                      rank(), head_size());
    }
    return size;
  }

  /// "float16" of a tensor; of another one where its type is not known.
  std::string dtype() const {
    for (const std::string& name : {tensors_.dtype(form_.query), output_dtype()}) {
      for (const char* known : {"bfloat16", "float16", "float32"}) {
        if (name == known) return name;
      }
    }
    if (is_fp8_output()) return "bfloat16";
    tensors_.refuse("dtype of {}: expected bfloat16, float16 or float32, found {}", form_.query,
                    tensors_.dtype(form_.query));
  }
  std::string output_dtype() const {
    return definition_.outputs.empty() ? "unknown" : definition_.outputs.front().dtype;
  }
  bool is_fp8_query() const { return tensors_.dtype(form_.query) == "float8_e4m3fn"; }
  bool is_fp8_output() const { return is_fp8_query() && output_dtype() == "float8_e4m3fn"; }

  std::string attention() {
    std::string text = fmt::format("{{type: {}, num_heads: {}", form_.is_mla() ? "mla" : "decoder",
                                   heads_of_request());
    if (!form_.is_mla()) {
      const std::int64_t kv_heads = tensors_.dim(form_.key, form_.head_axis);
      if (kv_heads < 1 || heads() % kv_heads != 0) {
        tensors_.refuse(
            "{}: expected a number of KV heads that divides the {} query heads, found {} in axis "
            "{}",
            form_.key, heads(), kv_heads, form_.head_axis);
      }
      text += fmt::format(", num_kv_heads: {}, head_size: {}",
                          form_.kind == TraceKind::kHeadLists ? 1 : kv_heads, head_size());
      const std::int64_t value_size =
          tensors_.dim(form_.value, std::max(form_.head_axis, form_.page_axis) + 1);
      if (value_size != head_size()) text += fmt::format(", v_head_size: {}", value_size);
    }
    text += fmt::format(", dtype: {}", dtype());
    if (is_fp8_query()) text += ", query_dtype: fp8_e4m3";
    if (is_fp8_output()) notice("its output is e4m3; attnbench's is compared in bfloat16");
    if (const auto scale = softmax_scale()) text += fmt::format(", scale: {}", *scale);
    const double window = tensors_.number("window_left").value_or(-1);
    if (window >= 0) text += fmt::format(", sliding_window: {}", std::llround(window) + 1);
    if (!is_causal()) text += ", causal: false";
    if (tensors_.is_given("attn_sink")) text += ", sinks: normal";
    return text + "}";
  }

  /// What the workload gives; else for MLA that of DeepSeek, as FlashInfer has it: (128 + R)^-1/2.
  std::optional<double> softmax_scale() const {
    for (const std::string& name : {form_.scale, std::string("scale_softmax")}) {
      const auto given = name.empty() ? std::nullopt : tensors_.number(name);
      if (given) return given;
    }
    if (!form_.is_mla()) return std::nullopt;
    return 1 / std::sqrt(128.0 + static_cast<double>(rope()));
  }

  bool is_causal() {
    // Of one token, or what a list has.
    if (form_.kind == TraceKind::kHeadLists) return form_.is_causal;
    for (const char* word : {"noncausal", "non_causal"}) {
      if (definition_.name.find(word) != std::string::npos) return false;
    }
    for (const char* name : {"causal", "is_causal"}) {
      if (const auto given = tensors_.number(name)) return *given != 0;
    }
    const std::vector<std::int64_t>& queries = lengths_.queries();
    const bool has_several = *std::max_element(queries.begin(), queries.end()) > 1;
    if (has_several && !form_.tells_mask) {
      notice(
          "the definition does not say what several new tokens of a request see: taken as causal");
    }
    return form_.is_causal || !has_several;
  }

  bool has_values() const {
    if (form_.packed != PackedLatents::kNone) return false;
    for (const std::string& name :
         {form_.query, form_.query_pe, form_.key, form_.value, form_.key_pe}) {
      if (!name.empty() && !tensors_.is_given(name)) return false;
    }
    return true;
  }

  std::string mla() {
    std::string text = fmt::format("mla: {{kv_lora_rank: {}, qk_rope_head_dim: {}", rank(), rope());
    // Unit matrices where the values are given: the query is absorbed already.
    if (has_values()) text += fmt::format(", qk_nope_head_dim: {0}, v_head_dim: {0}", rank());
    if (form_.kind == TraceKind::kSparseMla) text += ", " + sparse();
    return text + "}\n";
  }

  std::string sparse() {
    const std::int64_t topk = checked_topk();
    for (const char* name : {"extra_kv_cache", "extra_indices", "extra_topk_length"}) {
      if (tensors_.is_given(name)) {
        tensors_.refuse(
            "{}: a second cache is not imported; mla.sparse.extra_topk of a scenario "
            "has one",
            name);
      }
    }
    std::string text = fmt::format("sparse_topk: {}", topk);
    if (const auto given = tensors_.integers("topk_length")) {
      text += fmt::format(", sparse: {{topk_length: [{}]}}", fmt::join(*given, ", "));
    }
    return text;
  }
  std::int64_t checked_topk() const {
    const std::int64_t topk = form_.kind == TraceKind::kIndexer
                                  ? axis_size(definition_, workload_, "topk").value_or(0)
                                  : lengths_.topk();
    if (topk < 1 || topk % 128 != 0) {
      tensors_.refuse("topk: expected a multiple of 128, found {}", topk);
    }
    return topk;
  }

  std::int64_t block_size() const {
    const std::int64_t page = lengths_.page_size();
    const bool is_part = page > 0 && kSmallestBlock % page == 0;
    if (!is_part && (page <= 0 || page % kSmallestBlock != 0)) {
      tensors_.refuse("page_size: expected a divisor or a multiple of {}, found {}", kSmallestBlock,
                      page);
    }
    return std::max(page, kSmallestBlock);
  }

  std::string cache() const {
    std::string text;
    const auto add_word = [&](const std::string& word) {
      text += (text.empty() ? "" : ", ") + word;
    };
    if (form_.has_pages()) add_word(fmt::format("block_size: {}", block_size()));
    if (form_.is_heads_first() && form_.has_pages()) add_word("layout: HND");
    const std::string stored = tensors_.dtype(form_.key);
    const double value_scale =
        form_.value_scale.empty() ? 1 : tensors_.number(form_.value_scale).value_or(1);
    const bool is_fp8 = stored == "float8_e4m3fn" || stored == "float8_e5m2";
    if (value_scale != 1 && (!is_fp8 || form_.is_mla())) {
      tensors_.refuse("{}: expected 1 where values are not fp8, found {}", form_.value_scale,
                      value_scale);
    }
    if (form_.packed != PackedLatents::kNone) {
      add_word(form_.packed == PackedLatents::kModel1 ? "dtype: fp8_model1_mla"
                                                      : "dtype: fp8_ds_mla");
    } else if (is_fp8) {
      const char* name = form_.is_mla() ? "ckv_scale" : "k_scale";
      // With bmm1_scale the codes are multiplied by nothing else.
      const double key_scale = form_.scale_has_key_scale ? 1 : tensors_.number(name).value_or(1);
      add_word(fmt::format("dtype: {}, k_scale: {}",
                           stored == "float8_e5m2" ? "fp8_e5m2" : "fp8_e4m3", key_scale));
      // Latents have one scale.
      if (!form_.is_mla()) {
        add_word(fmt::format("v_scale: {}", value_scale * tensors_.number("v_scale").value_or(1)));
      }
    } else if (stored != "unknown" && stored != dtype()) {
      tensors_.refuse("dtype of the cache: expected {} or fp8, found {}", dtype(), stored);
    }
    return text.empty() ? "" : fmt::format("kv_cache: {{{}}}\n", text);
  }

  std::string batch() const {
    const std::vector<std::int64_t>&queries = lengths_.queries(), &keys = lengths_.keys();
    std::string text = "batch:\n";
    for (std::size_t i = 0; i < queries.size();) {
      std::size_t end = i;
      while (end < queries.size() && queries[end] == queries[i] && keys[end] == keys[i]) ++end;
      text += fmt::format("  - {{count: {}, query_len: {}, seq_len: {}}}\n", end - i, queries[i],
                          keys[i]);
      i = end;
    }
    return text;
  }

  /// The two operations that an indexer's kernel consists of: logits, and the choice of keys. The
  /// scales of its keys are plain f32.
  std::string indexer() {
    const std::int64_t width = tensors_.dim(form_.key, tensors_.num_axes(form_.key) - 1);
    const std::int64_t size = tensors_.dim(form_.query, 2);
    if (size != kIndexSize || width != kIndexSize + 4) {
      tensors_.refuse("expected index heads of {} elements and keys of {} bytes, found {} and {}",
                      kIndexSize, kIndexSize + 4, size, width);
    }
    if (tensors_.is_given(form_.query) || tensors_.is_given(form_.key)) {
      notice("values of queries, keys and weights are drawn: an indexer takes none from files");
    }
    return fmt::format(
        "attention: {{type: op, num_heads: 1, head_size: {}, dtype: bfloat16}}\n"
        "mla: {{sparse_topk: {}, index_n_heads: {}, index_ue8m0: false}}\n"
        "kv_cache: {{block_size: {}}}\nsweep: {{op.name: [index_logits, index_topk]}}\n",
        kIndexSize, checked_topk(), tensors_.dim(form_.query, 1), block_size());
  }

  void read_values() {
    if (form_.packed != PackedLatents::kNone && tensors_.is_given(form_.key)) {
      notice("{} holds bytes: its values are drawn", form_.key);
    }
    if (!has_values()) return;
    if (!lengths_.are_placed()) {
      tensors_.refuse("values of the cache are given, but not which request has which of them");
    }
    if (form_.kind == TraceKind::kHeadLists) {
      add("query", query_of_lists(form_, tensors_, lengths_.head_lists()));
      add("key", list_values(0, form_.scale_has_key_scale ? "" : "k_scale"));
      add("value", list_values(1, "v_scale"));
      return;
    }
    const std::vector<std::int64_t> rows = lengths_.key_rows();
    if (form_.is_mla()) {
      add_latents(rows);
      return;
    }
    add("query", tensors_.rows(form_.query, query_axis(-2), {}, 1));
    add("key", cache_values(form_.key, 0, rows, form_.scale_has_key_scale ? "" : "k_scale"));
    add("value", cache_values(form_.value, form_.plane_axis < 0 ? 0 : 1, rows, "v_scale"));
  }

  double code_scale(const std::string& scale_name) const {
    double scale = scale_name.empty() ? 1 : tensors_.number(scale_name).value_or(1);
    if (scale_name == "v_scale" && !form_.value_scale.empty()) {
      scale *= tensors_.number(form_.value_scale).value_or(1);
    }
    return scale;
  }

  Tensor list_values(int plane, const std::string& scale_name) const {
    return cache_of_lists(form_, tensors_, lengths_.head_lists(), plane, code_scale(scale_name));
  }

  Tensor cache_values(const std::string& name, std::int64_t plane,
                      const std::vector<std::int64_t>& rows, const std::string& scale_name) const {
    const double scale = code_scale(scale_name);
    if (form_.kind == TraceKind::kRagged) {
      return tensors_.rows(name, tensors_.num_axes(name) - 2, rows, scale);
    }
    return tensors_.cache_rows(name, form_.page_axis, form_.head_axis, plane, rows, scale);
  }

  void add_latents(const std::vector<std::int64_t>& rows) {
    const double scale = form_.scale_has_key_scale ? 1 : tensors_.number("ckv_scale").value_or(1);
    const auto latents = [&](const std::string& name, double by) {
      return tensors_.cache_rows(name, form_.page_axis, form_.head_axis, 0, rows, by);
    };
    const Tensor query = tensors_.rows(form_.query, query_axis(-2), {}, 1);
    if (form_.key_pe.empty()) {
      const Tensor both = latents(form_.key, scale);
      add("query", query);
      add("kv_c", columns(both, 0, rank()));
      add("k_pe", columns(both, rank(), rank() + rope()));
    } else {
      add("query", side_by_side(query, tensors_.rows(form_.query_pe, 1, {}, 1)));
      add("kv_c", latents(form_.key, scale));
      add("k_pe", latents(form_.key_pe, tensors_.number("kpe_scale").value_or(scale)));
    }
    const Tensor unit = unit_matrices(heads(), rank());
    add("w_uk", unit);
    add("w_uv", unit);
    if (form_.kind != TraceKind::kSparseMla) return;
    const auto count = static_cast<std::int64_t>(lengths_.keys().size());
    const std::int64_t topk = lengths_.topk();
    Tensor lists(Dtype::kI32, {count, topk});
    for (std::int64_t i = 0; i < count * topk; ++i) {
      const std::int64_t keys = lengths_.keys()[static_cast<std::size_t>(i / topk)];
      lists.data<std::int32_t>()[i] = i % topk < keys ? static_cast<std::int32_t>(i % topk) : -1;
    }
    add("topk_indices", std::move(lists));
  }

  void add(const char* name, Tensor tensor) {
    result_.tensors.emplace_back(name, std::move(tensor));
  }

  const TraceDefinition& definition_;
  const TraceWorkload& workload_;
  const TraceForm form_;
  const TraceTensors tensors_;
  const TraceLengths lengths_;
  TraceScenario result_;
};

}  // namespace

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
