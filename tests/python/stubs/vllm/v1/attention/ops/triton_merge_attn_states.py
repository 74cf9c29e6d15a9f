"""A stub with the signature and conventions of vLLM's merge in Triton."""

from stub_attention import merge_attn_states  # noqa: F401
