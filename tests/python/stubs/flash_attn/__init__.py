"""A stub with the modules of FlashAttention-2."""

from flash_attn.flash_attn_interface import flash_attn_varlen_func
