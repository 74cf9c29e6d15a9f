"""vLLM's single operations, whoever computes them: what its Triton and its CUDA functions have in common.

LSEs: natural, [H, T]; a part that sees no key is -inf or +inf, a row that sees none -inf.
"""

from attnbench.adapter import Adapter
from attnbench.adapters import fp8


def find(module, name):
    """The function of vLLM's attention.ops, where this version has it."""
    from importlib import import_module

    try:
        found = import_module(f"vllm.v1.attention.ops.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm"):
            raise  # what the module imports
        found = import_module(f"vllm.attention.ops.{module}")
    return getattr(found, name)


class ReshapeAndCache(Adapter):
    """reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale,
    v_scale)"""

    packages = ("torch", "vllm")
    attention_types = ("op",)
    operations = ("reshape_and_cache",)
    features = ("fp8_kv",)
    kv = "paged"

    def supports(self, problem):
        return [*fp8.one_scale_only(problem)]

    def prepare(self, problem, tensors):
        import torch

        self.function = self.find()
        is_fp8 = tensors.k_scale is not None
        one = torch.ones(1, dtype=torch.float32, device=tensors.key.device)
        self.arguments = (
            tensors.key, tensors.value, self.as_given(tensors.key_cache),
            self.as_given(tensors.value_cache), tensors.slot_mapping,
            problem.kv_cache_dtype if is_fp8 else "auto",
            *((tensors.k_scale[:1], tensors.v_scale[:1]) if is_fp8 else (one, one)))  # fmt: skip

    def as_given(self, cache):
        """The cache in the type that the function expects."""
        return cache

    def run(self):
        self.function(*self.arguments)


class Merge(Adapter):
    """merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse, ...)"""

    packages = ("torch", "vllm")
    attention_types = ("op",)
    operations = ("merge",)
    dtypes = ("bfloat16", "float16", "float32")
    features = ("fp8_output",)  # a prefix of another head stride than the suffix is none of them
    lse = "natural"

    def prepare(self, problem, tensors):
        import torch

        self.function = self.find()
        self.arguments = (tensors.output, tensors.prefix_output, tensors.prefix_lse,
                          tensors.suffix_output, tensors.suffix_lse, tensors.lse)  # fmt: skip
        # Those that an older vLLM has not are left out where they say nothing.
        self.options = {}
        if problem.num_merged_tokens < problem.num_tokens:
            self.options["prefill_tokens_with_context"] = problem.num_merged_tokens
        if "fp8_output" in problem.features:
            self.options["output_scale"] = torch.tensor(
                [problem.output_scale], dtype=torch.float32, device=tensors.output.device
            )

    def run(self):
        self.function(*self.arguments, **self.options)
