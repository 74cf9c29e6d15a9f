// Rules for tests, as the backends of vLLM and ixformer have them.
#pragma once

#include "metadata/mask/kernel_rules.h"

namespace attnbench {

inline constexpr KernelRules kFlashRules{.quantises_query = true};
inline constexpr KernelRules kFlashIxRules{.window = EncoderWindowRule::kOneSided};
inline constexpr KernelRules kTritonRules{.alibi = LinearAlibiRule::kContextRelative,
                                          .honours_e5m2_as_e4m3 = true,
                                          .rounds_dequantised = true};

}  // namespace attnbench
