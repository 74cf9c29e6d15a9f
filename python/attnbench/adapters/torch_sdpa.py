"""torch.nn.functional.scaled_dot_product_attention, one adapter for each of its backends.

Requests of the same lengths that follow each other are one call, so a batch of equal requests is one
and a mixed batch several. It gives no LSE. Its output is a new tensor, whose copy is not timed.
"""

from attnbench.adapter import Adapter

ALL_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder", "mm_encoder")


def equal_requests(problem):
    """(count, query_len, seq_len, first row, first key) of runs of requests with equal lengths."""
    runs = []
    for query_len, seq_len, row, key in problem.requests():
        if query_len == 0:
            continue
        if runs and runs[-1][1:3] == [query_len, seq_len]:
            count, _, _, first_row, first_key = runs[-1]
            if row == first_row + count * query_len and key == first_key + count * seq_len:
                runs[-1][0] += 1
                continue
        runs.append([1, query_len, seq_len, row, key])
    return runs


class Sdpa(Adapter):
    """What the backends have in common."""

    packages = ("torch",)
    devices = ("cuda",)
    attention_types = ALL_TYPES
    features = ("causal", "non_causal", "gqa", "sliding_window", "v_head_size")
    backend = ""  # a name of torch.nn.attention.SDPBackend
    takes_mask = True

    def supports(self, problem):
        if problem.has_empty_rows():
            return "rows that see no key"  # softmax over nothing: NaN
        if not self.takes_mask and problem.has_window:
            return f"sliding window with {self.backend}"
        return None

    def prepare(self, problem, tensors):
        from torch.nn.attention import SDPBackend

        self.backends = [getattr(SDPBackend, self.backend)]
        self.calls = [self.call_of(problem, tensors, run) for run in equal_requests(problem)]

    def call_of(self, problem, tensors, run):
        """Arguments of a call for requests of equal lengths."""
        count, query_len, seq_len, row, key = run
        heads_first = lambda rows, length: rows.unflatten(0, (count, length)).transpose(1, 2)
        options = {"scale": problem.scale}
        if problem.num_kv_heads < problem.num_heads:
            options["enable_gqa"] = True
        options.update(self.mask(problem, query_len, seq_len, tensors.query.device))
        keys = slice(key, key + count * seq_len)
        return (heads_first(tensors.query[row : row + count * query_len], query_len),
                heads_first(tensors.key[keys], seq_len),
                heads_first(tensors.value[keys], seq_len), options)  # fmt: skip

    def mask(self, problem, query_len, seq_len, device):
        """Options for the causal rule, which is aligned at the last key, and windows."""
        import torch

        if not problem.has_window:
            if not problem.causal or query_len == 1:
                return {}
            if query_len == seq_len:
                return {"is_causal": True}
            if not self.takes_mask:
                from torch.nn.attention.bias import causal_lower_right

                return {"attn_mask": causal_lower_right(query_len, seq_len)}
        position = torch.arange(seq_len - query_len, seq_len, device=device)[:, None]
        key = torch.arange(seq_len, device=device)[None, :]
        seen = torch.ones(query_len, seq_len, dtype=torch.bool, device=device)
        if problem.window_left >= 0:
            seen &= key >= position - problem.window_left
        if problem.window_right >= 0:
            seen &= key <= position + problem.window_right
        return {"attn_mask": seen}

    def run(self):
        from torch.nn.attention import sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with sdpa_kernel(self.backends):
            return [scaled_dot_product_attention(query, key, value, **options).transpose(1, 2)
                    for query, key, value, options in self.calls]  # fmt: skip


class Math(Sdpa):
    """torch scaled_dot_product_attention with SDPBackend.MATH"""

    backend = "MATH"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16", "float16")


class Flash(Sdpa):
    """torch scaled_dot_product_attention with SDPBackend.FLASH_ATTENTION (FlashAttention-2)"""

    backend = "FLASH_ATTENTION"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16", "float16")
    features = ("causal", "non_causal", "gqa")
    takes_mask = False

    def supports(self, problem):
        if problem.device == "cuda" and problem.dtype == "float32":
            return "dtype float32 with FLASH_ATTENTION on CUDA"
        extends = any(1 < q < s for q, s in zip(problem.query_lens, problem.seq_lens))
        if problem.device == "cpu" and problem.causal and extends:
            return "causal extends with FLASH_ATTENTION on the CPU"
        return super().supports(problem)


class Efficient(Sdpa):
    """torch scaled_dot_product_attention with SDPBackend.EFFICIENT_ATTENTION (memory-efficient)"""

    backend = "EFFICIENT_ATTENTION"
    dtypes = ("float32", "bfloat16", "float16")
    features = ("causal", "non_causal", "sliding_window", "v_head_size")


class Cudnn(Sdpa):
    """torch scaled_dot_product_attention with SDPBackend.CUDNN_ATTENTION"""

    backend = "CUDNN_ATTENTION"
    deterministic = False  # cuDNN's decodes differ in their last bits from run to run
