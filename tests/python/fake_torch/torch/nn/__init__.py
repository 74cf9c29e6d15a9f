"""Of torch.nn, the functions that the examples call."""

from torch.nn import functional  # noqa: F401
