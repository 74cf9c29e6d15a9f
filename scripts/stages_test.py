"""Stages of scripts/stages.sh: what fails or hangs costs itself only, and what it left is kept."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent

RESULTS = {"results": [
    {"case": "2q8k", "backend": "FLASH_ATTN@hopper_prefill:stages=3", "status": "passed",
     "reasons": [], "timing": {"median_us": 12.5},
     "throughput": {"tflops": 700.0, "gbps": 30.0}},
    {"case": "2q8k", "backend": "python:a.b:C", "status": "unsupported", "timing": None,
     "reasons": ["package torch is missing"]},
]}  # fmt: skip


class Stages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name) / "out"

    def run_script(self, text, *environment):
        script = f'source "{SCRIPTS}/stages.sh"\nbegin_stages "{self.out}"\n{text}\n'
        return subprocess.run(
            ["env", *environment, "bash", "-uc", script + 'exit "$stages_status"', "script"],
            capture_output=True, text=True, timeout=60, check=False)  # fmt: skip

    def packed(self):
        with tarfile.open(self.out / "results.tar.gz") as archive:
            return {Path(name).name for name in archive.getnames()}

    def test_a_stage_that_fails_or_hangs_is_named_and_the_others_go_on(self):
        begin = time.monotonic()
        done = self.run_script('stage bad 20 bash -c "echo why; exit 7"\nstage stuck 5 sleep 50\n'
                               "stage refused 20 bash -c 'exit 3'\nstage good 20 true")  # fmt: skip
        self.assertLess(time.monotonic() - begin, 40)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"^bad .* FAILED: exit status 7$")
        self.assertEqual(lines[1], "  | why")
        self.assertRegex(lines[2], r"^stuck .* stopped after 5 s$")
        self.assertRegex(lines[-2], r"^refused .* ok: some or all unsupported$")
        self.assertRegex(lines[-1], r"^good .* ok$")
        kept = (self.out / "stages.txt").read_text()
        for name in ("bad", "stuck", "refused", "good"):
            self.assertRegex(kept, rf"(?m)^{name} ")
        self.assertLessEqual({"bad.txt", "stuck.txt", "good.txt"}, self.packed())

    def test_stages_that_pass_leave_the_status_0(self):
        done = self.run_script("stage good 20 true")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_nothing_starts_when_the_time_is_over(self):
        done = self.run_script("stage late 20 touch started", "STAGES_END=5")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"^late +not started: no time was left")

    def test_callers_may_gather_what_several_leave(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("stage good 20 true", f"STAGES_WORK={folder}")
            self.assertEqual(done.returncode, 0)
            self.assertTrue((Path(folder) / "script" / "good.txt").exists())
        self.assertFalse((self.out / "results.tar.gz").exists())

    def test_rates_of_a_result_file_are_a_line_each(self):
        file = Path(self.folder.name) / "results.json"
        file.write_text(json.dumps(RESULTS))
        lines = self.run_script(f'rates "{file}"').stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"hopper_prefill:stages=3 +passed +12\.5 us +700\.0 TFLOP/s")
        self.assertRegex(lines[1], r"unsupported +package torch is missing$")

    def test_int8_decodes_are_timed_beside_the_kernels_that_are_chosen_and_beside_bf16(self):
        # In the place of attnbench: notes what it is called with, and times every case it is asked for.
        stub = Path(self.folder.name) / "attnbench"
        stub.write_text(STUB.format(calls=Path(self.folder.name) / "calls"))
        stub.chmod(0o755)
        done = subprocess.run(
            [SCRIPTS / "hopper_int8_encoder", self.out, "decode-check", "decodes", "decode-variants",
             "int8-prompts"], env={**os.environ, "ATTNBENCH_BIN": str(stub), "ATTNBENCH_TESTS": "true"},
            capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertTrue(any(re.match(r"decode-cases +\d+ s  ok$", line) for line in lines), lines)
        # The first backend of a case takes 100 us, each next one half as long; bf16 twice as long.
        rows = [line.split() for line in lines if re.match(r"  \S+ +[012] ", line)]
        self.assertIn(["q1s64k", "0", "as", "chosen", "200.0", "1.00", "1.00"], rows)
        self.assertIn(["q1s64k", "1", "as", "chosen", "100.0", "1.00", "2.00"], rows)
        self.assertIn(["q1s64k", "1", "decode:few=1", "50.0", "2.00", "4.00"], rows)
        batches = {row[0] for row in rows}
        self.assertLessEqual({"q1s64k", "64q1s4k", "128q1s2k", "64q1s8k", "60q1s4k_4q1ks3k", "2q8k",
                              "q16k"}, batches)  # fmt: skip
        calls = (Path(self.folder.name) / "calls").read_text()
        self.assertIn("FLASH_ATTN_IX@hopper_prefill:add_floats=1:keep_columns=1", calls)
        self.assertIn("attention.split_form=joined", calls)


STUB = """#!/usr/bin/env python3
import json
import re
import sys

words = sys.argv[1:]
open("{calls}", "a").write(" ".join(words) + "\\n")
if words[0] == "run":
    backends = [b for a, b in zip(words, words[1:]) if a == "--backend"]
    results = []
    if words[1].endswith(".yaml"):
        text = open(words[1]).read()
        batches = re.search(r"batch: \\[(.*)\\]", text)[1].split(", ")
        levels = re.search(r"int8_level: \\[(.*)\\]", text)[1].split(", ")
        results = [{{"case": f"{{batch}},kv_cache.int8_level={{level}}", "backend": backend, "reasons": [],
                    "status": "passed", "throughput": {{"tflops": 1.0, "gbps": 1.0}},
                    "timing": {{"median_us": (200.0 if level == "0" else 100.0) / 2**i}}}}
                   for batch in batches for level in levels for i, backend in enumerate(backends)]
    with open(words[words.index("--json") + 1], "w") as file:
        json.dump({{"results": results}}, file)
"""

if __name__ == "__main__":
    sys.exit(unittest.main())
