"""What a terminal, a pipe and Ctrl-C get, on the real binary."""

import os
import pty
import select
import signal
import subprocess
import time
import unittest

from tool import BINARY, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json

# Enough cases that a signal after the first finds most of them waiting.
MANY_CASES = 400
MANY = (
    TINY.replace("samples: 3, min_time_ms: 1", "samples: 20, min_time_ms: 1")
    + f"sweep: {{inputs.seed: {list(range(MANY_CASES))}}}\n"
)


def read_terminal(master, process):
    """Everything that the process writes to the terminal until it ends."""
    text = b""
    deadline = time.monotonic() + TIME_LIMIT_S
    while time.monotonic() < deadline:
        readable, _, _ = select.select([master], [], [], 0.1)
        if readable:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the last writer is gone
                break
            if not chunk:
                break
            text += chunk
        elif process.poll() is not None:
            break
    return text.decode("utf-8", "replace")


class Terminal(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)
        self.write("many.yaml", MANY)

    def run_on_terminal(self, *arguments, **changes):
        """Stderr is a terminal, stdout a pipe; returns both texts."""
        try:
            master, slave = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal to be had here: {error}")
        try:
            process = subprocess.Popen(
                [BINARY, *arguments], cwd=self.dir, env=self.environment(**changes),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave,
            )  # fmt: skip
            os.close(slave)
            shown = read_terminal(master, process)
            out, _ = process.communicate(timeout=TIME_LIMIT_S)
        finally:
            os.close(master)
        self.assertEqual(process.returncode, 0, shown)
        return out.decode("utf-8"), shown

    def test_a_terminal_gets_a_live_line_that_is_erased(self):
        out, shown = self.run_on_terminal("run", "tiny.yaml")
        self.assertIn("[1/3]", shown)
        self.assertIn("[3/3]", shown)
        self.assertIn("/TRITON_ATTN", shown)
        self.assertTrue(shown.endswith("\r\x1b[2K"), repr(shown[-80:]))
        self.assertNotIn("\n", shown)
        self.assertNotIn("\x1b", out, "a pipe gets no colours")

    def test_quiet_and_no_progress_keep_the_terminal_still(self):
        for flag in ("-q", "--no-progress"):
            _, shown = self.run_on_terminal("run", "tiny.yaml", flag)
            self.assertEqual(shown, "")

    def test_a_pipe_gets_no_progress_and_no_colours(self):
        outcome = self.expect(0, "run", "tiny.yaml")
        self.assertEqual(outcome.err, "")
        self.assertNotIn("\x1b", outcome.out)
        self.assertNotIn("\r", outcome.out)

    def test_colours_are_given_when_asked_for_and_never_with_no_color(self):
        self.assertIn("\x1b[", self.expect(0, "run", "tiny.yaml", "--color", "always").out)
        _, shown = self.run_on_terminal("run", "tiny.yaml", "--no-progress", "--json", "-")
        self.assertIn("\x1b[", shown)
        _, shown = self.run_on_terminal(
            "run", "tiny.yaml", "--no-progress", "--json", "-", NO_COLOR="1"
        )
        self.assertNotIn("\x1b[", shown)

    def test_a_dumb_terminal_gets_no_escape_sequences(self):
        _, shown = self.run_on_terminal("run", "tiny.yaml", "--json", "-", TERM="dumb")
        self.assertIn("passed", shown)
        self.assertNotIn("\x1b", shown)

    def test_a_terminal_of_80_columns_holds_every_line(self):
        self.expect(0, "run", "tiny.yaml", "--json", "r.json")
        sweep = TINY + "sweep: {kv_cache.dtype: [auto, fp8], attention.logits_soft_cap: [0, 30]}\n"
        self.write("wide.yaml", sweep + "backends: [FLASH_ATTN, FLASH_ATTN_IX, TRITON_ATTN]\n")
        for arguments in (
            ["run", "tiny.yaml"], ["run", "wide.yaml", "--no-timing", "-v"], ["report", "r.json"],
            ["support", "wide.yaml"], ["explain", "wide.yaml"], ["list"], *([name, "--help"] for name in (
                "run", "support", "explain", "compile", "validate", "device", "gate", "report")),
        ):  # fmt: skip
            narrow = self.tool(*arguments, COLUMNS="80")
            for line in narrow.out.splitlines():
                # Commands to be copied stay whole, as the examples of --help do.
                if not line.startswith(("reproduce: ", "  attnbench ")):
                    self.assertLessEqual(len(line), 80, f"{arguments}: {line}")
            wide = self.tool(*arguments, COLUMNS="160")
            self.assertLessEqual(max(map(len, wide.out.splitlines())), 160)
            # Another run has other times, and a note more when the machine was busy; the report
            # shows the table of one run at both widths.
            if arguments != ["run", "tiny.yaml"]:
                self.assertLessEqual(len(wide.out.splitlines()), len(narrow.out.splitlines()))
        full = self.expect(0, "support", "wide.yaml", COLUMNS="160").out
        self.assertIn(f"{TINY_CASE},kv_cache.dtype=auto,attention.logits_soft_cap=30  ", full)

    def test_the_last_line_says_what_to_do_next(self):
        out = self.expect(0, "run", "tiny.yaml", "--json", "r.json").out
        self.assertTrue(out.endswith("plots: attnbench report r.json -o report.html\n"), out)
        self.assertNotIn("plots:", self.expect(0, "run", "tiny.yaml", "--no-timing").out)

    def test_verbose_prints_a_line_for_every_finished_case(self):
        outcome = self.expect(0, "run", "tiny.yaml", "-v")
        lines = [line for line in outcome.err.split("\n") if line.startswith("passed")]
        self.assertEqual(len(lines), 3, outcome.err)

    def interrupt(self, number):
        """Sends the signal after the first finished case; returns exit code and results."""
        process = subprocess.Popen(
            [BINARY, "run", "many.yaml", "-v", "--json", "out.json", "--junit", "out.xml"],
            cwd=self.dir, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        first = process.stderr.readline()
        process.send_signal(number)
        process.communicate(timeout=TIME_LIMIT_S)
        self.assertTrue(first.startswith("passed"), first)
        document = strict_json((self.dir / "out.json").read_text(encoding="utf-8"))
        self.assertIn("</testsuite", (self.dir / "out.xml").read_text(encoding="utf-8"))
        return process.returncode, document["results"]

    def test_an_interrupted_run_leaves_complete_files_of_what_was_finished(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                code, results = self.interrupt(number)
                self.assertEqual(code, 4)
                statuses = [result["status"] for result in results]
                self.assertEqual(statuses[0], "passed")
                self.assertIsNotNone(results[0]["timing"])
                self.assertIn("skipped", statuses)
                self.assertEqual(set(statuses), {"passed", "skipped"})
                skipped = [result for result in results if result["status"] == "skipped"]
                self.assertTrue(all("interrupted" in result["reasons"] for result in skipped))


if __name__ == "__main__":
    unittest.main()
