#include "backends/attention/capability.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

Capability flash_attn() {
  Capability c;
  c.name = "FLASH_ATTN";
  c.dtypes = {Dtype::kF16, Dtype::kBF16};
  c.kv_dtypes = {kAuto, kFloat16, kBFloat16, kFp8, kFp8E4M3};
  c.min_sm_fp8_kv = 90;
  c.head_size_multiple = 8;
  c.max_head_size = 256;
  c.min_sm = 80;
  c.min_sm_sinks = 90;
  c.min_sm_per_head_scales = 90;
  c.cascade = true;
  c.lse_for_dcp = true;
  c.non_causal_decoder = true;
  c.fp8_query = true;
  c.encoder_soft_cap_and_alibi = true;
  return c;
}

Capability flash_attn_ix() {
  Capability c = flash_attn();
  c.name = "FLASH_ATTN_IX";
  c.is_ixformer = true;
  c.kv_dtypes = {kAuto, kBFloat16, kFp8, kFp8E4M3};
  c.min_sm_fp8_kv = 89;
  c.block_sizes = {{16, false}, {32, false}, {64, false}};
  c.alibi_sqrt = true;
  c.non_causal_decoder = false;
  // Which kernel computes a row depends on the rest of its batch (§1.6).
  c.batch_invariant = false;
  return c;
}

Capability triton_attn() {
  Capability c;
  c.name = "TRITON_ATTN";
  c.dtypes = {Dtype::kF16, Dtype::kBF16, Dtype::kF32};
  c.kv_dtypes = {kAuto,    kFloat16, kBFloat16,         kFp8,
                 kFp8E4M3, kFp8E5M2, kInt8PerTokenHead, kFp8PerTokenHead};
  c.min_head_size = 32;
  c.min_sm_per_head_scales = -1;
  c.mm_prefix = true;
  c.alibi_sqrt = true;
  c.static_fp8_output = true;
  return c;
}

}  // namespace

const Capability& flash_attn_capability() {
  static const Capability capability = flash_attn();
  return capability;
}
const Capability& flash_attn_ix_capability() {
  static const Capability capability = flash_attn_ix();
  return capability;
}
const Capability& triton_attn_capability() {
  static const Capability capability = triton_attn();
  return capability;
}

}  // namespace attnbench
