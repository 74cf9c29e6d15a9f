#include "ops/cuda/attend_names.h"

#include "core/error.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {

std::string spec_name(attn::Alibi alibi) {
  switch (alibi) {
    case attn::Alibi::kNone:
      return "attn::Alibi::kNone";
    case attn::Alibi::kKeyIndex:
      return "attn::Alibi::kKeyIndex";
    case attn::Alibi::kContextRelative:
      return "attn::Alibi::kContextRelative";
    case attn::Alibi::kDistance:
      return "attn::Alibi::kDistance";
    case attn::Alibi::kSqrt:
      return "attn::Alibi::kSqrt";
  }
  return "";
}

std::string flag(bool value) { return value ? "true" : "false"; }

std::string problem_name(const attn::AttendParams& params) {
  std::string name = fmt::format(" d{}", params.head_size);
  if (params.v_head_size != params.head_size) name += fmt::format("/{}", params.v_head_size);
  name += fmt::format(" {}", short_name(params.query_element));
  if (params.kv.element != params.query_element) {
    name += fmt::format(" kv {}", short_name(params.kv.element));
    if (params.kv.key_scales != nullptr) name += " per token and head";
  }
  if (params.output_element != params.query_element) {
    name += fmt::format(" to {}", short_name(params.output_element));
  }
  name +=
      params.kv.block_table != nullptr ? fmt::format(" paged {}", params.kv.block_size) : " ragged";
  if (params.score.soft_cap > 0.0f) name += " soft cap";
  if (params.score.alibi != attn::Alibi::kNone) name += " alibi";
  return name;
}

}  // namespace attnbench::cuda
