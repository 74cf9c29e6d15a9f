#!/usr/bin/env python3
"""The tables of docs/performance.md from result files: a row for each case, a column for each backend.

    scripts/performance_tables.py RESULTS.json[.gz]...

A cell has the median time and, by what bounds the case, TFLOP/s or GB/s. The last column is the time of
the first backend divided by that of the fastest other one. Results without a time have their status, and
what did not pass has it beside its time, unless nothing of the file was validated.
"""

import gzip
import json
import sys
from pathlib import Path


def read(path):
    data = Path(path).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def short_name(backend):
    """FLASH_ATTN@hopper_tiles as it is; the module and class of a Python backend."""
    if not backend.startswith("python:"):
        return backend
    module, _, name = backend.removeprefix("python:").rpartition(":")
    return f"{module.rpartition('.')[2]}:{name}"


def cell(result, validated):
    timing, rate = result.get("timing"), result.get("throughput")
    if not timing or not rate:
        return result["status"]
    speed = f"{rate['gbps']:.0f} GB/s" if rate["bound"] == "memory" else f"{rate['tflops']:.0f} TFLOP/s"
    text = f"{timing['median_us']:.1f} us, {speed}"
    marked = validated and result["status"] != "passed"
    return f"{text}, {result['status']}" if marked else text


def ratio(results, backends):
    """Times of right results only: what is incorrect has no rate worth comparing."""
    times = [(results.get(name) or {}) for name in backends]
    times = [entry["timing"]["median_us"] if entry.get("timing")
             and entry["status"] in ("passed", "unverified") else None for entry in times]  # fmt: skip
    others = [time for time in times[1:] if time]
    return f"{times[0] / min(others):.2f}" if times[0] and others else "-"


def table(document):
    """Lines of Markdown. A backend that was never timed has no column."""
    rows, backends = {}, []
    validated = any(result["status"] == "passed" for result in document["results"])
    for result in document["results"]:
        rows.setdefault(result["case"], {})[result["backend"]] = result
        if result.get("timing") and result["backend"] not in backends:
            backends.append(result["backend"])
    if not backends:
        return ["no times: " + ", ".join(sorted({r["status"] for r in document["results"]}))]
    heads = [short_name(name) for name in backends] + (["ratio"] if len(backends) > 1 else [])
    lines = ["| case | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for case, results in rows.items():
        cells = [cell(results[name], validated) if name in results else "-" for name in backends]
        cells += [ratio(results, backends)] if len(backends) > 1 else []
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return lines


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for path in arguments:
        document = read(path)
        device = document["environment"].get("device") or {}
        note = "" if any(r["status"] == "passed" for r in document["results"]) else ", not validated"
        print(f"{Path(path).name}: {document['tool']['git']}, {document['created'][:10]}, "
              f"{device.get('name', 'CPU')}{note}")  # fmt: skip
        print("\n".join(table(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
