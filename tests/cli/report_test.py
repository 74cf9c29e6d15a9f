"""attnbench report: its table, and the page that it writes, as text."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from result_files import HOSTILE, peer_results, result_file, sweep_results
from timings import retime
from tool import TIME_LIMIT_S, TINY, ToolTest, strict_json


class Report(ToolTest):
    def save(self, name, results):
        return self.write(name, json.dumps(result_file(results)))

    def page(self, *arguments):
        """Text of the page that the tool writes."""
        self.expect(0, "report", *arguments, "-o", "page.html")
        return (self.dir / "page.html").read_text(encoding="utf-8")

    @staticmethod
    def data_of(page):
        return re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]

    def test_without_an_output_the_results_are_a_table(self):
        self.save("a.json", sweep_results())
        outcome = self.expect(0, "report", "a.json")
        self.assertIn("1 incorrect, 1 unsupported, 6 passed", outcome.out)
        self.assertIn("max_abs 0.5 exceeds 0.01", outcome.out)
        self.assertNotIn(
            "TRITON", self.expect(0, "report", "a.json", "--backend", "FLASH_ATTN").out
        )

    def test_the_table_shows_peers_side_by_side(self):
        self.save("a.json", peer_results())
        out = self.expect(0, "report", "a.json", COLUMNS="120").out
        self.assertRegex(out, r"\nq1s8192\n  time, ratio +30.00 us 1.50x +error +20.00 us 1.00x\n")
        self.assertRegex(out, r"\nq1s131072\n  time, ratio +400.0 us 1.00x +500.0 us 1.25x +-\n")

    def test_a_real_run_and_its_journal_make_a_page(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", "--json", "real.json")
        real = json.loads((self.dir / "real.json").read_text())
        data = strict_json(self.data_of(self.page("real.json")))
        self.assertEqual([r["id"] for r in data["results"]], [r["id"] for r in real["results"]])
        for shown, stored in zip(data["results"], real["results"]):
            self.assertAlmostEqual(
                shown["timing"]["median_us"] / stored["timing"]["median_us"], 1, 4
            )
            self.assertGreater(stored["throughput"]["ceiling_gbps"], 0)
            self.assertGreater(stored["throughput"]["ceiling_tflops"], 0)
            share = 100 * max(
                stored["throughput"]["gbps"] / stored["throughput"]["ceiling_gbps"],
                stored["throughput"]["tflops"] / stored["throughput"]["ceiling_tflops"],
            )
            self.assertAlmostEqual(stored["throughput"]["roofline_pct"] / share, 1)
        head = {key: value for key, value in real.items() if key != "results"}
        lines = [
            json.dumps({**head, "journal": True}),
            json.dumps(real["results"][0]),
            '{"id": "cut',
        ]
        self.write("run.journal", "\n".join(lines))
        data = strict_json(self.data_of(self.page("run.journal")))
        self.assertTrue(data["files"][0]["unfinished"])
        self.assertEqual(len(data["results"]), 1)

    def test_the_page_asks_nothing_of_the_network(self):
        self.save("a.json", sweep_results())
        page = self.page("a.json")
        self.assertIn("default-src 'none'", page)
        self.assertNotRegex(
            page, r"(?i)<(script|img|iframe|object|embed)[^>]*\ssrc=|<link\b|@import"
        )
        self.assertIn("Redistribution and use in source and binary forms", page)

    def test_the_policy_of_the_page_forbids_what_default_src_does_not_cover(self):
        self.save("a.json", sweep_results())
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', self.page("a.json"))[1]
        directives = dict(part.split(maxsplit=1) for part in policy.split("; "))
        for name in ("default-src", "base-uri", "form-action"):
            self.assertEqual(directives[name], "'none'", name)

    def test_without_a_browser_a_ci_fails_and_others_skip(self):
        for ci, code, words in (("true", 1, "there is no browser"), ("", 0, "skipped=")):
            done = subprocess.run(
                [sys.executable, "-B", Path(__file__).with_name("report_page_test.py"), "Page"],
                env={**self.environment(), "CI": ci, "PATH": str(self.dir)},
                capture_output=True, text=True, timeout=TIME_LIMIT_S,
            )  # fmt: skip
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(words, done.stderr)

    def test_hostile_names_cannot_leave_the_data(self):
        results = sweep_results()
        results[0].update(case=HOSTILE, id=f"sweep/{HOSTILE}/FLASH_ATTN", reasons=[HOSTILE])
        self.save("a.json", results)
        page = self.page("a.json")
        data = self.data_of(page)
        for forbidden in ("<", ">", "\u2028"):
            self.assertNotIn(forbidden, data)
        self.assertEqual(strict_json(data)["results"][0]["case"], HOSTILE)
        self.assertEqual(page.count("window.hacked"), data.count("window.hacked"))

    def test_samples_are_thinned_and_counted(self):
        results = sweep_results()
        retime(results[0], [20 + 0.001 * i for i in range(9000)])
        self.save("a.json", results)
        timing = strict_json(self.data_of(self.page("a.json")))["results"][0]["timing"]
        self.assertEqual(timing["num_samples"], 9000)
        self.assertEqual(len(timing["samples_us"]), 500)
        self.assertEqual(timing["samples_us"][0], 20)
        self.assertGreater(timing["samples_us"][-1], 28.9)

    def test_every_format_of_run_is_the_same_from_the_json_of_the_run(self):
        self.write("tiny.yaml", TINY + "sweep: {kv_cache.dtype: [auto, fp8]}\n")
        usage = self.expect(0, "run", "--help").out
        found = re.search(r"\nOutputs[^\n]*:\n(.*?)\n\n", usage, re.S)
        self.assertIsNotNone(found, usage)
        # What these write is no form of the results: a table with more, tensors, a log.
        other = {"--json", "--history", "--link", "--save-tensors", "--verbose"}
        formats = sorted(set(re.findall(r"(--[a-z-]+) FILE", found[1])) - other)
        self.assertGreater(len(formats), 10, usage)
        for name in ("--csv", "--junit", "--summary", "--trace-json"):
            self.assertIn(name, formats)

        def written(prefix):
            return [word for name in formats for word in (name, f"{prefix}{name[1:]}")]

        link = ("--link", "https://ci/artefact")
        self.expect(0, "run", "tiny.yaml", "--json", "r.json", *link, *written("run"))
        self.assertEqual(self.expect(0, "report", "r.json", *link, *written("report")).out, "")
        for name in formats:
            with self.subTest(name):
                run, report = ((self.dir / f"{prefix}{name[1:]}").read_text()
                               for prefix in ("run", "report"))  # fmt: skip
                self.assertEqual(run, report)
                self.assertTrue(run)
        self.assertIn(link[1], (self.dir / "report-summary").read_text())
        for line in (self.dir / "report-trace-json").read_text().splitlines():
            self.assertEqual(strict_json(line)["evaluation"]["status"], "PASSED")

    def test_3_when_everything_was_filtered_out(self):
        self.save("r.json", sweep_results())
        self.save("none.json", [])
        for output in ([], ["-o", "page.html"]):
            self.expect(3, "report", "r.json", "--filter", "nothing-like-it", *output)
            self.expect(0, "report", "none.json", *output)

    def test_2_for_files_that_cannot_be_read_or_written(self):
        self.save("a.json", sweep_results())
        for arguments in (("none.json", "-o", "p.html"), ("a.json", "-o", "none/p.html"), ()):
            self.expect(2, "report", *arguments)
        self.assertEqual(self.files(), ["a.json"])


if __name__ == "__main__":
    unittest.main()
