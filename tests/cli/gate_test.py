"""The gate and runs with a baseline, on the real binary: verdicts and exit codes."""

import json
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ET

from gates import PAIR, SLOW_ID, GateFiles, TimedTest, steady
from timings import rates, retime, summary
from tool import BINARY, ROOT, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json, thorough


class Gate(GateFiles):
    def test_the_same_file_passes_with_every_case_the_same(self):
        self.changed(lambda file: None)
        outcome, verdicts = self.gate(0)
        self.assertEqual({v["verdict"] for v in verdicts.values()}, {"SAME"})
        self.assertIn("2 SAME", outcome.out)
        self.assertIn("gate passed", outcome.out)

    def test_1_on_a_slowdown_which_is_named_with_its_rule(self):
        self.changed(self.time(0, 110.0))
        outcome, verdicts = self.gate(1)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "SLOWER")
        self.assertAlmostEqual(verdicts[SLOW_ID]["ratio"], 1.1)
        self.assertTrue(outcome.out.startswith("SLOWER"), outcome.out)
        self.assertIn("past the threshold 3%", outcome.out)
        self.assertIn("reproduce: attnbench run", outcome.out)
        self.gate(0, "--threshold", "15%")
        self.gate(0, "--floor-us", "11")

    def test_0_on_a_speed_up_unless_it_should_fail(self):
        self.changed(self.time(0, 80.0))
        _, verdicts = self.gate(0)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "FASTER")
        self.gate(1, "--fail-on-improvement")

    def test_a_status_that_got_worse_and_one_that_got_better(self):
        def break_first(file):
            file["results"][0].update(status="incorrect", reasons=["off"], timing=None,
                                      throughput=None)  # fmt: skip

        broken = self.changed(break_first)
        _, verdicts = self.gate(1)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "BROKEN")
        self.save("base.json", broken)
        self.changed(lambda file: None)
        _, verdicts = self.gate(0)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "FIXED")
        self.expect(0, "gate", "base.json", "base.json")

    def test_1_when_accuracy_is_lost(self):
        def worsen(file):
            file["results"][0]["error"]["err_ratio"] *= 1.9

        self.changed(worsen)
        _, verdicts = self.gate(1)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "LESS_ACCURATE")
        self.gate(0, "--accuracy-threshold", "0.95")

    def test_missing_cases_fail_unless_lenient_and_new_ones_pass(self):
        less = self.changed(lambda file: file["results"].pop(0))
        _, verdicts = self.gate(1)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "MISSING")
        self.gate(0, "--lenient")
        self.gate(0, "--backend", "TRITON_ATTN")
        self.save("base.json", less)
        self.save("new.json", self.file)
        _, verdicts = self.gate(0)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "NEW")

    def test_3_when_nothing_could_be_compared(self):
        self.changed(lambda file: file["results"].clear())
        self.gate(3, "--lenient")

    def test_2_for_a_baseline_of_another_machine_or_case(self):
        def other_machine(file):
            file["environment"]["cpu"]["model"] = "Another CPU"

        def other_case(file):
            file["results"][0]["problem"]["attention"]["head_size"] = 128

        for change, words in ((other_machine, "CPU: "), (other_case, "attention.head_size: 64")):
            self.changed(change)
            outcome = self.expect(2, "gate", "base.json", "new.json")
            self.assertIn(words, outcome.err)
            self.assertEqual(outcome.out, "")
            self.expect(0, "gate", "base.json", "new.json", "--ignore-environment")

    def test_2_for_files_that_cannot_be_read(self):
        self.write("bad.json", '{"schema_version": 1, "results": [{}]}')
        self.write("cut.json", json.dumps(self.file)[:-20])
        for name, words in (("bad.json", "bad.json: results[0]: result.id is missing"),
                            ("cut.json", "cut.json: not JSON"),
                            ("none.json", "cannot read 'none.json'")):  # fmt: skip
            for files in (("base.json", name), (name, "base.json")):
                self.assertIn(words, self.expect(2, "gate", *files).err)
        self.expect(2, "gate", "base.json")

    def test_2_for_unverified_results_unless_lenient(self):
        self.changed(lambda file: file["results"][0].update(status="unverified"))
        self.assertIn("unverified", self.expect(2, "gate", "base.json", "new.json").err)
        self.gate(0, "--lenient")

    def test_known_failures_are_shown_and_expire(self):
        self.changed(self.time(0, 150.0))
        known = "- {{id: 'tiny/.*/FLASH_ATTN', reason: issue 7, expires: '{}'}}\n"
        self.write("known.yaml", known.format("2099-01-31"))
        outcome, verdicts = self.gate(0, "--known", "known.yaml")
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "SLOWER")
        self.assertIn("known: issue 7 (until 2099-01-31)", outcome.out)
        self.write("known.yaml", known.format("2020-01-31"))
        outcome, _ = self.gate(1, "--known", "known.yaml")
        self.assertIn("expired", outcome.out)
        self.write("known.yaml", known.format("soon"))
        self.assertIn("known.yaml:1: expires", self.gate_refused("--known", "known.yaml"))

    def gate_refused(self, *arguments):
        return self.expect(2, "gate", "base.json", "new.json", *arguments).err

    def test_thresholds_by_pattern(self):
        self.changed(self.time(0, 110.0))
        self.write("limits.yaml", "- {id: FLASH_ATTN$, threshold: 20%}\n")
        self.gate(0, "--thresholds", "limits.yaml")
        self.write("limits.yaml", "- {id: TRITON, threshold: 20%}\n")
        self.gate(1, "--thresholds", "limits.yaml")

    def test_several_baselines_are_pooled(self):
        self.changed(self.time(0, 110.0))
        self.save("second.json", self.changed(self.time(0, 110.0)))
        self.expect(1, "gate", "base.json", "new.json")
        outcome = self.expect(0, "gate", "base.json", "second.json", "new.json", "-v")
        self.assertIn("A/A noise floor", outcome.out.replace("\n    ", " "))

    def test_ambiguous_passes_unless_it_should_fail(self):
        def widen(file):
            retime(file["results"][0], [110.0 * (1 + 0.03 * (i - 9.5)) for i in range(20)])

        self.changed(widen)
        _, verdicts = self.gate(0)
        self.assertEqual(verdicts[SLOW_ID]["verdict"], "AMBIGUOUS")
        self.gate(0, "--junit", "j.xml")
        suite = ET.parse(self.dir / "j.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "0"))
        self.assertEqual(suite.find("testsuite").get("skipped"), "1")
        shown = suite.find(".//testcase[skipped]")
        self.assertIn(shown.get("name"), SLOW_ID)
        self.assertTrue(shown.find("skipped").get("message").startswith("AMBIGUOUS: "))
        for case in suite.iter("testcase"):
            self.assertRegex(case.find("system-out").text, r"(?s)^verdict: .*rule: .*before: .*after: ")
        self.gate(1, "--fail-on-ambiguous")

    def test_2_for_options_of_the_other_mode_and_numbers_that_are_none(self):
        self.changed(lambda file: None)
        for option in (["--threshold", "5%"], ["--floor-us", "3"], ["--accuracy-threshold", "9%"],
                       ["--thresholds", "x"], ["--known", "x"], ["--fail-on-improvement"],
                       ["--fail-on-ambiguous"], ["--junit", "x"], ["--link", "x"]):  # fmt: skip
            self.assertIn(option[0], self.gate_refused("--agreement", *option))
        self.assertIn("--agreement", self.gate_refused("--factor", "3"))
        for number in ("nan", "inf", "-inf", "-3", "0.5", "x"):
            self.assertIn("--factor", self.gate_refused("--agreement", f"--factor={number}"))
        for number in ("nan", "inf", "-1"):
            self.assertIn("--floor-us", self.gate_refused(f"--floor-us={number}"))
            self.assertIn("--threshold", self.gate_refused(f"--threshold={number}"))
        self.assertEqual(sorted(self.files()), sorted({*self.files()} - {"x"}))

    def test_errors_of_the_lse_must_agree_too(self):
        def worsen(file):
            changed = {"nmse": 1e-4, "rms_rel": 1e-2}
            file["results"][0]["lse_error"] = {**file["results"][0]["error"], **changed}

        for change, code in ((worsen, 1), (lambda file: None, 0)):
            self.changed(change)
            self.expect(code, "gate", "--agreement", "base.json", "new.json", "--json", "a.json")
        self.changed(worsen)
        outcome = self.expect(1, "gate", "--agreement", "base.json", "new.json", "--json", "a.json")
        self.assertRegex(outcome.out, r"times apart, more than 4, by LSE \w+")
        worst = strict_json((self.dir / "a.json").read_text())["cases"][0]
        self.assertEqual(worst["lse_nmse"][1], 1e-4)
        self.assertTrue(worst["figure"].startswith("LSE "), worst)

    def test_markdown_and_junit_of_verdicts(self):
        self.changed(self.time(0, 110.0))
        self.gate(1, "--markdown", "s.md", "--junit", "j.xml", "--link", "https://ci.example/7")
        text = (self.dir / "s.md").read_text()
        self.assertTrue(text.startswith("### attnbench gate: failed, 1 of 2 cases\n"), text)
        self.assertIn("| **SLOWER** | `" + SLOW_ID, text)
        self.assertIn("<https://ci.example/7>", text)
        suite = ET.parse(self.dir / "j.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "1"))
        self.assertEqual(suite.find(".//failure").get("type"), "SLOWER")

    def test_lines_fit_a_terminal_of_80_columns(self):
        self.changed(self.time(0, 110.0))
        outcome = self.expect(1, "gate", "base.json", "new.json", COLUMNS="80")
        for line in outcome.out.splitlines():
            if not line.startswith("reproduce: "):
                self.assertLessEqual(len(line), 80, line)
        self.assertNotIn("\x1b", outcome.out)
        self.assertIn("\x1b", self.expect(1, "gate", "base.json", "new.json", "--color",
                                          "always").out)  # fmt: skip


class RunWithBaseline(TimedTest):
    def test_a_saved_baseline_holds_the_noise_floor_and_both_runs(self):
        outcome = self.expect(0, "run", "tiny.yaml", *PAIR, "--save-baseline", "b.json")
        self.assertRegex(outcome.out, r"A/A, 2 runs: noise floor \d+\.\d%, medians at most")
        file = strict_json((self.dir / "b.json").read_text())
        self.assertEqual(file["noise_floor"]["runs"], 2)
        self.assertEqual(set(file["noise_floor"]["cases"]), {r["id"] for r in file["results"]})
        self.assertEqual({len(r["timing"]["samples_us"]) for r in file["results"]}, {6})
        # The same program against it: no machine is so noisy that its status changes.
        again = ("run", "tiny.yaml", *PAIR, "--baseline", "b.json", "--no-timing")
        outcome = self.tool(*again, "--lenient")
        self.assertEqual(outcome.code, 0, outcome.out + outcome.err)
        self.assertIn("2 AMBIGUOUS", outcome.out)
        outcome = self.expect(1, *again)
        self.assertIn("2 MISSING", outcome.out)
        self.assertIn("timed in the baseline, no timing in the results", outcome.out)

    def test_a_file_of_tensors_may_move_and_not_change(self):
        run = ("run", "tiny.yaml", "--backend", "FLASH_ATTN", "--no-timing")
        self.expect(0, *run, "--save-tensors", "first")
        saved = self.dir / "first" / f"tiny__{TINY_CASE}__FLASH_ATTN.safetensors"

        def read(path, result):
            self.expect(0, *run, "--set", f"inputs.file={path}", "--json", result)

        read(saved, "a.json")
        (self.dir / "moved").write_bytes(saved.read_bytes())
        read("moved", "b.json")
        self.expect(0, "gate", "a.json", "b.json")
        tensors = bytearray(saved.read_bytes())
        header = 8 + int.from_bytes(tensors[:8], "little")
        start = json.loads(tensors[8:header])["query"]["data_offsets"][0] + header
        tensors[start] ^= 1  # the last bit of a bfloat16
        saved.write_bytes(tensors)
        read(saved, "c.json")
        outcome = self.expect(2, "gate", "a.json", "c.json")
        self.assertIn("inputs.file: \"SHA-256 ", outcome.err)

    def rounds(self, name):
        results = strict_json((self.dir / name).read_text())["results"]
        return {tuple(result["timing"].get("rounds", ())) for result in results}

    @thorough
    def test_samples_are_spread_over_several_passes(self):
        run = ("run", "tiny.yaml", *PAIR, "--json", "r.json")
        self.expect(0, *run)
        self.assertEqual(self.rounds("r.json"), {()})
        self.expect(0, *run, "--samples", "8", "--passes", "3")
        self.assertEqual(self.rounds("r.json"), {(2, 3, 3)})
        for result in strict_json((self.dir / "r.json").read_text())["results"]:
            timing = result["timing"]
            self.assertEqual(len(timing["samples_us"]), 8)
            self.assertEqual(result["status"], "passed")
            self.assertIsNotNone(result["error"])
            # Rates are those of the median of all passes.
            flops = result["throughput"]["flops"]
            rate = result["throughput"]["tflops"]
            self.assertAlmostEqual(rate * timing["median_us"] * 1e6 / flops, 1, places=6)
        # A run that is resumed takes the passes that are left, of what had none yet.
        self.expect(0, *run, "--samples", "8")
        self.expect(0, *run, "--resume", "r.json", "--samples", "8", "--passes", "2")
        self.assertEqual(self.rounds("r.json"), {(8, 4)})
        self.expect(0, *run, "--resume", "r.json", "--samples", "8", "--passes", "2")
        self.assertEqual(self.rounds("r.json"), {(8, 4)})
        # Where a gate compares the times there are eight, where nothing is timed none.
        self.expect(0, "run", "tiny.yaml", *PAIR, "--samples", "16", "--baseline", "r.json",
                    "--floor-us", "1e9", "--json", "n.json")  # fmt: skip
        self.assertEqual(self.rounds("n.json"), {(2,) * 8})
        self.expect(0, *run, "--no-timing", "--passes", "3")

    def test_a_resumed_run_takes_the_passes_that_were_not_taken(self):
        run = ("run", "tiny.yaml", *PAIR, "--samples", "8", "--passes", "4")
        self.expect(0, *run, "--json", "r.json")
        file = json.loads((self.dir / "r.json").read_text())
        timing = file["results"][0]["timing"]
        del timing["rounds"][2:], timing["samples_us"][4:], timing["round_medians_us"][2:]
        timing["checked_samples"] = [one for one in timing["checked_samples"] if one["sample"] < 4]
        timing.pop("waits_us", None)
        timing.pop("cpu_wait", None)
        first = timing["samples_us"]
        timing.update(summary(first))
        result = file["results"][0]
        result["throughput"] = rates(result["throughput"], timing["median_us"])
        self.write("r.json", json.dumps(file))
        self.expect(0, *run, "--resume", "r.json")
        self.assertEqual(self.rounds("r.json"), {(2,) * 4})
        file = json.loads((self.dir / "r.json").read_text())
        self.assertEqual(file["results"][0]["timing"]["samples_us"][:4], first)

    def slow_baseline(self, factor):
        file = self.timed()
        for result in file["results"]:
            retime(result, steady(result["timing"]["median_us"] * factor))
        self.write("b.json", json.dumps(file))

    def expect_judged(self, code, *arguments):
        """As expect(). A time that a busy machine's waits left nothing of is measured again."""
        for _ in range(8):
            outcome = self.tool(*arguments)
            if "waits_us are at least" not in outcome.out:
                break
        self.assertEqual(outcome.code, code, outcome.out + outcome.err)
        return outcome

    def test_1_when_the_run_is_far_slower_than_its_baseline(self):
        self.slow_baseline(1e-3)
        outcome = self.expect_judged(1, "run", "tiny.yaml", *PAIR, "--baseline", "b.json",
                                     "--samples", "12", "--floor-us", "0", "--summary",
                                     "s.md")  # fmt: skip
        self.assertIn("2 SLOWER", outcome.out)
        self.assertIn("gate: failed", (self.dir / "s.md").read_text())

    def test_what_the_run_left_out_is_not_missing(self):
        self.slow_baseline(1e3)
        outcome = self.expect_judged(0, "run", "tiny.yaml", "--backend", "FLASH_ATTN",
                                     "--baseline", "b.json")  # fmt: skip
        self.assertIn("1 FASTER", outcome.out)

    def test_2_for_a_baseline_of_another_machine_before_anything_runs(self):
        self.slow_baseline(1)
        file = json.loads((self.dir / "b.json").read_text())
        file["environment"]["cpu"]["cores"] = 999
        self.write("b.json", json.dumps(file))
        outcome = self.expect(2, "run", "tiny.yaml", *PAIR, "--baseline", "b.json", "--json",
                              "o.json")  # fmt: skip
        self.assertIn("CPU cores", outcome.err)
        self.assertNotIn("o.json", self.files())

    def test_2_for_options_that_would_do_nothing(self):
        for option in (["--threshold", "5%"], ["--fail-on-ambiguous"], ["--lenient"]):
            outcome = self.expect(2, "run", "tiny.yaml", *option)
            self.assertIn(f"{option[0]}: expected --baseline or --save-baseline", outcome.err)
        for option in ("--timeout", "--hang-limit"):
            self.assertIn(option, self.expect(2, "run", "tiny.yaml", f"{option}=nan").err)

    def test_2_for_a_baseline_that_nobody_could_use(self):
        self.expect(2, "run", "tiny.yaml", "--no-validation", "--save-baseline", "b.json")
        self.expect(2, "run", "tiny.yaml", "--save-baseline", "no/folder.json")


class RealRuns(ToolTest):
    @thorough
    def test_the_script_prints_a_row_of_the_table_of_real_runs(self):
        self.write("tiny.yaml", TINY)
        for flow in ("gate", "baseline", "saved"):
            done = subprocess.run(
                [sys.executable, "-B", ROOT / "scripts" / "aa_gate", "--flow", flow, "--gates", "1",
                 "--samples", "4", "--passes", "2", "--program", BINARY, "tiny.yaml"],
                cwd=self.dir, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            header, _, row = (line.split("|") for line in done.stdout.splitlines())
            self.assertEqual(len(header), len(row))
            self.assertEqual(row[1].strip(), flow)
            self.assertIn(row[4].strip(), ("0 of 1", "1 of 1"))


if __name__ == "__main__":
    unittest.main()
