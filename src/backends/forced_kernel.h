// A backend held to one of the attention kernels that it would choose from: what
// "FLASH_ATTN@prefill" names, so that two kernels can be compared case by case.
#pragma once

#include <string_view>

#include "backends/backend.h"

namespace attnbench {

/// `backend`, whose attention operations are all done by the kernel `kernel`; what merges, combines
/// and moves is as ever. It refuses the CPU, which has no kernels to choose from, and everything
/// where `backend` has kernels of its own. Where the kernel does not fit, its operation throws
/// E-UNSUPPORTED. The same object for the same arguments, as long as the process lives; `backend`,
/// which is not forced itself, must outlive its uses.
const Backend& with_forced_kernel(const Backend& backend, std::string_view kernel);

}  // namespace attnbench
