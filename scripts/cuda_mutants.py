#!/usr/bin/env python3
"""Plants faults in copies of the CUDA kernels and shows that `attnbench run` calls each one incorrect.

    cuda_mutants.py                   on a GPU: compiles all mutants side by side, runs each, a few minutes
    cuda_mutants.py --compile-only    on any machine with NVRTC: every mutant is a program
    cuda_mutants.py --list            what there is; --only WORD: some of them

Every mutant of tests/mutation/cuda_mutants.json replaces one piece of text of one device file; the
program compiles its kernels from the changed copy (ATTNBENCH_KERNEL_DIR). Each has a case that must pass
with the kernels as they are, and be incorrect, or an error, with the mutant's. The last line is
"N mutants, N caught"; the exit status is 1 when one survived or a case did not pass, 3 without a GPU.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
MUTATION = ROOT / "tests" / "mutation"
TABLE = MUTATION / "cuda_mutants.json"
# Of one process. A mutant may be slow, and it may hang.
LIMIT_S = 300
HANG_LIMIT_S = 60
CAUGHT = ("incorrect", "error")


class Failure(Exception):
    """A mutant that cannot be made, or a program that said nothing."""


def load_table():
    table = json.loads(TABLE.read_text())
    return table["cases"], table["mutants"]


def mutated_text(mutant):
    """The device file with the fault. Errors: Failure where the text is not there exactly once."""
    text = (KERNELS / mutant["file"]).read_text()
    count = text.count(mutant["find"])
    if count != 1:
        raise Failure(f"{mutant['file']}: expected the text once, found it {count} times: "
                      f"{mutant['find']!r}")
    return text.replace(mutant["find"], mutant["replace"])


def write_mutant(mutant, folder):
    """All device files, with the fault."""
    shutil.copytree(KERNELS, folder)
    (folder / mutant["file"]).write_text(mutated_text(mutant))


class Tool:
    def __init__(self, binary, cache):
        self.binary, self.cache = binary, cache

    def call(self, verb, case, folder, *options):
        words = [self.binary, verb, MUTATION / "base.yaml", "--backend", case["backend"],
                 "--cache-dir", self.cache, *options]  # fmt: skip
        words += ["--kernel", case["kernel"]] if "kernel" in case else []
        for key, value in case["set"].items():
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        environment = {k: v for k, v in os.environ.items() if k != "ATTNBENCH_KERNEL_DIR"}
        if folder is not None:
            environment["ATTNBENCH_KERNEL_DIR"] = str(folder)
        return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              env=environment, cwd=ROOT, timeout=LIMIT_S)  # fmt: skip

    def compile(self, case, folder, arch):
        """How many kernels of the case were compiled anew: those that the fault is in."""
        done = self.call("compile", case, folder, "--arch", arch)
        if done.returncode != 0:
            raise Failure(f"does not compile: {done.stderr.strip()[-600:]}")
        return sum(line.endswith("compiled") for line in done.stdout.splitlines())

    def run(self, case, folder):
        """(status, reasons) of the case's results."""
        done = self.call("run", case, folder, "--device", "cuda", "--no-timing", "--no-progress", "-q",
                         "--hang-limit", str(HANG_LIMIT_S), "--json", "-")  # fmt: skip
        start = done.stdout.find("{")
        if start < 0:
            raise Failure(f"no results (exit {done.returncode}): {done.stderr.strip()[-400:]}")
        results = json.JSONDecoder().raw_decode(done.stdout[start:])[0]["results"]
        return [(r["status"], "; ".join(r["reasons"])) for r in results]


def arch_of_gpu(binary):
    """As --arch takes it, or None without a GPU."""
    done = subprocess.run([binary, "device", "--no-timing", "--json", "-"], capture_output=True, text=True)
    try:
        devices = json.loads(done.stdout)["devices"]
        return next(f"sm_{d['sm']}{'a' if d['sm'] >= 90 else ''}" for d in devices if "sm" in d)
    except (ValueError, KeyError, StopIteration, TypeError):
        listed = subprocess.run([binary, "device", "--no-timing"], capture_output=True, text=True).stdout
        return "sm_90a" if any(line.startswith("cuda:0") for line in listed.splitlines()) else None


def outcome_of(work):
    """(word, words) for the table: what `work` returns, or why there is nothing."""
    try:
        return work()
    except (Failure, subprocess.TimeoutExpired) as failure:
        return "failed", str(failure)


def judge(results, expected):
    statuses = sorted({status for status, _ in results})
    good = bool(results) and all(status in expected for status in statuses)
    return ("caught" if good else "SURVIVED"), f"{', '.join(statuses)}: {results[0][1]}"


def judge_original(results):
    word, words = judge(results, ("passed",))
    return ("passed" if word == "caught" else "FAILED"), words


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "attnbench")
    parser.add_argument("--arch", default="sm_90a", help="for --compile-only")
    parser.add_argument("--only", default="", help="mutants whose name or case contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at once")
    parser.add_argument("--runs", type=int, default=4, help="processes on the GPU at once")
    parser.add_argument("--cache-dir", type=Path, help="kept for the next time; default: none is")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    cases, mutants = load_table()
    mutants = [m for m in mutants if arguments.only in m["name"] or arguments.only == m["case"]]
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant['name']}  ({mutant['file']}; {mutant['case']})")
        return 0
    arch = arguments.arch if arguments.compile_only else arch_of_gpu(arguments.binary)
    if arch is None:
        print("no GPU: nothing was run")
        return 3
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attnbench-mutants-") as scratch:
        return run_all(arguments, cases, mutants, arch, Path(scratch), began)


def run_all(arguments, cases, mutants, arch, scratch, began):
    tool = Tool(arguments.binary, arguments.cache_dir or scratch / "cache")
    used = {mutant["case"] for mutant in mutants}
    folders = {}
    for number, mutant in enumerate(mutants):
        folders[mutant["name"]] = scratch / str(number)
        write_mutant(mutant, scratch / str(number))

    def compile_mutant(mutant):
        count = tool.compile(cases[mutant["case"]], folders[mutant["name"]], arch)
        # Kernels of an earlier time are in a cache that was kept.
        if count == 0 and arguments.cache_dir is None:
            raise Failure("no kernel of its case includes the file")
        return "compiled", f"{count} kernels"

    outcomes = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        compiled = {name: pool.submit(tool.compile, cases[name], None, arch) for name in used}
        concurrent.futures.wait(compiled.values())
        for name, future in compiled.items():
            outcomes["case " + name] = outcome_of(lambda: ("compiled", f"{future.result()} kernels"))
        futures = {m["name"]: pool.submit(compile_mutant, m) for m in mutants}
        for name, future in futures.items():
            outcomes[name] = outcome_of(future.result)
    compile_s = time.monotonic() - began
    if not arguments.compile_only:
        with concurrent.futures.ThreadPoolExecutor(arguments.runs) as pool:
            runs = {"case " + n: pool.submit(tool.run, cases[n], None) for n in sorted(used)}
            runs |= {m["name"]: pool.submit(tool.run, cases[m["case"]], folders[m["name"]])
                     for m in mutants if outcomes[m["name"]][0] == "compiled"}  # fmt: skip
            for name, future in runs.items():
                is_case = name.startswith("case ")
                outcomes[name] = outcome_of(
                    lambda: judge_original(future.result()) if is_case
                    else judge(future.result(), CAUGHT))  # fmt: skip
    good = ("compiled",) if arguments.compile_only else ("caught", "passed")
    width = max(map(len, outcomes))
    for name, (word, words) in outcomes.items():
        print(f"{word:9} {name:{width}}  {words[:160]}")
    failed = sum(word not in good for word, _ in outcomes.values())
    fine = sum(outcomes[m["name"]][0] in good for m in mutants)
    print(f"{compile_s:.0f} s to compile, {time.monotonic() - began:.0f} s in all")
    print(f"{len(mutants)} mutants, {fine} {'compiled' if arguments.compile_only else 'caught'}")
    return 1 if failed or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
