"""The multimodal encoder (semantics §10): sequences of images and windows, fp8 with padded heads."""

import json
from pathlib import Path

import numpy as np

from . import number_formats as formats
from .errors import Disagreement

TENSORS = ("query", "key", "value")
BACKENDS = ("MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER")
HISTORY = 16
TINY = np.float32(2.0**-126)
FP8_MAX = np.float32(448.0)


def image_lengths(images, patch_size, window):
    """Patches of every sequence: images, or their windows row by row with ragged borders."""
    lengths = []
    for height, width in images:
        rows, columns = height // patch_size, width // patch_size
        side = window or max(rows, columns)
        for top in range(0, rows, side):
            for left in range(0, columns, side):
                lengths.append(min(side, rows - top) * min(side, columns - left))
    return lengths


def check_sequences(case):
    """cu_seqlens say what the batch, the images or the batch form say."""
    mm = case.rules.section("mm_encoder")
    query_lens = np.diff(case.query_start_loc)
    if mm.get("batch_size") is not None:
        if "cu_seqlens" in case.tensors:
            raise Disagreement("cu_seqlens stands beside mm_encoder.batch_size")
        if (case.seq_lens != mm["kv_len"]).any() or len(query_lens) != mm["batch_size"]:
            raise Disagreement("seq_lens are not those of batch_size rows of kv_len keys")
        return
    cu_seqlens = case.need("cu_seqlens").raw.astype(np.int64)
    if mm.get("images") is not None:
        query_lens = image_lengths(mm["images"], mm.get("patch_size", 14), mm.get("window"))
    expected = np.concatenate([[0], np.cumsum(query_lens)])
    if not np.array_equal(cu_seqlens, expected):
        raise Disagreement(f"cu_seqlens are {cu_seqlens}, expected {expected}")
    if not np.array_equal(case.seq_lens, np.diff(expected)):
        raise Disagreement("seq_lens are not the differences of cu_seqlens")


def is_fp8(rules):
    return rules.attention_type == "mm_encoder" and (
        rules.section("mm_encoder").get("attn_dtype", "auto") == "fp8"
    )


def quantise(x, scale, skip=False):
    """e4m3 codes [T, heads, D rounded up to 16] in float32 arithmetic (§10.5)."""
    x, scale = np.asarray(x, dtype=np.float32), np.float32(scale)
    head_size = x.shape[-1]
    padding = -head_size % 16
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if skip:
            y = x
        elif padding:
            y = x / scale
        else:
            y = np.where(x == 0, x, x * (np.float32(1.0) / scale))
    codes = formats.encode_e4m3(y)
    return np.pad(codes, ((0, 0), (0, 0), (0, padding)))


def dynamic_scale(values, amax):
    """Scale of a history that holds only this forward (§10.6)."""
    largest = np.max(np.abs(values) if amax == "abs" else values, initial=-np.inf)
    largest = np.float32(largest if values.size else 0.0)
    return np.maximum(np.maximum(largest, np.float32(0.0)), TINY) / FP8_MAX


def _loaded_scale(mm, tensor):
    """The scale of the first layer in the file, or None where the file is out of reach."""
    path = Path(mm["fp8_scale_path"])
    if not path.is_file():
        return None
    layers = json.loads(path.read_text(encoding="utf-8"))
    layers = layers["layers"] if isinstance(layers.get("layers"), dict) else layers
    entry = layers[mm["layer_names"][0]]
    short = tensor[0]
    return float(entry[short] if short in entry else entry[f"{short}_scale"])


def _scale(case, index, values):
    """The scale that the forward used, checked as far as the file allows; and whether to skip it."""
    mm = case.rules.section("mm_encoder")
    used = np.float32(case.need("fp8_scales").raw[index]) if "fp8_scales" in case.tensors else None
    name, skip = TENSORS[index], False
    if mm.get("fp8_scale_path") is not None:
        loaded = _loaded_scale(mm, name)
        expected = used if loaded is None else np.float32(loaded)
        skip = expected == 1.0
    else:
        expected = dynamic_scale(values, mm.get("amax", "abs"))
        if mm.get("fp8_scale_save_path") is not None and used is not None and used >= expected:
            expected = used  # fifteen earlier forwards are in the history
    if used is not None and used != expected:
        raise Disagreement(f"fp8_scales: that of {name} is {used!r}, expected {expected!r}")
    return expected, skip


def values_read(case):
    """Query, keys and values as attention reads them, float32 [tokens, heads, D]."""
    check_sequences(case)
    result = []
    for index, name in enumerate(TENSORS):
        stored = case.need(name)
        values = formats.decode(stored.dtype, stored.raw)
        if is_fp8(case.rules):
            scale, skip = _scale(case, index, values)
            codes = quantise(values, scale, skip)
            _require_codes(case, name, codes)
            head_size = values.shape[-1]
            values = formats.decode("F8_E4M3", codes)[..., :head_size] * (
                np.float32(1.0) if skip else scale
            )
            _require_values(case, name, values)
        result.append(values)
    return result


def _require_codes(case, name, codes):
    if f"{name}_codes" not in case.tensors:
        return
    actual = case.need(f"{name}_codes").raw
    if actual.shape != codes.shape or not np.array_equal(actual, codes):
        raise Disagreement(f"{name}_codes differ from those of the saved {name}")


def _require_values(case, name, values):
    actual = case.values(f"{name}_dequantized", values.shape)
    if not np.array_equal(actual, values, equal_nan=True):
        raise Disagreement(f"{name}_dequantized differs from code times scale")
