#!/usr/bin/env python3
"""NCCL's collectives by themselves, in a CUDA graph: what the exchanges of DCP cost at best.

    benchmarks/nccl_alone.py [--ranks 2] [--repeats 20]

One process a GPU, by torch. A graph holds `repeats` collectives, one after the other; the time is the
median of 20 launches of it, divided. Bytes are what a rank receives, and the bus bandwidth is those
over the time. Message sizes are those of a step with 64 heads of 128 for 1 to 256 tokens: the heads
of a rank in bfloat16 (all_gather), partial outputs in float32 (the others). NCCL's own settings are
the user's.
"""

import argparse
import os
import sys

HEADS, HEAD_SIZE = 64, 128
TOKENS = (1, 16, 64, 256)


def collectives(torch, dist, ranks, tokens):
    """Name, received bytes and call of each collective at this number of tokens."""
    heads = tokens * HEADS * HEAD_SIZE
    own = heads // ranks
    query = torch.ones(own, dtype=torch.bfloat16, device="cuda")
    query_of_all = torch.empty(heads, dtype=torch.bfloat16, device="cuda")
    partial = torch.ones(heads, dtype=torch.float32, device="cuda")
    reduced = torch.empty(own, dtype=torch.float32, device="cuda")
    received = torch.empty_like(partial)
    others = (ranks - 1) * own
    yield "all_gather", others * 2, lambda: dist.all_gather_into_tensor(query_of_all, query)
    yield "reduce_scatter", others * 4, lambda: dist.reduce_scatter_tensor(reduced, partial)
    yield "all_reduce", 2 * others * 4, lambda: dist.all_reduce(partial)
    yield "all_to_all", others * 4, lambda: dist.all_to_all_single(received, partial)


def microseconds(torch, call, repeats):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Why the mode: a thread of torch asks about events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(repeats):
            call()
    times = []
    for launch in range(23):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if launch >= 3:
            times.append(begin.elapsed_time(end) * 1e3 / repeats)
    return sorted(times)[len(times) // 2]


def be_rank(rank, ranks, repeats):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))  # fmt: skip
    if rank == 0:
        print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {ranks} ranks, "
              f"{repeats} in a graph")  # fmt: skip
    for tokens in TOKENS:
        for name, received, call in collectives(torch, dist, ranks, tokens):
            us = microseconds(torch, call, repeats)
            if rank == 0:
                print(f"{name:<15} {tokens:4} tokens {received / 1024:9.1f} KiB {us:8.1f} us "
                      f"{received / us * 1e-3:7.1f} GB/s", flush=True)  # fmt: skip
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed")
        return 3
    if torch.cuda.device_count() < arguments.ranks:
        print(f"{torch.cuda.device_count()} GPUs for {arguments.ranks} ranks")
        return 3
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    torch.multiprocessing.spawn(be_rank, (arguments.ranks, arguments.repeats), arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
