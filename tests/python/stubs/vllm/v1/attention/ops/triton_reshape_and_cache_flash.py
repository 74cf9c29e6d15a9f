"""A stub with the signature and conventions of vLLM's cache write in Triton."""

import stub_attention as stub
import torch


def triton_reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype,
                                   k_scale, v_scale, interleaved_v_pack_factor=0):  # fmt: skip
    stub.check(key_cache.dim() == 4, "not of another layout")
    stub.check(kv_cache_dtype == "auto" or key_cache.dtype == torch.float8_e4m3fn, "fp8_dtype()")
    stub.write_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale,
                     v_scale)  # fmt: skip
