#!/usr/bin/env python3
"""Scaling of decode context parallelism: scenarios for it, and the table of their results.

    scripts/scaling_table.py scenarios DIR --ranks "1, 2" [--transport nccl] [--batches "16q1s128k"]
                             [--mla-batches "16q1s128k"]
    scripts/scaling_table.py table RESULTS.json... [--markdown]

A scenario is one batch at every number of ranks, timed in a graph and not validated. The first of
these numbers has to be 1: what more ranks gain is told against it. The table has, for each number
of ranks, the time of a whole step (the slowest rank's, with its exchanges), how much faster that is
than one rank, the efficiency (that over the number of ranks), the bandwidth at which a rank reads
its keys, the time of the exchanges with their bus bandwidth, and what docs/dcp-model.md predicts
from the time of one rank.
"""

import argparse
import json
import re
import sys
from pathlib import Path

SCENARIO = """\
schema: 1
name: {name}
{attention}
batch: [{batch}]
dcp: {{transport: {transport}}}
backends: [{backend}]
timing: {{mode: graph, samples: 40, timeout_s: 10, pace: sustained}}
sweep:
  dcp.world_size: [{ranks}]
"""
GQA = """\
attention: {type: decoder, num_heads: 64, num_kv_heads: 8, head_size: 128, dtype: bfloat16}
kv_cache: {block_size: 64}"""
MLA = """\
attention: {type: mla, num_heads: 128, dtype: bfloat16}
mla: {kv_lora_rank: 512, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128}
kv_cache: {block_size: 64}"""

# Of docs/dcp-model.md: the latency of a message and what a rank receives over NVLink; what a step
# has beside its keys, and one over ranks has more.
LATENCY_US = 10
LINK_GBPS = 200
STEP_US = {"decoder": 25, "mla": 60}
RANK_US = {"decoder": 17, "mla": 42}

EXCHANGES = ("all_gather_query", "all_gather_lse", "reduce_scatter", "all_reduce", "all_to_all")
CONTEXT = ("attend_context", "attend_decode", "attend", "combine", "combine_decode")


def write_scenarios(arguments):
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [("gqa", GQA, "FLASH_ATTN", arguments.batches),
             ("mla", MLA, "MLA", arguments.mla_batches)]  # fmt: skip
    for kind, attention, backend, batches in kinds:
        for number, batch in enumerate(batches.split()):
            text = SCENARIO.format(
                name=f"scaling-{kind}", attention=attention, batch=batch, backend=backend,
                transport=arguments.transport, ranks=arguments.ranks)  # fmt: skip
            (folder / f"{kind}-{number}-{batch}.yaml").write_text(text, encoding="utf-8")


def context_bytes(problem):
    """Bytes of the cached keys and values, or latents, of all requests."""
    tokens = sum((row["seq_len"] - row["query_len"]) * row["count"] for row in problem["batch"])
    attention = problem["attention"]
    if attention["type"] == "mla":
        width = problem["mla"]["kv_lora_rank"] + problem["mla"]["qk_rope_head_dim"]
    else:
        width = attention["num_kv_heads"] * (attention["head_size"] + attention["v_head_size"])
    return tokens * width * 2


class Row:
    """One number of ranks at one batch."""

    def __init__(self, result):
        problem, timing = result["problem"], result["timing"]
        self.ranks = problem["dcp"]["world_size"]
        self.key = (problem["attention"]["type"], json.dumps(problem["batch"], sort_keys=True))
        batch = re.search(r"\d*q[^/]*s\d+k?", result["case"] or result["id"])
        self.batch = batch.group(0).split(",")[0] if batch else result["case"]
        self.type = problem["attention"]["type"]
        self.total_us = timing["total_us"]
        steps = {step["name"]: step for step in timing["steps"]}
        self.context_us = sum(steps[name]["median_us"] for name in CONTEXT if name in steps)
        self.bytes = context_bytes(problem) / self.ranks
        self.messages = [step for name, step in steps.items()
                         if name in EXCHANGES and self.ranks > 1]  # fmt: skip
        self.exchange_us = sum(step["median_us"] for step in self.messages)
        self.received = sum(step["bytes"] or 0 for step in self.messages)
        # A query that is gathered beside the new tokens is a message too, without a time.
        self.hidden = 0
        if "gather_and_attend_new" in steps:
            attention = problem["attention"]
            tokens = sum(row["query_len"] * row["count"] for row in problem["batch"])
            own = attention["num_heads"] // self.ranks
            self.hidden = (self.ranks - 1) * tokens * own * attention["head_size"] * 2

    def gbps(self):
        return self.bytes / self.context_us * 1e-3 if self.context_us else float("nan")

    def bus_gbps(self):
        return self.received / self.exchange_us * 1e-3 if self.exchange_us else float("nan")

    def predicted_us(self, one):
        """The model: what one rank takes for its keys divided, the other kernels and the exchanges."""
        if self.ranks == 1:
            return self.total_us
        count = len(self.messages) + (1 if self.hidden else 0)
        exchanges = count * LATENCY_US + (self.received + self.hidden) / LINK_GBPS * 1e-3
        fixed = STEP_US[self.type]
        return (one.total_us - fixed) / self.ranks + fixed + RANK_US[self.type] + exchanges


def rows_of(paths):
    rows, others = [], []
    for path in paths:
        for result in json.loads(Path(path).read_text(encoding="utf-8"))["results"]:
            if result.get("timing"):
                rows.append(Row(result))
            else:
                others.append(f"{result['id']}: {result['status']} "
                              f"{(result['reasons'] or [''])[0][:120]}")  # fmt: skip
    return rows, others


COLUMNS = ("batch", "ranks", "step us", "faster", "efficiency", "keys GB/s", "exchanges us",
           "bus GB/s", "model us", "off")  # fmt: skip


def cells_of(row, one):
    name = ("MLA " if row.type == "mla" else "") + row.batch
    first = (name, str(row.ranks), f"{row.total_us:.1f}")
    if row.ranks == 1:
        return (*first, "", "", f"{row.gbps():.0f}", "", "", "", "")
    exchanges = (f"{row.gbps():.0f}", f"{row.exchange_us:.1f}", f"{row.bus_gbps():.1f}")
    if one is None:  # which may have run out of time
        return (*first, "", "", *exchanges, "", "")
    faster = one.total_us / row.total_us
    predicted = row.predicted_us(one)
    return (*first, f"{faster:.2f}", f"{100 * faster / row.ranks:.0f} %", *exchanges,
            f"{predicted:.1f}", f"{100 * (predicted / row.total_us - 1):+.0f} %")  # fmt: skip


def print_table(arguments):
    rows, others = rows_of([path for path in arguments.results if Path(path).exists()])
    ones = {row.key: row for row in rows if row.ranks == 1}
    table = [COLUMNS, *(cells_of(row, ones.get(row.key)) for row in rows)]
    if arguments.markdown:
        table.insert(1, ("---",) * len(COLUMNS))
        for cells in table:
            print("| " + " | ".join(cells) + " |")
    else:
        widths = [max(len(cells[i]) for cells in table) for i in range(len(COLUMNS))]
        for cells in table:
            print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths)).rstrip())
    for other in others:
        print(other)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    scenarios = commands.add_parser("scenarios")
    scenarios.add_argument("folder")
    scenarios.add_argument("--ranks", default="1, 2")
    scenarios.add_argument("--transport", default="nccl")
    scenarios.add_argument("--batches", default="64q1s8k 32q1s32k 16q1s128k 8q1s256k 4q1s512k")
    scenarios.add_argument("--mla-batches", default="")
    scenarios.set_defaults(run=write_scenarios)
    table = commands.add_parser("table")
    table.add_argument("results", nargs="+")
    table.add_argument("--markdown", action="store_true")
    table.set_defaults(run=print_table)
    arguments = parser.parse_args()
    arguments.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
