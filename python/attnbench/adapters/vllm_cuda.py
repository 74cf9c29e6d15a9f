"""vLLM's CUDA kernels for single operations, as vllm._custom_ops calls them."""

from attnbench.adapters import vllm_operations


class ReshapeAndCache(vllm_operations.ReshapeAndCache):
    """vLLM's CUDA reshape_and_cache_flash"""

    def find(self):
        from vllm import _custom_ops

        return _custom_ops.reshape_and_cache_flash

    def as_given(self, cache):
        import torch

        return cache.view(torch.uint8) if cache.element_size() == 1 else cache


class Merge(vllm_operations.Merge):
    """vLLM's CUDA merge_attn_states"""

    def supports(self, problem):
        # It moves 16 bytes at a time.
        if problem.head_size % (4 if problem.dtype == "float32" else 8):
            return "head_size not supported"
        return None

    def find(self):
        from vllm import _custom_ops

        return _custom_ops.merge_attn_states
