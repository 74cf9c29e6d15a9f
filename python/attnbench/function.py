"""A plain function of torch tensors as an adapter: attnbench.judge() derives a class from this one."""

import inspect

from attnbench.adapter import Adapter
from attnbench.adapters.torch_sdpa import equal_requests

_GIVEN = ("scale", "causal", "window_left", "window_right")


class FunctionAdapter(Adapter):
    """Calls `function` on views of the case's tensors, once or for each group of equal requests."""

    version = "1"
    packages = ("torch",)
    devices = ("cpu", "cuda")
    attention_types = ("decoder", "encoder", "encoder_only", "encoder_decoder", "mm_encoder")
    dtypes = ("float32", "float16", "bfloat16")
    function = None
    layout = "BHSD"

    def supports(self, problem):
        # A group without rows cannot be told from one without keys in a rectangular call.
        if self.layout != "paged" and problem.has_empty_rows():
            return "rows that see no key"
        if self.layout == "paged" and problem.kv_cache_layout != "NHD":
            return "kv_cache.layout HND"
        return None

    def prepare(self, problem, tensors):
        options = self.known_options(problem)
        if self.layout in ("ragged", "paged"):
            self.calls = [self.whole_batch(problem, tensors, options)]
        else:
            self.calls = [self.group(problem, tensors, run) + (options,)
                          for run in equal_requests(problem)]  # fmt: skip

    def known_options(self, problem):
        """Those keyword arguments that the function has by name. One with **kwargs gets none of them:
        what it hands on to may not know them."""
        try:
            names = inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # of an extension
            return {}
        options = {name: getattr(problem, name) for name in _GIVEN if name in names}
        if "problem" in names:
            options["problem"] = problem
        return options

    def whole_batch(self, problem, tensors, options):
        options = {**options, "cu_seqlens_q": tensors.query_start_loc}
        if self.layout == "paged":
            options.update(block_table=tensors.block_table, seq_lens=tensors.seq_lens)
            return tensors.query, tensors.key_cache, tensors.value_cache, options
        key_starts = tensors.key_start_loc.to(tensors.query_start_loc.dtype)  # int32, as kernels take it
        options.update(cu_seqlens_k=key_starts, max_seqlen_q=problem.max_query_len,
                       max_seqlen_k=problem.max_seq_len)  # fmt: skip
        return tensors.query, tensors.key, tensors.value, options

    def group(self, problem, tensors, run):
        """Query, key and value of requests of equal lengths."""
        count, query_len, seq_len, row, key = run
        rows, keys = slice(row, row + count * query_len), slice(key, key + count * seq_len)
        parts = [(tensors.query[rows], query_len), (tensors.key[keys], seq_len),
                 (tensors.value[keys], seq_len)]  # fmt: skip
        split = [part.unflatten(0, (count, length)) for part, length in parts]
        return tuple(part.transpose(1, 2) if self.layout == "BHSD" else part for part in split)

    def run(self):
        returned = [self.function(query, key, value, **options)
                    for query, key, value, options in self.calls]  # fmt: skip
        if self.lse is None:
            # Without a declared LSE a second value is something else, such as weights.
            return [self.tokens_first(one[0] if isinstance(one, tuple) else one) for one in returned]
        outputs, lses = zip(*returned)
        if self.layout not in ("ragged", "paged"):
            lses = [lse.transpose(0, 1) for lse in lses]  # [B, H, Q]: heads are first where it is judged
        return [self.tokens_first(output) for output in outputs], list(lses)

    def tokens_first(self, output):
        return output.transpose(1, 2) if self.layout == "BHSD" else output
