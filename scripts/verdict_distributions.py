#!/usr/bin/env python3
"""Measures how far rows of right and of wrong kernels are from the reference, in the sizes of the
rows and against their limits (semantics §14.2), and prints the tables of docs/verdicts.md.

    verdict_distributions.py right --bin build/attnbench --out right-cpu.json
    verdict_distributions.py right --bin build/attnbench --device cuda --short --out right-h200.json
    verdict_distributions.py right ... --option "--backend CUDNN" --suites smoke-cudnn   (one of them)
    verdict_distributions.py wrong --build build --out wrong-cpu.json
    verdict_distributions.py tables right-cpu.json right-h200.json wrong-cpu.json

"right" runs suites with normal, uniform and outlier inputs of standard deviations 0.1 to 4, and
float32 with scores of any size; every one of its results must be `passed`, or it is listed and the
exit status is 1. "wrong" plants the mistakes of tests/mutation/row_mutants.json into the CPU
pipelines, each of which must be `incorrect`.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import mutation_test

ROOT = pathlib.Path(__file__).resolve().parent.parent
LARGE_SCORES = ROOT / "tests" / "mutation" / "base.yaml"

# (distribution, standard deviation); None = the suite as it is.
INPUTS = [None, ("normal", 0.1), ("normal", 4), ("uniform", 1), ("outlier", 0.1), ("outlier", 1),
          ("outlier", 4)]  # fmt: skip
SHORT_INPUTS = [None, ("normal", 4), ("outlier", 1)]
SCORE_STDS = [0.02, 1, 4, 16, 64]
SHORT_SUITES = ["smoke", "smoke-decode", "smoke-mixed", "smoke-mla", "smoke-kv-formats", "smoke-vit-batch",
                "smoke-e4m3-probability", "smoke-output-quant-fused", "smoke-soft-cap", "smoke-dcp",
                "smoke-gqa", "smoke-cudnn"]  # fmt: skip


def results_of(command):
    """Results of `attnbench run`, or none where it refuses the combination."""
    command = [*map(str, command), "--no-timing", "--no-progress", "-q", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    start = done.stdout.find("{")
    if start < 0:
        if done.returncode != 2:
            print(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
        return []
    return json.JSONDecoder().raw_decode(done.stdout[start:])[0]["results"]


class Groups:
    """The worst rows by what was judged, e.g. "output bfloat16, P bfloat16"."""

    def __init__(self):
        self.rows = collections.defaultdict(lambda: {"results": 0, "row_error": 0.0, "of_limit": 0.0,
                                                     "worst": None})  # fmt: skip
        self.failed = []

    def add(self, result, what):
        for part in ("error", "lse_error"):
            error = result.get(part)
            if not error or "rows" not in error.get("rule", ""):
                continue
            group = self.rows[error["rule"].replace("semantics 14.2 rows, ", "")]
            group["results"] += 1
            row, limit = error.get("row_error"), error.get("row_limit")
            if row is None:
                continue
            group["row_error"] = max(group["row_error"], row)
            if limit and row / limit > group["of_limit"]:
                group["of_limit"] = row / limit
                group["worst"] = {"id": result["id"], "inputs": what, "row_error": row,
                                  "row_limit": limit}  # fmt: skip
        if result["status"] not in ("passed", "unsupported", "skipped"):
            self.failed.append({"id": result["id"], "inputs": what, "status": result["status"],
                                "reasons": result["reasons"][:2]})  # fmt: skip


def settings(inputs):
    if inputs is None:
        return "its own", []
    distribution, std = inputs
    return (f"{distribution}, std {std}",
            ["--set", f"inputs.distribution={distribution}", "--set", f"inputs.std={std}"])  # fmt: skip


def measure_right(arguments):
    suites = arguments.suites
    if not suites:
        suites = (SHORT_SUITES if arguments.short
                  else sorted(path.stem for path in (ROOT / "scenarios").glob("smoke*.yaml")))
    extra = [word for option in arguments.option for word in option.split()]
    head = [arguments.bin.resolve(), "run"]
    groups = Groups()
    for inputs in SHORT_INPUTS if arguments.short else INPUTS:
        what, sets = settings(inputs)
        for suite in suites:
            command = [*head, ROOT / "scenarios" / f"{suite}.yaml", "--device", arguments.device]
            for result in results_of([*command, *sets, *extra]):
                groups.add(result, what)
        print(f"{what}: {len(groups.failed)} not passed so far", file=sys.stderr)
    for dtype in ("float32", "bfloat16", "float16"):
        for std in SCORE_STDS:
            command = [*head, LARGE_SCORES, "--device", arguments.device,
                       "--set", f"attention.dtype={dtype}", "--set", f"inputs.std={std}"]  # fmt: skip
            for result in results_of([*command, *extra]):
                groups.add(result, f"{dtype}, std {std}")
    for failure in groups.failed:
        print(json.dumps(failure), file=sys.stderr)
    return {"kind": "right", "device": arguments.device, "groups": groups.rows,
            "failed": groups.failed}  # fmt: skip


def measure_wrong(arguments):
    build = mutation_test.Build(arguments.build.resolve())
    mistakes = []
    for mutant in json.loads((ROOT / "tests" / "mutation" / "row_mutants.json").read_text()):
        if arguments.only not in mutant["name"]:
            continue
        with tempfile.TemporaryDirectory() as name:
            binary = mutation_test.build_mutant(build, mutant, "attnbench", pathlib.Path(name))
            command = [binary, "run", LARGE_SCORES, "--backend", mutant["backend"], "--device", "cpu"]
            for key, value in mutant["set"].items():
                command += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
            for result in results_of(command):
                part = "lse_error" if "LSE" in mutant["name"] else "error"
                error = result[part]
                if error is None:
                    mistakes.append({"name": mutant["name"], "status": result["status"],
                                     "reasons": result["reasons"]})  # fmt: skip
                    continue
                mistakes.append({"name": mutant["name"], "status": result["status"],
                                 "rule": error["rule"].replace("semantics 14.2 rows, ", ""),
                                 "row_error": error.get("row_error"), "row_limit": error.get("row_limit"),
                                 "rows_outside": error.get("rows_outside", 0)})  # fmt: skip
    failed = [mistake for mistake in mistakes if mistake["status"] != "incorrect"]
    for failure in failed:
        print(json.dumps(failure), file=sys.stderr)
    return {"kind": "wrong", "device": "cpu", "mistakes": mistakes, "failed": failed}


def print_tables(files):
    data = [json.loads(pathlib.Path(file).read_text()) for file in files]
    print("| right kernels | device | results | largest error | nearest to its limit | there |")
    print("|---|---|---|---|---|---|")
    for one in data:
        if one["kind"] != "right":
            continue
        for rule, group in sorted(one["groups"].items()):
            worst = group["worst"] or {"id": "", "inputs": ""}
            print(f"| {rule} | {one['device']} | {group['results']} | {group['row_error']:.2g} "
                  f"| {group['of_limit']:.2f} of it | {worst['id']}, {worst['inputs']} |")  # fmt: skip
    print()
    print("| wrong kernels | judged as | error of the worst row | its limit | beyond it by | rows outside |")
    print("|---|---|---|---|---|---|")
    for one in data:
        if one["kind"] != "wrong":
            continue
        for mistake in one["mistakes"]:
            error, limit = mistake["row_error"], mistake["row_limit"]
            print(f"| {mistake['name']} | {mistake['rule']} | {error:.2g} | {limit:.2g} "
                  f"| {error / limit:.1f} | {mistake['rows_outside']} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("right", "wrong", "tables"))
    parser.add_argument("files", nargs="*", help="of tables: what --out wrote")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "attnbench")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build",
                        help="of wrong: a configured ninja build folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="a choice of suites and inputs")
    parser.add_argument("--suites", nargs="*", default=[], help="names of scenarios, instead")
    parser.add_argument("--option", action="append", default=[],
                        help='more options of every run, e.g. "--backend CUDNN"')
    parser.add_argument("--only", default="", help="of wrong: mistakes whose name contains this")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.verb == "tables":
        print_tables(arguments.files)
        return 0
    measured = measure_right(arguments) if arguments.verb == "right" else measure_wrong(arguments)
    text = json.dumps(measured, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    return 1 if measured["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
