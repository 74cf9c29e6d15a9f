#!/usr/bin/env python3
"""The lists of results that must be `passed`: reads them, and writes them anew.

    must_pass.py write BINARY         tests/must_pass.yaml and must_pass_cuda.yaml, from what this
                                      program says it supports (`attnbench support`)
    must_pass.py check BINARY         exits with 1 and prints the difference when they would change
    must_pass.py write-cudnn RESULTS  tests/must_pass_cudnn.yaml, from what CUDNN passed on a GPU

The lists are kept in the repository so that a pair which is suddenly refused shows in the diff of a
change. A line is `<scenario>/<case>: <backend> ...`. Every pair that is supported at compute
capability 9.0 is in one of the first two files; tests/must_pass_cpu.yaml says which of them every
machine can afford to run on its CPU, so that CI does.
"""

import argparse
import difflib
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
CPU_LIST, CUDA_LIST = TESTS / "must_pass.yaml", TESTS / "must_pass_cuda.yaml"
# CUDNN is judged only where its library, and the headers when building, were found.
CUDNN_LIST = TESTS / "must_pass_cudnn.yaml"
CPU_PATTERNS = TESTS / "must_pass_cpu.yaml"
HEADS = {
    CPU_LIST: "What must be `passed` on every machine, each on at least 64 rows",
    CUDA_LIST: "What must be `passed` on a CUDA device of compute capability 9.0 beside every pair of\n"
               "# must_pass.yaml: the pairs at sizes that take a CPU too long",
    CUDNN_LIST: "What must be `passed` by the backend CUDNN on a CUDA device of compute capability 9.0\n"
                "# with cuDNN 9.19 (scripts/gpu_suites.py --cudnn)",
}  # fmt: skip


def ids_of(files):
    """Ids <scenario>/<case>/<backend> of the lines `<scenario>/<case>: <backend> ...`."""
    ids = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = re.fullmatch(r"([^/\s]+/\S+):((?: [A-Z0-9_@a-z]+)+)", line)
            if match is None:
                raise ValueError(f"{file.name}:{number}: expected 'scenario/case: BACKEND ...': {line}")
            ids += [f"{match[1]}/{backend}" for backend in match[2].split()]
    return ids


def text_of(file, ids):
    """The list with these ids, the cases in their given order and sorted by scenario."""
    cases = {}
    for id in ids:
        case, _, backend = id.rpartition("/")
        cases.setdefault(case, []).append(backend)
    lines, last = [f"# {HEADS[file]}.\n# Written by scripts/must_pass.py; review its diff."], None
    for case in sorted(cases, key=lambda case: case.split("/")[0]):
        scenario = case.split("/")[0]
        lines += [""] * (scenario != last) + [f"{case}: {' '.join(cases[case])}"]
        last = scenario
    return "\n".join(lines) + "\n"


def supported_ids(binary):
    """Ids of the pairs of all shipped scenarios that the program supports at SM 9.0, in its order."""
    suites = sorted((ROOT / "scenarios").glob("*.yaml"))
    done = subprocess.run(
        [binary, "support", *suites, "--device", "cpu", "--assume-sm", "90", "--json", "-"],
        capture_output=True, text=True, check=True)  # fmt: skip
    return [pair["id"] for pair in json.loads(done.stdout) if pair["supported"]]


def patterns():
    lines = CPU_PATTERNS.read_text(encoding="utf-8").splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def lists(binary):
    """File -> text, for the CPU's and the GPU's list."""
    affordable = patterns()
    ids = supported_ids(binary)
    for pattern in affordable:
        if not any(pattern.fullmatch(id) for id in ids):
            raise ValueError(f"{CPU_PATTERNS.name}: no supported pair matches {pattern.pattern}")
    on_cpu = [id for id in ids if any(pattern.fullmatch(id) for pattern in affordable)]
    chosen = set(on_cpu)
    return {CPU_LIST: text_of(CPU_LIST, on_cpu),
            CUDA_LIST: text_of(CUDA_LIST, [id for id in ids if id not in chosen])}  # fmt: skip


def differences(binary):
    found = []
    for file, text in lists(binary).items():
        before = file.read_text(encoding="utf-8").splitlines()
        found += difflib.unified_diff(before, text.splitlines(), file.name, "as supported", "", "", 0, "")
    return found


def passed_ids(file):
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as results:
        return [result["id"] for result in json.load(results)["results"] if result["status"] == "passed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["write", "check", "write-cudnn"])
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "check":
        found = differences(arguments.file)
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    texts = ({CUDNN_LIST: text_of(CUDNN_LIST, passed_ids(arguments.file))}
             if arguments.action == "write-cudnn" else lists(arguments.file))  # fmt: skip
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
