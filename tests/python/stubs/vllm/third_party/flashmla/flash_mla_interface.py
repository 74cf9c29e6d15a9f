"""A stub with the signatures and conventions of FlashMLA in vLLM, which has FlashMLASchedMeta."""

from stub_mla import (  # noqa: F401
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
