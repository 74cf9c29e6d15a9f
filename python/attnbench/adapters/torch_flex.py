"""torch.nn.attention.flex_attention: the batch as one packed sequence with a block mask.

Compiled by torch.compile on a GPU; on the CPU it runs as it is, for tests. LSE: natural. Output and LSE
are new tensors, whose copy is not timed.
"""

from attnbench.adapter import Adapter


class Flex(Adapter):
    """torch.nn.attention.flex_attention of a packed batch, compiled where there is a GPU"""

    packages = ("torch",)
    devices = ("cpu", "cuda")
    attention_types = ("decoder", "encoder", "encoder_only", "encoder_decoder", "mm_encoder")
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

        device = tensors.query.device
        packed = lambda rows: rows.transpose(0, 1)[None]  # [T, H, D] -> [1, H, T, D]
        self.arguments = [packed(t) for t in (tensors.query, tensors.key, tensors.value)]
        lens = lambda values: torch.tensor(values, device=device)
        requests = torch.arange(problem.num_requests, device=device)
        query_lens, seq_lens = lens(problem.query_lens), lens(problem.seq_lens)
        self.query_request = requests.repeat_interleave(query_lens)
        self.key_request = requests.repeat_interleave(seq_lens)
        starts = lambda values: values.cumsum(0) - values
        rows = torch.arange(problem.num_tokens, device=device)
        keys = torch.arange(problem.num_keys, device=device)
        own = self.query_request
        self.query_position = rows + (seq_lens - query_lens - starts(query_lens))[own]
        self.key_position = keys - starts(seq_lens)[self.key_request]
        self.options = {
            "block_mask": create_block_mask(self.mask_of(problem), None, None, problem.num_tokens,
                                            problem.num_keys, device=device),
            "score_mod": self.bias_of(problem, tensors.alibi_slopes),
            "scale": problem.scale,
            "enable_gqa": problem.num_kv_heads < problem.num_heads,
            **self.lse_option(),
        }  # fmt: skip
        self.function = flex_attention
        if device.type == "cuda":
            self.function = torch.compile(flex_attention, dynamic=False)
            self.run()

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
        return output[0].transpose(0, 1), lse[0]
