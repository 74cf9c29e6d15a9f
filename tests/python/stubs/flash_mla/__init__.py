"""A stub of FlashMLA."""

from flash_mla.flash_mla_interface import (  # noqa: F401
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
