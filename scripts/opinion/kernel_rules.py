"""What kernels decide in their own way where the definitions leave a choice (semantics §2 to §5).

Backends of this table are judged by it, whatever the program thinks their rules are. The file of any
other backend states its rules in the metadata key `kernel_rules`.
"""

import json
from typing import NamedTuple, Optional

from . import mm
from .errors import FormatError


class KernelRules(NamedTuple):
    """The defaults are what the definitions say with nothing added."""

    window: str = "symmetric"  # of an encoder; or one_sided: nothing after the row
    alibi: str = "by_mask"  # linear: by key index or distance; or context_relative
    honours_e5m2_as_e4m3: bool = False
    rounds_dequantised: bool = False  # per-tensor fp8 values, to attention.dtype
    quantises_query: bool = False  # over an e4m3 cache
    rounds_probability: bool = False  # to e4m3, over e4m3 operands, without being told
    cache_layout: Optional[str] = None  # FA, IX or TR


PLAIN = KernelRules()
RULES = {
    "FLASH_ATTN": KernelRules(quantises_query=True, cache_layout="FA"),
    "FLASH_ATTN_IX": KernelRules(window="one_sided", cache_layout="IX"),
    "TRITON_ATTN": KernelRules(
        alibi="context_relative",
        honours_e5m2_as_e4m3=True,
        rounds_dequantised=True,
        cache_layout="TR",
    ),
    "TURBOQUANT": KernelRules(cache_layout="TR"),
    "CUDNN": KernelRules(quantises_query=True, rounds_probability=True, cache_layout="FA"),
    "REFERENCE": PLAIN,
    **dict.fromkeys(mm.BACKENDS, PLAIN),
}
WORDS = {
    "window": ("symmetric", "one_sided"),
    "alibi": ("by_mask", "context_relative"),
    "cache_layout": ("FA", "IX", "TR", None),
}


def rules_of(backend, metadata):
    """The rules of a file's backend; a user's kernel computes what the definitions say."""
    if backend in RULES:
        return RULES[backend]
    if "kernel_rules" in metadata:
        return _stated(metadata["kernel_rules"])
    if "plugin" in metadata:
        return PLAIN
    raise FormatError(f"backend {backend!r} is not covered, and the file does not state its rules")


def _stated(text):
    try:
        stated = json.loads(text)
    except ValueError as error:
        raise FormatError(f"metadata key 'kernel_rules' is not JSON: {error}") from error
    if not isinstance(stated, dict):
        raise FormatError("metadata key 'kernel_rules' is not a map")
    for name in KernelRules._fields:
        expected = WORDS.get(name, (False, True))
        if stated.get(name, getattr(PLAIN, name)) not in expected:
            raise FormatError(f"kernel_rules.{name} is {stated[name]!r}")
    return KernelRules(**{n: stated[n] for n in KernelRules._fields if n in stated})
