"""What the stub packages of FlashMLA compute with: its functions over the latents of MLA."""

import stub_attention as stub
import torch

BLOCK_SIZE, HEAD_SIZE, LATENT = 64, 576, 512
GROUP, DS_BYTES = 128, 656


class SchedMeta:
    """Made empty; the first call fills it in."""

    shape = None


def get_mla_metadata(*_args, **_kwargs):
    return SchedMeta(), None


def attend(query, entries, scale, latent, causal, **options):
    """[Q, H, D] over entries [K, D] -> [Q, H, latent], natural LSE [Q, H]."""
    keys = entries[:, None]
    return stub.of_request(query, keys, keys[..., :latent], scale, -1, 0 if causal else -1,
                           **options)  # fmt: skip


def dense(query, k_cache, block_table, lens, latent, scale, causal, **options):
    """[B, Q, H, D] -> [B, Q, H, latent], LSE [B, H, Q]."""
    stub.check(k_cache.shape[1:] == (BLOCK_SIZE, 1, HEAD_SIZE), "k_cache of [NB, 64, 1, 576]")
    stub.check(latent == LATENT, "head_dim_v")
    entries = stub.paged(k_cache[:, :, 0], k_cache[:, :, 0], block_table, lens)
    parts = [attend(q, rows, scale, latent, causal, **options)
             for q, (rows, _) in zip(query, entries)]  # fmt: skip
    return torch.stack([out for out, _ in parts]), torch.stack([lse.T for _, lse in parts])


def listed(query, entries, indices, scale, latent):
    """[T, H, D] over entries [N, D] by indices [T, K] -> [T, H, latent], LSE [T, H]."""
    stub.check(query.shape[1] in (64, 128), "num_heads")
    parts = [attend(q[None], entries[row[row >= 0].long()], scale, latent, False)
             for q, row in zip(query, indices)]  # fmt: skip
    return (torch.cat([out for out, _ in parts]),
            stub.plus_inf(torch.cat([lse for _, lse in parts])))  # fmt: skip


def from_ds_mla(entries):
    """uint8 [N, 656] -> float32 [N, 576]."""
    stub.check(entries.dtype == torch.uint8 and entries.shape[1] == DS_BYTES, "fp8_ds_mla")
    scales_end = LATENT + LATENT // GROUP * 4
    codes = entries[:, :LATENT].contiguous().view(torch.float8_e4m3fn).float()
    scales = entries[:, LATENT:scales_end].contiguous().view(torch.float32)
    rope = entries[:, scales_end:].contiguous().view(torch.bfloat16).float()
    return torch.cat([codes * scales.repeat_interleave(GROUP, 1), rope], 1)


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v,
                           tile_scheduler_metadata, num_splits=None, softmax_scale=None,
                           causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None,
                           extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
                           extra_topk_length=None, out=None):  # fmt: skip
    """Output [B, Q, H, Dv], LSE [B, H, Q], natural; +inf in rows that see no key."""
    metadata = tile_scheduler_metadata
    stub.check(isinstance(metadata, SchedMeta) and num_splits is None, "metadata")
    stub.check(metadata.shape in (None, q.shape), "arguments are inconsistent with the metadata")
    metadata.shape = q.shape
    if indices is None:
        stub.check(not is_fp8_kvcache, "dense fp8")
        stub.check(q.dtype == k_cache.dtype, "query and key must have the same dtype")
        output, lse = dense(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal)
        return output, stub.plus_inf(lse)
    stub.check(is_fp8_kvcache and not causal and q.shape[1] == 1, "sparse attention over fp8")
    stub.check(indices.shape[-1] % 64 == 0, "topk % B_TOPK")
    entries = from_ds_mla(k_cache.flatten(0, 2))
    output, lse = listed(q[:, 0], entries, indices[:, 0], softmax_scale, head_dim_v)
    return output[:, None], lse[..., None]


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None,
                         out=None):  # fmt: skip
    """Output [T, H, Dv], maxima and LSE [T, H], natural; +inf in rows that see no key."""
    stub.check(q.dtype == kv.dtype == torch.bfloat16 and kv.shape[1:] == (1, HEAD_SIZE), "kv")
    stub.check(indices.shape[-1] % 128 == 0, "topk % (2 * B_TOPK)")
    output, lse = listed(q, kv[:, 0], indices[:, 0], sm_scale, d_v)
    return output, torch.zeros_like(lse), lse
