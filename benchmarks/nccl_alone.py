#!/usr/bin/env python3
"""NCCL's collectives by themselves, in a CUDA graph: what the exchanges of DCP cost at best.

    benchmarks/nccl_alone.py [--ranks 2] [--repeats 20] [--symmetric]

One process a GPU, by torch. A graph holds `repeats` collectives, one after the other; the time is the
median of 20 launches of it, divided. Bytes are what a rank receives, and the bus bandwidth is those
over the time. Message sizes are those of a step with 64 heads of 128 for 1 to 256 tokens: the heads
of a rank in bfloat16 (all_gather), partial outputs in float32 (the others). NCCL's own settings are
the user's. With --symmetric the same is timed once more with buffers that NCCL has as symmetric
windows (NCCL 2.27), for which it has kernels that read and write the memory of the other ranks
directly; they need no multicast.
"""

import argparse
import contextlib
import os
import sys

HEADS, HEAD_SIZE = 64, 128
TOKENS = (1, 16, 64, 256)


def collectives(torch, dist, ranks, tokens):
    """Name, received bytes and call of each collective at this number of tokens."""
    heads = tokens * HEADS * HEAD_SIZE
    own = heads // ranks
    others = (ranks - 1) * own
    query = torch.ones(own, dtype=torch.bfloat16, device="cuda")
    query_of_all = torch.empty(heads, dtype=torch.bfloat16, device="cuda")
    partial = torch.ones(heads, dtype=torch.float32, device="cuda")
    reduced = torch.empty(own, dtype=torch.float32, device="cuda")
    received = torch.empty_like(partial)
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


def memory_of(torch, dist, symmetric):
    """Where the buffers are allocated, in torch's words."""
    if not symmetric:
        return contextlib.nullcontext()
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    return SymmetricPool(torch, backend, pool)


class SymmetricPool:
    """What is allocated within becomes symmetric at the end, on all ranks in the same order."""

    def __init__(self, torch, backend, pool):
        self.backend, self.pool, self.use = backend, pool, torch.cuda.use_mem_pool(pool)

    def __enter__(self):
        self.use.__enter__()

    def __exit__(self, *error):
        self.use.__exit__(*error)
        if error[0] is None:
            self.backend.register_mem_pool(self.pool, symm=True)


def time_all(torch, dist, rank, ranks, repeats, symmetric):
    for tokens in TOKENS:
        with memory_of(torch, dist, symmetric):
            calls = list(collectives(torch, dist, ranks, tokens))
        for name, received, call in calls:
            us = microseconds(torch, call, repeats)
            if rank == 0:
                print(f"{name + (' *' if symmetric else ''):<17} {tokens:4} tokens "
                      f"{received / 1024:9.1f} KiB {us:8.1f} us "
                      f"{received / us * 1e-3:7.1f} GB/s", flush=True)  # fmt: skip


def be_rank(rank, ranks, repeats, symmetric):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))  # fmt: skip
    if rank == 0:
        print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {ranks} ranks, "
              f"{repeats} in a graph")  # fmt: skip
    time_all(torch, dist, rank, ranks, repeats, False)
    if symmetric:
        if rank == 0:
            print("* symmetric")
        time_all(torch, dist, rank, ranks, repeats, True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--symmetric", action="store_true")
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
    torch.multiprocessing.spawn(be_rank,
                                (arguments.ranks, arguments.repeats, arguments.symmetric),
                                arguments.ranks)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
