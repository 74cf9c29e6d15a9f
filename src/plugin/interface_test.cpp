// The layout of the C interface, which libraries that were built long ago rely on.
#include <doctest/doctest.h>

#include <cstddef>

#include "plugin/attnbench_backend.h"
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define HAS_DLPACK 1
#else
#define HAS_DLPACK 0
#endif

// Fields stay where version 1 of the plugin interface has them; new ones are added at the end.
static_assert(ATTNBENCH_ABI_VERSION == 2);

static_assert(sizeof(AttnbenchOperand) == 24);
static_assert(offsetof(AttnbenchOperand, name) == 0);
static_assert(offsetof(AttnbenchOperand, tensor) == 8);
static_assert(offsetof(AttnbenchOperand, is_output) == 16);

static_assert(sizeof(AttnbenchProblem) == 312);
static_assert(offsetof(AttnbenchProblem, struct_size) == 0);
static_assert(offsetof(AttnbenchProblem, type) == 4);
static_assert(offsetof(AttnbenchProblem, dtype) == 8);
static_assert(offsetof(AttnbenchProblem, device) == 12);
static_assert(offsetof(AttnbenchProblem, device_id) == 16);
static_assert(offsetof(AttnbenchProblem, sm) == 20);
static_assert(offsetof(AttnbenchProblem, num_sms) == 24);
static_assert(offsetof(AttnbenchProblem, num_heads) == 28);
static_assert(offsetof(AttnbenchProblem, num_kv_heads) == 32);
static_assert(offsetof(AttnbenchProblem, head_size) == 36);
static_assert(offsetof(AttnbenchProblem, v_head_size) == 40);
static_assert(offsetof(AttnbenchProblem, causal) == 44);
static_assert(offsetof(AttnbenchProblem, scale) == 48);
static_assert(offsetof(AttnbenchProblem, logits_soft_cap) == 56);
static_assert(offsetof(AttnbenchProblem, window_left) == 64);
static_assert(offsetof(AttnbenchProblem, window_right) == 72);
static_assert(offsetof(AttnbenchProblem, alibi) == 80);
static_assert(offsetof(AttnbenchProblem, batch_invariant) == 84);
static_assert(offsetof(AttnbenchProblem, features) == 88);
static_assert(offsetof(AttnbenchProblem, num_requests) == 96);
static_assert(offsetof(AttnbenchProblem, num_tokens) == 104);
static_assert(offsetof(AttnbenchProblem, num_keys) == 112);
static_assert(offsetof(AttnbenchProblem, max_query_len) == 120);
static_assert(offsetof(AttnbenchProblem, max_seq_len) == 128);
static_assert(offsetof(AttnbenchProblem, query_lens) == 136);
static_assert(offsetof(AttnbenchProblem, seq_lens) == 144);
static_assert(offsetof(AttnbenchProblem, kv_cache_dtype) == 152);
static_assert(offsetof(AttnbenchProblem, block_size) == 156);
static_assert(offsetof(AttnbenchProblem, num_blocks) == 160);
static_assert(offsetof(AttnbenchProblem, kv_cache_hnd) == 168);
static_assert(offsetof(AttnbenchProblem, num_mm_ranges) == 172);
static_assert(offsetof(AttnbenchProblem, common_prefix_len) == 176);
static_assert(offsetof(AttnbenchProblem, output_scale) == 184);
static_assert(offsetof(AttnbenchProblem, scenario) == 192);
static_assert(offsetof(AttnbenchProblem, case_name) == 200);
static_assert(offsetof(AttnbenchProblem, json) == 208);
static_assert(offsetof(AttnbenchProblem, num_threads) == 216);
static_assert(offsetof(AttnbenchProblem, operation) == 220);
static_assert(offsetof(AttnbenchProblem, topk) == 224);
static_assert(offsetof(AttnbenchProblem, reserved) == 228);
static_assert(offsetof(AttnbenchProblem, num_merged_tokens) == 232);

static_assert(offsetof(AttnbenchProblem, kv_lora_rank) == 240);
static_assert(offsetof(AttnbenchProblem, qk_nope_head_dim) == 244);
static_assert(offsetof(AttnbenchProblem, qk_rope_head_dim) == 248);
static_assert(offsetof(AttnbenchProblem, index_n_heads) == 252);
static_assert(offsetof(AttnbenchProblem, index_ue8m0) == 256);
static_assert(offsetof(AttnbenchProblem, int8_level) == 260);
static_assert(offsetof(AttnbenchProblem, rotary_dim) == 264);
static_assert(offsetof(AttnbenchProblem, is_neox) == 268);
static_assert(offsetof(AttnbenchProblem, is_raw) == 272);
static_assert(offsetof(AttnbenchProblem, lse_is_base_2) == 276);
static_assert(offsetof(AttnbenchProblem, output_quant) == 280);
static_assert(offsetof(AttnbenchProblem, scales_are_ue8m0) == 284);
static_assert(offsetof(AttnbenchProblem, scales_are_swizzled) == 288);
static_assert(offsetof(AttnbenchProblem, dcp_world_size) == 292);
static_assert(offsetof(AttnbenchProblem, dcp_comm) == 296);
static_assert(offsetof(AttnbenchProblem, amax_is_signed) == 300);
static_assert(offsetof(AttnbenchProblem, dcp_rank) == 304);
static_assert(offsetof(AttnbenchProblem, reserved2) == 308);

static_assert(sizeof(AttnbenchTensors) == 248);
static_assert(offsetof(AttnbenchTensors, struct_size) == 0);
static_assert(offsetof(AttnbenchTensors, reserved) == 4);
static_assert(offsetof(AttnbenchTensors, query) == 8);
static_assert(offsetof(AttnbenchTensors, output) == 16);
static_assert(offsetof(AttnbenchTensors, lse) == 24);
static_assert(offsetof(AttnbenchTensors, key) == 32);
static_assert(offsetof(AttnbenchTensors, value) == 40);
static_assert(offsetof(AttnbenchTensors, key_cache) == 48);
static_assert(offsetof(AttnbenchTensors, value_cache) == 56);
static_assert(offsetof(AttnbenchTensors, block_table) == 64);
static_assert(offsetof(AttnbenchTensors, query_start_loc) == 72);
static_assert(offsetof(AttnbenchTensors, seq_lens) == 80);
static_assert(offsetof(AttnbenchTensors, key_start_loc) == 88);
static_assert(offsetof(AttnbenchTensors, k_scale) == 96);
static_assert(offsetof(AttnbenchTensors, v_scale) == 104);
static_assert(offsetof(AttnbenchTensors, alibi_slopes) == 112);
static_assert(offsetof(AttnbenchTensors, sinks) == 120);
static_assert(offsetof(AttnbenchTensors, mm_prefix_ranges) == 128);
static_assert(offsetof(AttnbenchTensors, q_scale) == 136);
static_assert(offsetof(AttnbenchTensors, kv_cache) == 144);
static_assert(offsetof(AttnbenchTensors, topk_slots) == 152);
static_assert(offsetof(AttnbenchTensors, slot_mapping) == 160);
static_assert(offsetof(AttnbenchTensors, prefix_output) == 168);
static_assert(offsetof(AttnbenchTensors, prefix_lse) == 176);
static_assert(offsetof(AttnbenchTensors, suffix_output) == 184);
static_assert(offsetof(AttnbenchTensors, suffix_lse) == 192);

static_assert(offsetof(AttnbenchTensors, k_scale_cache) == 200);
static_assert(offsetof(AttnbenchTensors, v_scale_cache) == 208);
static_assert(offsetof(AttnbenchTensors, operands) == 216);
static_assert(offsetof(AttnbenchTensors, num_operands) == 224);
static_assert(offsetof(AttnbenchTensors, q_token_scale) == 232);
static_assert(offsetof(AttnbenchTensors, v_channel_scale) == 240);

static_assert(sizeof(AttnbenchHost) == 32);
static_assert(offsetof(AttnbenchHost, struct_size) == 0);
static_assert(offsetof(AttnbenchHost, reserved) == 4);
static_assert(offsetof(AttnbenchHost, context) == 8);
static_assert(offsetof(AttnbenchHost, stream) == 16);
static_assert(offsetof(AttnbenchHost, allocate) == 24);

static_assert(sizeof(AttnbenchBackend) == 120);
static_assert(offsetof(AttnbenchBackend, struct_size) == 0);
static_assert(offsetof(AttnbenchBackend, abi_version) == 4);
static_assert(offsetof(AttnbenchBackend, name) == 8);
static_assert(offsetof(AttnbenchBackend, version) == 16);
static_assert(offsetof(AttnbenchBackend, description) == 24);
static_assert(offsetof(AttnbenchBackend, user) == 32);
static_assert(offsetof(AttnbenchBackend, devices) == 40);
static_assert(offsetof(AttnbenchBackend, attention_types) == 44);
static_assert(offsetof(AttnbenchBackend, dtypes) == 48);
static_assert(offsetof(AttnbenchBackend, kv) == 52);
static_assert(offsetof(AttnbenchBackend, lse) == 56);
static_assert(offsetof(AttnbenchBackend, empty_rows) == 60);
static_assert(offsetof(AttnbenchBackend, features) == 64);
static_assert(offsetof(AttnbenchBackend, supports) == 72);
static_assert(offsetof(AttnbenchBackend, prepare) == 80);
static_assert(offsetof(AttnbenchBackend, run) == 88);
static_assert(offsetof(AttnbenchBackend, nondeterministic) == 104);
static_assert(offsetof(AttnbenchBackend, operations) == 108);
static_assert(offsetof(AttnbenchBackend, lse_axes) == 112);
static_assert(offsetof(AttnbenchBackend, reserved) == 116);
static_assert(offsetof(AttnbenchBackend, destroy) == 96);
TEST_CASE("a tensor lies in memory as a DLTensor of DLPack") {
  CHECK(offsetof(AttnbenchTensor, data) == 0);
  CHECK(offsetof(AttnbenchTensor, device) == 8);
  CHECK(offsetof(AttnbenchTensor, ndim) == 16);
  CHECK(offsetof(AttnbenchTensor, dtype) == 20);
  CHECK(offsetof(AttnbenchTensor, shape) == 24);
  CHECK(offsetof(AttnbenchTensor, strides) == 32);
  CHECK(offsetof(AttnbenchTensor, byte_offset) == 40);
  CHECK(sizeof(AttnbenchTensor) == 48);
#if HAS_DLPACK
  CHECK(offsetof(DLTensor, device) == offsetof(AttnbenchTensor, device));
  CHECK(offsetof(DLTensor, ndim) == offsetof(AttnbenchTensor, ndim));
  CHECK(offsetof(DLTensor, dtype) == offsetof(AttnbenchTensor, dtype));
  CHECK(offsetof(DLTensor, shape) == offsetof(AttnbenchTensor, shape));
  CHECK(offsetof(DLTensor, strides) == offsetof(AttnbenchTensor, strides));
  CHECK(offsetof(DLTensor, byte_offset) == offsetof(AttnbenchTensor, byte_offset));
  CHECK(sizeof(DLTensor) == sizeof(AttnbenchTensor));
#endif
}
