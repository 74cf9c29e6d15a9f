#!/usr/bin/env python3
"""Shows whether two builds of attnbench say the same: what a change of structure must not alter.

    compare_builds.py record BINARY DIR     what this program prints and writes, as files in DIR
    compare_builds.py compare DIR DIR       the records that differ, as unified diffs

Recorded are the help of every command and `list`; `validate`, `support` and `explain` of every
shipped scenario; the results of every small suite on the CPU; and every command line of the tests
in tests/cli with its exit code, stdout and stderr, which covers refused input and all formats.
--only PART (repeatable) limits that to help, scenarios, suites or tests; --tests DIR takes the tests
of another source tree, as those of the older one know nothing of new options.

Times, dates, rates, host, version and hashes of cubins (which hold line numbers and the id of the
compiling process) are masked, and so are the names of scratch folders. `compare`
exits with 1 when anything differs; what is missing from the first record is only counted.
"""

import argparse
import concurrent.futures
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "scenarios"
PARTS = ("help", "scenarios", "suites", "tests")
COMMANDS = ("run", "support", "explain", "validate", "compile", "list", "device", "gate", "report",
            "calibrate", "scales")  # fmt: skip
# Tests that start other programs, wait for signals or measure.
LEFT_OUT = {"adapters", "browser", "checkpoint_packages", "compiled_solutions", "golden", "gpu", "gpu_python",
            "gpu_solutions", "install", "python_versions", "real_suites", "suites", "terminal", "compile",
            "faults", "plugin_faults"}  # fmt: skip
# Keys of JSON outputs whose values are measured, or say when and where.
MEASURED = re.compile(
    r"(^|_)(created|git|cubin_hash|time|times|timing|date|host|hostname|cpu|clock|version|commit|duration|elapsed|samples|"
    r"environment|throughput|tflops|gbps|rounds|noise|roofline|ceiling|started|finished|median|"
    r"memory|device_name|machine|load|seconds)($|_)"
)
SCRATCH = re.compile(r"/tmp/[A-Za-z0-9_./-]*?(?=[\s'\",:;)\]]|$)")
# Where a text gives times, every number is masked.
TIMED_TEXT = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?=\s?(?:us|ms|s|%|x|TFLOP/s|GB/s|TB/s|\b))")

# This source tree, and that of the recorded program: both occur in messages.
ROOTS = [ROOT]

RECORDER = """#!{python}
import json, os, subprocess, sys
done = subprocess.run([{binary!r}, *sys.argv[1:]], capture_output=True)
line = json.dumps({{"arguments": sys.argv[1:], "code": done.returncode,
                   "out": done.stdout.decode(errors="replace"),
                   "err": done.stderr.decode(errors="replace")}})
with open(os.environ["ATTNBENCH_RECORD"], "a") as record:
    record.write(line + "\\n")
sys.stdout.buffer.write(done.stdout), sys.stderr.buffer.write(done.stderr)
sys.stdout.flush(), sys.stderr.flush()
sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
"""


def masked_value(value, key=""):
    if MEASURED.search(key):
        return "masked"
    if isinstance(value, dict):
        return {name: masked_value(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [masked_value(item) for item in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text):
    for root in ROOTS:
        text = text.replace(str(root), "ROOT")
    text = SCRATCH.sub("SCRATCH", text)
    return re.sub(r"attnbench \d+\.\d+\.\d+\S*", "attnbench VERSION", text)


def masked(text, is_timed):
    """The text as it is compared: JSON by its keys, other text without its times."""
    try:
        return json.dumps(masked_value(json.loads(text)), indent=1)
    except ValueError:
        text = masked_text(text)
        return re.sub(r"[ ─]+", " ", TIMED_TEXT.sub("N", text)) if is_timed else text


def said(binary, *arguments, timed_errors=False):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    return (f"exit {done.returncode}\n--- stdout\n{masked(done.stdout, False)}\n"
            f"--- stderr\n{masked(done.stderr, timed_errors)}")  # fmt: skip


def record_help(binary, folder):
    (folder / "top").write_text(said(binary, "--help"))
    (folder / "list").write_text(said(binary, "list"))
    for command in COMMANDS:
        (folder / command).write_text(said(binary, command, "--help"))


def record_scenarios(binary, folder):
    device = ("--device", "cpu", "--assume-sm", "90")
    for file in sorted(SCENARIOS.glob("*.yaml")):
        name = file.relative_to(ROOT)
        (folder / f"{file.stem}.validate").write_text(said(binary, "validate", name))
        (folder / f"{file.stem}.support").write_text(said(binary, "support", name, *device, "--json", "-"))
        (folder / f"{file.stem}.explain").write_text(said(binary, "explain", name, *device))


def record_suite(binary, file, folder):
    text = said(binary, "run", file.relative_to(ROOT), "--device", "cpu", "--threads", "1",
                "--no-timing", "--no-progress", "--json", "-", timed_errors=True)  # fmt: skip
    (folder / file.stem).write_text(text)


def record_suites(binary, folder):
    files = sorted(SCENARIOS.glob("smoke*.yaml"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(record_suite, binary, file, folder) for file in files]:
            done.result()


def record_test(file, recorder, folder):
    name = file.stem.removesuffix("_test")
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record")
        record.touch()
        environment = {**os.environ, "ATTNBENCH_BIN": str(recorder), "ATTNBENCH_RECORD": str(record)}
        subprocess.run([sys.executable, "-B", file], env=environment, capture_output=True,
                       stdin=subprocess.DEVNULL)  # fmt: skip
        texts = []
        for line in record.read_text().splitlines():
            call = json.loads(line)
            timed = bool(call["arguments"]) and call["arguments"][0] in ("run", "gate", "report")
            texts.append(f"$ {masked_text(' '.join(call['arguments']))}\nexit {call['code']}\n"
                         f"{masked(call['out'], timed)}\n{masked(call['err'], timed)}\n")  # fmt: skip
    (folder / name).write_text("\n".join(texts))


def record_tests(binary, folder, tests):
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Path(scratch, "attnbench")
        recorder.write_text(RECORDER.format(python=sys.executable, binary=str(binary)))
        recorder.chmod(0o755)
        files = [file for file in sorted(tests.glob("*_test.py"))
                 if file.stem.removesuffix("_test") not in LEFT_OUT]  # fmt: skip
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(record_test, file, recorder, folder) for file in files]:
                done.result()


def record(arguments):
    binary = arguments.binary.resolve()
    ROOTS.append(binary.parent.parent)
    for part in arguments.only or PARTS:
        folder = arguments.folder / part
        folder.mkdir(parents=True, exist_ok=True)
        if part == "tests":
            record_tests(binary, folder, arguments.tests.resolve())
        else:
            {"help": record_help, "scenarios": record_scenarios, "suites": record_suites}[part](
                binary, folder)
    return 0


def compare(arguments):
    before = {file.relative_to(arguments.before) for file in arguments.before.rglob("*") if file.is_file()}
    after = {file.relative_to(arguments.after) for file in arguments.after.rglob("*") if file.is_file()}
    differing = 0
    for name in sorted(before & after):
        texts = [(folder / name).read_text().splitlines() for folder in (arguments.before, arguments.after)]
        lines = list(difflib.unified_diff(*texts, f"before/{name}", f"after/{name}", "", "", 2, ""))
        differing += bool(lines)
        print("\n".join(lines[: arguments.lines]), end="\n" if lines else "")
        if len(lines) > arguments.lines:
            print(f"... and {len(lines) - arguments.lines} lines more")
    for name in sorted(before - after):
        print(f"missing afterwards: {name}")
    print(f"{len(before & after)} records compared, {differing} differ, {len(before - after)} are "
          f"missing, {len(after - before)} are new")  # fmt: skip
    return 1 if differing or before - after or not before else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("binary", type=Path)
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", action="append", choices=PARTS)
    recording.add_argument("--tests", type=Path, default=ROOT / "tests" / "cli")
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--lines", type=int, default=40, help="of one difference")
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
