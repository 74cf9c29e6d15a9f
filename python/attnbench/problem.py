"""A resolved case as adapters see it."""

import json

from attnbench import adapter, structs

_NUMBERS = (
    "device_id", "sm", "num_sms", "num_heads", "num_kv_heads", "head_size", "v_head_size", "scale",
    "logits_soft_cap", "window_left", "window_right", "num_requests", "num_tokens", "num_keys",
    "max_query_len", "max_seq_len", "block_size", "num_blocks", "common_prefix_len", "output_scale",
    "num_threads", "topk", "num_merged_tokens", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "index_n_heads", "int8_level", "rotary_dim", "dcp_world_size",
    "dcp_rank",
)  # fmt: skip
_FLAGS = (
    "causal", "batch_invariant", "index_ue8m0", "is_neox", "is_raw", "lse_is_base_2",
    "scales_are_ue8m0", "scales_are_swizzled", "amax_is_signed",
)  # fmt: skip
_QUANTS = ("none", "fp8_static", "fp8_group128", "fp8_group64", "nvfp4")
_COMMS = ("ag_rs", "ag_ar", "a2a")
_BIASES = (None, "key_index", "distance", "sqrt")
_CACHE_DTYPES = {**adapter.DTYPES, "fp8_e4m3": 8, "fp8_e5m2": 16, "uint8": 32, "int8": 64}


def _name_of(names, bit):
    return next((name for name, known in names.items() if known == bit), None)


class Problem:
    """The fields of AttnbenchProblem under their names there; enumerations are the words of the
    scenario file. `json` is the `problem` of the result file, as a dict."""

    def __init__(self, address):
        struct = structs.Problem.from_address(address)
        for name in _NUMBERS:
            setattr(self, name, getattr(struct, name))
        self.type = _name_of(adapter.ATTENTION_TYPES, struct.type)
        self.operation = _name_of(adapter.OPERATIONS, struct.operation)
        self.dtype = _name_of(adapter.DTYPES, struct.dtype)
        self.device = _name_of(adapter.DEVICES, struct.device)
        for name in _FLAGS:
            setattr(self, name, bool(getattr(struct, name)))
        self.output_quant = _QUANTS[struct.output_quant]
        self.dcp_comm = _COMMS[struct.dcp_comm]
        self.alibi = _BIASES[struct.alibi]
        self.features = {name for name, bit in adapter.FEATURES.items() if struct.features & bit}
        self.query_lens = struct.query_lens[: struct.num_requests]
        self.seq_lens = struct.seq_lens[: struct.num_requests]
        self.kv_cache_dtype = _name_of(_CACHE_DTYPES, struct.kv_cache_dtype)
        self.kv_cache_layout = "HND" if struct.kv_cache_hnd else "NHD"
        self.scenario = struct.scenario.decode()
        self.case_name = struct.case_name.decode()
        self.json = json.loads(struct.json)

    @property
    def has_window(self):
        return "sliding_window" in self.features

    def requests(self):
        """(query_len, seq_len, first row of the query, first row of the keys) of each request."""
        row = key = 0
        for query_len, seq_len in zip(self.query_lens, self.seq_lens):
            yield query_len, seq_len, row, key
            row, key = row + query_len, key + seq_len

    def has_empty_rows(self):
        """Whether some row of the output sees no key."""
        return any(q > 0 and (s == 0 or (self.causal and s < q))
                   for q, s in zip(self.query_lens, self.seq_lens))  # fmt: skip
