"""Single operations in numpy as backends, and classes around them, of which some are faulty."""

import numpy as np

LN_2 = np.float32(np.log(2))


def as_tensor(array):
    import torch

    return array.view(torch.Tensor)


class Write:
    """reshape_and_cache in numpy"""

    version = "1"
    devices = ("cpu",)
    attention_types = ("op",)
    operations = ("reshape_and_cache",)
    dtypes = ("float32",)
    kv = "paged"

    def prepare(self, problem, tensors):
        assert problem.type == "op" and problem.operation == "reshape_and_cache"
        assert np.isnan(tensors.key).all() and np.isnan(tensors.value).all()
        self.problem, self.tensors = problem, tensors

    def cells(self):
        """(row, block, slot in it) of everything that is written."""
        for row, slot in enumerate(self.tensors.slot_mapping):
            if slot >= 0:
                yield row, slot // self.problem.block_size, slot % self.problem.block_size

    def run(self):
        t = self.tensors
        for row, block, slot in self.cells():
            t.key_cache[block, slot] = t.key[row]
            t.value_cache[block, slot] = t.value[row]


class WriteInterleaved(Write):
    kv = "paged_interleaved"


class WriteSwapped(Write):
    def prepare(self, problem, tensors):
        super().prepare(problem, tensors)
        tensors.key, tensors.value = tensors.value, tensors.key


class WriteNext(Write):
    def cells(self):
        for row, block, slot in super().cells():
            yield row, block, (slot + 1) % self.problem.block_size


class WriteNegative(Write):
    """as Python counts from the end"""

    def cells(self):
        for row, slot in enumerate(self.tensors.slot_mapping):
            yield row, slot // self.problem.block_size, slot % self.problem.block_size


class Merge:
    """merge in numpy"""

    version = "1"
    devices = ("cpu",)
    attention_types = ("op",)
    operations = ("merge",)
    dtypes = ("float32",)
    features = ("v_head_size",)
    lse = "natural"
    unit = np.float32(1)  # of its LSEs, in natural ones

    def prepare(self, problem, tensors):
        assert problem.operation == "merge"
        assert np.isnan(tensors.prefix_output).all() and np.isnan(tensors.suffix_lse).all()
        self.problem, self.tensors = problem, tensors

    def merge(self):
        t = self.tensors
        p, s = (lse.T * self.unit for lse in (t.prefix_lse, t.suffix_lse))
        p[self.problem.num_merged_tokens :] = -np.inf
        prefix = np.where(np.isneginf(p)[..., None], 0, t.prefix_output)
        most = np.maximum(p, s)
        base = np.where(np.isneginf(most), 0, most)
        wp, ws = np.exp(p - base), np.exp(s - base)
        with np.errstate(divide="ignore", invalid="ignore"):
            output = np.nan_to_num((prefix * wp[..., None] + t.suffix_output * ws[..., None])
                                   / (wp + ws)[..., None])  # fmt: skip
            output[self.problem.num_merged_tokens :] = t.suffix_output[self.problem.num_merged_tokens :]
            lse = base + np.log(wp + ws)
        return output.astype(np.float32), (lse / self.unit).T.astype(np.float32)

    def run(self):
        self.tensors.output[...], self.tensors.lse[...] = self.merge()


class MergeBase2(Merge):
    lse, unit = "base_2", LN_2


class MergeReturns(Merge):
    def run(self):
        output, lse = self.merge()
        return as_tensor(output), as_tensor(lse)


class MergeTurned(MergeBase2):
    """LSEs as the kernels of some libraries have them"""

    lse_axes = "TH"

    def prepare(self, problem, tensors):
        super().prepare(problem, tensors)
        assert all(lse.T.flags.c_contiguous for lse in (tensors.prefix_lse, tensors.lse))

    def run(self):
        output, lse = self.merge()
        return as_tensor(output), as_tensor(lse.T.copy())


class MergeSaysNatural(MergeBase2):
    lse = "natural"


class MergeSaysBase2(Merge):
    lse = "base_2"


class MergeWithoutGuard(Merge):
    """(-inf) - (-inf)"""

    def merge(self):
        output, lse = super().merge()
        output[np.isneginf(lse.T)] = np.nan
        return output, lse


class MergeRemembers(Merge):
    def merge(self):
        self.first = getattr(self, "first", None) or super().merge()
        return self.first


class MergeUnwritten(Merge):
    def run(self):
        output, lse = self.merge()
        self.tensors.output[:-1], self.tensors.lse[...] = output[:-1], lse
