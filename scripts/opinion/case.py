"""One file of saved tensors, with the shapes checked against each other."""

import numpy as np

from . import number_formats as formats
from . import kv_scales, safetensors_file
from .errors import FormatError
from .rules import Rules


class Case:
    """The tensors of a file with their shapes checked against each other."""

    def __init__(self, tensors, metadata):
        self.tensors = tensors
        self.rules = Rules(metadata)
        # Why: files recorded elsewhere name their backend inside the problem and carry no cache, and
        # a plugin may take keys without pages.
        self.has_cache = "kv_cache" in self.tensors
        own = "backend" in metadata and self.rules.kernel.cache_layout is not None
        if own and not self.rules.is_plugin and self.rules.paged and not self.has_cache:
            raise FormatError("tensor 'kv_cache' is missing")
        self.query_start_loc = self.need("query_start_loc").raw.astype(np.int64)
        self.seq_lens = self.need("seq_lens").raw.astype(np.int64)
        if len(self.query_start_loc) != len(self.seq_lens) + 1:
            raise FormatError("query_start_loc and seq_lens disagree on the number of requests")
        query, key, value = self.need("query"), self.need("key"), self.need("value")
        if any(t.raw.ndim != 3 for t in (query, key, value)):
            raise FormatError("query, key and value must have three dimensions")
        self.num_tokens, self.num_heads, self.head_size = query.shape
        self.num_kv_heads = key.shape[1]
        if self.query_start_loc[-1] != self.num_tokens or key.shape[0] != self.seq_lens.sum():
            raise FormatError("query_start_loc or seq_lens disagree with query or key")
        if key.shape[:2] != value.shape[:2] or self.num_heads % self.num_kv_heads:
            raise FormatError(f"query {query.shape}, key {key.shape}, value {value.shape}")
        self.key_starts = np.concatenate([[0], np.cumsum(self.seq_lens)])
        self.checked_rows = self._checked_rows()
        self._calculate_scales()

    def need(self, name):
        if name not in self.tensors:
            raise FormatError(f"tensor {name!r} is missing")
        return self.tensors[name]

    def values(self, name, shape=None):
        """The tensor as floats; `shape`, when given, is what it must have."""
        tensor = self.need(name)
        if shape is not None and tensor.shape != shape:
            raise FormatError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return formats.decode(tensor.dtype, tensor.raw)

    def _calculate_scales(self):
        rules = self.rules
        if not rules.paged or not kv_scales.are_calculated(rules.section("kv_cache")):
            return
        rows = kv_scales.new_rows(
            np.diff(self.query_start_loc), self.seq_lens, rules.attention_type != "decoder"
        )
        rules.q_scale, rules.k_scale, rules.v_scale = kv_scales.check(
            self.values("kv_scales", (3,)), self.values("query_unquantized"),
            self.values("key")[rows], self.values("value")[rows], rules.section("kv_cache"),
        )

    def _checked_rows(self):
        if "checked_rows" not in self.tensors:
            return np.arange(self.num_tokens)
        rows = self.tensors["checked_rows"].raw.astype(np.int64)
        in_range = ((rows >= 0) & (rows < self.num_tokens)).all()
        if not in_range or len(set(rows)) < rows.size:
            raise FormatError(f"checked_rows must be distinct and in [0, {self.num_tokens})")
        return np.sort(rows)
