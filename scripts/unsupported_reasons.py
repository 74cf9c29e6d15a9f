"""The forms that a reason of an `unsupported` result may have, and the place of each in semantics §13.

A reason that has none of these forms is a gap of the program and not of what it measures.
"""

import re

NAME = r"[A-Z0-9_]+"
TYPE = r"(decoder|encoder|encoder_only|encoder_decoder|mla|mm_encoder|op)"

# Place of what is missing for CUDNN on a machine or in a build.
CUDNN_LIBRARY = "CUDNN's library"
# Place in the semantics, and the regular expression of the whole reason. §13.2 and §13.3 say what a
# backend takes, and have a text only where §13.1 and §13.4 give one; the other texts are this
# program's words for a row of those tables.
FORMS = [
    ("13.1 row 1", r"head_size not supported"),
    ("13.1 row 2", r"dtype not supported"),
    ("13.1 row 3", r"kv_cache_dtype not supported"),
    ("13.1 row 4", r"block_size not supported"),
    ("13.1 row 5", r"partial multimodal token full attention not supported"),
    ("13.1 row 6", r"(non-)?MLA not supported"),
    ("13.1 row 7", r"attention sinks not supported"),
    ("13.1 row 8", r"(non-)?sparse not supported"),
    ("13.1 row 9", r"per-head quant scales not supported"),
    ("13.1 row 10", r"compute capability( \d+\.\d+)? not supported"),
    ("13.1 row 11", rf"attention type {TYPE} not supported"),
    ("13.1 row 12", r"non-causal attention not supported"),
    ("13.1 row 13", r"batch invariance not supported"),
    ("13.1 row 14", r"sink not supported on compute capability < 9\.0"),
    ("13.2 ALiBi sqrt", r"alibi sqrt not supported"),
    ("13.2 fused FP8 output",
     r"fused output quantization is not yet supported for (FlashAttention|TurboQuantAttention)Impl"),
    ("5.8", r"turboquant_\w+ KV cache requires a head_size that is a power of two from 32 to 512"),
    ("5.8", r"turboquant_\w+ KV cache requires head_size % 8 == 0, at most 512"),
    ("13.2 TURBOQUANT", r"TURBOQUANT ignores (ALiBi|softcap|windows)"),
    ("13.2 TURBOQUANT", r"turboquant_\w+ has keys in fp8e4b15 below compute capability 8\.9"),
    ("13.2 quantised query", r"fp8 query"),
    ("13.2 quantised query", r"e4m3 P without fp8 query, key and value"),
    ("13.2 KV dtypes", r"int8 attention not supported"),
    ("13.2 head size", r"per-token-head KV cache requires head_size % 4 == 0"),
    ("13.2 KV shape", r"v_head_size not supported"),
    ("13.3 entry size", r"Head dimension \d+ is not supported by MLA\."),
    ("13.3 sparse KV dtypes",
     r"FlashMLA Sparse Attention backend fp8 only supports fp8_ds_mla kv-cache dtype"),
    ("13.3 sparse heads", r"sparse MLA with \d+ heads, more than 128"),
    ("13.3 heads", r"H must be <= 128, but got \d+"),
    ("13.3 sparse sizes",
     r"FlashInfer MLA Sparse kernel requires qk_nope_head_dim in \[128, 192\], but got \d+"),
    ("13.3 prefill", rf"Selected MLA prefill backend {NAME} is not valid for this configuration\. "
                     r"Reason: \[.+\]"),
    ("13.3 other names", r"ROCM_AITER_FA requires ROCm"),
    ("13.3 other names",
     rf"Selected backend {NAME} is not valid for this configuration\. Reason: \['ImportError'\]"),
    ("13.3 other names",
     rf"Backend {NAME} must be registered before use\. "
     rf"Use register_backend\(Backend\.{NAME}, 'your\.module\.YourClass'\)"),
    ("13.3 other names", rf"{NAME} has no pipeline of its own here(; python:[\w.:]+ .*)?"),
    ("13.3 lengths", rf"{NAME} requires cu_seqlens, max_seqlen and sequence_lengths"),
    ("13.3 lengths", rf"{NAME} requires key length equal to query length"),
    ("13.3 fp8",
     rf"mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {NAME}"),
    ("13.4", r"int8 attention level [12] with fp8 kv cache"),
    ("13.4", r"attention sinks with int8 attention"),
    ("13.4", r"cascade attention with int8 attention"),
    ("13.4", r"attention sinks with ixformer cascade attention"),
    ("13.4", rf"int8 attention for attention type {TYPE}"),
    ("13.4", r"fp8 descale in ixformer layout"),
    ("13.4", r"Cascade attention does not support (ALiBi|sliding window)\."),
    ("13.4", rf"cascade attention not supported by {NAME}"),
    ("13.4", r"DCP with (ALiBi|sinks|calculate_kv_scales|cascade|int8 attention)"),
    # Of results that were recorded before these were supported.
    ("13.4", r"DCP with (window|fp8)"),
    ("13.4", rf"DCP with attention type {TYPE}"),
    ("13.4", r"DCP not support fp8 kvcache now\."),
    ("13.4", r"DCP requires LSE from decode"),
    ("13.4", r"MTP with cp_kv_cache_interleave_size > 1 is not supported"),
    ("13.4", rf"{NAME} encoder attention ignores (ALiBi|softcap|sinks|window|output_scale)"),
    ("13.4", r"quantized KV cache is not supported for encoder attention"),
    ("13.4", r"A non 1\.0 q_scale is not currently supported\."),
    ("13.4 and 4.5",
     r"fused block_scale output quantization is not yet supported for TritonAttentionImpl"),
    ("13.4", r"mm_prefix applies to decoder attention only"),
    ("13.4", r"fused rope\+kvcache with per-token-head quantization"),
    ("13.4", r"FlashMLAImpl does not support one of the following: alibi_slopes, sliding_window, "
             r"logits_soft_cap"),
    ("13.4", r"rows of 3 \* hidden_size / tp_size = \d+ elements, for \d+ of V"),
    ("13.4", r"split_form not supported"),
    ("13.4", r"split_form (separate|joined|planned) (without decodes|over ranks|with (prefills in the "
             r"same varlen call|cascade attention|int8 scores))"),
    ("13.4", r"num_splits not supported"),
    ("13.4", r"num_splits \d+ (without decodes|with (prefills in the same varlen call|cascade attention|"
             r"queries of several tokens over ranks))"),
    ("13.4", r"KV sharing (with int8 attention|is not supported for MLA)|DCP with KV sharing"),
    ("13.4", r"MLA graph: expected (max_query_len <= \d+, got \d+|decodes only, got \d+ prefills)"),
    ("13.4", r"chunked local attention (with ALiBi|not supported)"),
    ("13.4", r"(cascade attention|DCP) with chunked local attention"),
    ("13.4", r"int8 attention with a cross-layer cache|cross-layer cache not supported"),
    ("6.2", r"cascade attention with (fp8 descale|an infinite sink)"),
    ("6.2", r"cascade attention for attention type encoder_decoder"),
    (CUDNN_LIBRARY, r"built without cudnn-frontend|cuDNN not found|CUDNN needs a CUDA device"),
    (CUDNN_LIBRARY, r"cuDNN [\d.]+ (is older than [\d.]+|lacks a function of cudnn-frontend)"),
    ("CUDNN's limits", r"(ALiBi|logits_soft_cap|DCP) not supported"),
    ("CUDNN's limits", r"output quantization \w+ not supported"),
    ("CUDNN's limits", r"attention sinks where every request has one row|an infinite sink"),
    ("CUDNN's limits", r"a batch without rows or keys|e4m3 keys in pages"),
    ("CUDNN's limits", r"scales calculated in the step"),
    ("CUDNN's limits", r"e4m3 inputs without e4m3 output on compute capability < 10\.0"),
    ("CUDNN's own words", r"cuDNN \d+\.\d+\.\d+, frontend \d+\.\d+\.\d+: .+"),
    ("the forced kernel's own words", r"kernel [\w:=]+( cannot do \w+)?: .+"),
    ("1.4 and 17.22", r"prefill order: expected prefills with context before those without, .*"),
]  # fmt: skip

# Users' backends, which semantics §13 is not about: they are not there, or say in their own words
# what they do not take.
EXTERNAL = re.compile(r"python:.*")


def is_external(backend):
    return EXTERNAL.fullmatch(backend) is not None


_COMPILED = [(place, re.compile(pattern)) for place, pattern in FORMS]


def place_of(reason):
    """Where the semantics define the reason: "13.4"; None for a reason of no known form.

    The value that was found, and what is taken, stand behind the words in parentheses.
    """
    words = reason.split(" (found ")[0]
    for place, pattern in _COMPILED:
        if pattern.fullmatch(words):
            return place
    return None
