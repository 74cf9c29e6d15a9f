"""As much of torch as the program itself needs on a CPU, in numpy: for tests of everything around an
adapter on machines without torch."""

import numpy

from torch import utils  # noqa: F401


class Tensor(numpy.ndarray):
    """An array with the few methods that are called."""

    def dim(self):
        return self.ndim

    def flatten(self, first, last):
        return self.reshape(self.shape[:first] + (-1,) + self.shape[last + 1 :])

    def unflatten(self, axis, sizes):
        return self.reshape(self.shape[:axis] + tuple(sizes) + self.shape[axis + 1 :])

    def transpose(self, one, other):
        return self.swapaxes(one, other)

    def to(self, dtype):
        return self.astype(dtype)

    def split(self, sizes, axis):
        return numpy.split(self, numpy.cumsum(sizes)[:-1], axis)

    def copy_(self, other):
        self[...] = other

    def fill_(self, value):
        self[...] = value

    def data_ptr(self):
        return self.ctypes.data

    def stride(self):
        return tuple(stride // self.itemsize for stride in self.strides)

    @property
    def device(self):
        return "cpu"


def set_grad_enabled(_):
    pass


def set_num_threads(_):
    pass


int32, int64 = numpy.int32, numpy.int64


def tensor(values, dtype=None, device=None):
    return numpy.array(values, dtype).view(Tensor)


def empty(shape, dtype=None, device=None):
    return numpy.empty(shape, dtype).view(Tensor)
