"""Attention in numpy as a backend, and classes around it, of which some are faulty."""

import ctypes
import sys
import time

import numpy as np


class Right:
    """attention in numpy"""

    version = "1.5"
    devices = ("cpu",)
    attention_types = ("decoder", "encoder_decoder")
    dtypes = ("float32",)
    features = ("causal", "non_causal", "gqa")
    lse = "natural"

    def prepare(self, problem, tensors):
        self.problem, self.tensors = problem, tensors

    def attend(self):
        p, t = self.problem, self.tensors
        output = np.zeros(t.output.shape, np.float32)
        lse = np.full((p.num_heads, p.num_tokens), -np.inf, np.float32)
        group = p.num_heads // p.num_kv_heads
        for query_len, seq_len, row, key in p.requests():
            for i in range(query_len):
                seen = seq_len - query_len + i + 1 if p.causal else seq_len
                if seen <= 0:
                    continue
                for head in range(p.num_heads):
                    keys = t.key[key : key + seen, head // group]
                    scores = keys @ t.query[row + i, head] * p.scale
                    most = scores.max()
                    weights = np.exp(scores - most)
                    lse[head, row + i] = most + np.log(weights.sum())
                    values = t.value[key : key + seen, head // group]
                    output[row + i, head] = weights @ values / weights.sum()
        return output, lse

    def run(self):
        self.tensors.output[...], self.tensors.lse[...] = self.attend()


class WrongRow(Right):
    """a mistake in one row of the prompt, for one head"""

    def attend(self):
        output, lse = super().attend()
        for query_len, _, row, _ in self.problem.requests():
            if query_len == 32:
                output[row + 7, 1] *= 1.5
        return output, lse


def as_tensor(array):
    import torch

    return array.view(torch.Tensor)


class Paged(Right):
    kv = "paged"

    def attend(self):
        p, t = self.problem, self.tensors
        key, value = [], []
        for length, blocks in zip(p.seq_lens, t.block_table):
            used = blocks[: -(-length // p.block_size)]
            for cache, rows in ((t.key_cache, key), (t.value_cache, value)):
                rows.append(cache[used].reshape(-1, p.num_kv_heads, p.head_size)[:length])
        t.key, t.value = np.concatenate(key), np.concatenate(value)
        return super().attend()


class Returns(Right):
    def run(self):
        output, lse = self.attend()
        return as_tensor(output), as_tensor(lse)


class ReturnsParts(Right):
    def run(self):
        output, lse = self.attend()
        return [as_tensor(output[:1]), as_tensor(output[1:])[None]], as_tensor(lse)


class ReturnsItsOwn(Right):
    """as a kernel with out= does"""

    def run(self):
        super().run()
        return self.tensors.output, self.tensors.lse


class WritesOutput(Right):
    def run(self):
        self.tensors.output[...], lse = self.attend()
        return None, as_tensor(lse)


class Turned(Right):
    lse_axes = "TH"

    def run(self):
        output, lse = self.attend()
        return as_tensor(output), as_tensor(lse.T.copy())


class WritesTurned(Right):
    lse_axes = "TH"

    def prepare(self, problem, tensors):
        super().prepare(problem, tensors)
        if not tensors.lse.T.flags["C_CONTIGUOUS"]:
            raise ValueError("a token's heads are not side by side")


class SaysTurned(Returns):
    lse_axes = "TH"


class SaysStraight(Turned):
    lse_axes = "HT"


class Base2(Right):
    lse = "base_2"

    def attend(self):
        output, lse = super().attend()
        return output, lse / np.float32(np.log(2))


class SaysNatural(Base2):
    lse = "natural"


class SaysBase2(Right):
    lse = "base_2"


class PlusInf(Right):
    empty_rows = "+inf"

    def attend(self):
        output, lse = super().attend()
        return output, np.where(np.isneginf(lse), np.inf, lse)


class SaysMinusInf(PlusInf):
    empty_rows = "-inf"


class SaysPlusInf(Right):
    empty_rows = "+inf"


class Wrong(Right):
    def attend(self):
        output, lse = super().attend()
        output[-1, -1, -1] += 1
        return output, lse


class Remembers(Right):
    def attend(self):
        self.first = getattr(self, "first", None) or super().attend()
        return self.first


class Unwritten(Returns):
    def prepare(self, problem, tensors):
        super().prepare(problem, tensors)
        self.output = None

    def run(self):
        output, lse = self.attend()
        if self.output is None:
            self.output = as_tensor(output)
        self.output[:-1] = output[:-1]
        return self.output, as_tensor(lse)


class PastTheEnd(Right):
    def run(self):
        super().run()
        output = self.tensors.output
        ctypes.memset(output.ctypes.data + output.nbytes + 3 * output[0].nbytes, 0, 1)


class Refuses(Right):
    def supports(self, problem):
        return [
            "no luck with %d heads" % problem.num_heads,
            "nor " + problem.json["kv_cache"]["layout"],
        ]


class RaisesInSupports(Right):
    def supports(self, problem):
        raise ValueError("no answer")


class RaisesInPrepare(Right):
    def prepare(self, problem, tensors):
        raise ValueError("no plan")


class RaisesInRun(Right):
    def run(self):
        return {}["no key"]


class Leaves(Right):
    def run(self):
        sys.exit(3)


class Crashes(Right):
    def run(self):
        ctypes.string_at(0)


class Hangs(Right):
    def run(self):
        time.sleep(3600)


class WrongShape(Right):
    def run(self):
        output, lse = self.attend()
        return as_tensor(output[:, :1]), as_tensor(lse)


class ReturnsLazily(Right):
    """what it returns computes when it is looked at"""

    def run(self):
        import torch

        attend = self.attend

        class Lazy(torch.Tensor):
            def flatten(self, first, last):
                self[...], _ = attend()
                return super().flatten(first, last)

        return np.empty_like(self.tensors.output).view(Lazy)


class ReturnsLazyPair(Right):
    def run(self):
        attend = self.attend

        class Lazy(tuple):
            def __iter__(self):
                return iter([as_tensor(part) for part in attend()])

        return Lazy((None, None))


class RemembersLater(Right):
    """from the tenth run on, what the tenth gave"""

    def run(self):
        self.runs = getattr(self, "runs", 0) + 1
        if self.runs <= 10:
            self.first = self.attend()
        self.tensors.output[...], self.tensors.lse[...] = self.first


class Prints(Right):
    def run(self):
        print("run() was here")
        super().run()


class NeedsPackage(Right):
    packages = ("there_is_no_such_package",)


class Latents(Right):
    """over the latents of MLA"""

    attention_types = ("mla",)
    dtypes = ("float16",)
    features = ("causal", "mla_topk")

    def slots(self, request, seen, row):
        p, t = self.problem, self.tensors
        if p.topk:
            return t.topk_slots[row][t.topk_slots[row] >= 0]
        places = np.arange(seen)
        return t.block_table[request][places // p.block_size] * p.block_size + places % p.block_size

    def attend(self):
        p, t = self.problem, self.tensors
        entries = t.kv_cache.reshape(-1, p.head_size)
        output = np.zeros(t.output.shape, np.float16)
        lse = np.full((p.num_heads, p.num_tokens), -np.inf, np.float32)
        for request, (query_len, seq_len, row, _) in enumerate(p.requests()):
            for i in range(query_len):
                slots = self.slots(request, seq_len - query_len + i + 1, row + i)
                if len(slots) == 0:
                    continue
                keys = entries[slots].astype(np.float32)
                scores = t.query[row + i].astype(np.float32) @ keys.T * p.scale
                most = scores.max(-1, keepdims=True)
                weights = np.exp(scores - most)
                lse[:, row + i] = (most[:, 0] + np.log(weights.sum(-1))).astype(np.float32)
                weights /= weights.sum(-1, keepdims=True)
                output[row + i] = weights @ keys[:, : p.v_head_size]
        return output, lse


class LatentsReturned(Latents):
    def run(self):
        output, lse = self.attend()
        return as_tensor(output), as_tensor(lse)


class LatentsUnwritten(Latents):
    def run(self):
        output, lse = self.attend()
        output[-1] = np.nan
        return as_tensor(output), as_tensor(lse)
