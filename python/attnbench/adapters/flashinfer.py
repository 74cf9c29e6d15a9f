"""FlashInfer over a paged cache: batch decode, batch prefill, two levels of cascade, and MLA; and single
operations.

LSE: base 2, [T, H], a new tensor whose copy is not timed; cascade gives none. What a row without keys
gets has changed between versions, so such batches are refused. fp8 of DecodeTensorCores and Cascade is
tested on stubs only.
"""

from attnbench.adapter import Adapter
from attnbench.adapters import fp8

WORKSPACE_BYTES = 128 << 20
HEAD_SIZES = (64, 128, 256)
GROUP_SIZES = (1, 2, 3, 4, 6, 8, 16)  # of FlashInfer 0.7; those of the kernel without tensor cores
ROW_SIZES = (64, 128, 256, 512)  # of the kernels for a token's row of heads
VECTOR, WARP, MOST_THREADS = 8, 32, 1024


def refused_rows(problem, num_heads):
    """Reasons of the kernels that merge or write a token's row: a CTA has a thread for each vector of
    each of its heads."""
    if problem.head_size not in ROW_SIZES:
        yield "head_size not supported"
        return
    threads = problem.head_size // max(VECTOR, problem.head_size // WARP)
    if threads * num_heads > MOST_THREADS:
        yield f"more than {MOST_THREADS // threads} heads of this size"


def pages(tables, lens, block_size):
    """indptr [B+1], indices and last_page_len [B] of FlashInfer, on the host, for requests of `lens`
    keys in the blocks of `tables`."""
    import torch

    counts = [(length + block_size - 1) // block_size for length in lens]
    indptr = torch.tensor([0] + counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    indices = torch.cat([table[:count] for table, count in zip(tables, counts)])
    last = [
        length - (count - 1) * block_size if count else 0 for length, count in zip(lens, counts)
    ]
    return indptr, indices.int(), torch.tensor(last, dtype=torch.int32)


class FlashInfer(Adapter):
    """What decode, prefill and cascade have in common."""

    packages = ("torch", "flashinfer")
    features = ("causal", "gqa", "sliding_window", "soft_cap", *fp8.CACHES)
    kv = "paged"
    lse = "base_2"
    lse_axes = "TH"

    def supports(self, problem):
        reasons = [*self.fp8_reasons(problem)]
        if problem.has_empty_rows() or 0 in problem.query_lens:
            reasons.append("rows or requests without keys or queries")
        if problem.head_size not in HEAD_SIZES:
            reasons.append("head_size not supported")
        return reasons

    def fp8_reasons(self, problem):
        """With a 16-bit query the scales are numbers, read before the step."""
        yield from fp8.one_scale_only(problem)
        if fp8.has_cache(problem) and problem.json["kv_cache"]["calculate_kv_scales"]:
            yield "scales calculated in the step"

    def prepare(self, problem, tensors):
        import torch

        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=tensors.query.device)
        layout = problem.kv_cache_layout
        self.query, self.output = tensors.query, tensors.output
        self.cache = tensors.key_cache, tensors.value_cache
        if layout == "HND":  # which it wants as the order of the axes, not only of the memory
            self.cache = tuple(cache.transpose(1, 2) for cache in self.cache)
        self.scales = self.scales_of(problem, tensors)
        self.wrapper = self.make(workspace, layout)
        self.plan(problem, tensors)

    def scales_of(self, problem, tensors):
        """Arguments of run() by position and by name."""
        if tensors.k_scale is None:
            return (), {}
        return (), {"k_scale": float(tensors.k_scale[0]), "v_scale": float(tensors.v_scale[0])}

    def options(self, problem, tensors):
        return {
            "sm_scale": problem.scale,
            "window_left": problem.window_left,
            "logits_soft_cap": problem.logits_soft_cap,
            "q_data_type": tensors.query.dtype,
            "kv_data_type": tensors.key_cache.dtype,
        }

    def run(self):
        by_position, by_name = self.scales
        _, lse = self.wrapper.run(self.query, self.cache, *by_position, out=self.output,
                                  return_lse=True, **by_name)  # fmt: skip
        return None, lse


class Decode(FlashInfer):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper"""

    use_tensor_cores = False

    def supports(self, problem):
        reasons = []
        if problem.max_query_len > 1:
            reasons.append("more than one query token")
        if not self.use_tensor_cores and problem.num_heads // problem.num_kv_heads not in GROUP_SIZES:
            reasons.append("num_heads / num_kv_heads not supported without tensor cores")
        return reasons + super().supports(problem)

    def make(self, workspace, layout):
        import flashinfer

        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, layout, use_tensor_cores=self.use_tensor_cores
        )

    def plan(self, problem, tensors):
        self.wrapper.plan(
            *pages(tensors.block_table.cpu(), problem.seq_lens, problem.block_size),
            problem.num_heads, problem.num_kv_heads, problem.head_size, problem.block_size,
            **self.options(problem, tensors))  # fmt: skip


class DecodeTensorCores(Decode):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper with use_tensor_cores (its fp8 stub-tested)"""

    use_tensor_cores = True


class Prefill(FlashInfer):
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper"""

    features = FlashInfer.features + ("non_causal", "fp8_query", "fp8_probability")

    def supports(self, problem):
        to_the_right = not problem.causal and problem.window_right >= 0
        return (["a window to the right"] if to_the_right else []) + super().supports(problem)

    def fp8_reasons(self, problem):
        """The kernel for fp8 queries takes a scale of each head, from memory."""
        if "fp8_query" not in problem.features:
            yield from super().fp8_reasons(problem)
            return
        yield from fp8.rounds_probability(problem)
        if problem.device == "cuda" and problem.sm // 10 != 9:
            yield "an fp8 query on other compute capabilities than 9.0"
        if problem.has_window or problem.logits_soft_cap > 0:
            yield "an fp8 query with a window or soft cap"

    def scales_of(self, problem, tensors):
        if tensors.q_scale is None:
            return super().scales_of(problem, tensors)
        q_scale = tensors.q_scale.expand(problem.num_heads).contiguous()
        return (q_scale, tensors.k_scale, tensors.v_scale), {}

    def options(self, problem, tensors):
        options = super().options(problem, tensors)
        if tensors.q_scale is not None:
            options["o_data_type"] = tensors.output.dtype
        return options

    def make(self, workspace, layout):
        import flashinfer

        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout)

    def plan(self, problem, tensors):
        self.wrapper.plan(
            tensors.query_start_loc.cpu(),
            *pages(tensors.block_table.cpu(), problem.seq_lens, problem.block_size),
            problem.num_heads, problem.num_kv_heads, problem.head_size, problem.block_size,
            causal=problem.causal, **self.options(problem, tensors))  # fmt: skip


class Cascade(FlashInfer):
    """flashinfer.MultiLevelCascadeAttentionWrapper: the shared prefix of all requests, then the rest"""

    features = ("causal", "gqa", "soft_cap")
    lse = None

    def supports(self, problem):
        prefix = problem.common_prefix_len
        if prefix == 0 or prefix % problem.block_size:
            return "no shared prefix of whole blocks (cascade.common_prefix_len)"
        if any(s - q < prefix for q, s in zip(problem.query_lens, problem.seq_lens)):
            return "queries within the shared prefix"
        merge = [*refused_rows(problem, problem.num_heads)] if problem.head_size in HEAD_SIZES else []
        return merge + super().supports(problem)

    def make(self, workspace, layout):
        import flashinfer

        return flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, layout)

    def plan(self, problem, tensors):
        import torch

        prefix, block_size = problem.common_prefix_len, problem.block_size
        tables = tensors.block_table.cpu()
        shared = pages(tables[:1], [prefix], block_size)
        own = pages(tables[:, prefix // block_size :], [s - prefix for s in problem.seq_lens],
                    block_size)  # fmt: skip
        levels = [[part.to(tensors.query.device) for part in pair] for pair in zip(shared, own)]
        all_rows = torch.tensor([0, problem.num_tokens], dtype=torch.int32)
        self.wrapper.plan(
            [all_rows.to(tensors.query.device), tensors.query_start_loc], *levels,
            problem.num_heads, problem.num_kv_heads, problem.head_size, block_size,
            causal=True, **self.options(problem, tensors))  # fmt: skip

    def run(self):
        return self.wrapper.run(self.query, self.cache)


class Mla(Adapter):
    """flashinfer.mla.BatchMLAPagedAttentionWrapper, over a cache of 16 bits"""

    # No fp8: its kernel multiplies codes by the scale rounded to bfloat16. Some lengths with head counts
    # that do not divide 64 are refused when it plans, by which of its kernels it chooses: an error.
    packages = ("torch", "flashinfer")
    attention_types = ("mla",)
    features = ("causal",)
    lse = "base_2"
    lse_axes = "TH"

    def supports(self, problem):
        if 0 in problem.query_lens:
            return "requests without queries"
        if problem.v_head_size % 128 or (problem.head_size - problem.v_head_size) % 64:
            return "kv_lora_rank not a multiple of 128, or qk_rope_head_dim not of 64"
        return None

    def prepare(self, problem, tensors):
        import torch
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        device = tensors.query.device
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self.wrapper = BatchMLAPagedAttentionWrapper(workspace)
        indptr, indices, _ = pages(
            tensors.block_table.cpu(), problem.seq_lens, problem.block_size
        )
        latent = problem.v_head_size
        self.wrapper.plan(
            qo_indptr=tensors.query_start_loc,
            kv_indptr=indptr.to(device),
            kv_indices=indices.to(device),
            kv_len_arr=tensors.seq_lens,
            num_heads=problem.num_heads,
            head_dim_ckv=latent,
            head_dim_kpe=problem.head_size - latent,
            page_size=problem.block_size,
            causal=True,
            sm_scale=problem.scale,
            q_data_type=tensors.query.dtype,
            kv_data_type=tensors.kv_cache.dtype,
        )
        self.options = {
            "q_nope": tensors.query[..., :latent],
            "q_pe": tensors.query[..., latent:],
            "ckv_cache": tensors.kv_cache[..., :latent],
            "kpe_cache": tensors.kv_cache[..., latent:],
            "out": tensors.output,
            "return_lse": True,
        }

    def run(self):
        _, lse = self.wrapper.run(**self.options)
        return None, lse


class Merge(Adapter):
    """flashinfer.merge_state"""

    packages = ("torch", "flashinfer")
    attention_types = ("op",)
    operations = ("merge",)
    features = ()
    lse = "base_2"
    lse_axes = "TH"

    def supports(self, problem):
        reasons = [*refused_rows(problem, problem.num_heads)]
        if problem.num_merged_tokens < problem.num_tokens:
            reasons.append("rows without a prefix")
        return reasons

    def prepare(self, problem, tensors):
        from flashinfer import merge_state

        self.function = merge_state
        self.parts = (tensors.prefix_output, tensors.prefix_lse.T, tensors.suffix_output,
                      tensors.suffix_lse.T)  # fmt: skip

    def run(self):
        return self.function(*self.parts)


class Append(Adapter):
    """flashinfer.append_paged_kv_cache"""

    packages = ("torch", "flashinfer")
    attention_types = ("op",)
    operations = ("reshape_and_cache",)
    features = ()
    kv = "paged"

    def supports(self, problem):
        return [*refused_rows(problem, problem.num_kv_heads)]

    def prepare(self, problem, tensors):
        import torch
        from flashinfer import append_paged_kv_cache

        self.function = append_paged_kv_cache
        # It finds places by request and position. To one request with all blocks in their order, a slot
        # is a position.
        slots = tensors.slot_mapping[: problem.num_tokens].int()
        new = lambda values: torch.tensor(values, dtype=torch.int32, device=slots.device)
        caches = tensors.key_cache, tensors.value_cache
        if problem.kv_cache_layout == "HND":
            caches = tuple(cache.transpose(1, 2) for cache in caches)
        self.arguments = (
            tensors.key[: problem.num_tokens], tensors.value[: problem.num_tokens],
            torch.zeros_like(slots), slots, caches,
            torch.arange(problem.num_blocks, dtype=torch.int32, device=slots.device),
            new([0, problem.num_blocks]), new([problem.block_size]),
            problem.kv_cache_layout)  # fmt: skip

    def run(self):
        self.function(*self.arguments)
