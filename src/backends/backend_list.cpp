#include "backends/backend_list.h"

#include "core/backend_name.h"

namespace attnbench {

std::string full_name(const Backend& backend) {
  return backend_name(backend.name(), backend.forced_kernel());
}

const std::vector<const Backend*>& all_backends() {
  static const std::vector<const Backend*> backends = [] {
    std::vector<const Backend*> list{&reference_backend(),
                                     &flash_attn_backend(),
                                     &flash_attn_ix_backend(),
                                     &triton_attn_backend(),
                                     &mla_backend(),
                                     &flashmla_backend(),
                                     &flash_attn_mla_backend(),
                                     &flashmla_sparse_backend()};
    list.insert(list.end(), mm_backends().begin(), mm_backends().end());
    list.push_back(&ops_backend());
    list.push_back(&cudnn_backend());
    return list;
  }();
  return backends;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace attnbench
