"""Python kernels in attnbench: the base class of adapters, and those that come with the program.

docs/plugins.md goes from nothing to a judged kernel.
"""

from attnbench.adapter import Adapter

__all__ = ["Adapter"]
