#!/usr/bin/env python3
"""Runs shipped suites on the GPU, several at a time, and says what became of every case.

    gpu_suites.py [SUITE...]             validates the named suites, or all of scenarios/*.yaml
    gpu_suites.py --smoke | --real       only the small ones | only those at real dimensions
    gpu_suites.py --timing ops ops-mla   times as well, one suite at a time
    gpu_suites.py --sanitizer memcheck smoke-decode   under a tool of compute-sanitizer
    gpu_suites.py --smoke --cudnn        the backend CUDNN alone
    gpu_suites.py --read DIR             judges the result files of an earlier run

Every suite is one `attnbench run` with a time limit, or several that share its cases when it is a
long one; the results go to DIR/SUITE.json, or DIR/SUITE.K-of-N.json (--json DIR).
Printed: one line a suite; results that are wrong or in error; the reasons of `unsupported`,
grouped, each with its place in semantics §13 or "other"; what tests/must_pass.yaml and
must_pass_cuda.yaml, or with --cudnn must_pass_cudnn.yaml, demand and did not pass; with times,
single operations in GB/s and percent of the measured memory ceiling. The last line is
"N suites passed, N failed"; the exit status is 1 when one failed: a result that is incorrect,
implausible, in error or skipped, a reason of no known form, a pair that must pass.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import must_pass
from unsupported_reasons import CUDNN_LIBRARY, is_external, place_of

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "scenarios"
MUST_PASS = [must_pass.CPU_LIST, must_pass.CUDA_LIST]
MUST_PASS_CUDNN = must_pass.CUDNN_LIST
MIN_CHECKED_ROWS = 64
# What a run may take to write its results after an interrupt.
GRACE_S = 20
STATUSES = ["passed", "unverified", "unsupported", "incorrect", "implausible", "error", "skipped"]
FAILURES = ["incorrect", "implausible", "error", "skipped"]
# Exit statuses of the program: everything that ran passed, or nothing can run here.
SUCCESS = (0, 3)
SHOWN_TAIL = 600
# Seconds of the suites that took longest, each by itself on three cores (H200, November 2026): the long
# ones are started first, and in parts of about PART_S. A suite that is not here takes OTHER_S.
SECONDS = {
    "peers": 400, "mla": 300, "peers-mla": 300, "dcp-mla": 230, "cascade": 200, "ops-bandwidth": 150,
    "ops-mla-bandwidth": 150, "large-cache": 150, "peers-ops": 120, "large-cache-ops": 110,
    "large-cache-mla": 100, "dcp": 120, "ops-mla": 100, "decode": 90, "mla-sparse": 90, "quant-kv": 60,
    "ops-vit-bandwidth": 60, "ops-dcp-bandwidth": 60, "ops": 50, "int8": 45, "decode-qwen3-moe": 40,
    "output-quant": 40,
}  # fmt: skip
OTHER_S = 20
PART_S = 110
MOST_PARTS = 4
# An operation that moves so many bytes takes several times what its launch takes.
LARGE_BYTES = 256e6
MOVER_PERCENT = 80


def must_pass_ids(files=tuple(MUST_PASS)):
    return must_pass.ids_of(files)


def seconds_of(file):
    return SECONDS.get(file.stem, 0 if file.stem.startswith("smoke") else OTHER_S)


def parts_of(file, options):
    """[(file, part)], part "K/N" or None for the whole suite."""
    # A tool of compute-sanitizer loads long and its processes are watched one by one; times are
    # taken by one process by itself.
    if options.timing or options.sanitizer or options.jobs == 1:
        return [(file, None)]
    count = min(MOST_PARTS, round(seconds_of(file) / PART_S))
    return [(file, f"{k}/{count}") for k in range(1, count + 1)] if count > 1 else [(file, None)]


def join_parts(runs):
    """One run for each suite, in the order of their first parts."""
    joined = {}
    for run in runs:
        whole = joined.setdefault(run.suite, Run(run.suite, []))
        if run.results is None or whole.results is None:
            whole.results = None
        else:
            whole.results += run.results
        if run.status not in SUCCESS or whole.status in SUCCESS:
            whole.status = run.status
        whole.seconds = max(whole.seconds, run.seconds)
        whole.note = f"{whole.note} {run.note}".strip()
    return list(joined.values())


def name_of_results(file, part):
    """SUITE, or SUITE.K-of-N for part "K/N" of it."""
    return file.stem + (f".{part.replace('/', '-of-')}" if part else "")


def suite_and_part(file):
    """The suite of a result file and its part (K, N), which is (1, 1) for the whole suite."""
    match = re.fullmatch(r"(.+)\.(\d+)-of-(\d+)", file.stem)
    return (match[1], (int(match[2]), int(match[3]))) if match else (file.stem, (1, 1))


def read_runs(folder):
    """The runs whose result files lie in a folder; without all of its parts a suite has no results."""
    parts = defaultdict(dict)
    for file in sorted(folder.glob("*.json")):
        suite, part = suite_and_part(file)
        parts[suite][part] = read_results(file)
    runs = []
    for suite, known in parts.items():
        runs += [Run(suite, results) for results in known.values()]
        counts = {count for _, count in known}
        missing = [f"{k} of {n}" for n in counts for k in range(1, n + 1) if (k, n) not in known]
        if missing:
            runs.append(Run(suite, note="there are no results of part " + ", ".join(missing)))
    return join_parts(runs)


def suite_files(names, which):
    """Scenario files by name, or all of a kind; those that take long first."""
    if names:
        files = [SCENARIOS / f"{name}.yaml" for name in names]
        missing = [str(file) for file in files if not file.exists()]
        if missing:
            raise SystemExit(f"gpu_suites: no such suite: {', '.join(missing)}")
        return files
    files = sorted(SCENARIOS.glob("*.yaml"), key=lambda file: (-seconds_of(file), file))
    small = [file for file in files if file.stem.startswith("smoke")]
    real = [file for file in files if file not in small]
    return {"smoke": small, "real": real, "all": real + small}[which]


class Run:
    """One suite: the process, its exit status and its results."""

    def __init__(self, suite, results=None, status=0, seconds=0.0, note=""):
        self.suite = suite
        self.results = results
        self.status = status
        self.seconds = seconds
        self.note = note

    def counts(self):
        return Counter(result["status"] for result in self.results or [])


def read_results(file):
    """The results of a file, or None when there is none that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError):
        return None


def run_suite(task, options, deadline):
    """Runs one suite, or a part of it, until it ends, or until its limit or the deadline of all;
    then it writes what it has."""
    file, part = task
    limit = min(options.limit, deadline - time.monotonic())
    if limit <= 0:
        return Run(file.stem, note="not started: no time was left")
    name = name_of_results(file, part)
    output = options.json / f"{name}.json"
    command = [options.binary, "run", file, "--device", options.device, "--no-progress",
               "--threads", options.threads, "--json", output, *options.more]  # fmt: skip
    if part:
        command += ["--part", part]
    if not options.timing:
        command.append("--no-timing")
    if options.sanitizer:
        command.append("--in-process")
        command = ["compute-sanitizer", "--tool", options.sanitizer, "--error-exitcode", "1",
                   *command]  # fmt: skip
    if options.cache_dir:
        command += ["--cache-dir", options.cache_dir]
    start = time.monotonic()
    note = ""
    with open(options.json / f"{name}.log", "wb") as log:
        process = subprocess.Popen([str(x) for x in command], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)  # fmt: skip
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            note = f"stopped after {limit:.0f} s"
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    results = read_results(output)
    if results is None or (options.sanitizer and process.returncode not in SUCCESS):
        tail = (options.json / f"{name}.log").read_text(errors="replace").strip()
        note = f"{note} {tail[-SHOWN_TAIL:]}".strip()
    return Run(file.stem, results, process.returncode, time.monotonic() - start, note)


def print_suites(runs):
    width = max(len(run.suite) for run in runs)
    shown = [status for status in STATUSES if any(run.counts()[status] for run in runs)]
    print(f"{'suite':<{width}}  " + "  ".join(shown) + "      time")
    for run in runs:
        cells = "  ".join(f"{run.counts()[status]:>{len(status)}}" for status in shown)
        print(f"{run.suite:<{width}}  {cells}  {run.seconds:6.1f} s  {run.note}".rstrip())
    total = sum((run.counts() for run in runs), Counter())
    print("all: " + ", ".join(f"{total[status]} {status}" for status in shown))


def print_failures(runs):
    """Each failure with its first reason; skipped results are counted by suite only."""
    for run in runs:
        for result in run.results or []:
            if result["status"] in ("incorrect", "implausible", "error"):
                reasons = result["reasons"] or ["without a reason"]
                print(f"{result['status']}: {result['id']}: {reasons[0]}")


def group_reasons(runs):
    """Counter of reasons of `unsupported`, and the suites of those of no known form."""
    reasons = Counter()
    others = defaultdict(set)
    for run in runs:
        for result in run.results or []:
            if result["status"] != "unsupported":
                continue
            for reason in result["reasons"] or [""]:
                reasons[reason] += 1
                if place_of(reason) is None and not is_external(result["backend"]):
                    others[run.suite].add(reason)
    return reasons, others


def print_reasons(reasons):
    if not reasons:
        return
    print("\nunsupported, by reason (a result may have several):")
    for reason, count in sorted(reasons.items(), key=lambda x: (place_of(x[0]) or "", -x[1])):
        print(f"{count:5d}  {place_of(reason) or 'other':<22}  {reason or '(no reason)'}")


def missed_pairs(runs, ids):
    """Sentences about the listed pairs of the suites that ran which did not pass, by suite."""
    missed = defaultdict(list)
    for run in runs:
        if run.counts()["unverified"] > 0:
            continue  # run with --no-validation
        found = {result["id"]: result for result in run.results or []}
        for id in ids:
            if id.split("/")[0] != run.suite:
                continue
            result = found.get(id)
            if result is None:
                missed[run.suite].append(f"{id}: not among the results")
            elif lacks_cudnn(result):
                continue
            elif result["status"] != "passed":
                reason = (result["reasons"] or [""])[0]
                missed[run.suite].append(f"{id}: {result['status']} {reason}".rstrip())
            elif is_checked_too_little(result):
                rows = result["error"]["checked_rows"]
                missed[run.suite].append(f"{id}: checked on {rows} rows")
    return missed


def lacks_cudnn(result):
    return any(place_of(reason) == CUDNN_LIBRARY for reason in result["reasons"])


def is_checked_too_little(result):
    """Fewer rows than there are and than the scenario demands, and not every row seen."""
    error = result["error"]
    if error.get("screened_rows", 0) == error["total_rows"]:
        return False  # the rest by screening in float64
    return error["checked_rows"] < min(MIN_CHECKED_ROWS, error["total_rows"])


def only_moves(problem):
    """Whether an operation copies bytes: nothing is quantised, merged or rotated."""
    op = problem["op"]
    plain = problem["kv_cache"]["dtype"] in ("auto", "float16", "bfloat16")
    plain = plain and problem["kv_cache"]["int8_level"] == 0
    return op["name"] in ("reshape_and_cache", "gather") and (plain or bool(op.get("raw")))


def print_operations(runs):
    """Single operations in GB/s and percent of the measured memory ceiling."""
    timed = [result for run in runs for result in run.results or []
             if result["backend"] == "OPS" and result.get("throughput")]  # fmt: skip
    if not timed:
        return
    print("\noperations: GB/s of unavoidable traffic, percent of the measured memory ceiling")
    width = max(len(f"{r['scenario']}/{r['case']}") for r in timed)
    for result in timed:
        rate = result["throughput"]
        percent = rate["roofline_pct"]
        remark = ""
        if only_moves(result["problem"]):
            remark = "moves bytes only"
            if rate["bytes"] >= LARGE_BYTES and percent is not None:
                remark += f": {MOVER_PERCENT} % " + (
                    "reached" if percent >= MOVER_PERCENT else "missed")  # fmt: skip
        shown = "     -" if percent is None else f"{percent:5.1f} %"
        print(f"{result['scenario'] + '/' + result['case']:<{width}}  "
              f"{rate['bytes'] / 1e6:9.1f} MB  {result['timing']['median_us']:9.2f} us  "
              f"{rate['gbps']:7.0f} GB/s  {shown}  {remark}".rstrip())  # fmt: skip


def judge(runs, ids):
    """Prints everything; whether a suite failed, by name."""
    print_suites(runs)
    print_failures(runs)
    reasons, others = group_reasons(runs)
    print_reasons(reasons)
    missed = missed_pairs(runs, ids)
    for sentences in missed.values():
        for sentence in sentences:
            print(f"must pass: {sentence}")
    print_operations(runs)
    failed = {}
    for run in runs:
        counts = run.counts()
        failed[run.suite] = (
            run.results is None
            or bool(run.note)
            or run.status not in SUCCESS
            or any(counts[status] for status in FAILURES)
            or bool(others[run.suite])
            or bool(missed[run.suite])
        )
    return failed


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--smoke", dest="which", action="store_const", const="smoke")
    which.add_argument("--real", dest="which", action="store_const", const="real")
    parser.set_defaults(which="all")
    parser.add_argument("--binary", default=ROOT / "build" / "attnbench", metavar="FILE")
    parser.add_argument("--json", type=Path, default=Path("gpu-results"), metavar="DIR")
    parser.add_argument("--read", type=Path, metavar="DIR", help="run nothing, judge these files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=0, metavar="N",
                        help="processes at a time; default: 3 for every 8 cores, with --timing 1")
    parser.add_argument("--limit", type=float, default=480, metavar="S",
                        help="seconds a process may take (default 480)")
    parser.add_argument("--deadline", type=float, default=570, metavar="S",
                        help="seconds that all may take (default 570)")
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--sanitizer", metavar="TOOL",
                        choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--cudnn", action="store_true", help="run the backend CUDNN alone")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="compiled kernels")
    parser.add_argument("--no-must-pass", action="store_true", help="for runs of chosen cases")
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], metavar="OPTION",
                        help="what follows goes to every attnbench run")  # fmt: skip
    options = parser.parse_args()
    if options.cudnn:
        options.more = ["--backend", "CUDNN", *options.more]
    return options


def run_all(options):
    cores = len(os.sched_getaffinity(0))
    jobs = options.jobs = options.jobs or (1 if options.timing else max(1, cores * 3 // 8))
    # Half as many threads again as cores: a process often waits for the GPU or works with one.
    options.threads = max(1, cores * 3 // (2 * jobs)) if jobs > 1 else cores
    options.json.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.deadline - GRACE_S
    files = suite_files(options.suites, options.which)
    for file in files:  # of an earlier run, which may have had other parts
        for old in options.json.glob(f"{file.stem}*.json"):
            if suite_and_part(old)[0] == file.stem:
                old.unlink()
    tasks = [task for file in files for task in parts_of(file, options)]
    runs = []
    with ThreadPoolExecutor(jobs) as pool:
        for run in pool.map(lambda task: run_suite(task, options, deadline), tasks):
            runs.append(run)
            print(f"{run.suite}: exit {run.status}, {run.seconds:.1f} s", file=sys.stderr)
    return join_parts(runs)


def main():
    options = parse_arguments()
    start = time.monotonic()
    if options.read:
        runs = read_runs(options.read)
        runs = [run for run in runs if not options.suites or run.suite in options.suites]
    else:
        runs = run_all(options)
    if not runs:
        sys.exit("gpu_suites: no suites")
    lists = [MUST_PASS_CUDNN] if options.cudnn else MUST_PASS
    failed = judge(runs, [] if options.no_must_pass else must_pass_ids(lists))
    names = [suite for suite, is_failed in failed.items() if is_failed]
    if names:
        print("\nfailed: " + ", ".join(names))
    print(f"{len(failed) - len(names)} suites passed, {len(names)} failed, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    sys.exit(1 if names else 0)


if __name__ == "__main__":
    main()
