"""torch.nn.attention.flex_attention: a batch of equal requests as [B, H, Q, D], any other as one packed
sequence with a block mask.

Compiled by torch.compile on a GPU; on the CPU it runs as it is, for tests. LSE: natural. Output and LSE
are new tensors, whose copy is not timed.
"""

from attnbench.adapter import Adapter
from attnbench.adapters.torch_sdpa import ALL_TYPES, equal_requests


def compile_every_case():
    """Of a function that was compiled for eight cases torch.compile runs all later ones uncompiled, which
    is slow and waits for the stream."""
    import torch

    for limit in ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit",
                  "accumulated_cache_size_limit"):  # fmt: skip
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 1 << 20)


class Flex(Adapter):
    """torch.nn.attention.flex_attention, compiled where there is a GPU"""

    packages = ("torch",)
    devices = ("cpu", "cuda")
    attention_types = ALL_TYPES
    dtypes = ("float32", "bfloat16", "float16")
    features = ("causal", "non_causal", "gqa", "sliding_window", "soft_cap", "alibi")
    lse = "natural"

    def supports(self, problem):
        if problem.device == "cuda" and problem.head_size & (problem.head_size - 1):
            return "head_size no power of two"
        return None

    def prepare(self, problem, tensors):
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        runs = equal_requests(problem)
        is_equal = len(runs) == 1 and runs[0][0] == problem.num_requests
        self.batch, query_lens, seq_lens = 1, problem.query_lens, problem.seq_lens
        if is_equal:  # all have the positions of the first
            self.batch, query_lens, seq_lens = runs[0][0], query_lens[:1], seq_lens[:1]
        device = tensors.query.device
        self.arguments = [self.heads_first(t) for t in (tensors.query, tensors.key, tensors.value)]
        self.set_positions(*(torch.tensor(lens, device=device) for lens in (query_lens, seq_lens)))
        self.options = {
            "block_mask": create_block_mask(self.mask_of(problem), None, None,
                                            len(self.query_position), len(self.key_position),
                                            device=device),
            "score_mod": self.bias_of(problem, tensors.alibi_slopes),
            "scale": problem.scale,
            "enable_gqa": problem.num_kv_heads < problem.num_heads,
            **self.lse_option(),
        }  # fmt: skip
        self.function = flex_attention
        if device.type == "cuda":
            compile_every_case()
            self.function = torch.compile(flex_attention, dynamic=False)
            self.run()

    def heads_first(self, rows):
        """[B * L, H, D] -> [B, H, L, D]"""
        return rows.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def set_positions(self, query_lens, seq_lens):
        """Request and position of each row of the query and of the keys."""
        import torch

        requests = torch.arange(len(query_lens), device=query_lens.device)
        self.query_request = requests.repeat_interleave(query_lens)
        self.key_request = requests.repeat_interleave(seq_lens)
        starts = lambda lens: lens.cumsum(0) - lens
        rows = torch.arange(len(self.query_request), device=query_lens.device)
        keys = torch.arange(len(self.key_request), device=query_lens.device)
        last = seq_lens - query_lens - starts(query_lens)
        self.query_position = rows + last[self.query_request]
        self.key_position = keys - starts(seq_lens)[self.key_request]

    @staticmethod
    def lse_option():
        try:
            from torch.nn.attention.flex_attention import AuxRequest
        except ImportError:
            return {"return_lse": True}
        return {"return_aux": AuxRequest(lse=True)}

    def mask_of(self, problem):
        """A function that says whether a query sees a key. The causal rule is in window_right."""
        query_request, key_request = self.query_request, self.key_request
        query_position, key_position = self.query_position, self.key_position
        left, right = problem.window_left, problem.window_right

        def seen(batch, head, row, key):
            result = query_request[row] == key_request[key]
            if left >= 0:
                result = result & (key_position[key] >= query_position[row] - left)
            if right >= 0:
                result = result & (key_position[key] <= query_position[row] + right)
            return result

        return seen

    def bias_of(self, problem, slopes):
        """A function that changes scores, or None."""
        import torch

        cap, is_distance = problem.logits_soft_cap, problem.alibi == "distance"
        query_position, key_position = self.query_position, self.key_position
        if cap == 0 and slopes is None:
            return None

        def biased(score, batch, head, row, key):
            if cap > 0:
                score = cap * torch.tanh(score / cap)
            if slopes is None:
                return score
            if is_distance:
                return score - slopes[head] * (query_position[row] - key_position[key]).abs()
            return score + slopes[head] * key_position[key]

        return biased

    def run(self):
        output, aux = self.function(*self.arguments, **self.options)
        lse = getattr(aux, "lse", aux)
        return output.transpose(1, 2), lse.transpose(0, 1)
