"""What an adapter says of itself, and the three functions that attnbench calls."""

# Values of the class attributes, in the words of the scenario file -> bits of attnbench_backend.h.
DEVICES = {"cpu": 1, "cuda": 2}
ATTENTION_TYPES = {"decoder": 1, "encoder": 2, "encoder_only": 4, "encoder_decoder": 8,
                   "mm_encoder": 16, "mla": 32, "op": 64, "mla_prefill": 128}  # fmt: skip
# Those behind the first two have their operands in tensors.operands, by name.
OPERATIONS = {"reshape_and_cache": 1, "merge": 2, "gather": 4, "rope": 8, "rope_and_cache": 16,
              "quantize": 32, "dcp_correct": 64, "output_quant": 128, "mm_quant": 256,
              "metadata": 512, "index_key_cache": 1024, "index_logits": 2048,
              "index_topk": 4096}  # fmt: skip
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 4}
FEATURES = {
    "causal": 1 << 0,
    "non_causal": 1 << 1,
    "gqa": 1 << 2,  # num_kv_heads < num_heads
    "v_head_size": 1 << 3,  # v_head_size != head_size
    "sliding_window": 1 << 4,  # problem.window_left, problem.window_right
    "soft_cap": 1 << 5,
    "alibi": 1 << 6,
    "alibi_sqrt": 1 << 7,
    "sinks": 1 << 8,
    "mm_prefix": 1 << 9,
    "fp8_kv": 1 << 10,  # keys of fp8_e4m3 with tensors.k_scale and v_scale
    "fp8_e5m2_kv": 1 << 11,
    "fp8_output": 1 << 12,
    "fp8_query": 1 << 13,  # query of fp8_e4m3 with tensors.q_scale
    # The kernel rounds its probabilities to e4m3 where the case says so. One that always does refuses
    # an fp8 query in supports() without it, or is judged by the narrower limits.
    "fp8_probability": 1 << 14,
    "mla_topk": 1 << 15,  # a row sees the entries that its tensors.topk_slots name
    "mla_ds_kv": 1 << 16,  # kv_cache of fp8_ds_mla entries
    "token_head_kv": 1 << 17,  # int8 or fp8_e4m3 pages with tensors.k_scale_cache and v_scale_cache
    "latents": 1 << 18,  # of operations: op.mla
    # problem.int8_level: of attention (query and keys of int8, tensors.q_token_scale, k_scale_cache and
    # v_channel_scale, with kv = "paged"), and of operations.
    "int8_codes": 1 << 19,
    # Of operations:
    "group_scales": 1 << 20,  # output_quant with a scale for each group of columns
    "nvfp4": 1 << 21,
    # Attention of one rank over its part of the context (problem.dcp_rank), and operations over the
    # caches of several ranks.
    "dcp": 1 << 22,
}
KV = {"ragged": 0, "paged": 1, "paged_interleaved": 2}
LSE = {None: 0, "natural": 1, "base_2": 2}
EMPTY_ROWS = {"-inf": 0, "+inf": 1}
LSE_AXES = {"HT": 0, "TH": 1}


class Adapter:
    """A kernel under test. Subclassing is not needed: a class with prepare() and run() is one, and
    attributes that it does not have are those here.

    A problem that needs a feature which is not listed is `unsupported` and never handed over.
    """

    # Of the kernel; empty = the versions of `packages`. The first line of the docstring is what
    # `attnbench list backends` shows.
    version = ""
    # Packages that it imports; one that is not there makes it `unsupported: package X not found`.
    packages = ()
    devices = ("cuda",)
    attention_types = ("decoder",)
    dtypes = ("bfloat16", "float16")
    features = ("causal", "gqa")
    # With the attention type "op": words of OPERATIONS.
    operations = ()
    # Keys and values, where there is a cache: "ragged" tensors, or pages with K and V apart
    # ("paged") or side by side ("paged_interleaved").
    kv = "ragged"
    # LSE that the kernel writes: None, "natural" or "base_2"; its axes, [H, T] or [T, H]; and its
    # value in rows that see no key. tensors.lse is of shape [H, T], with tensors.lse.T in one piece
    # for "TH"; one that run() returns has the axes. LSEs that a merge is given are like tensors.lse.
    lse = None
    lse_axes = "HT"
    empty_rows = "-inf"
    # Whether two runs on the same values give the same bytes: then they have to. Else each run that is
    # looked at is judged by its error.
    deterministic = True

    def supports(self, problem):
        """None, or why not: a text, or a list of them. Touches no device."""
        return None

    def prepare(self, problem, tensors):
        """Not timed: allocates, compiles, plans. Lengths, block table and slots are in place; query,
        keys, values and the parts of a merge are NaN still. The tensors stay where they are until the
        case is over."""
        raise NotImplementedError

    def run(self):
        """Queues the whole attention or operation on the current stream. Writes tensors.output and
        tensors.lse (or the caches), or returns output or (output, lse) where the kernel makes tensors
        of its own, each exactly a torch.Tensor: they are copied right behind the run on the same stream,
        and not in what is timed. None in the pair: it was written. Inputs are NaN until a timed run's
        turn on the stream comes, and each has another query."""
        raise NotImplementedError
