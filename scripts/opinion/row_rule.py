"""Rows of heads judged one by one, in their own sizes (semantics §14.2).

Nothing is emulated here: a row may be off by what rounding output and P to their types can cost at
most, and by what sums, products and exponentials in float32 lose on it.
"""

import numpy as np

from .errors import Disagreement

# Half a unit in the last place of 1: the most that rounding to nearest changes a value, relative.
HALF_UNIT = {"F32": 2**-24, "F16": 2**-11, "BF16": 2**-8, "F8_E4M3": 2**-4}
LSE_FLOOR = {"float32": 4e-6, "float16": 2e-5, "bfloat16": 2e-5}
FP8_PRODUCTS_FLOOR = 2.5e-3  # of e4m3 query and keys
FLOAT32 = 2**-24
LEAST_FLOAT32 = 2**-125  # weights below may count as 0
LOSS_FACTOR, LSE_LOSS_FACTOR, ELEMENT_FACTOR = 4, 4, 8


class RowScales:
    """Sizes of rows, and what float32 loses on them and on their LSE; all [rows, H]."""

    def __init__(self, rows, heads):
        self.sizes = np.zeros((rows, heads))
        self.losses = np.zeros((rows, heads))
        self.lse_losses = np.zeros((rows, heads))

    def put(self, rows, own):
        """Takes those of some rows."""
        self.sizes[rows], self.losses[rows] = own.sizes, own.losses
        self.lse_losses[rows] = own.lse_losses


def measure(scores, values, output, lse, products):
    """Sizes, losses and LSE losses [..., rows] of heads: masked scores [..., rows, Sk], values
    [..., Sk, Dv], output [..., rows, Dv], lse [..., rows], and products [..., rows, Sk] of the norms
    of query and key, scaled."""
    v2 = (np.where(np.isfinite(values), values, 0.0) ** 2).sum(axis=-1)
    norm = np.sqrt((np.where(np.isfinite(output), output, 0.0) ** 2).sum(axis=-1))
    with np.errstate(invalid="ignore", over="ignore"):
        p = np.exp(scores - lse[..., None])
    p[~np.isfinite(p)] = 0.0
    top = np.where(np.isfinite(scores), scores, -np.inf).max(axis=-1, initial=-np.inf)
    top = np.where(np.isfinite(top), np.abs(top), 0.0)
    squares = p**2
    spread = (squares @ v2[..., None])[..., 0]
    errors = squares * (products + (2 * top + 4)[..., None]) ** 2
    sum_of_errors = errors.sum(axis=-1)
    moved = ((errors * (1 - 2 * p)) @ v2[..., None])[..., 0] + spread * sum_of_errors
    size = np.maximum(norm, np.sqrt(spread))
    count = scores.shape[-1]
    losses = FLOAT32 * (np.sqrt(np.maximum(moved, 0)) + size * np.sqrt(count))
    losses += LEAST_FLOAT32 * count * np.sqrt(v2.max(axis=-1, initial=0.0))[..., None]
    magnitude = 2 * top + np.abs(np.where(np.isfinite(lse), lse, 0.0))
    lse_losses = FLOAT32 * (np.sqrt(sum_of_errors) + magnitude + 1 + np.sqrt(count))
    return size, losses, lse_losses


def require_rows(name, actual, expected, scales, half_units):
    """||a - r|| / n of every row [R, H, Dv] within its limit, every element within its share of it;
    `half_units` is what output and P may be off by together. Returns the largest |a - r|."""
    finite = np.isfinite(expected)
    same = np.where(np.isnan(expected), np.isnan(actual), actual == expected)
    if not (same | finite).all() or not np.isfinite(actual[finite]).all():
        raise Disagreement(f"{name}: NaN or infinity stands in different places")
    error = np.where(finite, np.where(finite, actual, 0) - np.where(finite, expected, 0), 0)
    allowed = half_units * scales.sizes + LOSS_FACTOR * scales.losses
    norm = np.sqrt((error**2).sum(axis=-1))
    wrong = norm > allowed
    share = ELEMENT_FACTOR * allowed / np.sqrt(max(1, error.shape[-1]))
    elements = np.abs(error) > share[..., None] + 2 * half_units * np.abs(np.where(finite, expected, 0))
    if wrong.any() or elements.any():
        bad = wrong | elements.any(axis=-1)
        row, head = (int(i) for i in np.argwhere(bad)[0])
        element = int(np.abs(error[row, head]).argmax())
        raise Disagreement(
            f"{name}[{row}, {head}, {element}] is {actual[row, head, element]:.6g}, expected "
            f"{expected[row, head, element]:.6g}; the row of the head is off by {norm[row, head]:.3g}, "
            f"limit {allowed[row, head]:.3g} ({np.count_nonzero(bad)} of {bad.size} rows of heads)"
        )
    return float(np.abs(error).max(initial=0.0))


def require_lse(name, actual, expected, scales, dtype, fp8_products=False):
    """|a - r| of every LSE [H, R] within its limit."""
    finite = np.isfinite(expected)
    if not np.where(finite, np.isfinite(actual), actual == expected).all():
        raise Disagreement(f"{name}: NaN or infinity stands in different places")
    floor = max(LSE_FLOOR[dtype], FP8_PRODUCTS_FLOOR if fp8_products else 0)
    limit = np.maximum(floor, LSE_LOSS_FACTOR * scales.lse_losses.T)
    error = np.where(finite, np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0)), 0)
    if (error > limit).any():
        head, row = np.argwhere(error > limit)[0]
        raise Disagreement(
            f"{name}[{head}, {row}] is {actual[head, row]:.9g}, expected {expected[head, row]:.9g} "
            f"within {limit[head, row]:.3g}"
        )
