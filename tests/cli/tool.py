"""Drives the real attnbench binary: scratch folders, small scenarios, strict readers of its output.

ATTNBENCH_BIN names the binary; without it build/attnbench of this source tree is taken.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ATTNBENCH_BIN", str(ROOT / "build" / "attnbench"))
SCENARIOS = ROOT / "scenarios"
sys.path.insert(0, str(ROOT / "scripts"))

# Small enough that a validated case takes milliseconds: a prompt and four decodes. Why warm: to flush
# caches of hundreds of megabytes takes longer than all else; result_file_test flushes them.
TINY = """\
schema: 1
name: tiny
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: q32_4q1s100
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
TINY_CASE = "q32_4q1s100"
# For a machine under load, not for the tool: every command here takes well under a second.
TIME_LIMIT_S = 120


def skip_without(what):
    """Skips a test that needs what is not installed. In a CI, which has it installed, it fails."""
    if os.environ.get("CI", "") not in ("", "0", "false"):
        raise AssertionError(f"CI is set, and there is no {what}")
    raise unittest.SkipTest(f"no {what}")


def thorough(test):
    """Marks a test, or a class of them, that only the label thorough runs (run_chosen.py): one that takes
    long, of a feature that another test of its file covers quickly."""
    test.is_thorough = True
    return test


def is_thorough(test):
    """Whether a loaded test is marked, or its class."""
    method = getattr(test, test._testMethodName)
    return getattr(method, "is_thorough", False) or getattr(type(test), "is_thorough", False)


def words_only(reasons):
    """Reasons in the words of semantics section 13, without the values that stand behind them."""
    return [reason.split(" (found ")[0] for reason in reasons]


class Outcome:
    def __init__(self, completed):
        self.code = completed.returncode
        self.out = completed.stdout
        self.err = completed.stderr


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def refuse_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"duplicate keys among {keys}")
    return dict(pairs)


def strict_json(text):
    """Parses JSON without NaN, Infinity and duplicate keys."""
    return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)


def nvcc():
    """Path of the CUDA compiler, or None."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def cuda_library(source, target):
    """Compiles a plugin of this source tree for compute capability 9.0, without a warning."""
    subprocess.run(
        [nvcc(), "-std=c++17", "-O2", "-arch=sm_90", "-shared", "-Xcompiler",
         "-fPIC,-Wall,-Wextra,-Werror", "-I", ROOT / "src" / "plugin", "-I",
         ROOT / "examples" / "plugin", ROOT / source, "-o", target],
        check=True, timeout=TIME_LIMIT_S)  # fmt: skip
    return target


class ToolTest(unittest.TestCase):
    """A scratch folder per test, which is the working directory of the tool."""

    maxDiff = None
    time_limit_s = TIME_LIMIT_S  # of one command

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def write(self, name, text):
        file = self.dir / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            file.write_bytes(text)
        else:
            file.write_text(text, encoding="utf-8")
        return str(file)

    def environment(self, **changes):
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        return {**clean, "TERM": "xterm", **changes}

    def tool(self, *arguments, **changes):
        """Runs the tool with pipes for its outputs."""
        completed = subprocess.run(
            [BINARY, *map(str, arguments)],
            cwd=self.dir,
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.time_limit_s,
        )
        return Outcome(completed)

    def expect(self, code, *arguments, **changes):
        outcome = self.tool(*arguments, **changes)
        self.assertEqual(
            outcome.code, code, f"{arguments}\nstdout: {outcome.out}\nstderr: {outcome.err}"
        )
        return outcome

    def results(self, *arguments, code=0):
        """The results of a run as --json on stdout gives them, by id."""
        outcome = self.expect(code, "run", *arguments, "--json", "-")
        results = strict_json(outcome.out)["results"]
        by_id = {result["id"]: result for result in results}
        self.assertEqual(len(by_id), len(results), "ids are unique")
        return by_id

    def files(self):
        return sorted(file.relative_to(self.dir).as_posix() for file in self.dir.rglob("*"))
