#!/usr/bin/env python3
"""attnbench beside PyTorch's scaled_dot_product_attention on the same GPU, in one call.

    peers_sdpa.py --binary build/attnbench [--rounds 3] [--json FILE] [--only prefill|decode]

In each round every shape is timed by the tool and by PyTorch (FlashAttention-2 and cuDNN) one
after the other, so that clocks and temperature are shared. PyTorch is timed as the tool times:
events around one call, a 256 MiB write before each, the median of 20 after 5 warm-ups. Prints a
Markdown table: median over the rounds and, in brackets, its least and largest value.
"""

import argparse
import json
import statistics
import subprocess
import sys

SAMPLES = 20
WARM_UPS = 5
FLUSH_BYTES = 256 << 20
TOKENS = 16384  # of a prefill batch, whatever the length of a sequence

PREFILL = [(head_size, num_heads, length, causal)
           for head_size, num_heads in ((64, 32), (128, 16), (256, 8))
           for length in (2048, 8192)
           for causal in (False, True)]  # fmt: skip
# batch, KV length, query heads, KV heads, kv_cache.dtype
DECODE = [(64, 8192, 32, 8, dtype) for dtype in
          ("auto", "fp8", "fp8_per_token_head", "int8_per_token_head")]  # fmt: skip
DECODE += [(1, 131072, 32, 8, "auto"), (8, 32768, 32, 8, "auto"), (1, 131072, 32, 8, "fp8")]


def run_tool(binary, scenario, backend, batch, settings):
    """Result of one case, timed and not validated; None when it is not supported."""
    command = [binary, "run", scenario, "--device", "cuda", "--no-validation", "--no-progress",
               "--quiet", "--backend", backend, "--samples", str(SAMPLES), "--json", "-",
               "--set", f"batch={batch}"]  # fmt: skip
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = json.loads(done.stdout)["results"][0]
    if result["timing"] is None:
        print(result["id"], result["status"], result["reasons"], file=sys.stderr)
        return None
    return result


def torch_time_us(work):
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(WARM_UPS):
        work()
    times = []
    for _ in range(SAMPLES):
        flush.fill_(1)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        times.append(1e3 * first.elapsed_time(last))
    return statistics.median(times)


def torch_prefill_us(kernel, head_size, num_heads, length, causal):
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    shape = (TOKENS // length, num_heads, length, head_size)
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    with sdpa_kernel(kernel):
        return torch_time_us(
            lambda: scaled_dot_product_attention(query, key, value, is_causal=causal)
        )


def summary(values):
    if not values:
        return "-"
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def prefill_row(binary, scenario, shape):
    """Rates of one round in TFLOP/s: the tool over contiguous and paged K/V, FA2, cuDNN."""
    from torch.nn.attention import SDPBackend

    head_size, num_heads, length, causal = shape
    batch = f"{TOKENS // length}q{length}"
    dims = {"attention.num_heads": num_heads, "attention.num_kv_heads": num_heads,
            "attention.head_size": head_size}  # fmt: skip
    rates = {}
    if not causal:
        ours = run_tool(binary, scenario, "FLASH_ATTN", batch,
                        {**dims, "attention.type": "encoder_only"})  # fmt: skip
        rates["contiguous"] = ours and ours["throughput"]["tflops"]
    ours = run_tool(binary, scenario, "FLASH_ATTN", batch,
                    {**dims, "attention.causal": str(causal).lower()})  # fmt: skip
    rates["paged 16"] = ours and ours["throughput"]["tflops"]
    flops = 4 * num_heads * TOKENS * length * head_size / (2 if causal else 1)
    for name, kernel in (("FA2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        rates[name] = 1e-6 * flops / torch_prefill_us(kernel, *shape)
    return rates


def collect(rounds, rows, measure):
    """{row: {column: [rate of each round]}}, the rows one after the other in every round."""
    table = {row: {} for row in rows}
    for _ in range(rounds):
        for row in rows:
            for column, rate in measure(row).items():
                if rate is not None:
                    table[row].setdefault(column, []).append(rate)
    return table


def print_table(head, columns, table, label):
    print(f"\n| {head} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row, rates in table.items():
        print(f"| {label(row)} | " + " | ".join(summary(rates.get(c)) for c in columns) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/attnbench")
    parser.add_argument("--scenario", default="scenarios/models/llama-3.1-8b.yaml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["prefill", "decode"])
    parser.add_argument("--json", help="write every rate of every round there")
    options = parser.parse_args()
    found = {}
    if options.only != "decode":
        table = collect(options.rounds, PREFILL,
                        lambda shape: prefill_row(options.binary, options.scenario, shape))  # fmt: skip
        print_table("prefill bf16, TFLOP/s", ["contiguous", "paged 16", "FA2", "cuDNN"], table,
                    lambda s: f"D{s[0]} H{s[1]} S{s[2]} {'causal' if s[3] else 'full'}")  # fmt: skip
        found["prefill"] = [{"shape": row, "tflops": rates} for row, rates in table.items()]
    if options.only != "prefill":
        backends = ["FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"]

        def decode_row(row):
            batch, length, num_heads, num_kv_heads, dtype = row
            settings = {"attention.num_heads": num_heads, "attention.num_kv_heads": num_kv_heads,
                        "kv_cache.dtype": dtype}  # fmt: skip
            results = {b: run_tool(options.binary, options.scenario, b, f"{batch}q1s{length}",
                                   settings) for b in backends}  # fmt: skip
            return {b: r and r["throughput"]["kv_gbps"] for b, r in results.items()}

        table = collect(options.rounds, DECODE, decode_row)
        print_table("decode D128, block 16, kv_gbps", backends, table,
                    lambda r: f"B{r[0]} S{r[1]} {r[2]}/{r[3]} {r[4]}")  # fmt: skip
        found["decode"] = [{"shape": row, "kv_gbps": rates} for row, rates in table.items()]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
