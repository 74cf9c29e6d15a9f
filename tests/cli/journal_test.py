"""Runs that were killed: their journals, and how they go on with --resume."""

import resource
import signal
import subprocess
import time
import unittest

from gates import PAIR
from tool import BINARY, TIME_LIMIT_S, TINY, ToolTest, strict_json

MANY = TINY + f"sweep: {{inputs.seed: {list(range(100))}}}\n"


class Journal(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)
        self.write("many.yaml", MANY)

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [BINARY, *arguments], cwd=self.dir, env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def lines(self, name):
        file = self.dir / name
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def wait_for_lines(self, name, count):
        deadline = time.monotonic() + TIME_LIMIT_S
        while self.lines(name) < count:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def killed_run(self):
        process = self.start("run", "many.yaml", *PAIR, "--no-timing", "--json", "r.json")
        self.wait_for_lines("r.json.journal", 5)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def test_a_run_that_ends_leaves_no_journal(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "r.json")
        self.assertEqual(self.files(), ["many.yaml", "r.json", "tiny.yaml"])

    def test_a_killed_run_leaves_its_results_and_is_continued(self):
        self.killed_run()
        self.assertNotIn("r.json", self.files())
        kept = self.lines("r.json.journal") - 1
        outcome = self.expect(0, "run", "many.yaml", *PAIR, "--no-timing", "--resume", "r.json",
                              "-v")  # fmt: skip
        measured = sum(line.startswith("passed") for line in outcome.err.splitlines())
        self.assertEqual(measured, 200 - kept)
        file = strict_json((self.dir / "r.json").read_text())
        self.assertEqual(len({r["id"] for r in file["results"]}), 200)
        self.assertNotIn("r.json.journal", self.files())

    def test_a_journal_is_a_result_file_to_the_gate(self):
        self.killed_run()
        self.expect(0, "gate", "r.json.journal", "r.json.journal")

    def test_2_when_what_should_be_continued_is_of_other_cases(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "r.json")
        outcome = self.expect(2, "run", "tiny.yaml", *PAIR, "--resume", "r.json", "--set",
                              "attention.head_size=128")  # fmt: skip
        self.assertIn("attention.head_size", outcome.err)
        self.expect(2, "run", "tiny.yaml", "--resume", "nowhere.json")

    def test_results_that_the_run_does_not_select_are_kept(self):
        self.write("two.yaml", TINY + "sweep: {inputs.seed: [1, 2]}\n")
        self.expect(0, "run", "two.yaml", *PAIR, "--no-timing", "--json", "r.json")
        before = strict_json((self.dir / "r.json").read_text())["results"]
        for chosen in (["--backend", "FLASH_ATTN"], [*PAIR, "--filter", "seed=1"],
                       [*PAIR, "--part", "2/2"]):  # fmt: skip
            outcome = self.expect(0, "run", "two.yaml", *chosen, "--no-timing", "--resume", "r.json")
            self.assertIn("2 passed", outcome.out)
            after = strict_json((self.dir / "r.json").read_text())["results"]
            self.assertEqual({r["id"]: r["error"] for r in after}, {r["id"]: r["error"] for r in before})

    def test_failures_and_missing_times_are_measured_again(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--no-timing", "--json", "r.json")
        self.expect(0, "run", "tiny.yaml", *PAIR, "--resume", "r.json")
        file = strict_json((self.dir / "r.json").read_text())
        self.assertTrue(all(result["timing"] for result in file["results"]))

    def test_two_processes_that_write_the_same_file_leave_a_whole_one(self):
        runs = [
            self.start("run", "many.yaml", *PAIR, "--no-timing", "--json", "r.json")
            for _ in range(2)
        ]
        errors = [process.communicate(timeout=TIME_LIMIT_S)[1] for process in runs]
        self.assertEqual([process.returncode for process in runs], [0, 0], errors)
        file = strict_json((self.dir / "r.json").read_text())
        self.assertEqual(len(file["results"]), 200)
        self.assertEqual([name for name in self.files() if "tmp" in name], [])

    def test_2_when_the_disk_is_full_and_the_last_complete_state_stays(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "r.json")
        before = (self.dir / "r.json").read_bytes()

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

        process = self.start("run", "many.yaml", *PAIR, "--no-timing", "--json", "r.json",
                             preexec_fn=small_files)  # fmt: skip
        _, errors = process.communicate(timeout=TIME_LIMIT_S)
        self.assertEqual(process.returncode, 2, errors)
        self.assertIn(b"it holds the results until here", errors)
        self.assertEqual((self.dir / "r.json").read_bytes(), before)
        journal = (self.dir / "r.json.journal").read_text().splitlines()
        for line in journal:
            strict_json(line)
        self.assertGreater(len(journal), 2)


if __name__ == "__main__":
    unittest.main()
