"""Part of the stand-in for torch."""

from torch.utils import dlpack  # noqa: F401
