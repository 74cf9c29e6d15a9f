"""Tensors of DLPack as arrays over the same memory."""

import ctypes

import numpy

_KINDS = {0: "i", 1: "u", 2: "f"}


def from_dlpack(capsule):
    from attnbench.structs import ManagedTensor
    from torch import Tensor

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ManagedTensor.from_address(pointer(capsule, b"dltensor")).tensor
    dtype = numpy.dtype(f"{_KINDS[tensor.dtype.code]}{tensor.dtype.bits // 8}")
    shape = tensor.shape[: tensor.ndim]
    strides = [dtype.itemsize * stride for stride in tensor.strides[: tensor.ndim]]
    extent = dtype.itemsize + sum(s * (n - 1) for n, s in zip(shape, strides) if n > 0)
    memory = (ctypes.c_char * max(extent, 0)).from_address(tensor.data)
    return numpy.ndarray.__new__(Tensor, shape, dtype, memory, 0, strides)
