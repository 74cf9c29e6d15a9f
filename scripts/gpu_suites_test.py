"""gpu_suites.py judges results as it says, and its lists are in order."""

import argparse
import contextlib
import gzip
import io
import json
import re
import subprocess
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

import gpu_suites
from gpu_suites import MUST_PASS, ROOT, SCENARIOS, Run
from unsupported_reasons import is_external, place_of


def result(id, status="passed", reasons=(), rows=64, total=64):
    scenario, case, backend = id.split("/")
    return {
        "id": id, "scenario": scenario, "case": case, "backend": backend, "status": status,
        "reasons": list(reasons), "problem": {},
        "error": {"checked_rows": rows, "total_rows": total} if status == "passed" else None,
    }  # fmt: skip


def judged(results, ids=(), **of_run):
    """Whether the suite `s` failed, and what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        failed = gpu_suites.judge([Run("s", results, **of_run)], list(ids))
    return failed["s"], out.getvalue()


class Judging(unittest.TestCase):
    def test_passed_and_unsupported_for_a_reason_of_the_semantics_is_a_success(self):
        failed, out = judged(
            [result("s/q1/A"), result("s/q1/B", "unsupported", ["head_size not supported"])],
            ["s/q1/A", "another/q1/A"],
        )
        self.assertFalse(failed)
        self.assertRegex(out, r"s +1 +1 ")
        self.assertRegex(out, r"1  13\.1 row 1 +head_size not supported")

    def test_each_of_these_fails(self):
        for name, results, ids in (
            ("incorrect", [result("s/q1/A", "incorrect", ["wrong"])], []),
            ("error", [result("s/q1/A", "error", ["lost"])], []),
            ("skipped", [result("s/q1/A", "skipped", ["interrupted"])], []),
            ("other", [result("s/q1/A", "unsupported", ["attend has no CUDA kernel yet"])], []),
            ("must pass", [result("s/q1/A", "unsupported", ["dtype not supported"])], ["s/q1/A"]),
            ("not among the results", [result("s/q1/A")], ["s/q2/A"]),
            ("checked on 5 rows", [result("s/q1/A", rows=5, total=100)], ["s/q1/A"]),
        ):
            with self.subTest(name):
                failed, out = judged(results, ids)
                self.assertTrue(failed)
                self.assertIn(name, out)

    def test_a_small_case_may_be_checked_on_all_its_rows(self):
        self.assertFalse(judged([result("s/q1/A", rows=5, total=5)], ["s/q1/A"])[0])

    def test_cudnn_must_pass_only_where_it_is(self):
        for reason, fails in [("cuDNN not found", False), ("built without cudnn-frontend", False),
                              ("head_size not supported", True)]:  # fmt: skip
            refused = result("s/q1/CUDNN", "unsupported")
            refused["reasons"] = [reason]
            self.assertEqual(judged([refused], ["s/q1/CUDNN"])[0], fails, reason)

    def test_a_suite_without_results_or_that_was_stopped_fails(self):
        self.assertTrue(judged(None)[0])
        self.assertTrue(judged([result("s/q1/A")], note="stopped after 3 s")[0])
        self.assertTrue(judged([result("s/q1/A")], status=1)[0])
        self.assertFalse(judged([result("s/q1/A")], status=0)[0])

    def test_operations_are_shown_with_their_share_of_the_ceiling(self):
        case = result("s/q1/OPS")
        case["problem"] = {"op": {"name": "reshape_and_cache", "raw": False},
                           "kv_cache": {"dtype": "auto", "int8_level": 0}}  # fmt: skip
        case["timing"] = {"median_us": 100.0}
        case["throughput"] = {"gbps": 4000.0, "bytes": 4e8, "roofline_pct": 79.0}
        self.assertRegex(judged([case])[1], r"4000 GB/s +79\.0 % +moves bytes only: 80 % missed")
        case["throughput"]["roofline_pct"] = 87.0
        self.assertRegex(judged([case])[1], r"87\.0 % +moves bytes only: 80 % reached")
        case["problem"]["kv_cache"]["dtype"] = "fp8"
        self.assertNotIn("moves bytes only", judged([case])[1])


class Parts(unittest.TestCase):
    def test_the_parts_of_a_suite_are_judged_as_one(self):
        one, two = Run("s", [result("s/q1/A")], seconds=2), Run("s", [result("s/q2/A")], seconds=3)
        whole = gpu_suites.join_parts([one, Run("t", []), two])
        self.assertEqual([run.suite for run in whole], ["s", "t"])
        self.assertEqual([r["id"] for r in whole[0].results], ["s/q1/A", "s/q2/A"])
        self.assertEqual((whole[0].seconds, whole[0].status, whole[0].note), (3, 0, ""))

    def test_a_part_that_failed_is_not_hidden_by_another(self):
        for bad in (Run("s", None), Run("s", [], status=4), Run("s", [], note="stopped")):
            for runs in ([bad, Run("s", [])], [Run("s", []), bad]):
                (whole,) = gpu_suites.join_parts(runs)
                with contextlib.redirect_stdout(io.StringIO()):
                    self.assertTrue(gpu_suites.judge([whole], [])["s"])

    def test_files_of_parts_are_of_their_suite(self):
        suite = Path("scenarios/mla-sparse.yaml")
        for part, expected in [("2/12", (2, 12)), (None, (1, 1))]:
            file = Path("a") / (gpu_suites.name_of_results(suite, part) + ".json")
            self.assertEqual(gpu_suites.suite_and_part(file), ("mla-sparse", expected))

    def test_a_part_whose_file_is_missing_is_not_hidden_by_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ["a.1-of-2", "a.2-of-2", "b.1-of-3", "b.3-of-3", "c"]:
                (Path(folder) / f"{name}.json").write_text('{"results": [{"status": "passed"}]}')
            runs = {run.suite: run for run in gpu_suites.read_runs(Path(folder))}
        self.assertEqual({suite: run.results is None for suite, run in runs.items()},
                         {"a": False, "b": True, "c": False})  # fmt: skip
        self.assertEqual(len(runs["a"].results), 2)
        self.assertIn("part 2 of 3", runs["b"].note)

    def test_long_suites_are_first_and_have_parts(self):
        files = gpu_suites.suite_files([], "all")
        longest = max(gpu_suites.SECONDS, key=gpu_suites.SECONDS.get)
        self.assertEqual(files[0].stem, longest)
        self.assertTrue(files[-1].stem.startswith("smoke"))
        options = argparse.Namespace(timing=False, sanitizer=None, jobs=6)
        self.assertEqual([part for _, part in gpu_suites.parts_of(files[0], options)],
                         ["1/4", "2/4", "3/4", "4/4"])  # fmt: skip
        self.assertEqual(gpu_suites.parts_of(files[-1], options), [(files[-1], None)])
        options.timing = True
        self.assertEqual(gpu_suites.parts_of(files[0], options), [(files[0], None)])

    def test_without_validation_no_pair_is_demanded(self):
        self.assertFalse(judged([result("s/q1/A", "unverified")], ["s/q1/A"])[0])


class GpuTest(unittest.TestCase):
    def test_every_command_of_gpu_test_is_run_and_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            stub = Path(folder) / "stub"
            stub.write_text('#!/bin/sh\n[ "$1" != device ] || echo "cuda:0  none"\n')
            stub.chmod(0o755)
            done = subprocess.run([ROOT / "scripts" / "gpu_test", "--binary", stub],
                                  capture_output=True, text=True)  # fmt: skip
        self.assertNotIn("command not found", done.stderr)
        # Both calibrations; neither the tests nor the suites, also of CUDNN, get results from such a
        # program.
        self.assertEqual(done.stdout.splitlines()[-1], "2 passed, 3 failed")
        self.assertEqual(done.returncode, 1)


class Lists(unittest.TestCase):
    def test_reasons_are_matched_whole(self):
        self.assertEqual(place_of("DCP with sinks"), "13.4")
        self.assertIsNone(place_of("DCP with sinks and more"))
        unknown = "attend of ragged keys with a scale each has no CUDA kernel yet"
        self.assertIsNone(place_of(unknown))
        refused = "kernel hopper_prefill:tile_n=80 cannot do attend: f32 queries over f32 keys"
        self.assertIsNotNone(place_of(refused))
        self.assertIsNone(place_of("kernel 'prefill' for sm_90a does not compile"))
        self.assertIsNone(place_of("NVRTC not found"))
        self.assertIsNone(place_of(""))

    def test_only_users_backends_may_say_why_in_their_own_words(self):
        for backend, external in (("python:a.b:C", True), ("FLASH_ATTN", False), ("CUDNN", False),
                                  ("mypython:a:B", False)):  # fmt: skip
            self.assertEqual(is_external(backend), external, backend)

    def test_the_recorded_run_has_reasons_of_the_semantics_only(self):
        with gzip.open(ROOT / "docs" / "results" / "h200-smoke.json.gz") as file:
            results = json.load(file)["results"]
        unsupported = [r for r in results if r["status"] == "unsupported"]
        reasons = {reason for r in unsupported for reason in r["reasons"]}
        self.assertGreater(len(reasons), 20)
        self.assertEqual({reason for reason in reasons if place_of(reason) is None}, set())

    def test_the_sanitized_suites_launch_every_family_of_kernels_of_the_recorded_run(self):
        script = (ROOT / "scripts" / "gpu_test").read_text(encoding="utf-8")
        sanitized = set(re.search(r"^SANITIZED=\(([^)]*)\)", script, re.MULTILINE)[1].split())
        cases = re.compile(re.search(r"^SANITIZED_CASES='(.*)'$", script, re.MULTILINE)[1])
        with gzip.open(ROOT / "docs" / "results" / "h200-smoke.json.gz") as file:
            results = json.load(file)["results"]
        self.assertEqual(sanitized - {result["scenario"] for result in results}, set())
        families = defaultdict(set)
        for result in results:
            for kernel in result["kernels"] or []:
                name = kernel["name"].split()[0].rstrip(":")
                families[name].add(result["scenario"] if cases.search(result["id"]) else None)
        self.assertGreater(len(families), 30)
        missed = {family for family, suites in families.items() if not suites & sanitized}
        self.assertEqual(missed, set())

    def test_every_suite_has_pairs_that_must_pass_on_cuda_and_none_is_listed_twice(self):
        ids = gpu_suites.must_pass_ids()
        self.assertEqual(len(ids), len(set(ids)))
        suites = {file.stem for file in SCENARIOS.glob("*.yaml")}
        self.assertEqual({id.split("/")[0] for id in ids}, suites)
        cuda = gpu_suites.must_pass_ids(MUST_PASS[1:])
        real = {suite for suite in suites if not suite.startswith("smoke")}
        # One suite is small enough for a CPU as a whole.
        self.assertEqual(real - {id.split("/")[0] for id in cuda}, {"trace-llama3"})

    def test_pairs_of_cudnn_are_of_small_suites_and_listed_once(self):
        ids = gpu_suites.must_pass_ids([gpu_suites.MUST_PASS_CUDNN])
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual({id.rsplit("/", 1)[1] for id in ids}, {"CUDNN"})
        small = {file.stem for file in gpu_suites.suite_files([], "smoke")}
        self.assertEqual({id.split("/")[0] for id in ids} - small, set())

    def test_a_line_of_another_form_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "list.yaml"
            file.write_text("# comment\na/b: C\na/b C\n")
            with self.assertRaisesRegex(ValueError, "list.yaml:3"):
                gpu_suites.must_pass_ids([file])


if __name__ == "__main__":
    unittest.main()
