"""attnbench_backend.h as ctypes sees it, and its tensors as torch's. A field past struct_size of the
program is not read: structs only grow at their end."""

import ctypes
from ctypes import (
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    """AttnbenchTensor, which is DLPack's DLTensor."""

    _fields_ = [
        ("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", DataType),
        ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]  # fmt: skip


class ManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor; without a deleter, since the memory is the program's."""

    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Problem(ctypes.Structure):
    """AttnbenchProblem."""

    _fields_ = [
        ("struct_size", c_uint32), ("type", c_uint32), ("dtype", c_uint32), ("device", c_uint32),
        ("device_id", c_int32), ("sm", c_int32), ("num_sms", c_int32), ("num_heads", c_int32),
        ("num_kv_heads", c_int32), ("head_size", c_int32), ("v_head_size", c_int32),
        ("causal", c_int32), ("scale", c_double), ("logits_soft_cap", c_double),
        ("window_left", c_int64), ("window_right", c_int64), ("alibi", c_uint32),
        ("batch_invariant", c_int32), ("features", c_uint64), ("num_requests", c_int64),
        ("num_tokens", c_int64), ("num_keys", c_int64), ("max_query_len", c_int64),
        ("max_seq_len", c_int64), ("query_lens", ctypes.POINTER(c_int64)),
        ("seq_lens", ctypes.POINTER(c_int64)), ("kv_cache_dtype", c_uint32),
        ("block_size", c_int32), ("num_blocks", c_int64), ("kv_cache_hnd", c_int32),
        ("num_mm_ranges", c_int32), ("common_prefix_len", c_int64), ("output_scale", c_double),
        ("scenario", c_char_p), ("case_name", c_char_p), ("json", c_char_p),
        ("num_threads", c_int32), ("operation", c_uint32), ("topk", c_int32),
        ("reserved", c_int32), ("num_merged_tokens", c_int64),
        ("kv_lora_rank", c_int32), ("qk_nope_head_dim", c_int32), ("qk_rope_head_dim", c_int32),
        ("index_n_heads", c_int32), ("index_ue8m0", c_int32), ("int8_level", c_int32),
        ("rotary_dim", c_int32), ("is_neox", c_int32), ("is_raw", c_int32),
        ("lse_is_base_2", c_int32), ("output_quant", c_uint32), ("scales_are_ue8m0", c_int32),
        ("scales_are_swizzled", c_int32), ("dcp_world_size", c_int32), ("dcp_comm", c_int32),
        ("amax_is_signed", c_int32), ("dcp_rank", c_int32), ("reserved2", c_int32),
    ]  # fmt: skip


class Operand(ctypes.Structure):
    """AttnbenchOperand."""

    _fields_ = [
        ("name", c_char_p), ("tensor", ctypes.POINTER(Tensor)), ("is_output", c_uint32),
        ("reserved", c_uint32),
    ]  # fmt: skip


# In the order of the struct; the last two stand behind the operands.
LATER_NAMES = ("q_token_scale", "v_channel_scale")
TENSOR_NAMES = (
    "query", "output", "lse", "key", "value", "key_cache", "value_cache", "block_table",
    "query_start_loc", "seq_lens", "key_start_loc", "k_scale", "v_scale", "alibi_slopes", "sinks",
    "mm_prefix_ranges", "q_scale", "kv_cache", "topk_slots", "slot_mapping", "prefix_output",
    "prefix_lse", "suffix_output", "suffix_lse", "k_scale_cache", "v_scale_cache",
)  # fmt: skip


class Tensors(ctypes.Structure):
    """AttnbenchTensors."""

    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32)] + [
        (name, ctypes.POINTER(Tensor)) for name in TENSOR_NAMES
    ] + [("operands", ctypes.POINTER(Operand)), ("num_operands", c_int64)] + [
        (name, ctypes.POINTER(Tensor)) for name in LATER_NAMES
    ]


# Types of 8-bit floats are newer in DLPack than in torch: they travel as bytes.
_UINT8_CODE = 1
_FLOAT8_NAMES = {10: "float8_e4m3fn", 12: "float8_e5m2"}

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]
# Why for good: torch reads the description of a tensor when the last view of it goes.
_handed_over = []


def to_torch(tensor):
    """A torch tensor over the memory that an AttnbenchTensor describes."""
    import torch

    managed = ManagedTensor(tensor=tensor)
    float8 = _FLOAT8_NAMES.get(tensor.dtype.code)
    if float8:
        managed.tensor.dtype.code = _UINT8_CODE
    shape = (c_int64 * tensor.ndim)(*tensor.shape[: tensor.ndim])
    strides = (c_int64 * tensor.ndim)(*tensor.strides[: tensor.ndim])
    managed.tensor.shape, managed.tensor.strides = shape, strides
    _handed_over.append((managed, shape, strides))
    view = torch.utils.dlpack.from_dlpack(
        _new_capsule(ctypes.addressof(managed), b"dltensor", None)
    )
    return view.view(getattr(torch, float8)) if float8 else view


class TorchTensors:
    """The tensors of a case by their names in attnbench_backend.h; None where there is none. Those of
    an operation that has them by name are in the dict `operands`, inputs and outputs alike."""

    def __init__(self, address):
        struct = Tensors.from_address(address)
        for name in TENSOR_NAMES + LATER_NAMES:
            known = getattr(Tensors, name).offset < struct.struct_size
            pointer = getattr(struct, name) if known else None
            setattr(self, name, to_torch(pointer.contents) if pointer else None)
        knows_operands = Tensors.num_operands.offset < struct.struct_size
        count = struct.num_operands if knows_operands else 0
        self.operands = {
            operand.name.decode(): to_torch(operand.tensor.contents)
            for operand in struct.operands[:count]
        }
