"""A stub with the signature and conventions of FlashInfer's wrapper for MLA."""

import math

import stub_attention as stub
import torch


class BatchMLAPagedAttentionWrapper:
    def __init__(self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None,
                 kv_indices=None, kv_len_arr=None, backend="auto"):  # fmt: skip
        stub.check(float_workspace_buffer.dtype == torch.uint8, "workspace of bytes")

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv,
             head_dim_kpe, page_size, causal, sm_scale, q_data_type, kv_data_type,
             use_profiler=False):  # fmt: skip
        parts = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        stub.check(all(part.dtype == torch.int32 for part in parts), "int32")
        stub.check(q_data_type == kv_data_type, "types")
        self.tables = [kv_indices[first:last].long()
                       for first, last in zip(kv_indptr.tolist(), kv_indptr.tolist()[1:])]  # fmt: skip
        self.starts, self.lens, self.page_size = qo_indptr, kv_len_arr.tolist(), page_size
        self.sizes, self.scale, self.causal = (head_dim_ckv, head_dim_kpe), sm_scale, causal

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False,
            profiler_buffer=None, kv_len=None, page_table=None,
            return_lse_base_on_e=False):  # fmt: skip
        """Output [T, H, Dv], LSE [T, H] in base 2."""
        stub.check((q_nope.shape[-1], q_pe.shape[-1]) == self.sizes, "sizes of the query")
        stub.check(ckv_cache.shape[1:] == (self.page_size, self.sizes[0]), "ckv_cache")
        entries = [torch.cat([ckv_cache[table], kpe_cache[table]], -1).flatten(0, 1)[:length]
                   for table, length in zip(self.tables, self.lens)]  # fmt: skip
        keys = [(rows[:, None], rows[:, None, : self.sizes[0]]) for rows in entries]
        output, natural = stub.of_batch(torch.cat([q_nope, q_pe], -1), self.starts, keys, self.scale,
                                        -1, 0 if self.causal else -1)  # fmt: skip
        out.copy_(output)
        return (out, natural if return_lse_base_on_e else natural / math.log(2))
