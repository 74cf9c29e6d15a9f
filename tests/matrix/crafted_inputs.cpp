#include "crafted_inputs.h"
#include "bench/tensor_list.h"
#include "inputs/files/safetensors.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <functional>

namespace attnbench::matrix {
namespace {

constexpr float kGapOfScores = 100.0f;

/// fill(row, column, old value) for every element of [rows, width].
void fill(Tensor& tensor, std::int64_t rows,
          const std::function<float(std::int64_t, std::int64_t, float)>& value) {
  if (rows == 0) return;
  const std::int64_t width = tensor.num_elements() / tensor.dim(0);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    tensor.set(i, value(i / width, i % width, tensor.at(i)));
  }
}

/// The rows of the keys that dominate.
std::vector<bool> dominating_rows(const Problem& problem, bool first) {
  std::vector<bool> rows(static_cast<std::size_t>(problem.num_keys()), false);
  std::int64_t start = 0;
  for (const Request& request : problem.batch) {
    if (request.seq_len > 0) {
      rows[static_cast<std::size_t>(first ? start : start + request.seq_len - 1)] = true;
    }
    start += request.seq_len;
  }
  return rows;
}

void craft(const Problem& problem, Scores scores, AttentionInputs& inputs) {
  const double unit =
      problem.attention.scale * problem.attention.head_size;  // the score of two rows of ones
  const std::int64_t tokens = inputs.num_tokens();
  if (scores == Scores::kZero) {
    fill(inputs.query, tokens, [](auto, auto, float) { return 0.0f; });
  } else if (scores == Scores::kEqual) {
    fill(inputs.key, inputs.key.dim(0),
         [](auto, std::int64_t d, float) { return d % 3 == 0 ? -0.75f : 0.5f; });
  } else {
    const std::vector<bool> marked = dominating_rows(problem, scores == Scores::kFirstDominates);
    fill(inputs.query, tokens, [](auto, auto, float old) { return 1.0f + 0.0625f * old; });
    fill(inputs.key, inputs.key.dim(0), [&](std::int64_t row, auto, float old) {
      return marked[static_cast<std::size_t>(row)] ? static_cast<float>(kGapOfScores / unit) : old;
    });
  }
}

/// Scores by the rotary parts only: nothing rounds those on the way, in neither form of §8.3.
void craft(const Problem& problem, Scores scores, MlaInputs& inputs) {
  const std::int64_t nope = problem.mla.qk_nope_head_dim;
  const std::int64_t head = problem.attention.head_size;
  const bool equal = scores == Scores::kEqual;
  const bool zero = scores == Scores::kZero;
  constexpr float kQuery = 16.0f;
  fill(inputs.query, inputs.num_tokens(), [&](auto, std::int64_t column, float old) {
    const std::int64_t d = column % head;
    if (zero) return 0.0f;
    if (d < nope) return equal ? 0.0f : old;
    return d == nope ? kQuery : 0.0f;
  });
  // Three bits of mantissa, so that an fp8 cache of a power of two as scale holds it exactly.
  const float peak =
      std::ldexp(std::ceil(std::ldexp(
                     static_cast<float>(kGapOfScores / problem.attention.scale / kQuery), -4)),
                 4);
  const std::vector<bool> marked = dominating_rows(problem, scores == Scores::kFirstDominates);
  fill(inputs.k_pe, inputs.k_pe.dim(0), [&](std::int64_t row, std::int64_t d, float) {
    if (d != 0 || zero) return 0.0f;
    if (equal) return 1.0f;
    if (scores == Scores::kLarge) return row % 3 == 0 ? peak : -peak;
    return marked[static_cast<std::size_t>(row)] ? peak : 0.0f;
  });
}

}  // namespace

CraftedInputs::CraftedInputs(Scores scores, Problem& problem) {
  static int count = 0;
  path_ = std::filesystem::temp_directory_path() /
          fmt::format("attnbench-edge-{}-{}.safetensors", getpid(), count++);
  if (problem.attention.type == AttentionType::kMla) {
    MlaInputs inputs = make_mla_inputs(problem);
    craft(problem, scores, inputs);
    const Tensor query = first_rows(inputs.query, inputs.num_tokens());
    write_safetensors(path_,
                      {{"query", &query},
                       {"kv_c", &inputs.kv_c},
                       {"k_pe", &inputs.k_pe},
                       {"w_uk", &inputs.w_uk},
                       {"w_uv", &inputs.w_uv}},
                      {});
  } else {
    AttentionInputs inputs = make_inputs(problem);
    craft(problem, scores, inputs);
    const Tensor query = first_rows(inputs.query, inputs.num_tokens());
    write_safetensors(path_, {{"query", &query}, {"key", &inputs.key}, {"value", &inputs.value}},
                      {});
  }
  problem.inputs.file = path_.string();
}

CraftedInputs::~CraftedInputs() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace attnbench::matrix
