"""The result file of contract section 4 and the other output formats, on the real binary."""

import csv
import io
import re
import shlex
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

from tool import BINARY, TINY, TINY_CASE, ToolTest, strict_json, words_only

NUMBER = (int, float)
ERROR_FIELDS = {
    "max_abs": NUMBER,
    "mean_abs": NUMBER,
    "rms_rel": NUMBER,
    "nmse": NUMBER,
    "cosine": NUMBER,
    "err_ratio": (int, float, type(None)),
    "matched_pct": NUMBER,
    "worst_index": list,
    "nan_count": int,
    "inf_count": int,
    "checked_rows": int,
    "total_rows": int,
    "limit": str,
    "rule": str,
}
TIMING_FIELDS = {
    "median_us": NUMBER,
    "min_us": NUMBER,
    "q1_us": NUMBER,
    "q3_us": NUMBER,
    "mean_us": NUMBER,
    "stdev_us": NUMBER,
    "noise": NUMBER,
    "samples_us": list,
    "l2": str,
    "mode": str,
    "launch_overhead_us": NUMBER,
    "steps": list,
    "total_us": NUMBER,
}
THROUGHPUT_FIELDS = {
    "tflops": NUMBER,
    "gbps": NUMBER,
    "kv_gbps": NUMBER,
    "tokens_per_s": NUMBER,
    "flops": NUMBER,
    "bytes": NUMBER,
    "roofline_pct": (int, float, type(None)),
    "bound": str,
}
PROBLEM_SECTIONS = (
    "attention triton mla mm_encoder kv_cache batch batch_options cascade dcp output_quant op "
    "inputs validation timing"
).split()


class ResultFile(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)

    def check_fields(self, record, fields):
        for name, kind in fields.items():
            self.assertIn(name, record)
            self.assertIsInstance(record[name], kind, name)
            self.assertNotIsInstance(record[name], bool, name)

    def test_json_has_every_field_of_the_contract(self):
        self.expect(0, "run", "tiny.yaml", "--json", "out.json", "--seed", "3")
        document = strict_json((self.dir / "out.json").read_text(encoding="utf-8"))
        self.assertEqual(document["schema_version"], 1)
        self.check_fields(document["tool"], {"name": str, "version": str, "git": str})
        self.assertRegex(document["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
        self.assertEqual(
            document["command"][1:], ["run", "tiny.yaml", "--json", "out.json", "--seed", "3"]
        )
        environment = document["environment"]
        self.check_fields(
            environment,
            {"hostname": str, "cpu": dict, "compiler": (dict, str), "fingerprint": str},
        )
        self.assertIsNone(environment["device"])
        self.assertEqual(
            [result["id"] for result in document["results"]],
            [f"tiny/{TINY_CASE}/{name}" for name in ("FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN")],
        )
        for result in document["results"]:
            self.check_result(result)

    def test_caches_are_flushed_unless_the_scenario_has_them_warm(self):
        self.write("cold.yaml", TINY.replace(", l2: warm", ""))
        self.assertNotIn("warm", (self.dir / "cold.yaml").read_text())
        self.write("warm.yaml", TINY)
        self.write("clean.yaml", TINY.replace("l2: warm", "l2: clean"))
        for name in ("cold", "clean", "warm"):
            (result,) = self.results(f"{name}.yaml", "--device", "cpu", "--backend", "FLASH_ATTN").values()
            self.assertEqual(result["status"], "passed", result["reasons"])
            flushed = result["timing"].get("flushed_bytes", 0)
            # Cold is what is known to be: of a CPU that does not say how large its caches are it is not.
            self.assertEqual(flushed > 0, name != "warm")
            self.assertIn(result["timing"]["l2"], (name, "warm"))
            self.assertEqual(result["problem"]["timing"]["l2"], name)

    def check_result(self, result):
        self.assertEqual(result["scenario"], "tiny")
        self.assertEqual(result["case"], TINY_CASE)
        self.assertEqual(result["id"], f"tiny/{TINY_CASE}/{result['backend']}")
        self.assertEqual(result["device"], "cpu")
        self.assertEqual(result["status"], "passed")
        self.assertEqual(result["reasons"], [])
        self.check_fields(result["error"], ERROR_FIELDS)
        self.assertEqual(result["error"]["total_rows"], 36)
        self.check_fields(result["lse_error"], ERROR_FIELDS)
        self.assertIn("quantization_error", result)
        self.check_fields(result["timing"], TIMING_FIELDS)
        self.assertEqual(len(result["timing"]["samples_us"]), 3)
        self.assertIn(result["timing"]["l2"], ("cold", "warm"))
        for step in result["timing"]["steps"]:
            self.check_fields(
                step, {"name": str, "median_us": NUMBER, "bytes": NUMBER, "flops": NUMBER}
            )
        self.check_fields(result["throughput"], THROUGHPUT_FIELDS)
        self.assertIn(result["throughput"]["bound"], ("memory", "compute"))
        # 2 * H * (D + Dv) * pairs; the prompt sees 32*33/2 pairs, each decode 100.
        self.assertEqual(result["throughput"]["flops"], 2 * 4 * 128 * (528 + 400))
        self.assertIsInstance(result["kernels"], list)
        problem = result["problem"]
        for section in PROBLEM_SECTIONS:
            self.assertIn(section, problem)
        self.assertEqual(problem["inputs"]["seed"], 3)
        self.assertEqual(problem["attention"]["v_head_size"], 64)
        self.assertEqual(problem["attention"]["scale"], 0.125)
        self.assertNotIn("sweep", problem)
        self.assertNotIn("extends", problem)

    def test_what_did_not_pass_has_no_timing_and_no_throughput(self):
        self.write("f32.yaml", TINY.replace("bfloat16", "float32"))
        results = self.results("f32.yaml", "--backend", "FLASH_ATTN", code=3)
        for result in results.values():
            self.assertEqual(result["status"], "unsupported")
            self.assertIn("dtype not supported", words_only(result["reasons"]))
            for field in ("timing", "throughput", "error", "lse_error"):
                self.assertIsNone(result[field])

    def test_no_timing_and_no_validation_leave_out_what_they_say(self):
        for result in self.results("tiny.yaml", "--no-timing").values():
            self.assertIsNone(result["timing"])
            self.assertIsNotNone(result["error"])
        for result in self.results("tiny.yaml", "--no-validation").values():
            self.assertIsNone(result["error"])
            self.assertIsNotNone(result["timing"])

    def test_the_repro_line_keeps_who_multiplies(self):
        for result in self.results("tiny.yaml", "--no-timing", "--no-cublaslt").values():
            self.assertTrue(result["repro"].endswith(" --no-timing --no-cublaslt"))

    def test_samples_and_timeout_win_over_the_scenario(self):
        results = self.results(
            "tiny.yaml", "--samples", "7", "--timeout", "9.5", "--set", "timing.samples=2"
        )
        for result in results.values():
            self.assertEqual(len(result["timing"]["samples_us"]), 7)
            self.assertEqual(result["problem"]["timing"]["timeout_s"], 9.5)

    def test_set_overrides_the_file_in_order(self):
        results = self.results(
            "tiny.yaml", "--no-timing", "--set", "attention.head_size=32",
            "--set", "attention.head_size=128", "--set", "batch=q8_q2s20",
        )  # fmt: skip
        for result in results.values():
            self.assertEqual(result["case"], "q8_q2s20")
            self.assertEqual(result["problem"]["attention"]["head_size"], 128)

    def test_filter_searches_ids_and_does_not_list_the_others(self):
        self.write("sweep.yaml", TINY + "sweep: {attention.head_size: [32, 64]}\n")
        ids = self.results("sweep.yaml", "--no-timing", "--filter", "=32/FLASH_ATTN$")
        self.assertEqual(list(ids), [f"tiny/{TINY_CASE},attention.head_size=32/FLASH_ATTN"])

    def test_a_scenario_is_found_with_and_without_its_suffix(self):
        self.assertEqual(
            list(self.results("tiny", "--no-timing")), list(self.results("tiny.yaml", "--no-timing"))
        )

    def test_repro_pasted_into_a_shell_runs_that_result_alone(self):
        self.write("it's a sweep.yaml", TINY + "sweep: {attention.scale: [0.1, 1]}\n")
        results = self.results(
            "it's a sweep.yaml", "--no-timing", "--set", "attention.head_size=32", "--seed", "5",
            "--filter", "scale=0.1/TRITON",
        )  # fmt: skip
        ((wanted, result),) = results.items()
        self.assertTrue(result["repro"].startswith("attnbench run "), result["repro"])
        command = result["repro"].replace("attnbench", shlex.quote(BINARY), 1) + " --json -"
        repeated = subprocess.run(
            command, shell=True, cwd=self.dir, capture_output=True, text=True, check=True
        )
        (again,) = strict_json(repeated.stdout)["results"]
        self.assertEqual(again["id"], wanted)
        self.assertEqual(again["problem"], result["problem"])
        self.assertEqual(again["error"], result["error"])

    def test_every_format_lists_every_result(self):
        self.write("f32.yaml", TINY.replace("bfloat16", "float32").replace("tiny", "f32"))
        self.expect(
            0, "run", "tiny.yaml", "f32.yaml", "--no-timing", "--json", "a.json",
            "--csv", "a.csv", "--markdown", "a.md", "--junit", "a.xml",
        )  # fmt: skip
        read = lambda name: (self.dir / name).read_text(encoding="utf-8")
        results = strict_json(read("a.json"))["results"]
        self.assertEqual(len(results), 6)

        rows = list(csv.DictReader(io.StringIO(read("a.csv"))))
        self.assertEqual([row["id"] for row in rows], [result["id"] for result in results])
        self.assertEqual([row["status"] for row in rows], [r["status"] for r in results])

        markdown = read("a.md")
        for result in results:
            self.assertIn(result["case"], markdown)
            self.assertIn(result["backend"], markdown)

        suites = list(ElementTree.fromstring(read("a.xml")).iter("testsuite"))
        self.assertEqual([suite.get("name") for suite in suites], ["tiny", "f32"])
        cases = [case for suite in suites for case in suite.iter("testcase")]
        self.assertEqual(len(cases), 6)
        skipped = [case for case in cases if case.find("skipped") is not None]
        unsupported = [result for result in results if result["status"] == "unsupported"]
        self.assertEqual(len(skipped), len(unsupported))
        self.assertEqual(sum(int(suite.get("skipped")) for suite in suites), len(unsupported))

    def test_the_table_moves_to_stderr_when_a_format_takes_stdout(self):
        outcome = self.expect(0, "run", "tiny.yaml", "--no-timing", "--csv", "-")
        self.assertEqual(len(list(csv.DictReader(io.StringIO(outcome.out)))), 3)
        self.assertIn("TRITON_ATTN", outcome.err)
        outcome = self.expect(0, "run", "tiny.yaml", "--no-timing")
        self.assertIn("TRITON_ATTN", outcome.out)
        self.assertEqual(outcome.err, "")
        outcome = self.expect(0, "run", "tiny.yaml", "--no-timing", "--csv", "-", "-q")
        self.assertEqual(outcome.err, "")

    def test_the_seed_alone_decides_every_saved_byte(self):
        def saved(folder, *arguments):
            self.expect(
                0, "run", "tiny.yaml", "--no-timing", "--save-tensors", folder, *arguments
            )
            files = sorted((self.dir / folder).iterdir())
            self.assertEqual(
                [file.name for file in files],
                [f"tiny__{TINY_CASE}__{name}.safetensors"
                 for name in ("FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN")],
            )  # fmt: skip
            return [file.read_bytes() for file in files]

        first = saved("a", "--seed", "7")
        self.assertEqual(first, saved("b", "--seed", "7", "--threads", "1"))
        self.assertNotEqual(first, saved("c", "--seed", "8"))

    def test_save_failed_saves_nothing_of_what_passed(self):
        self.expect(
            0, "run", "tiny.yaml", "--no-timing", "--save-tensors", "t", "--save", "failed"
        )
        self.assertEqual(list((self.dir / "t").glob("*")), [])

    def test_support_lists_all_reasons_as_text_and_json(self):
        self.write("f32.yaml", TINY.replace("bfloat16", "float32"))
        text = self.expect(0, "support", "f32.yaml").out
        self.assertIn("unsupported: dtype not supported", text)
        pairs = strict_json(self.expect(0, "support", "f32.yaml", "--json", "-").out)
        by_backend = {pair["backend"]: pair for pair in pairs}
        self.assertTrue(by_backend["TRITON_ATTN"]["supported"])
        self.assertFalse(by_backend["FLASH_ATTN"]["supported"])
        self.assertIn("dtype not supported",
                      words_only(by_backend["FLASH_ATTN"]["reasons"]))  # fmt: skip

    def test_explain_shows_the_resolved_problem_and_the_work(self):
        text = self.expect(0, "explain", "tiny.yaml", "--set", "attention.scale=0.5").out
        start, end = text.index("{"), text.index("\n}\n") + 2
        problem = strict_json(text[start:end])
        self.assertEqual(problem["attention"]["scale"], 0.5)
        for words in ("flops", "bytes", "memory", "TRITON_ATTN", "FLASH_ATTN", "cpu: "):
            self.assertIn(words, text)

    def test_explain_says_how_many_cases_it_left_out(self):
        self.write("sweep.yaml", TINY + "sweep: {attention.head_size: [32, 64, 128]}\n")
        self.assertIn("2 more cases", self.expect(0, "explain", "sweep.yaml").out)
        text = self.expect(0, "explain", "sweep.yaml", "--filter", "size=(64|128)").out
        self.assertEqual(len(re.findall("^case ", text, re.MULTILINE)), 2)

    def test_list_is_sorted_and_gives_units(self):
        backends = self.expect(0, "list", "backends").out.split("\n")[:-1]
        names = [line.split()[0] for line in backends]
        self.assertEqual(names, sorted(names))
        for name in ("REFERENCE", "FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"):
            self.assertIn(name, names)
        self.assertRegex(self.expect(0, "list", "metrics").out, r"median_us +us ")
        self.assertIn("quickstart", self.expect(0, "list", "scenarios").out)
        everything = self.expect(0, "list").out
        for words in ("TRITON_ATTN", "quickstart", "median_us"):
            self.assertIn(words, everything)

    def test_validate_names_the_files_and_counts_the_cases(self):
        self.write("sweep.yaml", TINY + "sweep: {attention.head_size: [32, 64, 128]}\n")
        outcome = self.expect(0, "validate", "tiny.yaml", "sweep.yaml")
        self.assertEqual(outcome.out, "tiny.yaml: ok (1 case)\nsweep.yaml: ok (3 cases)\n")
        self.write("bad.yaml", TINY.replace("head_size", "head_sise"))
        outcome = self.expect(2, "validate", "bad.yaml", "tiny.yaml")
        self.assertEqual(outcome.out, "tiny.yaml: ok (1 case)\n")
        self.assertIn("bad.yaml", outcome.err)

    def test_reference_runs_only_when_named(self):
        self.assertNotIn(f"tiny/{TINY_CASE}/REFERENCE", self.results("tiny", "--no-timing"))
        results = self.results("tiny", "--backend", "REFERENCE")
        self.assertEqual(list(results), [f"tiny/{TINY_CASE}/REFERENCE"])
        self.assertIsNotNone(results[f"tiny/{TINY_CASE}/REFERENCE"]["timing"])


class Help(ToolTest):
    def test_help_of_every_command_ends_with_an_example(self):
        for command in ([], ["run"], ["support"], ["explain"], ["validate"], ["list"]):
            text = self.expect(0, *command, "--help").out
            self.assertIn("Example:\n", text)
            self.assertIn("attnbench " + "".join(command), text[text.index("Example:"):])

    def test_help_of_run_names_every_flag_of_the_contract(self):
        text = self.expect(0, "run", "--help").out
        for flag in (
            "--backend --device --set --filter --seed --json --csv --markdown --junit "
            "--save-tensors --save --no-timing --no-validation --samples --timeout -q -v "
            "--no-progress --color --cache-dir --assume-sm"
        ).split():
            self.assertRegex(text, rf"(^|[\s,]){re.escape(flag)}\b")

    def test_version(self):
        self.assertRegex(self.expect(0, "--version").out, r"^attnbench \d+\.\d+\.\d+ \(.+\)\n$")


if __name__ == "__main__":
    unittest.main()
