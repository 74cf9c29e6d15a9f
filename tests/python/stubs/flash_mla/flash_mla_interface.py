"""A stub with the signatures and conventions of FlashMLA that has FlashMLASchedMeta."""

from stub_mla import (  # noqa: F401
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
