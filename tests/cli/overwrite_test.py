"""No output replaces an input or another output, unless that is its purpose."""

import json
import os
import unittest

from tool import TINY, ToolTest

TENSORS = "tiny__q32_4q1s100__FLASH_ATTN.safetensors"


class Overwrite(ToolTest):
    made = {}  # bytes by name, of the run that the tests begin with: made once for all of them

    def setUp(self):
        super().setUp()
        self.write("base.yaml", TINY)
        self.write("tiny.yaml", "schema: 1\nname: tiny\nextends: base.yaml\n")
        if not self.made:
            self.run_tiny(0, "--json", "r.json", "--save-tensors", "tensors")
            self.made.update(self.contents())
        for name, content in self.made.items():
            self.write(name, content)
        for name in ("a.json", "b.json"):
            self.write(name, self.made["r.json"])
        self.write("known.yaml", "[]\n")

    def run_tiny(self, code, *arguments):
        return self.expect(code, "run", "tiny.yaml", "--backend", "FLASH_ATTN", *arguments)

    def contents(self):
        return {name: (self.dir / name).read_bytes() for name in self.files()
                if (self.dir / name).is_file()}  # fmt: skip

    def check_refused(self, words, *arguments):
        before = self.contents()
        outcome = self.expect(2, *arguments)
        self.assertIn(words, outcome.err)
        self.assertEqual(outcome.out, "")
        self.assertEqual(self.contents(), before)

    def test_of_report(self):
        os.symlink("r.json", self.dir / "link.json")
        for name in ("r.json", "./r.json", self.dir / "r.json", "link.json"):
            self.check_refused("which is read as RESULTS", "report", "r.json", "-o", name)
        self.check_refused("which is read as RESULTS", "report", "a.json", "b.json", "-o", "b.json")
        self.expect(0, "report", "r.json", "-o", "/dev/null")

    def test_of_gate(self):
        self.check_refused("which is read as BASELINE", "gate", "a.json", "b.json", "--json",
                           "a.json")  # fmt: skip
        self.check_refused("which is read as RESULTS", "gate", "a.json", "b.json", "--markdown",
                           "b.json")  # fmt: skip
        self.check_refused("--markdown and --junit both write to", "gate", "a.json", "b.json",
                           "--markdown", "new", "--junit", "./new")  # fmt: skip
        self.check_refused("which is read as --known", "gate", "a.json", "b.json", "--known",
                           "known.yaml", "--json", "known.yaml")  # fmt: skip
        self.check_refused("which is read as RESULTS", "gate", "--agreement", "a.json", "b.json",
                           "--json", "b.json")  # fmt: skip

    def test_of_run(self):
        run = ("run", "tiny.yaml", "--backend", "FLASH_ATTN", "--no-timing")
        for name in ("tiny.yaml", "base.yaml"):
            self.check_refused("which is read as SCENARIO", *run, "--json", name)
        for flag in ("--json", "--summary", "--journal"):
            self.check_refused("which is read as --baseline", *run, "--baseline", "a.json", flag,
                               "a.json")  # fmt: skip
        for first, second in (("--json", "--summary"), ("--json", "--save-baseline"),
                              ("--csv", "--vllm-csv"), ("--json", "--journal")):  # fmt: skip
            self.check_refused(f"{first} and {second} both write to", *run, first, "new", second,
                               "./new")  # fmt: skip
        self.check_refused("--csv and --journal both write to", *run, "--json", "new", "--csv",
                           "new.journal")  # fmt: skip
        self.check_refused("which is read as --resume", *run, "--resume", "r.json",
                           "--json", "new", "--csv", "r.json")  # fmt: skip
        file = f"tensors/{TENSORS}"
        self.check_refused("which is read as inputs.file", *run, "--set", f"inputs.file={file}",
                           "--json", file)  # fmt: skip
        self.check_refused("--save-tensors would replace", *run, "--set", f"inputs.file={file}",
                           "--save-tensors", "tensors")  # fmt: skip
        os.symlink(file, self.dir / "alias.safetensors")
        self.check_refused("--save-tensors would replace", *run, "--set",
                           "inputs.file=alias.safetensors", "--save-tensors", "tensors")  # fmt: skip
        self.run_tiny(0, "--no-timing", "--json", "/dev/null", "--csv", "/dev/null")

    def test_a_run_that_is_continued_is_written_where_it_was(self):
        self.run_tiny(0, "--resume", "r.json")
        self.run_tiny(0, "--resume", "r.json", "--json", "r.json", "--csv", "new.csv")

    def test_a_baseline_is_replaced_by_one_that_passed_against_it_alone(self):
        # Why --lenient: a busy machine may have left nothing of the times.
        one = ("--backend", "FLASH_ATTN", "--passes", "1")
        both = (*one, "--baseline", "b.json", "--save-baseline", "b.json", "--floor-us", "1e9",
                "--lenient")  # fmt: skip
        self.run_tiny(0, *both)
        self.assertIn(b"noise_floor", (self.dir / "b.json").read_bytes())
        file = json.loads((self.dir / "b.json").read_text())
        file["results"][0]["error"]["nmse"] /= 9
        file["results"][0]["error"]["rms_rel"] /= 3
        file["results"][0]["error"]["err_ratio"] /= 3
        self.write("b.json", json.dumps(file))
        before = (self.dir / "b.json").read_bytes()
        outcome = self.run_tiny(1, *both)
        self.assertIn("'b.json' stays as it was: the gate failed", outcome.err)
        self.assertEqual((self.dir / "b.json").read_bytes(), before)
        self.run_tiny(1, *one, "--baseline", "b.json", "--save-baseline", "other.json")
        self.assertIn("other.json", self.files())

    def test_of_support_and_device(self):
        self.check_refused("which is read as SCENARIO", "support", "tiny.yaml", "--json",
                           "base.yaml")  # fmt: skip
        self.check_refused("no folder", "device", "--no-timing", "--json", "none/d.json")

    def test_of_calibrate_and_scales(self):
        tensors = f"tensors/{TENSORS}"
        calibrate = ("calibrate", "--format", "kv-cache", "--max-rows", "8")
        self.check_refused("--output and --json both write to", *calibrate, "--tensors", tensors,
                           "--output", "new", "--json", "./new")  # fmt: skip
        for flag in ("--output", "--json"):
            other = ["--output", "new"] if flag == "--json" else ["--force"]
            self.check_refused("which is read as --tensors", *calibrate, "--tensors", tensors,
                               flag, tensors, *other)  # fmt: skip
            self.check_refused("which is read as SCENARIO", *calibrate, "tiny.yaml", flag,
                               "base.yaml", *other)  # fmt: skip
        self.expect(0, *calibrate, "--tensors", tensors, "--output", "scales.json")
        self.check_refused("which is read as FILE", "scales", "scales.json", "--tensors", tensors,
                           "--json", "scales.json")  # fmt: skip
        self.check_refused("which is read as SCENARIO", "scales", "scales.json", "tiny.yaml",
                           "--json", "tiny.yaml")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
