"""Comparisons that name the first place in which two arrays differ."""

import numpy as np

from .errors import Disagreement

# Semantics §14.2, fp8 queries, keys and values: (atol, rtol, lowest cosine). With P of 16 bits or more,
FP8_QUERY_TOLERANCE = (3e-2, 3e-2, 1 - 1e-4)
# and with P in e4m3, where atol is in units of the largest output magnitude.
E4M3_P_TOLERANCE = (3e-2, 3e-2, 1 - 1e-3)
# Of few outputs the largest is drawn too small to measure errors by, so that it counts as at least this
# many RMS of the outputs: about the largest of 10^5 normal values.
LARGEST_OF_MANY = 4.5


def fp8_tolerance(expected, e4m3_probability):
    """(atol, rtol, lowest cosine) for outputs of fp8 queries, keys and values."""
    if not e4m3_probability:
        return FP8_QUERY_TOLERANCE
    finite = expected[np.isfinite(expected)]
    rms = np.sqrt(np.mean(finite**2)) if finite.size else 0.0
    largest = max(np.abs(finite).max(initial=0.0), LARGEST_OF_MANY * rms)
    atol, rtol, cosine = E4M3_P_TOLERANCE
    return atol * largest, rtol, cosine


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


def check_cosine(actual, expected, lowest):
    finite = np.isfinite(expected)
    a, b = actual[finite].astype(np.float64), expected[finite]
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    if norms > 0 and a @ b / norms < lowest:
        raise Disagreement(f"output: cosine {a @ b / norms:.9f}, expected at least {lowest:.9f}")
