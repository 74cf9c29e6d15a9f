#include "backends/op/quant_parts.h"

#include "backends/repeated_copy.h"

namespace attnbench {

std::array<HeadRun, 3> projection_heads(OpPipeline& op) {
  const Tensor& rows = op.inputs().at("projection");
  const AttentionSpec& a = op.problem().attention;
  const auto* data = static_cast<const char*>(op.operand("projection"));
  const attn::i64 bytes = rows.dim(2) * static_cast<attn::i64>(dtype_size(rows.dtype()));
  std::array<HeadRun, 3> runs;
  const std::array<int, 3> heads{a.num_heads, a.num_kv_heads, a.num_kv_heads};
  attn::i64 first = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    runs[i] = {data + first * bytes, rows.dim(1) * rows.dim(2), rows.dim(2), rows.dim(0), heads[i],
               a.head_size};
    first += heads[i];
  }
  return runs;
}

void* zeroed_counter(OpPipeline& op, const std::string& name) {
  return op.output(name, Tensor(Dtype::kI64, {1}));
}

void queue_reset(OpPipeline& op, void* counter) {
  const void* zero = op.memory().upload(std::vector<attn::i64>{0}, "zero");
  const attn::CopyParams copy = repeated_copy(attn::Element::kI64, zero, counter, 1);
  op.add_step(side_step("reset_counter", [&op, copy] { op.ops().copy(copy); }));
}

}  // namespace attnbench
