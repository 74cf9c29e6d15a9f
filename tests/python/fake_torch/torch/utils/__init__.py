"""Part of the fake torch."""

from torch.utils import dlpack  # noqa: F401
