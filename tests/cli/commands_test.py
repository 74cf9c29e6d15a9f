"""The shell commands of README and docs: what needs no GPU is run as it stands there.

Each line of each shell block of a page is run here, in the page's order and in a folder with what the page
supposes that the reader has; or another test runs its block; or it is in NOT_HERE with the reason. A command
that is new in a document fails this test until it is one of these."""

import json
import os
import re
import subprocess
import unittest

import numpy as np

from calibration import CalibrationTest, layer_tensors, stored
from documents_test import DOCUMENTS, blocks, joined_lines
from opinion import safetensors_file
from tool import BINARY, TIME_LIMIT_S, TINY, thorough

# What no machine without a GPU can run, or what builds the project: by a part of the line.
NOT_HERE = (
    ("--device cuda", "needs a GPU"), ("FLASH_ATTN@", "needs a GPU"), ("cuda.json", "needs a GPU"),
    ("gpu_test", "needs a GPU"), ("gpu_suites", "needs a GPU"), ("scripts/hopper_", "needs a GPU"),
    ("split_choice.py", "reads what a GPU wrote"),
    ("./scripts/test", "is what runs this"), ("./scripts/attnbench", "builds; documents_test runs the rest"),
)  # fmt: skip
# Blocks that other tests run, by page and a word of theirs.
ELSEWHERE = {
    ("plugins.md", ""): "plugin_test and python_test",
    ("interop.md", "attnbench import"): "trace_set_test",
    ("interop.md", "--bencher"): "interop_results_test", ("interop.md", "vllm.json"): "interop_results_test",
    ("interop.md", "--sol"): "interop_results_test",
}  # fmt: skip
# Long ones get a small scenario in place of the suite; the words around it are those of the page.
SMALL = {"run decode ": "run tiny.yaml --device cpu --samples 3 ",
         "run smoke --samples 20 ": "run tiny.yaml --device cpu --backend FLASH_ATTN --samples 8 ",
         "compile decode ": "compile smoke-op-upconvert --cache-dir cache ",
         # Whether this kernel compiles is said by tests of kernels.
         "compile mla ": "compile mla --filter '/32q1s4k(,kv_cache.dtype=auto)?/' --list "}  # fmt: skip
LAYERS = [f"visual.blocks.{i}.attn.attn" for i in range(32)]
ENCODER = """\
schema: 1
name: my-vit
attention: {type: mm_encoder, num_heads: 4, head_size: 24, dtype: bfloat16}
mm_encoder: {attn_dtype: fp8}
batch: [{count: 1, query_len: 40, seq_len: 40}]
"""


def is_elsewhere(page, text):
    return any(page == name and word in text for name, word in ELSEWHERE)


def lines_of(page):
    """The lines of a page that are run here."""
    document = next(one for one in DOCUMENTS if one.name == page)
    return [line for text in blocks(document, "sh") if not is_elsewhere(page, text)
            for line in joined_lines(text)
            if line and not any(part in line for part, _ in NOT_HERE)]  # fmt: skip


class Commands(CalibrationTest):
    def run_page(self, page, least, expected=()):
        """Runs the lines of a page; `expected`: exit codes by a part of a line, where they are not 0."""
        lines = lines_of(page)
        self.assertGreaterEqual(len(lines), least)
        os.symlink(BINARY, self.dir / "attnbench")
        environment = self.environment(PATH=f"{self.dir}:{os.environ['PATH']}")
        for line in lines:
            words = line
            for long, short in SMALL.items():
                words = words.replace(long, short)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", words], cwd=self.dir, text=True,
                                  env=environment, capture_output=True, timeout=TIME_LIMIT_S,
                                  stdin=subprocess.DEVNULL)  # fmt: skip
            codes = [code for part, code in expected if part in line] or [0]
            self.assertIn(done.returncode, np.ravel(codes), f"{words}\n{done.stdout}{done.stderr}")

    def test_readme(self):
        self.write("tiny.yaml", TINY)
        self.run_page("README.md", 2)

    def test_calibration(self):
        (self.dir / "captured").mkdir()
        self.save("captured/one.safetensors",
                  {layer: layer_tensors(seed=i, heads=4, kv_heads=4) for i, layer in enumerate(LAYERS)})  # fmt: skip
        self.write("my-vit.yaml", ENCODER)
        self.run_page("calibration.md", 3)

    @thorough
    def test_interop(self):
        layers = [f"model.layers.{i}.self_attn" for i in range(3)]
        (self.dir / "captured").mkdir()
        (self.dir / "model").mkdir()
        self.save("captured/one.safetensors",
                  {layer: layer_tensors(seed=i) for i, layer in enumerate(layers)})  # fmt: skip
        safetensors_file.write(self.dir / "model" / "model.safetensors", {
            f"{layer}.{role}_proj.weight": stored(np.ones((7, 3))) for layer in layers for role in "qkvo"}, {})  # fmt: skip
        self.write("model/config.json", json.dumps({"hidden_size": 96}))
        self.run_page("interop.md", 2)

    @thorough
    def test_gate(self):
        # What another program does to a time is no fault of the command.
        times = [("--baseline", (0, 1)), ("attnbench gate", (0, 1))]
        # Files of the page's own runs stand for those of other days.
        self.write("tiny.yaml", TINY)
        for name in ("monday.json", "tuesday.json"):
            self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--backend", "FLASH_ATTN", "--samples",
                        "5", "--json", name)  # fmt: skip
        self.run_page("gate.md", 6, times)

    def test_measurement(self):
        self.run_page("measurement.md", 2)

    def test_report(self):
        self.write("tiny.yaml", TINY)
        self.run_tiny("results.json", "before.json", "after.json")
        subprocess.run(["gzip", "-k", "results.json"], cwd=self.dir, check=True, timeout=TIME_LIMIT_S)
        self.write("two.yaml", TINY + "sweep: {kv_cache.block_size: [16, 32]}\n")
        for part in (1, 2):
            self.expect(0, "run", "two.yaml", "--device", "cpu", "--samples", "3", "--part", f"{part}/2",
                        "--json", f"part{part}.json")  # fmt: skip
        self.run_page("report.md", 10)

    def run_tiny(self, *names):
        for name in names:
            self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--samples", "3", "--json", name)


class Registry(unittest.TestCase):
    def test_every_command_is_run_here_or_elsewhere_or_says_why_not(self):
        run_here = {"README.md", "calibration.md", "interop.md", "gate.md", "measurement.md", "report.md"}
        for document in DOCUMENTS:
            if document.name not in run_here:
                self.assertEqual(lines_of(document.name), [], document.name)

    def test_no_exception_is_left_over(self):
        all_lines = [(document.name, text) for document in DOCUMENTS for text in blocks(document, "sh")]
        for part, reason in NOT_HERE:
            self.assertTrue(any(part in text for _, text in all_lines), (part, reason))
        for page, word in ELSEWHERE:
            self.assertTrue(any(name == page and word in text for name, text in all_lines), (page, word))
        for long in SMALL:
            self.assertTrue(any(re.search(rf"attnbench {long}", text) for _, text in all_lines), long)


if __name__ == "__main__":
    unittest.main()
