#include "cli/device_amax.h"

namespace attnbench {
namespace {

bool is_served(const Tensor& tensor) {
  const Dtype dtype = tensor.dtype();
  return tensor.shape().size() == 3 &&
         (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16);
}

float amax(Ops& ops, AmaxKind kind, const Tensor& tensor) {
  const std::unique_ptr<Buffer> source = ops.allocate(tensor.size_bytes(), "tensor");
  const std::unique_ptr<Buffer> result = ops.allocate(sizeof(float), "amax");
  ops.upload(*source, tensor.bytes(), tensor.size_bytes());
  attn::AmaxParams params{};
  params.element = static_cast<attn::Element>(tensor.dtype());
  params.source = source->data();
  params.num_tokens = tensor.dim(0);
  params.num_heads = static_cast<int>(tensor.dim(1));
  params.head_size = static_cast<int>(tensor.dim(2));
  params.head_stride = tensor.dim(2);
  params.token_stride = tensor.dim(1) * tensor.dim(2);
  params.is_signed = kind == AmaxKind::kSigned ? 1 : 0;
  params.amax = result->as<float>();
  ops.amax(params);
  ops.synchronize();
  float largest = 0;
  ops.download(&largest, *result, sizeof largest);
  return largest;
}

}  // namespace

std::function<std::optional<float>(const Tensor&)> amax_on(std::shared_ptr<Ops> ops,
                                                           AmaxKind kind) {
  return [ops = std::move(ops), kind](const Tensor& tensor) -> std::optional<float> {
    if (!is_served(tensor)) return std::nullopt;
    return amax(*ops, kind, tensor);
  };
}

}  // namespace attnbench
