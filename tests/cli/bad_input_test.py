"""Bad input on the real binary: one clear message, exit code 2, nothing written."""

import functools
import json
import os
import resource
import struct
import subprocess
import unittest
from pathlib import Path

from tool import BINARY, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json


def safetensors(tensors):
    """Bytes of a safetensors file of float32 zeros; `tensors` maps names to shapes."""
    header, size = {}, 0
    for name, shape in tensors.items():
        count = 4
        for extent in shape:
            count *= extent
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [size, size + count]}
        size += count
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def tiny_with(section, change):
    return TINY.replace(section, change)


class BadInput(ToolTest):
    def check_refused(self, file, *words, arguments=()):
        """Runs with every kind of output requested and expects one message and no files."""
        before = self.files()
        outcome = self.expect(
            2, "run", file, "--json", "o.json", "--csv", "o.csv", "--markdown", "o.md",
            "--junit", "o.xml", "--save-tensors", "tensors", *arguments,
        )  # fmt: skip
        self.assertEqual(outcome.out, "")
        self.assertTrue(outcome.err.startswith("attnbench: "), outcome.err)
        self.assertLess(len(outcome.err), 2000)
        for word in words:
            self.assertIn(word, outcome.err)
        self.assertEqual(self.files(), before)
        return outcome.err

    def test_an_unknown_key_is_told_with_line_and_nearest_key(self):
        self.write("bad.yaml", tiny_with("head_size: 64", "head_sise: 64"))
        self.check_refused("bad.yaml", "bad.yaml", "3", "head_sise", "head_size")

    def test_an_unknown_backend_is_told_with_line_and_nearest_name(self):
        self.write("bad.yaml", TINY + "backends: [FLASH_ATTN,\n  FLSH_ATTN_IX]\n")
        line = (TINY + "backends: [FLASH_ATTN,\n").count("\n") + 1
        words = (f"bad.yaml:{line}: backends: unknown backend 'FLSH_ATTN_IX'",
                 "did you mean 'FLASH_ATTN_IX'?")  # fmt: skip
        self.check_refused("bad.yaml", *words)
        told = self.expect(2, "validate", "bad.yaml").err
        for word in words:
            self.assertIn(word, told)

    def test_every_line_of_several_errors_begins_alike(self):
        self.write("bad.yaml", tiny_with("head_size: 64", "head_sise: 64") + "colour: red\n")
        for command in ("run", "validate"):
            lines = self.expect(2, command, "bad.yaml").err.splitlines()
            self.assertEqual(len(lines), 2)
            for line in lines:
                self.assertTrue(line.startswith("attnbench: E-FORMAT: bad.yaml:"), line)

    def test_files_that_are_not_there_are_told_with_the_line(self):
        text = TINY.replace("timing:", "inputs: {seed: 1,\n  file: no.safetensors}\ntiming:")
        self.write("file.yaml", text)
        line = text[: text.index("no.safetensors")].count("\n") + 1
        self.check_refused(
            "file.yaml", f"file.yaml:{line}: inputs.file: expected a file, found none at",
            "no.safetensors",
        )  # fmt: skip

    def test_texts_that_are_no_scenario(self):
        brackets = 5 * 1024 * 1024
        for name, text in {
            "empty.yaml": "",
            "comment.yaml": "# nothing\n",
            "list.yaml": "- 1\n- 2\n",
            "binary.yaml": bytes(range(256)) * 40,
            "nul.yaml": b"schema: 1\0\n",
            "brackets.yaml": "[" * brackets + "]" * brackets,
            "braces.json": '{"a":' * 100_000 + "1" + "}" * 100_000,
            "unclosed.yaml": "schema: 1\nname: [tiny\n",
            "alias_bomb.yaml": "a: &a [x, x]\n"
            + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijklmnopqrstuvwxy",
                                                                 "bcdefghijklmnopqrstuvwxyz")),
        }.items():  # fmt: skip
            with self.subTest(name):
                self.write(name, text)
                self.check_refused(name, name)

    def test_duplicate_keys(self):
        self.write("twice.yaml", TINY + "batch: q8\n")
        self.check_refused("twice.yaml", "batch")
        self.write("twice.json", '{"schema": 1, "name": "a", "name": "b"}')
        self.check_refused("twice.json", "name")

    def test_numbers_and_contradictions(self):
        for what, change in {
            "huge": ("head_size: 64", "head_size: 123456789012345678901234567890"),
            "huge_float": ("head_size: 64", "head_size: 1e30"),
            "negative": ("num_heads: 4", "num_heads: -4"),
            "zero": ("head_size: 64", "head_size: 0"),
            "text": ("head_size: 64", "head_size: wide"),
            "not_a_number": ("head_size: 64,", "head_size: 64, logits_soft_cap: .nan,"),
            "heads": ("num_heads: 4, num_kv_heads: 2", "num_heads: 4, num_kv_heads: 3"),
            "block_size": ("timing:", "kv_cache: {block_size: 24}\ntiming:"),
            "dtype": ("dtype: bfloat16", "dtype: bfloat17"),
            "schema": ("schema: 1", "schema: 2"),
            "name": ("name: tiny", "name: a/b"),
            "batch": ("q32_4q1s100", "q32_4q100s1"),
            "upper_case_k": ("q32_4q1s100", "q1s4K"),
            "zero_count": ("q32_4q1s100", "0q1s4"),
            "no_name": ("name: tiny\n", ""),
            "negative_seed": ("timing:", "inputs: {seed: -1}\ntiming:"),
            "scale": ("timing:", "kv_cache: {dtype: fp8, k_scale: 0}\ntiming:"),
        }.items():
            with self.subTest(what):
                self.assertIn(change[0], TINY)
                self.write("bad.yaml", tiny_with(*change))
                self.check_refused("bad.yaml", "bad.yaml")
                self.expect(2, "validate", "bad.yaml")

    def test_extends_that_comes_back_to_itself(self):
        self.write("self.yaml", "extends: self.yaml\n" + TINY)
        self.check_refused("self.yaml", "extends")
        self.write("a.yaml", "extends: b.yaml\n" + TINY)
        self.write("b.yaml", "extends: a.yaml\nschema: 1\nname: b\n")
        self.check_refused("a.yaml", "extends")

    def test_extends_a_file_that_is_not_there(self):
        self.write("a.yaml", "extends: nowhere.yaml\n" + TINY)
        self.check_refused("a.yaml", "nowhere.yaml")

    def test_a_sweep_of_a_million_cases(self):
        hundred = list(range(100))
        self.write(
            "sweep.yaml",
            TINY + f"sweep: {{inputs.seed: {hundred}, cascade.common_prefix_len: {hundred}, "
            f"timing.timeout_s: {[n + 1 for n in hundred]}}}\n",
        )
        self.check_refused("sweep.yaml", "sweep", "100000")

    def test_tensors_that_disagree_with_the_scenario(self):
        text = TINY.replace("timing:", "inputs: {file: in.safetensors}\ntiming:")
        self.write("file.yaml", text)
        good = {"query": [36, 4, 64], "key": [432, 2, 64], "value": [432, 2, 64]}
        self.write("in.safetensors", safetensors(good))
        self.expect(0, "run", "file.yaml", "--no-timing")
        for what, tensors in {
            "tokens": {**good, "query": [35, 4, 64]},
            "heads": {**good, "key": [432, 4, 64]},
            "rank": {**good, "value": [432, 128]},
            "missing": {"query": [36, 4, 64]},
        }.items():
            with self.subTest(what):
                self.write("in.safetensors", safetensors(tensors))
                self.check_refused("file.yaml", "in.safetensors")
        for what, content in {
            "empty": b"",
            "garbage": b"\xff" * 100,
            "cut": safetensors(good)[:-1],
            "long_header": struct.pack("<Q", 2**62) + b"{}",
        }.items():
            with self.subTest(what):
                self.write("in.safetensors", content)
                self.check_refused("file.yaml", "in.safetensors")
        os.remove(self.dir / "in.safetensors")
        self.check_refused("file.yaml", "in.safetensors")

    def test_a_backend_that_the_scenario_names_wrongly(self):
        self.write("bad.yaml", TINY + "backends: [TRITON_ATN]\n")
        self.check_refused("bad.yaml", "bad.yaml", "backends", "TRITON_ATTN")

    def test_set_with_an_unknown_key_or_a_bad_value(self):
        self.write("tiny.yaml", TINY)
        self.check_refused("tiny.yaml", "head_size", arguments=["--set", "attention.head_sise=64"])
        self.check_refused("tiny.yaml", "head_size", arguments=["--set", "attention.head_size=-1"])

    def test_one_bad_scenario_keeps_the_good_ones_from_running(self):
        self.write("tiny.yaml", TINY)
        self.write("bad.yaml", tiny_with("head_size: 64", "head_sise: 64"))
        self.check_refused("tiny.yaml", "bad.yaml", arguments=["bad.yaml"])

    def test_an_output_that_cannot_be_written(self):
        self.write("tiny.yaml", TINY)
        self.write("file", "")
        (self.dir / "folder").mkdir()
        before = self.files()
        paths = ["nowhere/o.json", "folder", "file/o.json"]
        if os.geteuid() != 0:
            (self.dir / "folder").chmod(0o500)
            paths.append("folder/o.json")
        for path in paths:
            for flag in ("--json", "--csv", "--markdown", "--junit"):
                with self.subTest(flag=flag, path=path):
                    other = "--csv" if flag == "--json" else "--json"
                    outcome = self.expect(2, "run", "tiny.yaml", flag, path, other, "good")
                    self.assertIn(path, outcome.err)
                    self.assertEqual(outcome.out, "")
                    self.assertEqual(self.files(), before)
        for path in ("file", "file/tensors"):
            with self.subTest(path=path):
                outcome = self.expect(
                    2, "run", "tiny.yaml", "--json", "good", "--save-tensors", path
                )
                self.assertIn(path, outcome.err)
                self.assertEqual(self.files(), before)

    def test_tensors_that_cannot_be_written_are_known_before_the_run(self):
        self.write("tiny.yaml", TINY)
        name = f"tiny__{TINY_CASE}__TRITON_ATTN.safetensors"
        (self.dir / "folder" / name).mkdir(parents=True)
        (self.dir / "pipe").mkdir()
        os.mkfifo(self.dir / "pipe" / name)
        (self.dir / "closed").mkdir()
        (self.dir / "closed").chmod(0o500 if os.geteuid() else 0o555)
        Path(self.write(f"marked/{name}", "mine")).chmod(0o444)
        before = self.files()
        for folder, reason in (("folder", "it is a folder"), ("pipe", "it is not a regular file"),
                               ("marked", "the file is read-only"), ("closed", ""), ("closed/new", "")):  # fmt: skip
            with self.subTest(folder=folder):
                outcome = self.expect(2, "run", "tiny.yaml", "--no-timing", "--json", "r.json",
                                      "--save-tensors", folder)  # fmt: skip
                self.assertTrue(outcome.err.startswith("attnbench: E-IO: "), outcome.err)
                self.assertIn(folder, outcome.err)
                self.assertIn(reason, outcome.err)
                self.assertEqual(outcome.out, "")
                self.assertEqual(self.files(), before)

    def test_tensors_that_no_longer_fit_are_an_error_of_input_and_output(self):
        self.write("tiny.yaml", TINY)
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
        done = subprocess.run([BINARY, "run", "tiny.yaml", "--no-timing", "--backend", "FLASH_ATTN",
                               "--save-tensors", "t", "--json", "r.json"], cwd=self.dir, text=True,
                              capture_output=True, preexec_fn=limit, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        (result,) = strict_json((self.dir / "r.json").read_text())["results"]
        self.assertEqual(result["status"], "error")
        self.assertIn("E-IO: cannot write 't/tiny__", result["reasons"][0])
        self.assertIn("File too large", result["reasons"][0])
        self.assertEqual(list((self.dir / "t").iterdir()), [])

    def test_a_link_to_no_file_yet_is_followed(self):
        self.write("tiny.yaml", TINY)
        (self.dir / "link.json").symlink_to("new/r.json")
        run = ("run", "tiny.yaml", "--no-timing", "--json", "link.json")
        self.assertIn("link.json': no folder", self.expect(2, *run).err)
        (self.dir / "new").mkdir()
        self.expect(0, *run)
        self.assertTrue((self.dir / "link.json").is_symlink())
        strict_json((self.dir / "new" / "r.json").read_text())


if __name__ == "__main__":
    unittest.main()
