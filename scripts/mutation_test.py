#!/usr/bin/env python3
"""Plants faults in the CPU pipelines and shows that `attnbench run` calls each one incorrect. Where
no run judges, a test must fail: one of tests/cli that the mutant names ("test"), or for the rules of
the gate its unit tests.

Every entry of mutants.json, row_mutants.json (small numeric mistakes) and gate_mutants.json in
tests/mutation replaces one piece of text of one source file. Only the mutated file is compiled, with
the flags of the build, and linked before the libraries of the tool, so that the real sources and the
real binary stay as they are. Where the build compiles sources in groups, the others of its group are
compiled once, each by itself, and linked there too.

Example: scripts/mutation_test.py --build build
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
MUTATION = ROOT / "tests" / "mutation"


class Failure(Exception):
    """A mutant that survived, or could not be made."""


def run_test(binary, name):
    """The same of a test of tests/cli: a test that fails is a fault found."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", name], capture_output=True, text=True, timeout=120,
        cwd=ROOT / "tests" / "cli", env={**os.environ, "ATTNBENCH_BIN": str(binary)})
    if "Ran 1 test" not in done.stderr or "skipped" in done.stderr:
        raise Failure(f"expected one test, found {done.stderr.strip()[-400:]}")
    if done.returncode == 0:
        return [("passed", "")]
    reason = [line for line in done.stderr.splitlines() if line.startswith("AssertionError")]
    return [("incorrect", reason[0])] if reason else [("error", done.stderr.strip()[-400:])]


def run_tool(binary, mutant):
    """Statuses and reasons of the mutant's case under `binary`; {scratch} in a value is a folder."""
    if "test" in mutant:
        return run_test(binary, mutant["test"])
    with tempfile.TemporaryDirectory() as scratch:
        return run_case(binary, mutant, scratch)


def run_case(binary, mutant, scratch):
    command = [str(binary), "run", str(MUTATION / "base.yaml"), "--backend", mutant["backend"]]
    for key, value in mutant["set"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        command += ["--set", f"{key}={text}".replace("{scratch}", scratch)]
    command += ["--device", "cpu", "--no-timing", "--no-progress", "-q", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    start = done.stdout.find("{")
    if start < 0:
        raise Failure(f"no results (exit {done.returncode}): {done.stderr.strip()[-400:]}")
    results = json.JSONDecoder().raw_decode(done.stdout[start:])[0]["results"]
    return [(result["status"], "; ".join(result["reasons"])) for result in results]


def quick_linker():
    """Option for the quickest linker that is installed, none where there is only the usual one, which
    takes a quarter of the time of a mutant of the CPU operations."""
    return next(([f"-fuse-ld={name}"] for name in ("lld", "gold") if shutil.which(f"ld.{name}")), [])


def grouped_sources(file):
    """The sources that a file of CMake's for a group includes, none of any other file."""
    if file.parent.name != "Unity":
        return []
    included = re.findall(r'^#include "(.*)"$', file.read_text(), re.MULTILINE)
    return [pathlib.Path(source).resolve() for source in included]


class Build:
    """Compile and link commands of a configured ninja build."""

    def __init__(self, directory):
        self.directory = directory
        entries = json.loads((directory / "compile_commands.json").read_text())
        self.compile = {}
        self.group = {}  # of a source that is compiled in a group: all sources of the group
        for entry in entries:
            file = pathlib.Path(entry["file"]).resolve()
            sources = grouped_sources(file) or [file]
            for source in sources:
                self.compile[source] = shlex.split(entry["command"])
                self.group[source] = sources
        self.scratch = tempfile.TemporaryDirectory(prefix="attnbench-neighbours-")
        self.locks = {}
        self.lock = threading.Lock()
        self.linker = quick_linker()
        self.link = {program: self.link_of(program) for program in ("attnbench", "test_gate")}

    def link_of(self, program):
        listed = subprocess.run(
            ["ninja", "-C", str(self.directory), "-t", "commands", program],
            capture_output=True, text=True, check=True)
        link = [line for line in listed.stdout.splitlines() if f"-o {program} " in line][-1]
        # cmake wraps the command as ": && <command> && :".
        return [word for word in shlex.split(link) if word not in (":", "&&")]

    def compile_command(self, source, mutated, output):
        """Flags of `source`; -Og, because the mutants are small and a build is all they need, with
        the precompiled headers that were made for -Og."""
        command = [re.sub("attnbench_headers_(common|medium)", "attnbench_headers_light", word)
                   for word in self.compile[source.resolve()]]  # fmt: skip
        command[command.index("-o") + 1] = str(output)
        command[command.index("-c") + 1] = str(mutated)
        return command + ["-Og"]

    def neighbours_of(self, source):
        """Objects of the other sources of its group, unchanged; each is compiled once."""
        return [self.unchanged(other) for other in self.group[source.resolve()]
                if other != source.resolve()]  # fmt: skip

    def unchanged(self, source):
        """Its object; who comes while it is compiled waits."""
        with self.lock:
            lock = self.locks.setdefault(source, threading.Lock())
        output = pathlib.Path(self.scratch.name) / f"{'-'.join(source.parts[1:])}.o"
        with lock:
            if not output.exists():
                call(self.compile_command(source, source, output), self.directory, "compiler")
        return output

    def link_command(self, program, source, mutated_objects, output):
        """The objects come before the libraries, so that the linker never opens the original there,
        and in place of an original that is named beside them."""
        compiled = self.compile[source.resolve()]
        original = compiled[compiled.index("-o") + 1]
        command = [word for word in self.link[program] if word != original]
        command[command.index("-o") + 1] = str(output)
        first_library = next(i for i, word in enumerate(command) if word.endswith(".a"))
        return (command[:first_library] + [str(file) for file in mutated_objects]
                + command[first_library:] + self.linker)


def mutate(mutant):
    text = (ROOT / mutant["file"]).read_text()
    count = text.count(mutant["find"])
    if count != 1:
        raise Failure(f"{mutant['file']}: expected the text once, found it {count} times: "
                      f"{mutant['find']!r}")
    return text.replace(mutant["find"], mutant["replace"])


def call(command, directory, what):
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory)
    if done.returncode != 0:
        raise Failure(f"{what} failed: {done.stderr.strip()[-800:]}")


def build_mutant(build, mutant, program, scratch):
    """Path of the program with the fault."""
    source = ROOT / mutant["file"]
    mutated = scratch / source.name
    mutated.write_text(mutate(mutant))
    compiled = scratch / "mutated.o"
    call(build.compile_command(source, mutated, compiled), build.directory, "compiler")
    binary = scratch / program
    objects = [compiled, *build.neighbours_of(source)]
    call(build.link_command(program, source, objects, binary), build.directory, "linker")
    return binary


def test_mutant(build, mutant):
    """Returns the reason with which the fault was caught."""
    with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
        results = run_tool(build_mutant(build, mutant, "attnbench", pathlib.Path(name)), mutant)
    survivors = [status for status, _ in results if status != "incorrect"]
    if survivors or not results:
        raise Failure(f"expected every result incorrect, found {[s for s, _ in results]}")
    return results[0][1]


def test_gate_mutant(build, mutant):
    """Returns the first test that failed. The simulations of noise take seconds: not for them."""
    with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
        binary = build_mutant(build, mutant, "test_gate", pathlib.Path(name))
        done = subprocess.run([str(binary), "--test-case-exclude=*noisy machine*"],
                              capture_output=True, text=True, timeout=120)
    if done.returncode != 1 or "FAILURE!" not in done.stdout:
        raise Failure(f"expected failing tests, found exit {done.returncode}: {done.stdout[-200:]}")
    return next(line for line in done.stdout.splitlines() if line.startswith("TEST CASE"))


def test_original(binary, mutant):
    results = run_tool(binary, mutant)
    if not results or any(status != "passed" for status, _ in results):
        raise Failure(f"the unmutated program: expected passed, found {results}")


def test_relinked(build, mutant):
    """Compiled and linked as a mutant is, but without the fault, a program passes: else everything
    that is linked this way would count as caught."""
    same = {**mutant, "replace": mutant["find"]}
    is_gate = "backend" not in mutant and "test" not in mutant
    with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
        binary = build_mutant(build, same, "test_gate" if is_gate else "attnbench",
                              pathlib.Path(name))  # fmt: skip
        if not is_gate:
            return test_original(binary, mutant)
        done = subprocess.run([str(binary), "--test-case-exclude=*noisy machine*"],
                              capture_output=True, text=True, timeout=120)
    if done.returncode != 0 or "SUCCESS!" not in done.stdout:
        raise Failure(f"the same text, linked as a mutant: expected passing tests, found "
                      f"exit {done.returncode}: {done.stdout[-200:]}")


def enclosing_build():
    """ctest runs the tests somewhere inside the build folder."""
    here = pathlib.Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "build.ninja").exists()),
                ROOT / "build")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=enclosing_build(),
                        help="ninja build folder; default: the one that the working folder is in")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print how each was caught")
    arguments = parser.parse_args()
    mutants = [m for name in ("mutants.json", "row_mutants.json")
               for m in json.loads((MUTATION / name).read_text()) if arguments.only in m["name"]]
    of_the_gate = [m for m in json.loads((MUTATION / "gate_mutants.json").read_text())
                   if arguments.only in m["name"]]
    build = Build(arguments.build.resolve())
    binary = build.directory / "attnbench"

    # Mutants share cases; the real program needs to pass each once.
    cases = {json.dumps(m.get("test") or [m["backend"], m["set"]]): m for m in mutants}
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        originals = [(m, pool.submit(test_original, binary, m)) for m in cases.values()]
        originals += [(m, pool.submit(test_relinked, build, m))
                      for m in mutants[:1] + of_the_gate[:1]]
        tests = [(m, pool.submit(test_mutant, build, m)) for m in mutants]
        tests += [(m, pool.submit(test_gate_mutant, build, m)) for m in of_the_gate]
        for mutant, future in originals + tests:
            try:
                caught = future.result()
                if arguments.verbose and caught is not None:
                    print(f"caught: {mutant['name']}: {caught}")
            except (Failure, subprocess.TimeoutExpired) as failure:
                failures += 1
                print(f"FAILED: {mutant['name']}: {failure}")
    count = len(mutants) + len(of_the_gate)
    print(f"{count} mutants, {len(cases)} cases, {failures} failures")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
