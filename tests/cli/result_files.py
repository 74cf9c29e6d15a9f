"""Made-up results, for tests of what shows them: sweeps, batches, quantised caches, backends in turns."""

from timings import rates, summary, timing_of

HOSTILE = "</script><script>window.hacked=1</script><!--<img src=x onerror=hacked=1>\u2028'\"&`${1}"


def timing(median_us):
    samples = [median_us * (1 + 0.001 * ((7 * i) % 11 - 5)) for i in range(20)]
    return {
        **timing_of(samples), "l2": "cold", "total_us": median_us * 1.1,
        "steps": [{"name": "write_cache", "median_us": median_us * 0.1, "bytes": 1, "flops": 0},
                  {"name": "attend", "median_us": median_us, "bytes": 1, "flops": 1}],
    }  # fmt: skip


def throughput(median_us, flops, size):
    work = {
        "kv_gbps": 1.0, "tokens_per_s": 1e6 / median_us, "flops": flops, "bytes": size,
        "ceiling_tflops": 1.0, "ceiling_gbps": 100.0,
    }  # fmt: skip
    return rates(work, median_us)


def timed(entry, median_us):
    """Gives a result another time."""
    entry.update(timing=timing(median_us), throughput=rates(entry["throughput"], median_us))


def error(max_abs):
    return {
        "max_abs": max_abs, "mean_abs": max_abs / 10, "rms_rel": max_abs, "nmse": max_abs**2,
        "cosine": 0.999999, "err_ratio": max_abs * 1e3, "matched_pct": 100.0,
        "worst_index": [0, 0, 0], "worst_actual": 1.5, "worst_expected": 1.25,
        "nan_count": 0, "inf_count": 0, "checked_rows": 1, "total_rows": 1,
        "limit": "l", "rule": "r",
    }  # fmt: skip


def result(backend, seq_len, median_us, scenario="sweep", **fields):
    """A passed decode of one request; fields are swept keys like {"dcp.world_size": 2}."""
    case = ",".join([f"q1s{seq_len}", *(f"{key}={value}" for key, value in fields.items())])
    problem = {"batch": [{"count": 1, "query_len": 1, "seq_len": seq_len}],
               "attention": {"dtype": "bfloat16"}}  # fmt: skip
    for key, value in fields.items():
        section, name = key.split(".")
        problem.setdefault(section, {})[name] = value
    return {
        "id": f"{scenario}/{case}/{backend}", "scenario": scenario, "case": case,
        "backend": backend, "device": "cpu", "status": "passed", "reasons": [], "problem": problem,
        "error": error(1e-3 / median_us), "lse_error": None, "quantization_error": None,
        "timing": timing(median_us),
        "throughput": throughput(median_us, 4e3 * seq_len, 1e3 * seq_len),
        "kernels": [], "repro": f"attnbench run {scenario} --filter '{case}'",
    }  # fmt: skip


def failed(backend, seq_len, status, reason):
    return {**result(backend, seq_len, 1.0), "status": status, "reasons": [reason], "timing": None,
            "throughput": None}  # fmt: skip


def result_file(results):
    return {
        "schema_version": 1, "tool": {"name": "attnbench", "version": "1", "git": "abc"},
        "created": "2026-01-02T03:04:05Z", "command": ["attnbench", "run", "a b"],
        "environment": {"hostname": "h", "cpu": {"model": "CPU", "cores": 2, "features": "avx2"},
                        "device": None, "compiler": {"name": "g++", "version": "12"},
                        "fingerprint": "f"},
        "results": results,
    }  # fmt: skip


def sweep_results():
    """Six timed cases, of which the slowest is in the middle, and two that did not run."""
    return [
        *(result("FLASH_ATTN", n, time) for n, time in ((1024, 20.0), (2048, 900.0), (4096, 70.0))),
        *(result("TRITON_ATTN", n, time) for n, time in ((1024, 25.0), (2048, 45.0), (4096, 85.0))),
        failed("FLASH_ATTN", 8192, "incorrect", "max_abs 0.5 exceeds 0.01"),
        failed("TRITON_ATTN", 8192, "unsupported", "head_size not supported"),
    ]


def of_batch(backend, batch, segments, median_us, **changes):
    """A passed result of any batch; segments are (count, query_len, seq_len)."""
    entry = {**result(backend, 1, median_us, "batches"), **changes}
    entry.update(case=batch, id=f"batches/{batch}/{backend}")
    entry["problem"] = {"batch": [dict(zip(("count", "query_len", "seq_len"), segment))
                                  for segment in segments]}  # fmt: skip
    return entry


def batch_results():
    """Seven batches in an order that is neither alphabetical nor by size, two to three of a kind."""
    batches = {
        "q512": [(1, 512, 512)], "8q1s1k": [(8, 1, 1024)], "q64": [(1, 64, 64)],
        "64q1s1k": [(64, 1, 1024)], "4q1s512_q60": [(4, 1, 512), (1, 60, 60)],
        "512q1s1k": [(512, 1, 1024)], "q2k": [(1, 2048, 2048)],
    }  # fmt: skip
    return [of_batch(backend, batch, segments, 10.0 + 3 * i)
            for i, (batch, segments) in enumerate(batches.items())
            for backend in ("FLASH_ATTN", "TRITON_ATTN")]  # fmt: skip


def quantised(entry, dtype, cost, **saturated):
    """The result with a cache of that type, which costs so much."""
    heads = {"type": "decoder", "num_kv_heads": 8, "head_size": 128, "v_head_size": 128,
             "dtype": "bfloat16"}  # fmt: skip
    entry["problem"].update(attention=heads, kv_cache={"dtype": dtype, "int8_level": 0})
    if cost is not None:
        entry["quantization_error"] = {**error(cost), **saturated}
    return entry


def quantised_results():
    key = "kv_cache.dtype"
    return [
        quantised(result("FLASH_ATTN", 1024, 20.0, **{key: "auto"}), "auto", None),
        quantised(result("FLASH_ATTN", 1024, 15.0, **{key: "fp8"}), "fp8", 0.046),
        quantised(result("TRITON_ATTN", 1024, 16.0, **{key: "fp8"}), "fp8", 0.986,
                  saturated_key=0.97, saturated_value=0.5),
        quantised(result("TRITON_ATTN", 1024, 17.0, **{key: "fp8_per_token_head"}),
                  "fp8_per_token_head", 0.026),
    ]  # fmt: skip


def in_turns(entry, peers, rounds=5):
    """The result as its backend gives it in turns with others; the rounds drift by 1 % each way."""
    time = entry["timing"]
    median = time["median_us"]
    samples = [median * (0.99 + 0.005 * (i // 4)) for i in range(20)]
    if entry["backend"] != "FLASH_ATTN":
        samples.reverse()
    time.update(summary(samples), rounds=[4] * rounds, peers=peers)
    return entry


def peer_results():
    """A case that one of four lost by a crash, and one that a user's backend does not take."""
    plugin = "python:adapters.of_mine.for_attention:FastAttention"
    first, second = ["FLASH_ATTN", plugin], ["FLASH_ATTN", "TRITON_ATTN"]
    return [
        in_turns(result("FLASH_ATTN", 8192, 30.0), first),
        failed("TRITON_ATTN", 8192, "error", "the process ended"),
        in_turns(result(plugin, 8192, 20.0), first),
        failed("CUDNN", 8192, "unsupported", "cuDNN not found"),
        in_turns(result("FLASH_ATTN", 131072, 400.0), second),
        in_turns(result("TRITON_ATTN", 131072, 500.0), second),
        failed("CUDNN", 131072, "unsupported", "cuDNN not found"),
    ]
