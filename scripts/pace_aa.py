#!/usr/bin/env python3
"""How far the times of a kernel are apart by what ran before it, at pace cool and sustained.

Times backends of two prefill cases (head sizes 128 and 256) on a GPU, in turns with each other and each
by itself, twice, and prints medians, cycles and clocks. At pace cool every row must be within 2 %: the
device rests before each sample until no limit shows. At sustained the rows of a kernel that draws the
limit differ by what ran before them.

  scripts/pace_aa.py --binary build/attnbench
  scripts/pace_aa.py --plugin peers/fa3.py:FlashAttention3 --backend FA3

Exits with 1 where the medians of one backend and case at cool differ by more than --limit. Takes about
two minutes for each backend.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASE = """\
schema: 1
name: pace
attention: {num_heads: 32, num_kv_heads: 8, dtype: bfloat16}
batch: q16k
sweep:
  attention.head_size: [128, 256]
"""


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/attnbench"))
    parser.add_argument("--scenario", help="instead of the built-in one")
    parser.add_argument("--backend", action="append", default=[], help="beside CUDNN, FLASH_ATTN")
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--limit", type=float, default=0.02)
    return parser.parse_args()


def results(options, scenario, backends, pace, order):
    """{(case, backend): result} of those that were timed."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [options.binary, "run", str(scenario), "--device", "cuda", "--no-validation",
                   "--samples", str(options.samples), "--set", f"timing.pace={pace}",
                   "--set", f"timing.order={order}", "--json", str(out), "-q"]
        for backend in backends:
            command += ["--backend", backend]
        for plugin in options.plugin:
            command += ["--plugin", plugin]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not out.exists():
            sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        found = json.loads(out.read_text())["results"]
    return {(r["case"], r["backend"]): r for r in found if r["timing"]}


def runs(options, scenario, backends, pace):
    """What was run, and its results: each by itself and all in turns, twice."""
    for again in (1, 2):
        for backend in backends:
            yield f"alone {again}", results(options, scenario, [backend], pace, "sequential")
        if len(backends) > 1:
            yield f"in turns {again}", results(options, scenario, backends, pace, "alternate")


def show(pace, rows):
    """Prints the rows of every case and backend; the largest spread of medians."""
    worst = 0.0
    for (case, backend), timings in sorted(rows.items()):
        medians = [timing["median_us"] for _, timing, _ in timings]
        cycles = [timing["cycles"] for _, timing, _ in timings if timing.get("cycles")]
        spread = max(medians) / min(medians) - 1
        worst = max(worst, spread)
        print(f"{pace} {case} {backend}: medians {100 * spread:.1f} % apart"
              + (f", cycles {100 * (max(cycles) / min(cycles) - 1):.1f} %" if cycles else ""))
        for how, timing, rate in timings:
            mhz = sorted(timing.get("samples_sm_mhz") or [0])
            reasons = ", ".join((timing.get("clocks") or {}).get("throttling", [])) or "-"
            print(f"    {how:11} {timing['median_us']:9.1f} us  {timing.get('cycles') or 0:12.0f} "
                  f"cycles  {mhz[0]:.0f} / {mhz[len(mhz) // 2]:.0f} / {mhz[-1]:.0f} MHz  "
                  f"peak {rate.get('peak_pct') or 0:.1f} %  {reasons}")
    return worst


def main():
    options = arguments()
    backends = ["CUDNN", "FLASH_ATTN", *options.backend]
    worst = {}
    with tempfile.TemporaryDirectory() as folder:
        scenario = pathlib.Path(folder) / "pace.yaml"
        scenario.write_text(CASE)
        if options.scenario:
            scenario = options.scenario
        for pace in ("cool", "sustained"):
            rows = collections.defaultdict(list)
            for how, found in runs(options, scenario, backends, pace):
                for key, result in found.items():
                    rows[key].append((how, result["timing"], result["throughput"] or {}))
            worst[pace] = show(pace, rows)
    print(f"medians at most {100 * worst['cool']:.1f} % apart at cool, "
          f"{100 * worst['sustained']:.1f} % at sustained")
    return 1 if worst["cool"] > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
