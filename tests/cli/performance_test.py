"""The tables of docs/performance.md: their scenarios, the script that times them, and what it prints."""

import json
import os
import subprocess
import sys
import unittest

from tool import BINARY, ROOT, ToolTest, strict_json

TABLES = sorted((ROOT / "benchmarks" / "tables").glob("*.yaml"))


def result(case, backend, median_us, status="passed", bound="compute"):
    timed = median_us is not None
    return {
        "case": case, "backend": backend, "status": status,
        "timing": {"median_us": median_us} if timed else None,
        "throughput": {"tflops": 500.4, "gbps": 3999.6, "bound": bound} if timed else None,
    }  # fmt: skip


def document(*results):
    return {"tool": {"git": "abc"}, "created": "2026-01-02T03:04:05Z",
            "environment": {"device": {"name": "NVIDIA H200"}}, "results": list(results)}  # fmt: skip


class Performance(ToolTest):
    def test_every_case_of_a_table_is_supported_by_a_built_in_backend(self):
        outcome = self.expect(0, "support", *TABLES, "--device", "cpu", "--assume-sm", "90", "--json", "-")
        supported = {}
        for pair in strict_json(outcome.out):
            table, case, backend = pair["id"].split("/", 2)
            own = not backend.startswith("python:") and backend != "CUDNN"
            supported.setdefault((table, case), []).append(own and pair["supported"])
        self.assertEqual({table for table, _ in supported}, {file.stem for file in TABLES})
        self.assertEqual([case for case, pairs in supported.items() if not any(pairs)], [])

    def tables(self, *documents):
        files = []
        for number, content in enumerate(documents):
            files.append(self.dir / f"results{number}.json")
            files[-1].write_text(json.dumps(content))
        return subprocess.run([sys.executable, "-B", ROOT / "scripts" / "performance_tables.py", *files],
                              capture_output=True, text=True)  # fmt: skip

    def test_a_row_a_case_and_a_column_a_backend_that_was_timed(self):
        done = self.tables(document(
            result("q16k", "FLASH_ATTN", 90.0), result("q16k", "python:a.b:Peer", 100.0),
            result("q16k", "CUDNN", 50.0, status="incorrect"),
            result("q16k", "python:a.b:Missing", None, status="unsupported"),
            result("q1s1k", "FLASH_ATTN", 8.0, bound="memory"),
            result("q1s1k", "CUDNN", None, status="error")))  # fmt: skip
        self.assertEqual(done.stdout.splitlines(), [
            "results0.json: abc, 2026-01-02, NVIDIA H200",
            "| case | FLASH_ATTN | b:Peer | CUDNN | ratio |",
            "|---|---|---|---|---|",
            "| q16k | 90.0 us, 500 TFLOP/s | 100.0 us, 500 TFLOP/s | 50.0 us, 500 TFLOP/s, incorrect | 0.90 |",
            "| q1s1k | 8.0 us, 4000 GB/s | - | error | - |",
        ])  # fmt: skip

    def test_what_was_not_validated_is_said_once(self):
        done = self.tables(document(result("q4k", "FLASH_ATTN", 20.0, status="unverified")))
        self.assertEqual(done.stdout.splitlines(), [
            "results0.json: abc, 2026-01-02, NVIDIA H200, not validated",
            "| case | FLASH_ATTN |", "|---|---|", "| q4k | 20.0 us, 500 TFLOP/s |",
        ])  # fmt: skip

    def script(self, *words, binary=BINARY):
        return subprocess.run([ROOT / "scripts" / "performance", *words], capture_output=True, text=True,
                              env={**os.environ, "ATTNBENCH_BIN": str(binary)})  # fmt: skip

    def test_the_script_names_unknown_tables_and_asks_for_a_folder(self):
        unknown = self.script(self.dir / "out", "prefil")
        self.assertEqual((unknown.returncode, unknown.stdout), (2, ""))
        self.assertIn("unknown table 'prefil'", unknown.stderr)
        self.assertIn("prefill.yaml", unknown.stderr)
        self.assertEqual(self.script().returncode, 2)

    def test_a_table_that_fails_does_not_keep_the_others_away(self):
        """A program of the test's own, since there may be no GPU: it fails for one table."""
        content = document(result("q4k", "FLASH_ATTN", 20.0))
        (self.dir / "content.json").write_text(json.dumps(content))
        fake = self.dir / "fake"
        fake.write_text(f"""#!/bin/sh
case "$*" in *"run "*chunks*) echo broken >&2; exit 1 ;; esac
while [ $# -gt 0 ]; do [ "$1" = --json ] && cp {self.dir}/content.json "$2"; shift; done
""")
        fake.chmod(0o755)
        done = self.script(self.dir / "out", "chunks", "mixed", binary=fake)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"chunks +\d+ s +FAILED: exit status 1\n +\| broken")
        self.assertRegex(done.stdout, r"mixed +\d+ s +ok\nmixed.json: abc.*\n\| case \| FLASH_ATTN \|")
        self.assertTrue((self.dir / "out" / "results.tar.gz").is_file())


if __name__ == "__main__":
    unittest.main()
