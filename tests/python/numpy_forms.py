"""Forms of attention beside the plain one, and operations with operands by name, in numpy as backends:
prefills of MLA, ranks, int8, scales by token and head, encoders. Some are faulty."""

import numpy as np


def as_tensor(array):
    import torch

    return array.view(torch.Tensor)


def attend(query, key, value, problem):
    """[T, H, D], [S, Hk, D], [S, Hk, Dv] -> output, lse [H, T], in float32."""
    query, key, value = (np.asarray(x, np.float32) for x in (query, key, value))
    num_tokens, num_heads, _ = query.shape
    output = np.zeros((num_tokens, num_heads, value.shape[2]), np.float32)
    lse = np.full((num_heads, num_tokens), -np.inf, np.float32)
    group = num_heads // key.shape[1]
    for query_len, seq_len, row, first in problem.requests():
        for i in range(query_len):
            seen = seq_len - query_len + i + 1 if problem.causal else seq_len
            if seen <= 0:
                continue
            for head in range(num_heads):
                keys = key[first : first + seen, head // group]
                scores = keys @ query[row + i, head] * np.float32(problem.scale)
                weights = np.exp(scores - scores.max())
                lse[head, row + i] = scores.max() + np.log(weights.sum())
                values = value[first : first + seen, head // group]
                output[row + i, head] = weights @ values / weights.sum()
    return output, lse


class Form:
    version = "1"
    devices = ("cpu",)
    attention_types = ("decoder",)
    dtypes = ("float16",)
    lse = "natural"

    def prepare(self, problem, tensors):
        self.problem, self.tensors = problem, tensors

    def operands(self):
        return self.tensors.query, self.tensors.key, self.tensors.value

    def run(self):
        self.tensors.output[...], self.tensors.lse[...] = attend(*self.operands(), self.problem)


class Returned:
    """The same, in tensors of its own."""

    def run(self):
        output, lse = attend(*self.operands(), self.problem)
        return as_tensor(output.astype(self.tensors.output.dtype)), as_tensor(lse)


class Prefill(Form):
    attention_types = ("mla_prefill",)
    features = ("causal", "non_causal", "v_head_size")


class PrefillReturned(Returned, Prefill):
    pass


class PrefillWithoutLse(Prefill):
    def run(self):
        super().run()
        if not self.problem.causal:
            self.tensors.lse[...] = 0


class Paged(Form):
    kv = "paged"
    features = ("causal", "gqa")

    def rows(self, cache, scale=None):
        """[S, Hk, D] of what the block table names."""
        p, rows = self.problem, []
        for seq_len, blocks in zip(p.seq_lens, self.tensors.block_table):
            used = blocks[: -(-seq_len // p.block_size)]
            cells = np.asarray(cache, np.float32)[used]
            if scale is not None:
                cells = cells * np.asarray(scale)[used][..., None]
            rows.append(cells.reshape(-1, *cells.shape[2:])[:seq_len])
        return np.concatenate(rows)

    def operands(self):
        t = self.tensors
        return t.query, self.rows(t.key_cache), self.rows(t.value_cache)


class Rank(Paged):
    features = ("dcp", "non_causal", "gqa")


class RankReturned(Returned, Rank):
    pass


class RankWithoutTheLast(Rank):
    """as if the last one had no keys"""

    def run(self):
        super().run()
        if self.problem.dcp_rank + 1 == self.problem.dcp_world_size:
            self.tensors.lse[...] = -np.inf
            self.tensors.output[...] = 0


class Int8(Paged):
    features = ("causal", "gqa", "int8_codes")

    def operands(self):
        t = self.tensors
        query = np.asarray(t.query, np.float32) * np.asarray(t.q_token_scale)[..., None]
        value = self.rows(t.value_cache)
        if self.problem.int8_level == 1:
            value = value * np.asarray(t.v_channel_scale)
        return query, self.rows(t.key_cache, t.k_scale_cache), value


class TokenHead(Paged):
    kv = "paged_interleaved"
    features = ("causal", "gqa", "token_head_kv")

    def operands(self):
        t = self.tensors
        return (
            t.query,
            self.rows(t.key_cache, t.k_scale_cache),
            self.rows(t.value_cache, t.v_scale_cache),
        )


class Encoder(Form):
    attention_types = ("mm_encoder",)
    features = ("non_causal", "gqa")


class EncoderReturned(Returned, Encoder):
    pass


class Operation:
    version = "1"
    devices = ("cpu",)
    attention_types = ("op",)
    dtypes = ("float32", "float16")

    def prepare(self, problem, tensors):
        self.problem, self.operand = problem, tensors.operands


class Gather(Operation):
    operations = ("gather",)
    features = ("latents", "v_head_size")

    def run(self):
        o, size = self.operand, self.problem.block_size
        for token, request in enumerate(o["token_to_seq"]):
            start = o["cu_seq_lens"][request]
            if token >= o["cu_seq_lens"][-1]:
                continue
            place = token - start + o["seq_starts"][request]
            block = o["block_table"][request, place // size]
            o["output"][token] = o["kv_cache"][block, place % size]


class Rope(Operation):
    operations = ("rope",)

    def run(self):
        o, half = self.operand, self.problem.rotary_dim // 2
        for heads, position in zip(np.asarray(o["output"]), o["positions"]):
            cos, sin = np.split(np.asarray(o["cos_sin_cache"])[position], 2)
            x, y = heads[:, :half].copy(), heads[:, half : 2 * half].copy()
            heads[:, :half] = x * cos - y * sin
            heads[:, half : 2 * half] = y * cos + x * sin


class Correct(Operation):
    """of all-to-all"""

    operations = ("dcp_correct",)

    def run(self):
        o = self.operand
        lse = np.asarray(o["partial_lse"], np.float32).transpose(0, 2, 1)  # [W, T, H]
        lse = np.where(np.isfinite(lse), lse, -np.inf)
        most = np.where(np.isneginf(lse.max(0)), 0, lse.max(0))
        weights = np.exp(lse - most)
        total = weights.sum(0)
        part = np.where(weights[..., None] > 0, np.asarray(o["partial_output"], np.float32), 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            output = (weights[..., None] * part).sum(0) / total[..., None]
            o["lse"][...] = (most + np.log(total)).T
        o["output"][...] = np.where(total[..., None] > 0, output, 0)


class CorrectUnweighted(Correct):
    def run(self):
        super().run()
        self.operand["output"][...] = np.nan_to_num(self.operand["partial_output"]).mean(0)


class Slices(Operation):
    """of a batch whose requests of one token are decodes"""

    operations = ("metadata",)

    def starts(self, starts):
        return starts - starts[0]

    def run(self):
        o = self.operand
        lens, seq_lens = np.diff(o["query_start_loc"]), o["seq_lens"]
        first = int(np.argmax(lens > 1)) if (lens > 1).any() else len(lens)
        decodes, prefills = slice(0, first), slice(first, None)
        tokens = o["query_start_loc"][first]
        o["batch_split"][...] = (
            first, len(lens) - first, tokens, o["query_start_loc"][-1] - tokens,
            max(lens[decodes], default=0), max(seq_lens[decodes], default=0),
            first == len(lens), max(lens) if first < len(lens) else 0,
        )  # fmt: skip
        o["decode_query_start_loc"][...] = o["query_start_loc"][: first + 1]
        o["decode_seq_lens"][...] = seq_lens[decodes]
        o["prefill_query_start_loc"][...] = self.starts(o["query_start_loc"][first:])
        keys = np.concatenate([[0], np.cumsum(seq_lens)])
        o["prefill_key_start_loc"][...] = self.starts(keys[first:])
        for prefix, table in (("", "block_table"), ("updated_", "new_block_table")):
            o[prefix + "decode_block_table"][...] = o[table][decodes].ravel()
            o[prefix + "prefill_block_table"][...] = o[table][prefills].ravel()
        o["updated_slot_mapping"][...] = o["new_slot_mapping"]


class SlicesOfTheBatch(Slices):
    def starts(self, starts):
        return starts
