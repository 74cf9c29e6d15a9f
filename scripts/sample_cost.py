#!/usr/bin/env python3
"""What the checks of timed samples cost (docs/measurement.md, "One sample"): runs a scenario with all of
them, with the query that is written last only, and with none, in turns, and prints for every case how
far the medians are apart.

    sample_cost.py BINARY SCENARIO [--rounds N] [--limit PERCENT] [ARGUMENTS OF attnbench run ...]

The medians are those over the rounds. "checks" is `all` against `query`, which have the same inputs in
the caches: exit status 1 when it is beyond the limit (default 0.3) and beyond how far the rounds of
one kind are apart themselves. "query" is what a query in the cache is worth against a cold one.
"wall" is the time of the whole program.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("none", "query", "all")


def run(binary, scenario, kind, arguments, folder):
    """Medians in microseconds by the id of the result, and the seconds that the program took."""
    path = Path(folder) / "results.json"
    begin = time.monotonic()
    done = subprocess.run([binary, "run", scenario, "--sample-checks", kind, "--json", path, *arguments],
                          capture_output=True, text=True)  # fmt: skip
    seconds = time.monotonic() - begin
    if done.returncode not in (0, 3):
        sys.exit(f"attnbench run: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    results = json.loads(path.read_text())["results"]
    return {r["id"]: r["timing"]["median_us"] for r in results if r["timing"]}, seconds


def percent(value, base):
    return 100 * (value / base - 1)


def compare(medians):
    """Of one case: medians by kind, the two differences and the spread of the rounds, in percent."""
    middle = {kind: statistics.median(values) for kind, values in medians.items()}
    spread = max(percent(max(values), min(values)) for values in medians.values())
    return middle, percent(middle["all"], middle["query"]), percent(middle["query"], middle["none"]), spread


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("scenario")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=0.3)
    options, arguments = parser.parse_known_args()
    medians, seconds = {}, {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for kind in KINDS:
                found, taken = run(options.binary, options.scenario, kind, arguments, folder)
                seconds[kind].append(taken)
                for name, median in found.items():
                    medians.setdefault(name, {k: [] for k in KINDS})[kind].append(median)
    print(f"{'none us':>12} {'query us':>12} {'all us':>12} {'query %':>8} {'checks %':>8} {'rounds %':>8}  case")
    failed = False
    for name, values in medians.items():
        if not all(values.values()):
            continue
        middle, checks, query, spread = compare(values)
        beyond = abs(checks) > options.limit and abs(checks) > spread
        failed |= beyond
        print(f"{middle['none']:12.2f} {middle['query']:12.2f} {middle['all']:12.2f} {query:8.2f} "
              f"{checks:8.2f} {spread:8.2f}  {name}{'  BEYOND' if beyond else ''}")  # fmt: skip
    print("wall: " + ", ".join(f"{kind} {statistics.median(taken):.1f} s" for kind, taken in seconds.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
