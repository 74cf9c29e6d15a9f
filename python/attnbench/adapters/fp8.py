"""What the adapters of packages have in common for fp8 queries and caches."""

CACHES = ("fp8_kv", "fp8_e5m2_kv")


def has_cache(problem):
    return any(cache in problem.features for cache in CACHES)


def one_scale_only(problem):
    """Reasons of a kernel that takes one k_scale and one v_scale."""
    cache = problem.json["kv_cache"]
    for name in ("k_scale", "v_scale"):
        scale = cache[name]
        if has_cache(problem) and isinstance(scale, list) and len(set(scale)) > 1:
            yield f"a {name} for each head"


def rounds_probability(problem):
    """Reasons of a kernel whose probabilities are e4m3 when its query is."""
    if "fp8_query" in problem.features and "fp8_probability" not in problem.features:
        yield "rounds P to e4m3, which attention.probability_dtype: fp8_e4m3 asks for"


def without_e4m3(problem):
    """Reasons of Triton kernels, whose e4m3 begins with compute capability 8.9 (e5m2 before)."""
    is_used = not problem.features.isdisjoint(("fp8_kv", "fp8_query", "fp8_output"))
    if is_used and problem.device == "cuda" and problem.sm < 89:
        yield "e4m3 in Triton before compute capability 8.9"


def refused_by_fa3(problem):
    """Reasons of FlashAttention-3: query, keys and values of one type, and an output of bfloat16 where
    that is e4m3."""
    if not has_cache(problem):
        return
    if "fp8_query" not in problem.features:
        yield "fp8 keys without an fp8 query (attention.query_dtype: fp8_e4m3)"
    yield from rounds_probability(problem)
    if problem.dtype != "bfloat16":
        yield f"fp8 with an output of {problem.dtype}"
    if problem.head_size % 16:
        yield "fp8 with a head_size that is not a multiple of 16"


def descales(problem, tensors):
    """q_descale, k_descale and v_descale [B, Hk] of FlashAttention-3 and vLLM, views of our scales; none
    where nothing is quantised."""
    shape = problem.num_requests, problem.num_kv_heads
    scales = {"q_descale": tensors.q_scale, "k_descale": tensors.k_scale, "v_descale": tensors.v_scale}
    return {name: scale.expand(shape) for name, scale in scales.items() if scale is not None}
