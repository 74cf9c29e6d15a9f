#include "backends/backend_list.h"

namespace attnbench {

const std::vector<const Backend*>& all_backends() {
  static const std::vector<const Backend*> backends{&reference_backend(),
                                                    &flash_attn_backend(),
                                                    &flash_attn_ix_backend(),
                                                    &triton_attn_backend(),
                                                    &mla_backend(),
                                                    &flashmla_backend(),
                                                    &flash_attn_mla_backend(),
                                                    &flashmla_sparse_backend()};
  return backends;
}

const Backend* find_backend(std::string_view name) {
  for (const Backend* backend : all_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace attnbench
