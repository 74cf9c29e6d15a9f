#!/usr/bin/env python3
"""Plants faults in the CPU pipelines and shows that `attnbench run` calls each one incorrect. Where
no run judges, a test must fail: one of tests/cli that the mutant names ("test"), or for the rules of
the gate its unit tests.

Every entry of mutants.json, row_mutants.json (small numeric mistakes) and gate_mutants.json in
tests/mutation replaces one piece of text of one source file. Only the mutated files are compiled, in the
groups of the build, once with all of their mutants (mutant_choice), with the flags of the build, and linked
before the objects of the tool, so that the real sources and the real binary stay as they are. The program
that comes of it has to pass every case while no mutant is chosen. A mutant that cannot be chosen when the
program runs has an object of its own in it.

Of a group of the build with few such files only these are compiled, and the object of the whole group is
linked behind, in which the compiler may have inlined what a mutant changes. So a mutant that is not caught
that way counts only when it gets through alone: its file, and each other one of its group, compiled by
itself.

By default all mutants are planted. scripts/test runs `--which quick` and, with the label thorough, `--which
thorough`: the mutants that need a compiler each, as they cannot be chosen, and those that say that they are
"thorough" because for them alone a group of the build is compiled.

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

import mutant_choice

ROOT = pathlib.Path(__file__).resolve().parent.parent
MUTATION = ROOT / "tests" / "mutation"
WHOLE_GROUP = 8  # A group is compiled whole when mutants are in at least one file of as many.


class Failure(Exception):
    """A mutant that survived, or could not be made."""


def environment(number):
    """That in which a program has the mutant of that number, or none."""
    found = {**os.environ, mutant_choice.VARIABLE: str(number)}
    if number is None:
        del found[mutant_choice.VARIABLE]
    return found


def run_test(binary, name, number=None):
    """The same of a test of tests/cli: a test that fails is a fault found."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", name], capture_output=True, text=True, timeout=120,
        cwd=ROOT / "tests" / "cli", env={**environment(number), "ATTNBENCH_BIN": str(binary)})
    if "Ran 1 test" not in done.stderr or "skipped" in done.stderr:
        raise Failure(f"expected one test, found {done.stderr.strip()[-400:]}")
    if done.returncode == 0:
        return [("passed", "")]
    reason = [line for line in done.stderr.splitlines() if line.startswith("AssertionError")]
    return [("incorrect", reason[0])] if reason else [("error", done.stderr.strip()[-400:])]


def run_tool(binary, mutant, number=None):
    """Statuses and reasons of the mutant's case under `binary`; {scratch} in a value is a folder. With
    `number` the binary has that mutant among others."""
    if "test" in mutant:
        return run_test(binary, mutant["test"], number)
    with tempfile.TemporaryDirectory() as scratch:
        return run_case(binary, mutant, scratch, number)


def run_case(binary, mutant, scratch, number):
    command = [str(binary), "run", str(MUTATION / "base.yaml"), "--backend", mutant["backend"]]
    for key, value in mutant["set"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        command += ["--set", f"{key}={text}".replace("{scratch}", scratch)]
    command += ["--device", "cpu", "--no-timing", "--no-progress", "-q", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT,
                          env=environment(number))  # fmt: skip
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
        """Objects of the other sources of its group, unchanged."""
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

    def link_before_groups(self, program, objects, output):
        """The command with `objects`, by source, before all others. Of what is defined twice, there and
        in the object of a group, the linker takes the first."""
        whole = {name for source in objects for name in self.objects_within(source, objects)}
        command = [word for word in self.link[program] if word not in whole]
        command[command.index("-o") + 1] = str(output)
        first = next(i for i, word in enumerate(command) if word.endswith((".o", ".a")))
        return (command[:first] + list(dict.fromkeys(map(str, objects.values()))) + command[first:]
                + self.linker + ["-Wl,--allow-multiple-definition"])

    def objects_within(self, source, sources):
        """The object of the group of `source`, where `sources` are all of the group."""
        compiled = self.compile[source]
        whole = all(other in sources for other in self.group[source])
        return [compiled[compiled.index("-o") + 1]] if whole else []


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


class Program:
    """A program with all mutants of it, one of which is chosen when it runs."""

    def __init__(self, build, program, mutants, scratch, pool):
        self.build, self.program, self.mutants = build, program, mutants
        self.scratch = scratch
        self.binary = scratch / program
        self.numbers = {}  # of the mutants that can be chosen, by name
        by_file = {}
        for number, mutant in enumerate(mutants, 1):
            by_file.setdefault(mutant["file"], []).append((number, mutant))
        groups = {}
        for file, numbered in by_file.items():
            groups.setdefault(str(build.group[(ROOT / file).resolve()]), {})[file] = numbered
        self.objects = {}  # by source
        for objects in pool.map(self.compiled_group, groups.values()):
            self.objects.update(objects)
        self.link(self.objects, self.binary)

    def compiled_group(self, by_file):
        """Objects by source of files that the build compiles in one group: one for all of them, as their
        headers take longer than they do; one for each, where the compiler does not take that."""
        texts = {file: self.with_choices(file, numbered) for file, numbered in by_file.items()}
        try:
            first = next(iter(by_file))
            output = self.output_of(first + "-and-others")
            parts = {(ROOT / file).resolve(): self.written(text, self.output_of(file))
                     for file, (text, _) in texts.items()}  # fmt: skip
            group = self.build.group[(ROOT / first).resolve()]
            # All of the group, where that is not much more: then nothing of it is linked behind.
            if WHOLE_GROUP * len(parts) >= len(group):
                parts = {source: parts.get(source, source) for source in group}
            self.compile(first, "".join(f'#include "{part}"\n' for part in parts.values()), output)
            for _, numbers in texts.values():
                self.numbers.update(numbers)
            return dict.fromkeys(parts, output)
        except Failure:
            return {(ROOT / file).resolve(): self.compiled(file, *texts[file]) for file in by_file}

    def with_choices(self, file, numbered):
        """The text of a file with its mutants, and their numbers by name."""
        texts = [(n, m["find"], m["replace"]) for n, m in numbered if is_there_once(m)]
        text, chosen = mutant_choice.with_choices((ROOT / file).read_text(), texts)
        names = {n: m["name"] for n, m in numbered}
        return text, {names[number]: number for number in chosen.values()}

    def compiled(self, file, text, numbers):
        """The object of a file with all of its mutants; of the file as it is, where the compiler does
        not take them."""
        output = self.output_of(file)
        try:
            self.compile(file, text, output)
            self.numbers.update(numbers)
        except Failure:
            self.compile(file, (ROOT / file).read_text(), output)
        return output

    def output_of(self, file):
        return self.scratch / (file.replace("/", "-") + ".o")

    @staticmethod
    def written(text, output):
        """The source file beside an object."""
        source = output.with_suffix(".cpp")
        source.write_text(text)
        return source

    def compile(self, file, text, output):
        mutated = self.written(text, output)
        call([*self.build.compile_command(ROOT / file, mutated, output), "-w"], self.build.directory,
             "compiler")  # fmt: skip

    def link(self, objects, binary):
        call(self.build.link_before_groups(self.program, objects, binary), self.build.directory, "linker")

    def run(self, mutant, check):
        """What `check` says of the program with the mutant: check(binary, number)."""
        if mutant["name"] in self.numbers:
            return check(self.binary, self.numbers[mutant["name"]])
        with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
            output, binary = pathlib.Path(name, "mutated.o"), pathlib.Path(name, self.program)
            self.compile(mutant["file"], mutate(mutant), output)
            # First: an object of several files has the one without the fault too.
            source = (ROOT / mutant["file"]).resolve()
            others = {of: object for of, object in self.objects.items() if of != source}
            self.link({source: output, **others}, binary)
            return check(binary, None)


def is_there_once(mutant):
    return (ROOT / mutant["file"]).read_text().count(mutant["find"]) == 1


def alone(program, mutant, check):
    """The same of a program that has no object of a group with the file: what counts in the end. As it
    is linked otherwise than the rest, the file without the fault is tried as well."""
    with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
        caught = check(build_mutant(program.build, mutant, program.program, pathlib.Path(name)), None)
    same = {**mutant, "replace": mutant["find"]}
    with tempfile.TemporaryDirectory(prefix="attnbench-mutant-") as name:
        binary = build_mutant(program.build, same, program.program, pathlib.Path(name))
        if is_of_gate(mutant):
            test_gate_original(binary)
        else:
            test_original(binary, mutant)
    return caught


def test_mutant(program, mutant):
    """Returns the reason with which the fault was caught."""
    def check(binary, number):
        if is_of_gate(mutant):
            return caught_by_gate(binary, number)
        return caught_by_run(binary, number, mutant)

    try:
        return program.run(mutant, check)
    except Failure:
        return alone(program, mutant, check)


def is_of_gate(mutant):
    return "backend" not in mutant and "test" not in mutant


def caught_by_run(binary, number, mutant):
    results = run_tool(binary, mutant, number)
    survivors = [status for status, _ in results if status != "incorrect"]
    if survivors or not results:
        raise Failure(f"expected every result incorrect, found {[s for s, _ in results]}")
    return results[0][1]


def run_gate(binary, number=None):
    """The unit tests of the gate; with a mutant until one of them fails."""
    options = [] if number is None else ["--abort-after=1"]
    return subprocess.run([str(binary), *options], capture_output=True, text=True, timeout=120,
                          env=environment(number))  # fmt: skip


def caught_by_gate(binary, number):
    """Returns the first test that failed."""
    done = run_gate(binary, number)
    if done.returncode != 1 or "FAILURE!" not in done.stdout:
        raise Failure(f"expected failing tests, found exit {done.returncode}: {done.stdout[-200:]}")
    return next(line for line in done.stdout.splitlines() if line.startswith("TEST CASE"))


def test_gate_original(binary):
    done = run_gate(binary)
    if done.returncode != 0 or "SUCCESS!" not in done.stdout:
        raise Failure(f"without a fault: expected passing tests, found exit {done.returncode}: "
                      f"{done.stdout[-200:]}")


def test_original(binary, mutant):
    results = run_tool(binary, mutant)
    if not results or any(status != "passed" for status, _ in results):
        raise Failure(f"without a fault: expected passed, found {results}")


def is_thorough(mutant):
    """Whether only the label thorough plants it; one whose text is not there fails at once and is not."""
    if mutant.get("thorough", False) or not is_there_once(mutant):
        return mutant.get("thorough", False)
    text = (ROOT / mutant["file"]).read_text()
    return not mutant_choice.with_choices(text, [(1, mutant["find"], mutant["replace"])])[1]


def wanted_mutants(which):
    """The mutants of all lists, or those that are quick or thorough."""
    mutants = [mutant for name in ("mutants.json", "row_mutants.json", "gate_mutants.json")
               for mutant in json.loads((MUTATION / name).read_text())]  # fmt: skip
    return [m for m in mutants if which == "all" or is_thorough(m) == (which == "thorough")]


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
    parser.add_argument("--which", choices=("quick", "thorough", "all"), default="all")
    parser.add_argument("--list", action="store_true", help="print their names and plant none")
    parser.add_argument("--verbose", action="store_true", help="print how each was caught")
    arguments = parser.parse_args()
    chosen = [m for m in wanted_mutants(arguments.which) if arguments.only in m["name"]]
    if arguments.list:
        print("\n".join(mutant["name"] for mutant in chosen))
        return 0
    mutants = [m for m in chosen if not is_of_gate(m)]
    of_the_gate = [m for m in chosen if is_of_gate(m)]
    build = Build(arguments.build.resolve())

    # Mutants share cases; the program without one needs to pass each once.
    cases = {json.dumps(m.get("test") or [m["backend"], m["set"]]): m for m in mutants}
    failures = 0
    with (concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool,
          tempfile.TemporaryDirectory(prefix="attnbench-mutants-") as scratch):  # fmt: skip
        originals, tests = [], []
        if mutants:
            program = Program(build, "attnbench", mutants, pathlib.Path(scratch), pool)
            originals += [(m, pool.submit(test_original, program.binary, m)) for m in cases.values()]
            tests += [(m, pool.submit(test_mutant, program, m)) for m in mutants]
        if of_the_gate:
            gate = Program(build, "test_gate", of_the_gate, pathlib.Path(scratch), pool)
            originals.append((of_the_gate[0], pool.submit(test_gate_original, gate.binary)))
            tests += [(m, pool.submit(test_mutant, gate, m)) for m in of_the_gate]
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
