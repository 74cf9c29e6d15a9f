"""The table of a sweep in terminals of 80, 120 and 160 columns, on the real binary."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import unittest

from terminal_test import read_terminal
from timings import retime
from tool import BINARY, TIME_LIMIT_S, TINY, ToolTest, strict_json, thorough

WIDTHS = (80, 120, 160)
SWEEP = TINY + (
    "sweep: {kv_cache.dtype: [auto, fp8], kv_cache.block_size: [16, 32], "
    "attention.logits_soft_cap: [0, 30]}\n"
)
TITLES = ("quant", "time", "GB/s", "GFLOP/s", "noise", "max_abs")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")


class Tables(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("sweep.yaml", SWEEP)

    def on_terminal(self, width, *arguments, code=0):
        """Lines that a terminal of so many columns shows of stdout; no escape sequences."""
        try:
            master, slave = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal to be had here: {error}")
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
            process = subprocess.Popen(
                [BINARY, *arguments], cwd=self.dir, env=self.environment(), stdout=slave,
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            os.close(slave)
            shown = read_terminal(master, process)
            _, error = process.communicate(timeout=TIME_LIMIT_S)
        finally:
            os.close(master)
        self.assertEqual(process.returncode, code, shown + error)
        return ESCAPE.sub("", shown).split("\n")

    def rows(self, lines):
        """The text that identifies each row of a result: its own first words, and its case where
        that has a line of its own above."""
        rows, label = [], ""
        for line in lines:
            if re.match(r"(kv\.)?dtype=", line):
                label = line
            if re.search(r"\d (us|ms|s)\b", line):
                rows.append(label + "|" + re.split(r"\d\.\de-", line)[0])
        return rows

    @thorough
    def test_cases_are_told_apart_at_every_width_and_no_number_is_lost(self):
        for backends in (["FLASH_ATTN"], ["FLASH_ATTN", "TRITON_ATTN"]):
            chosen = [word for name in backends for word in ("--backend", name)]
            for width in WIDTHS:
                with self.subTest(width=width, backends=backends):
                    lines = self.on_terminal(width, "run", "sweep.yaml", *chosen)
                    text = "\n".join(lines)
                    for line in lines:
                        self.assertLessEqual(len(line), width, line)
                    self.assertIn("every row: batch q32_4q1s100", text)
                    for title in TITLES:
                        self.assertRegex(text, rf"(^|\s){title}(\s|$)")
                    self.assertRegex(text, r"err_(ratio)?")
                    self.assertNotIn("no room", text)
                    rows = self.rows(lines)
                    self.assertEqual(len(rows), 8 * len(backends), text)
                    self.assertEqual(len(set(rows)), len(rows), text)

    @thorough
    def test_swept_cases_differ_in_every_command_at_every_width(self):
        for name, factor in (("old.json", 1.0), ("new.json", 1.01)):
            self.expect(0, "run", "sweep.yaml", "--backend", "FLASH_ATTN", "--json", name)
            document = strict_json((self.dir / name).read_text())
            # Why made up: in times of a busy machine there may be nothing to judge.
            for result in document["results"]:
                retime(result, [factor * (170 + sample % 5) for sample in range(25)])
            self.write(name, json.dumps(document))
        # Verdicts of all cases stand in the table.
        verdicts = ("gate", "old.json", "new.json", "-v", "--threshold", "1000%")
        commands = (("run", "sweep.yaml", "--backend", "FLASH_ATTN"), ("report", "old.json"),
                    ("diff", "old.json", "new.json"), verdicts,
                    ("gate", "--agreement", "old.json", "new.json", "-v"),
                    ("support", "sweep.yaml", "--backend", "FLASH_ATTN"))  # fmt: skip
        number = r"(auto|fp8)\D+(16|32)\D+(0|30)\b"
        for command in commands:
            for width in WIDTHS:
                with self.subTest(command=command, width=width):
                    lines = self.on_terminal(width, *command)
                    for line in lines:
                        self.assertLessEqual(len(line), width, line)
                    found = [match.groups() for match in (re.search(number, x) for x in lines)
                             if match]  # fmt: skip
                    self.assertEqual(len(found), 8, lines)
                    self.assertEqual(len(set(found)), 8, lines)

    def test_what_has_no_room_is_named(self):
        text = "\n".join(self.on_terminal(40, "run", "sweep.yaml", "--backend", "TRITON_ATTN"))
        self.assertIn("no room for", text)
        self.assertIn("--csv", text)

    def test_a_shared_key_stands_once_above_and_a_filtered_sweep_has_no_column_of_it(self):
        lines = self.on_terminal(160, "run", "sweep.yaml", "--backend", "FLASH_ATTN",
                                 "--filter", "dtype=fp8,.*block_size=32")  # fmt: skip
        self.assertEqual(
            lines[0], "every row: batch q32_4q1s100, kv.dtype fp8, kv.block_size 32"
        )
        self.assertTrue(lines[1].startswith("logits_soft_cap  backend"), lines[1])

    def test_ids_stay_what_they_were(self):
        results = self.results("sweep.yaml", "--no-timing", "--backend", "FLASH_ATTN")
        self.assertIn(
            "tiny/q32_4q1s100,kv_cache.dtype=fp8,kv_cache.block_size=32,"
            "attention.logits_soft_cap=30/FLASH_ATTN", results,
        )  # fmt: skip

    def test_doubtful_numbers_are_marked_where_they_stand(self):
        self.expect(0, "run", "sweep.yaml", "--backend", "FLASH_ATTN", "--json", "r.json")
        document = json.loads((self.dir / "r.json").read_text())
        results = document["results"]
        for result in results:
            result["timing"]["samples_us"] = [100.0] * 10
            for name in ("median_us", "min_us", "q1_us", "q3_us", "mean_us"):
                result["timing"][name] = 100.0
            result["timing"].update(noise=0.0, stdev_us=0.0)
            for name in ("waits_us", "cpu_wait", "rounds"):
                result["timing"].pop(name, None)
            result["throughput"] = None
        results[0]["timing"].update(waits_us=[62.0] * 10, cpu_wait=0.62)
        clocks = {"sm_mhz_min": 1, "sm_mhz_median": 1, "sm_mhz_max": 1}
        results[1]["timing"]["clocks"] = {**clocks, "throttling": ["sw_power_cap"]}
        results[2].update(status="implausible", reasons=["faster than the device"])
        self.write("marked.json", json.dumps(document))
        for width in WIDTHS:
            lines = self.on_terminal(width, "report", "marked.json")
            text = "\n".join(lines)
            times = re.findall(r"100\.0 us[*^?]?", text)
            self.assertEqual(times, ["100.0 us*", "100.0 us^", "100.0 us?"] + ["100.0 us"] * 5, text)
            for sentence in ("time*  busy machine", "time^  the device throttled its clocks: "
                             "sw_power_cap", "time?  implausible"):  # fmt: skip
                self.assertIn(sentence, text)

    def test_the_end_says_how_long_it_took_and_what_to_do_next(self):
        out = self.expect(0, "run", "sweep.yaml", "--backend", "FLASH_ATTN").out
        self.assertRegex(out, r"\n8 passed in (\d+m)?\d+s\n")
        self.assertIn("next: --json FILE", out.splitlines()[-1])
        saved = self.expect(0, "run", "sweep.yaml", "--backend", "FLASH_ATTN", "--samples", "3",
                            "--save-baseline", "base.json").out  # fmt: skip
        self.assertEqual(saved.splitlines()[-1],
                         "next: the same command with --baseline base.json gates a later run")  # fmt: skip
        self.write("wrong.yaml", SWEEP + "validation: {max_quantization_error: 1e-6}\n")
        out = self.expect(1, "run", "wrong.yaml", "--backend", "FLASH_ATTN", "--no-timing").out
        self.assertIn("reproduce: attnbench run", out.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
