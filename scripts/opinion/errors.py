"""The two ways in which a file of saved tensors can be refused."""

import numpy as np


class FormatError(Exception):
    """The file cannot be judged: malformed, incomplete, or of a kind that is not covered."""


class Disagreement(Exception):
    """The file can be judged and is wrong; the message says where and by how much."""


def require_equal(name, actual, expected):
    """Bit-for-bit equality; float arrays are compared as values with NaN equal to NaN."""
    if actual.shape != expected.shape:
        raise Disagreement(f"{name} has shape {actual.shape}, expected {expected.shape}")
    same = actual == expected
    if actual.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(expected)
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        raise Disagreement(
            f"{name}{list(where)} is {actual[where]}, expected {expected[where]} "
            f"({np.count_nonzero(~same)} of {same.size} differ)"
        )
