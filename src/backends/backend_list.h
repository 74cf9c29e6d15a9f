// The one list of backends, in the order of contract section 2: a line for each, which declares its
// function and puts it into all_backends().
#pragma once

#include "backends/backend.h"

// clang-format off
#define ATTNBENCH_BACKENDS(X)  \
  X(reference_backend)         \
  X(flash_attn_backend)        \
  X(flash_attn_ix_backend)     \
  X(triton_attn_backend)       \
  X(mla_backend)               \
  X(flashmla_backend)          \
  X(flash_attn_mla_backend)    \
  X(flashmla_sparse_backend)   \
  X(mm_torch_sdpa_backend)     \
  X(mm_flash_attn_backend)     \
  X(mm_triton_attn_backend)    \
  X(mm_flashinfer_backend)     \
  X(ops_backend)               \
  X(cudnn_backend)
// clang-format on

namespace attnbench {

#define ATTNBENCH_DECLARE_BACKEND(function) const Backend& function();
ATTNBENCH_BACKENDS(ATTNBENCH_DECLARE_BACKEND)
#undef ATTNBENCH_DECLARE_BACKEND

}  // namespace attnbench
