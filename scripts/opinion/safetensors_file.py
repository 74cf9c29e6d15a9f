"""Strict reader of safetensors files: every byte must belong to the header or a tensor."""

import json
import math
import struct

import numpy as np

from .errors import FormatError

# Storage type of each dtype that attnbench writes; the narrow floats stay raw bits.
STORAGE = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<u2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I8": "i1",
    "U8": "u1",
}

MAX_HEADER_BYTES = 100_000_000


class StoredTensor:
    """A tensor as it lies in the file: `dtype` names the format, `raw` holds its bits."""

    def __init__(self, dtype, raw):
        self.dtype = dtype
        self.raw = raw

    @property
    def shape(self):
        return self.raw.shape


def _no_duplicates(pairs):
    result = {}
    for key, value in pairs:
        if key in result:
            raise FormatError(f"header: key {key!r} occurs twice")
        result[key] = value
    return result


def _parse_header(data):
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_HEADER_BYTES or 8 + length > len(data):
        raise FormatError(f"header of {length} bytes in a file of {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length].decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError("header is not a JSON object")
    return header, 8 + length


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_entry(name, entry):
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"tensor {name!r}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in STORAGE:
        raise FormatError(f"tensor {name!r}: unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise FormatError(f"tensor {name!r}: bad shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise FormatError(f"tensor {name!r}: bad data_offsets {offsets!r}")
    expected = math.prod(shape) * np.dtype(STORAGE[dtype]).itemsize
    if offsets[1] - offsets[0] != expected:
        raise FormatError(
            f"tensor {name!r}: {dtype} {shape} takes {expected} bytes, "
            f"data_offsets give {offsets[1] - offsets[0]}"
        )


def read(path):
    """Returns ({name: StoredTensor}, {metadata key: text}) of the file at `path`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise FormatError(f"cannot read: {error.strerror}") from error
    header, start = _parse_header(data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError("__metadata__ is not a map from text to text")
    for name, entry in header.items():
        _check_entry(name, entry)

    tensors, view = {}, memoryview(data)
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != position:
            raise FormatError(f"tensor {name!r} begins at {begin}, expected {position}")
        if start + end > len(data):
            raise FormatError(f"tensor {name!r} ends at {end}, past the end of the file")
        # Why a view: a copy of every tensor would cost as much as to read them.
        raw = np.frombuffer(view[start + begin : start + end], dtype=STORAGE[entry["dtype"]])
        tensors[name] = StoredTensor(entry["dtype"], raw.reshape(entry["shape"]))
        position = end
    if start + position != len(data):
        raise FormatError(f"{len(data) - start - position} bytes after the last tensor")
    return tensors, metadata


def write(path, tensors, metadata):
    """Writes {name: StoredTensor}; the tests make their files with it."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        stored = np.ascontiguousarray(tensor.raw, dtype=STORAGE[tensor.dtype]).tobytes()
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    text = json.dumps(header).encode("utf-8")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
