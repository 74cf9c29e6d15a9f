"""What a file's `problem` says about the attention, with the defaults of contract section 1."""

import json
import math

from . import packed_cache
from .errors import FormatError
from .kernel_rules import rules_of

COVERED_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder", "mm_encoder")
FP8_CACHES = ("fp8", "fp8_e4m3", "fp8_e5m2")
PER_TOKEN_HEAD_CACHES = ("int8_per_token_head", "fp8_per_token_head")
PACKED_CACHES = ("int4_per_token_head", "nvfp4", *packed_cache.SLOTS)  # codes of a few bits


class Rules:
    """Resolved settings of one saved case; field names as in the scenario file."""

    def __init__(self, metadata):
        if "problem" not in metadata:
            raise FormatError("metadata key 'problem' is missing")
        try:
            self.problem = json.loads(metadata["problem"])
        except ValueError as error:
            raise FormatError(f"metadata key 'problem' is not JSON: {error}") from error
        attention, cache = self.section("attention"), self.section("kv_cache")
        self.backend = metadata.get("backend", self.problem.get("backend"))
        self.is_plugin = "plugin" in metadata  # a user's backend, whatever its name
        self.attention_type = attention.get("type", "decoder")
        self.dtype = attention.get("dtype", "bfloat16")
        self.query_dtype = attention.get("query_dtype", "auto")
        causal = attention.get("causal")
        self.causal = self.attention_type == "decoder" if causal is None else bool(causal)
        self.sliding_window = attention.get("sliding_window")
        self.chunk_size = attention.get("chunk_size")
        self.kv_sharing = bool(attention.get("kv_sharing", False))
        self.encoder_window = attention.get("encoder_window", "source")
        self.logits_soft_cap = float(attention.get("logits_soft_cap") or 0.0)
        self.alibi = attention.get("alibi", "none")
        self.alibi_slopes = attention.get("alibi_slopes")
        self.sinks = attention.get("sinks")
        self.mm_prefix_ranges = attention.get("mm_prefix_ranges") or {}
        head_size, scale = attention.get("head_size"), attention.get("scale")
        if not isinstance(head_size, int) or head_size < 1:
            raise FormatError(f"problem.attention.head_size is {head_size!r}")
        self.scale = 1.0 / math.sqrt(head_size) if scale is None else float(scale)
        self.cache_dtype = cache.get("dtype", "auto")
        self.cache_layout = cache.get("layout", "NHD")
        self.block_size = cache.get("block_size", 16)
        self.layers, self.layer = cache.get("layers"), cache.get("layer", 0)
        self.k_scale, self.v_scale = cache.get("k_scale", 1.0), cache.get("v_scale", 1.0)
        self.q_scale = cache.get("q_scale", 1.0)
        self.int8_round = cache.get("pth_int8_round", "half_away")
        self.e5m2_as_e4m3 = bool(cache.get("e5m2_as_e4m3", False))
        self.int8_level = cache.get("int8_level", 0)
        self.value_scale_file = cache.get("value_scale_file")
        self.dcp_world_size = self.section("dcp").get("world_size", 1)
        self.dcp_interleave_size = self.section("dcp").get("interleave_size", 1)
        self.output_quant = self.section("output_quant")
        self._refuse_what_is_not_covered(cache)
        self.kernel = rules_of(self.backend, metadata)

    def section(self, name):
        value = self.problem.get(name, {})
        if not isinstance(value, dict):
            raise FormatError(f"problem.{name} is not a map")
        return value

    def _refuse_what_is_not_covered(self, cache):
        if self.attention_type not in COVERED_TYPES:
            raise FormatError(f"attention type {self.attention_type} is not covered")
        if self.int8_level not in (0, 1, 2):
            raise FormatError(f"int8_level {self.int8_level!r} is not covered")
        if self.int8_level and self.quantised_cache:
            raise FormatError(f"int8 attention with a {self.cache_dtype} cache is not covered")
        if self.output_quant.get("type", "none") not in ("none", "fp8_static"):
            raise FormatError(f"output_quant {self.output_quant['type']} is not covered")

    @property
    def paged(self):
        return self.attention_type in ("decoder", "encoder_decoder")

    @property
    def quantised_cache(self):
        return self.cache_dtype in FP8_CACHES + PER_TOKEN_HEAD_CACHES + PACKED_CACHES

    @property
    def e4m3_probability(self):
        """Whether a kernel of e4m3 queries, keys and values rounds P to e4m3 too: where the scenario
        says so, and cuDNN always."""
        asked = self.section("attention").get("probability_dtype", "auto") == "fp8_e4m3"
        return asked or self.kernel.rounds_probability

    @property
    def shares_slots(self):
        """A key and its value lie in one slot (§5.8)."""
        return self.cache_dtype in packed_cache.SLOTS

    @property
    def per_token_head(self):
        return self.cache_dtype in PER_TOKEN_HEAD_CACHES

    @property
    def cache_format(self):
        """safetensors name of the element format of the cache."""
        if self.cache_dtype == "int8_per_token_head":
            return "I8"
        if self.cache_dtype in PACKED_CACHES:
            return "U8"
        as_e4m3 = self.e5m2_as_e4m3 and self.kernel.honours_e5m2_as_e4m3
        if self.cache_dtype == "fp8_e5m2" and not as_e4m3:
            return "F8_E5M2"
        if self.quantised_cache:
            return "F8_E4M3"
        name = self.dtype if self.cache_dtype == "auto" else self.cache_dtype
        names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
        if name not in names:
            raise FormatError(f"KV cache dtype {name!r} is not covered")
        return names[name]

    def ranges_of(self, request):
        return self.mm_prefix_ranges.get(str(request), ())
