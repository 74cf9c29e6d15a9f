"""Adapters of the attention kernels of public packages."""
