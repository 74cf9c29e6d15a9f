// The one list of backends.
#pragma once

#include "backends/backend.h"

namespace attnbench {

const Backend& flash_attn_backend();
const Backend& flash_attn_ix_backend();
const Backend& triton_attn_backend();
const Backend& mla_backend();
const Backend& flashmla_backend();
const Backend& flash_attn_mla_backend();
const Backend& flashmla_sparse_backend();
const Backend& reference_backend();
/// MM_TORCH_SDPA, MM_FLASH_ATTN, MM_TRITON_ATTN, MM_FLASHINFER.
const std::vector<const Backend*>& mm_backends();

const Backend& ops_backend();
const Backend& cudnn_backend();

}  // namespace attnbench
