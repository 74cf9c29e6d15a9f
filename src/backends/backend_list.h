// The one list of backends, in the order of contract section 2, which is the order of tables, of
// JSON and of `attnbench list`.
//
// Each line names a function `const Backend& foo_backend()`, declares it here and puts its result
// into all_backends(). That is why the files that define these functions (attention/flash_attn.cpp,
// mla/backends.cpp, encoder/backends.cpp, op/backend.cpp ...) have no header of their own: each of
// them is the realisation of one or more lines of this table, and whoever calls one of them
// includes this table. A backend is one object that lives as long as the process; its function
// makes it at the first call, so that the order of static initialisation plays no part.
//
// To add a backend: its file with the function, and a line here. A backend that is missing its
// function does not link.
#pragma once

#include "backends/backend.h"

// clang-format off
#define ATTNBENCH_BACKENDS(X)         \
  X(reference_backend)                \
  X(flash_attn_backend)               \
  X(flash_attn_ix_backend)            \
  X(triton_attn_backend)              \
  X(turboquant_backend)               \
  X(mla_backend)                      \
  X(flashmla_backend)                 \
  X(flash_attn_mla_backend)           \
  X(flashmla_sparse_backend)          \
  X(cutlass_mla_backend)              \
  X(flashinfer_mla_sparse_backend)    \
  X(mm_torch_sdpa_backend)            \
  X(mm_flash_attn_backend)            \
  X(mm_triton_attn_backend)           \
  X(mm_flashinfer_backend)            \
  X(ops_backend)                      \
  X(cudnn_backend)
// clang-format on

namespace attnbench {

#define ATTNBENCH_DECLARE_BACKEND(function) const Backend& function();
ATTNBENCH_BACKENDS(ATTNBENCH_DECLARE_BACKEND)
#undef ATTNBENCH_DECLARE_BACKEND

}  // namespace attnbench
