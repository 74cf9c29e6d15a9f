"""FlashMLA: decodes over the latents of MLA, and attention over lists of entries.

LSE: natural, +inf in rows that see no key. Output and LSE are new tensors, whose copy is not timed.

The functions are those whose get_mla_metadata() needs no arguments and gives a FlashMLASchedMeta, as in
vLLM 0.26 and 0.33; they know attn_sink, too. Those before made their plan elsewhere, and documented the
LSE of flash_mla_sparse_fwd in base 2: they are unsupported.
"""

from importlib.util import find_spec
from pathlib import Path

from attnbench.adapter import Adapter

HEAD_SIZE, V_HEAD_SIZE = 576, 512
BLOCK_SIZE = 64


def is_older(package, *folders):
    """Whether it has no FlashMLASchedMeta yet. The text is read: importing may take a device."""
    root = find_spec(package).submodule_search_locations
    source = Path(next(iter(root)), *folders, "flash_mla_interface.py")
    return not source.exists() or "FlashMLASchedMeta" not in source.read_text(encoding="utf-8")


class FlashMla(Adapter):
    """What dense and sparse attention have in common."""

    packages = ("torch", "flash_mla")
    attention_types = ("mla",)
    lse = "natural"
    empty_rows = "+inf"
    capabilities = (9,)  # major ones of the devices that it runs on
    place = ("flash_mla",)  # package and folders of flash_mla_interface.py

    def supports(self, problem):
        reasons = []
        if (problem.head_size, problem.v_head_size) != (HEAD_SIZE, V_HEAD_SIZE):
            reasons.append(f"head_size not {HEAD_SIZE} with latents of {V_HEAD_SIZE}")
        if problem.block_size != BLOCK_SIZE:
            reasons.append(f"block_size not {BLOCK_SIZE}")
        if problem.device == "cuda" and problem.sm // 10 not in self.capabilities:
            reasons.append("compute capability not supported")
        if is_older(*self.place):
            reasons.append("an older FlashMLA, without FlashMLASchedMeta")
        return reasons

    def find(self):
        """The module with its functions."""
        import flash_mla

        return flash_mla


class Decode(FlashMla):
    """flash_mla.flash_mla_with_kvcache over a cache of 16 bits (stub-tested)"""

    features = ("causal",)

    def supports(self, problem):
        reasons = super().supports(problem)
        if len(set(problem.query_lens)) != 1:
            reasons.append("query lengths differ")
        return reasons

    def prepare(self, problem, tensors):
        interface = self.find()
        query_len = problem.max_query_len
        metadata, splits = interface.get_mla_metadata(
            tensors.seq_lens, query_len * problem.num_heads, 1
        )
        self.function = interface.flash_mla_with_kvcache
        self.options = {
            **self.common(problem, tensors),
            "tile_scheduler_metadata": metadata,
            "num_splits": splits,
        }
        self.run()  # newer versions make the plan in the first call

    def common(self, problem, tensors):
        query = tensors.query
        return {
            "q": query.view(problem.num_requests, problem.max_query_len, *query.shape[1:]),
            "k_cache": tensors.kv_cache.unsqueeze(-2),
            "block_table": tensors.block_table,
            "cache_seqlens": tensors.seq_lens,
            "head_dim_v": problem.v_head_size,
            "softmax_scale": problem.scale,
            "causal": True,
        }

    def run(self):
        output, lse = self.function(**self.options)
        return output, lse.transpose(0, 1)  # [B, H, Q]


class Sparse(FlashMla):
    """flash_mla.flash_mla_sparse_fwd, and flash_mla_with_kvcache over fp8_ds_mla (stub-tested)"""

    # Both want lists of whole steps, of 128 and 64 entries, which mla.sparse_topk always holds.
    dtypes = ("bfloat16",)
    features = ("causal", "mla_topk", "mla_ds_kv")
    lse_axes = "TH"
    capabilities = (9, 10)

    def supports(self, problem):
        reasons = super().supports(problem)
        if problem.topk == 0:
            reasons.append("no lists of entries (mla.sparse_topk)")
        if problem.num_heads not in (64, 128):
            reasons.append("num_heads not 64 or 128 (mla.q_pad_num_heads adds heads)")
        return reasons

    def prepare(self, problem, tensors):
        interface = self.find()
        indices = tensors.topk_slots.unsqueeze(1)
        if "mla_ds_kv" not in problem.features:
            entries = tensors.kv_cache.view(-1, 1, problem.head_size)
            arguments = tensors.query, entries, indices, problem.scale
            self.attend = lambda: interface.flash_mla_sparse_fwd(*arguments)
            return
        options = {
            "q": tensors.query.unsqueeze(1),
            "k_cache": tensors.kv_cache.unsqueeze(-2),
            "block_table": None,
            "cache_seqlens": None,
            "head_dim_v": problem.v_head_size,
            "tile_scheduler_metadata": interface.get_mla_metadata()[0],
            "softmax_scale": problem.scale,
            "is_fp8_kvcache": True,
            "indices": indices,
        }
        self.attend = lambda: interface.flash_mla_with_kvcache(**options)
        self.run()  # makes the plan

    def run(self):
        output, *_, lse = self.attend()
        return output, lse if lse.dim() == 2 else lse[..., 0]  # [T, H] or [T, H, 1]
