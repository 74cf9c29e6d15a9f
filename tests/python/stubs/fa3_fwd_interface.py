"""A stub of the package fa3-fwd: one function of FlashAttention-3 under another name."""

from flash_attn_interface import flash_attn_varlen_func

__all__ = ["flash_attn_varlen_func"]
