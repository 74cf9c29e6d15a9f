// Names and metadata of saved results; safetensors themselves are written by inputs/files.
#include "bench/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/backend_name.h"
#include "core/error.h"
#include "inputs/files/safetensors.h"

namespace attnbench {
namespace {

constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void add_reference_tensors(std::int64_t num_tokens, const ReferenceOutput& reference,
                           TensorList& tensors) {
  const std::int64_t num_heads = reference.num_heads;
  const std::int64_t width = num_heads * reference.v_head_size;
  const auto num_rows = static_cast<std::int64_t>(reference.rows.size());
  std::vector<double> output(static_cast<std::size_t>(num_tokens * width), kUnchecked);
  std::vector<double> lse(static_cast<std::size_t>(num_heads * num_tokens), kUnchecked);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::int64_t token = reference.rows[static_cast<std::size_t>(r)];
    std::copy_n(reference.output.begin() + r * width, width, output.begin() + token * width);
    for (std::int64_t head = 0; head < num_heads; ++head) {
      lse[static_cast<std::size_t>(head * num_tokens + token)] =
          reference.lse[static_cast<std::size_t>(head * num_rows + r)];
    }
  }
  tensors.own("reference_output",
              Tensor::from_f64(output, {num_tokens, num_heads, reference.v_head_size}));
  tensors.own("reference_lse", Tensor::from_f64(lse, {num_heads, num_tokens}));
  tensors.own("checked_rows", Tensor::from_i32(reference.rows));
}

std::string tensor_file_name(const std::string& id) {
  std::string name;
  for (const char character : id) {
    if (character == '/') {
      name += "__";
    } else {
      name += character;
    }
  }
  return name + ".safetensors";
}

std::string kernel_rules_json(const KernelRules& rules, std::optional<CacheLayoutKind> layout) {
  std::string text = fmt::format(R"({{"window":"{}","alibi":"{}")",
                                 rule_name(kEncoderWindowRuleNames, rules.window),
                                 rule_name(kLinearAlibiRuleNames, rules.alibi));
  for (const auto& [name, member] : kKernelRuleSwitches) {
    text += fmt::format(R"(,"{}":{})", name, rules.*member);
  }
  const std::string quoted = layout ? fmt::format(R"("{}")", to_string(*layout)) : "null";
  return text + fmt::format(R"(,"cache_layout":{}}})", quoted);
}

void save_tensors(const std::filesystem::path& folder, const Result& result, const Backend& backend,
                  const TensorList& tensors) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::kIo, "cannot create the folder '{}': {}", folder.string(), error.message());
  }
  // Why without the kernel: what the tensors mean follows from the backend.
  const std::string_view name = result.forced_kernel.empty()
                                    ? std::string_view(result.backend)
                                    : parse_backend_name(result.backend).backend;
  std::map<std::string, std::string> metadata{
      {"problem", result.problem_json}, {"backend", std::string(name)}, {"id", result.id}};
  if (result.plugin) metadata["plugin"] = result.plugin->version;
  if (backend.states_rules()) {
    metadata["kernel_rules"] = kernel_rules_json(backend.kernel_rules(), backend.cache_layout());
  }
  write_safetensors(folder / tensor_file_name(result.id), tensors.list(), metadata);
}

}  // namespace attnbench
