#!/usr/bin/env python3
"""How good the choice of splits of decodes is: from the results of scenarios/decode-splits.yaml.

    attnbench run scenarios/decode-splits.yaml --device cuda --no-validation --backend FLASH_ATTN --json r.json
    scripts/split_choice.py r.json [--tolerance 0.03]

Cases that differ in attention.num_splits only are a point. Its choice is the case with null, where the
program chooses, and its best the fastest of all of them, the choice included. A line a point says how much
longer the choice takes than the best, with the splits of the best; a number of splits that a backend
refuses or that was not timed counts for nothing. Several files are taken together, and of several times of
a case the least: noise of a clock only adds.

Exit status: 0 = every choice within the tolerance of its best; 1 = one is not; 2 = bad usage, or no file
has a point with a choice and another case to compare it with.
"""

import argparse
import json
import re
import sys

KEY = re.compile(r"([,/])attention\.num_splits=(\w+)")


def times_of(paths):
    """{(case without its splits, backend): {splits or None: least median in us}}"""
    points = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        for result in results:
            found = KEY.search(result["case"])
            timing = result.get("timing")
            if not found or not timing:
                continue
            splits = None if found[2] == "null" else int(found[2])
            case = KEY.sub("", result["case"])
            of_point = points.setdefault((case, result["backend"]), {})
            of_point[splits] = min(timing["median_us"], of_point.get(splits, float("inf")))
    return {key: times for key, times in points.items() if None in times and len(times) > 1}


def judge(times):
    """(median of the choice, that of the best, splits of the best, what the choice takes more)"""
    chosen = times[None]
    # A tie is the choice's.
    best = min(times, key=lambda splits: (times[splits], splits is not None))
    return chosen, times[best], best, chosen / times[best] - 1


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", nargs="+", help="result files of attnbench run --json")
    parser.add_argument("--tolerance", type=float, default=0.03, help="0.03 = 3 %%")
    options = parser.parse_args(arguments)
    points = times_of(options.results)
    if not points:
        print("split_choice: no case with attention.num_splits null beside another one",
              file=sys.stderr)
        return 2
    worse = 0
    for (case, backend), times in points.items():
        chosen, best, splits, loss = judge(times)
        is_worse = loss > options.tolerance
        worse += is_worse
        what = "the choice" if splits is None else f"{splits} splits"
        print(f"{case:<56} {backend:<14} {chosen:8.1f} us, best {best:8.1f} us by {what:<10} "
              f"{100 * loss:+5.1f} %{'  <--' if is_worse else ''}")
    losses = sorted(judge(times)[3] for times in points.values())
    print(f"{len(points)} points, {worse} of them more than {100 * options.tolerance:g} % from their "
          f"best; median {100 * losses[len(losses) // 2]:.1f} %, worst {100 * losses[-1]:.1f} %")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
