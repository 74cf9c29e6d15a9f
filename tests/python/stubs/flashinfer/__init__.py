"""A stub with the signatures and conventions of FlashInfer's wrappers for paged caches."""

import math

import stub_attention as stub
import torch


def check_rows(row):
    """[..., H, D] of 16 bits: what a kernel with a thread for each vector of a row can be launched for."""
    heads, size = row.shape[-2:]
    stub.check(size in (64, 128, 256, 512), f"Unsupported head_dim: {size}")
    stub.check(heads * (size // max(8, size // 32)) <= 1024, "invalid configuration argument")


class Paged:
    """Requests of any lengths over pages, as plan() is told."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, **_):
        stub.check(float_workspace_buffer.dtype == torch.uint8, "workspace of bytes")
        self.kv_layout = kv_layout

    def take(self, indptr, indices, last_page_len, page_size, options):
        stub.check(all(part.dtype == torch.int32 for part in (indptr, indices, last_page_len)),
                   "int32")  # fmt: skip
        self.tables = [indices[first:last].long()
                       for first, last in zip(indptr.tolist(), indptr.tolist()[1:])]  # fmt: skip
        self.lens = [(len(table) - 1) * page_size + last if len(table) else 0
                     for table, last in zip(self.tables, last_page_len.tolist())]  # fmt: skip
        self.options = options

    def attend(self, q, paged_kv_cache, starts, causal, k_scale, v_scale, scales=()):
        """Output [T, H, Dv] and LSE [T, H] in base 2. `scales` of query, keys and values by head, with
        an fp8 query."""
        caches = [cache.transpose(1, 2) if self.kv_layout == "HND" else cache
                  for cache in paged_kv_cache]  # fmt: skip
        keys = [tuple(cache[table].flatten(0, 1)[:length] for cache in caches)
                for table, length in zip(self.tables, self.lens)]  # fmt: skip
        options, more = self.options, {}
        stub.check(q.dtype == options["q_data_type"], "q_data_type")
        stub.check(keys[0][0].dtype == options["kv_data_type"], "kv_data_type")
        if stub.is_fp8(q):
            stub.check(options["window_left"] < 0 and not options["logits_soft_cap"], "fp8 query")
            q_scale, k_scale, v_scale = scales
            stub.check(len(q_scale) == q.shape[1] and len(k_scale) == len(v_scale) == keys[0][0].shape[1],
                       "scales")  # fmt: skip
            q, more = q.float() * q_scale[:, None], {"dtype": options["o_data_type"], "rounds_p": True}
        if stub.is_fp8(keys[0][0]):
            keys = stub.scaled(keys, 1.0 if k_scale is None else k_scale,
                               1.0 if v_scale is None else v_scale)  # fmt: skip
        output, lse = stub.of_batch(q, starts, keys, options["sm_scale"], options["window_left"],
                                    0 if causal else -1, soft_cap=options["logits_soft_cap"] or 0.0,
                                    **more)  # fmt: skip
        return output, lse / math.log(2)


def finish(output, lse, out, return_lse):
    if out is not None:
        output = out.copy_(output)
    return (output, lse) if return_lse else output


class BatchDecodeWithPagedKVCacheWrapper(Paged):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False,
                 use_tensor_cores=False, **_):  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16",
             kv_data_type=None, sm_scale=None):  # fmt: skip
        self.take(indptr, indices, last_page_len, page_size,
                  {"sm_scale": sm_scale, "window_left": window_left, "q_data_type": q_data_type,
                   "kv_data_type": kv_data_type, "logits_soft_cap": logits_soft_cap})  # fmt: skip

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None,
            lse=None, return_lse=False):  # fmt: skip
        attended = self.attend(q, paged_kv_cache, torch.arange(len(q) + 1), True, k_scale, v_scale)
        return finish(*attended, out, return_lse)


class BatchPrefillWithPagedKVCacheWrapper(Paged):
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
             num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
             packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", sm_scale=None,
             window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
             o_data_type=None):  # fmt: skip
        self.starts, self.causal = qo_indptr, causal
        self.take(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size,
                  {"sm_scale": sm_scale, "window_left": window_left, "q_data_type": q_data_type,
                   "kv_data_type": kv_data_type, "o_data_type": o_data_type,
                   "logits_soft_cap": logits_soft_cap})  # fmt: skip

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None,
            lse=None, return_lse=False):  # fmt: skip
        attended = self.attend(q, paged_kv_cache, self.starts, self.causal, k_scale, v_scale, args)
        return finish(*attended, out, return_lse)


class MultiLevelCascadeAttentionWrapper:
    def __init__(self, num_levels, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False):
        self.levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
                       for _ in range(num_levels)]  # fmt: skip

    def plan(self, qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len,
             num_qo_heads, num_kv_heads, head_dim, page_size, causal=False,
             pos_encoding_mode="NONE", sm_scale=None, window_left=-1, logits_soft_cap=None,
             q_data_type="float16", kv_data_type=None):  # fmt: skip
        for i, level in enumerate(self.levels):
            level.plan(qo_indptr_arr[i], paged_kv_indptr_arr[i], paged_kv_indices_arr[i],
                       paged_kv_last_page_len[i], num_qo_heads, num_kv_heads, head_dim, page_size,
                       causal=causal and i == len(self.levels) - 1, sm_scale=sm_scale,
                       window_left=window_left, logits_soft_cap=logits_soft_cap,
                       q_data_type=q_data_type, kv_data_type=kv_data_type)  # fmt: skip

    def run(self, q, paged_kv_cache):
        parts = [level.run(q, paged_kv_cache, return_lse=True) for level in self.levels]
        check_rows(q)
        weights = torch.stack([lse for _, lse in parts]).mul(math.log(2)).softmax(0)
        return sum(output.float() * weight[..., None]
                   for (output, _), weight in zip(parts, weights)).to(q.dtype)  # fmt: skip


def merge_state(v_a, s_a, v_b, s_b):
    """V [T, H, D] and S [T, H], of base 2 like those that come in."""
    for tensor in (v_a, s_a, v_b, s_b):
        stub.check(tensor.is_contiguous(), "must be contiguous")
    check_rows(v_a)
    stub.check(v_a.shape == v_b.shape and s_a.shape == s_b.shape == v_a.shape[:2], "shapes")
    stub.check(v_a.dtype in (torch.bfloat16, torch.float16), "unsupported data type")
    output, lse = stub.merge(v_a.float(), s_a * math.log(2), v_b.float(), s_b * math.log(2))
    return output.to(v_a.dtype), lse / math.log(2)


def append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache,
                          kv_indices, kv_indptr, kv_last_page_len, kv_layout="NHD"):  # fmt: skip
    k_cache, v_cache = paged_kv_cache
    stub.check(k_cache.stride() == v_cache.stride(), "k/v strides must be identical")
    stub.check(append_key.dtype == k_cache.dtype, "one type")
    check_rows(append_key)
    for tensor in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        stub.check(tensor.dtype == torch.int32 and tensor.is_contiguous(), "int32 in one piece")
    stub.check(len(positions) == len(batch_indices) == len(append_key), "nnz")
    if kv_layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    page_size = k_cache.shape[1]
    for row, (request, position) in enumerate(zip(batch_indices.tolist(), positions.tolist())):
        first, last = kv_indptr[request : request + 2].tolist()
        length = (last - first - 1) * page_size + int(kv_last_page_len[request])
        stub.check(position < length, "kv_indptr has no page for it")
        page = kv_indices[first + position // page_size]
        k_cache[page, position % page_size] = append_key[row]
        v_cache[page, position % page_size] = append_value[row]
