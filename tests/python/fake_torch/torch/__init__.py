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

    def split(self, sizes):
        return numpy.split(self, numpy.cumsum(sizes)[:-1])

    def copy_(self, other):
        self[...] = other

    def fill_(self, value):
        self[...] = value


def set_grad_enabled(_):
    pass


def set_num_threads(_):
    pass
