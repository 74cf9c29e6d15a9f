"""Comparisons that name the first place in which two arrays differ."""

import numpy as np

from .errors import Disagreement

def _same_specials(name, actual, expected):
    """NaN and infinity must be in the same places; returns where both are finite."""
    finite = np.isfinite(expected)
    same = np.where(np.isnan(expected), np.isnan(actual), actual == expected)
    if not (same | finite).all() or not np.isfinite(actual[finite]).all():
        raise Disagreement(f"{name}: NaN or infinity stands in different places")
    return finite


def require_close(name, actual, expected, atol, rtol):
    """|a - b| <= atol + rtol |b| for every element; returns the largest |a - b|."""
    if actual.shape != expected.shape:
        raise Disagreement(f"{name} has shape {actual.shape}, expected {expected.shape}")
    finite = _same_specials(name, actual, expected)
    if not finite.any():
        return 0.0
    error = np.where(finite, np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0)), 0)
    excess = error - atol - rtol * np.where(finite, np.abs(expected), 0)
    worst = np.unravel_index(np.argmax(np.where(finite, excess, -np.inf)), error.shape)
    if excess[worst] > 0:
        raise Disagreement(
            f"{name}{[int(i) for i in worst]} is {actual[worst]:.9g}, "
            f"expected {expected[worst]:.9g} within {atol:g} + {rtol:g} |expected| "
            f"({np.count_nonzero(excess > 0)} of {excess.size} differ)"
        )
    return float(error.max())
