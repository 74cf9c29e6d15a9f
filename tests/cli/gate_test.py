"""The gate and everything around it, on the real binary: verdicts, exit codes, journals, resuming."""

import copy
import csv
import io
import json
import resource
import signal
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree as ET

from timings import rates, retime, summary, timing_of
from tool import BINARY, ROOT, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json

PAIR = ("--backend", "FLASH_ATTN", "--backend", "TRITON_ATTN")
SLOW_ID = f"tiny/{TINY_CASE}/FLASH_ATTN"
MANY = TINY + f"sweep: {{inputs.seed: {list(range(200))}}}\n"


def steady(median_us):
    """Twenty samples a tenth of a percent around a median."""
    return [median_us * (1 + 0.0001 * (i - 9.5)) for i in range(20)]


class GateFiles(ToolTest):
    """A baseline of two results, base.json, and copies of it that were changed."""

    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "real.json")
        self.file = json.loads((self.dir / "real.json").read_text())
        for result in self.file["results"]:
            retime(result, steady(100.0))
        self.save("base.json", self.file)

    def save(self, name, file):
        return self.write(name, json.dumps(file))

    def changed(self, change):
        """A copy of the baseline file, changed, as new.json."""
        file = copy.deepcopy(self.file)
        change(file)
        self.save("new.json", file)
        return file

    def gate(self, code, *arguments):
        outcome = self.expect(code, "gate", "base.json", "new.json", "--json", "v.json", *arguments)
        verdicts = strict_json((self.dir / "v.json").read_text())
        return outcome, {verdict["id"]: verdict for verdict in verdicts["verdicts"]}

    @staticmethod
    def time(index, median_us):
        return lambda file: retime(file["results"][index], steady(median_us))


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


def first(file):
    return file["results"][0]


def change(part, **numbers):
    """An edit of one part of the first result."""
    return lambda file: first(file)[part].update(numbers)


def scale_waits(share):
    def edit(file):
        samples = first(file)["timing"]["samples_us"]
        first(file)["timing"].update(waits_us=[share * us for us in samples], cpu_wait=share)

    return edit


def faster(file):
    """A time of a tenth, with all that is said of its samples, but not the rates."""
    first(file)["timing"] = timing_of([us / 10 for us in first(file)["timing"]["samples_us"]])


def drop_slow_samples(file):
    first(file)["timing"]["samples_us"] = sorted(first(file)["timing"]["samples_us"])[:10]


def beyond_the_device(file):
    retime(first(file), steady(100.0))
    first(file)["throughput"]["physics_pct"] = 300.0


def floor(value):
    return lambda file: file.update(noise_floor={"runs": 2, "all_cases": value, "cases": {}})


# What somebody may do to a file, the exit code that it gets as the results of a gate, and what is
# said of it.
EDITS = (
    (change("timing", median_us=None), 2, "timing.median_us is nan, but samples_us give 100"),
    (change("timing", median_us=50.0), 2, "timing.median_us is 50, but samples_us give 100"),
    (change("timing", min_us=1.0), 2, "timing.min_us is 1"),
    (change("timing", q1_us=1.0), 2, "timing.q1_us is 1"),
    (change("timing", q3_us=500.0), 2, "timing.q3_us is 500"),
    (change("timing", mean_us=90.0), 2, "timing.mean_us is 90"),
    (change("timing", stdev_us=50.0), 2, "timing.stdev_us is 50"),
    (change("timing", noise=5.0), 2, "timing.noise is 5"),
    (change("timing", samples_us=[]), 2, "timing.samples_us is empty"),
    (change("timing", samples_us=[0.0] * 20), 2, "timing.samples_us[0] is 0, which is no time"),
    (change("timing", samples_us=[-100.0] * 20), 2, "timing.samples_us[0] is -100"),
    (change("timing", samples_us=[None] * 20), 2, "timing.samples_us has the wrong type"),
    (change("timing", rounds=[30]), 2, "the rounds are not those of samples_us"),
    (change("timing", launch_overhead_us=-4.0), 2, "timing.launch_overhead_us is -4"),
    (change("timing", samples_sm_mhz=[1500.0]), 2, "timing.samples_sm_mhz has 1 values for 20"),
    (change("timing", waits_us=[1.0]), 2, "timing.waits_us has 1 values for 20 samples"),
    (scale_waits(1.5), 2, "timing.waits_us[0] is 149"),
    (scale_waits(0.9), 1, "waits_us are at least 90% of every sample"),
    (drop_slow_samples, 2, "timing.median_us is 100"),
    (faster, 2, "throughput.tflops is"),
    (beyond_the_device, 2, "throughput.physics_pct is 300, above 110, but the status is 'passed'"),
    (change("throughput", tflops=1e3), 2, "throughput.tflops is 1000"),
    (change("throughput", gbps=1e9), 2, "throughput.gbps is 1e+09"),
    (lambda file: first(file).update(timing=None), 2, "without a timing"),
    (lambda file: first(file).update(timing=None, throughput=None), 1,
     "timed in the baseline, no timing in the results"),
    (lambda file: first(file).update(error=None), 2, "error is missing of a result that passed"),
    (lambda file: first(file).update(lse_error=None), 1, "lse_error is missing in the results"),
    (change("error", checked_rows=0), 2, "error.checked_rows is 0 of 36 rows of a result that"),
    (change("error", checked_rows=35), 1, "error.checked_rows: 36 in the baseline, 35 in the"),
    (change("error", checked_rows=37), 2, "error.checked_rows is 37 of 36 rows"),
    (change("error", total_rows=2, checked_rows=2, screened_rows=0), 1,
     "error.total_rows: 36 in the baseline"),
    (change("error", rows_outside=1), 2, "error.rows_outside is 1 of a result that passed"),
    (change("error", row_error=2.0, row_limit=1.0), 2, "error.row_error is 2 of a result that"),
    (change("error", row_error=0.5, row_limit=None), 2, "error.row_error is 0.5 beside row_limit"),
    (change("error", max_abs=-1.0), 2, "error.max_abs is -1"),
    (change("error", nmse=0.0), 2, "error.nmse is 0, but rms_rel squared is"),
    (change("error", cosine=2.0), 2, "error.cosine is 2"),
    (lambda file: first(file).update(status="implausible", reasons=["too fast"]), 1,
     "status passed -> implausible: too fast"),
    (lambda file: first(file).update(status="unverified"), 2, "is unverified"),
    (lambda file: first(file).update(status="skipped"), 1, "skipped in the results"),
    (lambda file: first(file).update(backend="TRITON_ATTN"), 2, "but scenario, case and backend"),
    (lambda file: first(file)["problem"]["validation"].update(max_rows=1), 2,
     "validation.max_rows: \"auto\" in the baseline, 1 in the results"),
    (lambda file: first(file)["problem"]["inputs"].update(std=0.02), 2, "inputs.std: 1.0 in the"),
    (lambda file: first(file)["problem"]["inputs"].update(seed=7), 2, "inputs.seed: 0 in the"),
    (lambda file: first(file)["problem"]["timing"].update(l2="warm"), 2, "timing.l2: \"cold\" in"),
    (lambda file: file["results"].append(first(file)), 2, "two results have the id"),
    (lambda file: file["results"].pop(0), 1, "in the baseline, not in the results"),
    (floor(0.9), 2, "noise_floor.all_cases is 0.9: above 20% anything would pass"),
    (floor(-1), 2, "noise_floor.all_cases is -1"),
)  # fmt: skip


class EditedFiles(GateFiles):
    """Nobody gets past the gate with a file that he wrote himself, unless all of it agrees."""

    def test_edits_are_refused_or_failed_in_words(self):
        for edit, code, words in EDITS:
            with self.subTest(words):
                self.changed(edit)
                outcome = self.expect(code, "gate", "base.json", "new.json")
                self.assertIn(words, " ".join((outcome.out + outcome.err).split()))

    def test_a_baseline_is_believed_no_more_than_results(self):
        for edit, code, words in EDITS:
            is_of_both = any(part in words for part in ("in the baseline", "inputs.", "timing.l2"))
            if code != 2 or is_of_both:
                continue
            with self.subTest(words):
                self.changed(edit)
                outcome = self.expect(2, "gate", "new.json", "base.json")
                self.assertIn(words, " ".join(outcome.err.split()))
                self.assertEqual(outcome.out, "")

    def test_two_devices_do_not_agree_by_edited_files(self):
        self.changed(change("error", rows_outside=1))
        for files in (("base.json", "new.json"), ("new.json", "base.json")):
            outcome = self.expect(2, "gate", "--agreement", *files)
            self.assertIn("error.rows_outside is 1", outcome.err)

    def test_a_report_shows_what_is_not_believed_as_an_error_with_the_reason(self):
        self.changed(change("timing", median_us=50.0))
        outcome = self.expect(0, "report", "new.json", "-v")
        self.assertIn("new.json: 1 result is not to be believed", outcome.err)
        self.assertIn("not to be believed: timing.median_us is 50", " ".join(outcome.out.split()))
        self.assertIn("1 error, 1 passed", outcome.out)
        self.expect(0, "report", "base.json", "new.json", "-o", "page.html")

    def test_a_resumed_run_measures_what_is_not_believed_again(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "r.json")
        file = json.loads((self.dir / "r.json").read_text())
        kept = file["results"][1]["timing"]["samples_us"]
        first(file)["error"]["rows_outside"] = 3
        self.save("r.json", file)
        self.expect(0, "run", "tiny.yaml", *PAIR, "--resume", "r.json")
        again = json.loads((self.dir / "r.json").read_text())
        self.assertFalse(first(again)["error"].get("rows_outside"))
        self.assertEqual(again["results"][1]["timing"]["samples_us"], kept)

    def test_a_time_beyond_the_device_has_no_rank(self):
        file = self.changed(lambda file: first(file).update(status="implausible", reasons=["fast"]))
        for result in file["results"]:
            result["timing"]["peers"] = ["FLASH_ATTN", "TRITON_ATTN"]
            result["timing"]["rounds"] = [10, 10]
        third = copy.deepcopy(file["results"][1])
        third.update(id=third["id"] + "2", backend=third["backend"] + "2")
        file["results"].append(third)
        self.save("new.json", file)
        outcome = self.expect(0, "report", "new.json")
        table = outcome.out.split("side by side")[1].split("\n\n")[0]
        self.assertNotIn("FLASH_ATTN", table)
        self.assertIn("1 implausible, 2 passed", outcome.out)


class RunWithBaseline(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)

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
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "b.json")
        file = json.loads((self.dir / "b.json").read_text())
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
        self.assertEqual(measured, 400 - kept)
        file = strict_json((self.dir / "r.json").read_text())
        self.assertEqual(len({r["id"] for r in file["results"]}), 400)
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
        self.assertEqual(len(file["results"]), 400)
        self.assertEqual([name for name in self.files() if "tmp" in name], [])

    def test_2_when_the_disk_is_full_and_the_last_complete_state_stays(self):
        self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "r.json")
        before = (self.dir / "r.json").read_bytes()

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
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


class ForeignFormats(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY.replace("bfloat16", "float32"))
        self.expect(0, "run", "tiny.yaml", "--json", "r.json", "--google-benchmark", "g.json",
                    "--github-benchmark", "h.json", "--vllm-csv", "v.csv", "--vllm-json",
                    "v.json")  # fmt: skip
        results = strict_json((self.dir / "r.json").read_text())["results"]
        self.timed = [result for result in results if result["timing"]]
        self.assertLess(len(self.timed), len(results), "an unsupported result is among them")

    def read(self, name):
        return strict_json((self.dir / name).read_text())

    def check(self, json_object, members):
        for key, types in members.items():
            self.assertIn(key, json_object)
            self.assertIsInstance(json_object[key], types, key)

    def test_google_benchmark_has_the_members_that_its_readers_use(self):
        file = self.read("g.json")
        self.check(file["context"], {
            "date": str, "host_name": str, "executable": str, "num_cpus": int,
            "mhz_per_cpu": int, "cpu_scaling_enabled": bool, "caches": list, "load_avg": list,
            "library_build_type": str, "json_schema_version": int,
        })  # fmt: skip
        self.assertEqual(len(file["benchmarks"]), len(self.timed))
        for run, result in zip(file["benchmarks"], self.timed):
            self.check(run, {
                "name": str, "family_index": int, "per_family_instance_index": int,
                "run_name": str, "run_type": str, "repetitions": int, "repetition_index": int,
                "threads": int, "iterations": int, "real_time": float, "cpu_time": float,
                "time_unit": str,
            })  # fmt: skip
            self.assertEqual(run["name"], result["id"])
            self.assertEqual(run["run_type"], "iteration")
            self.assertEqual(run["time_unit"], "us")
            self.assertEqual(run["real_time"], result["timing"]["median_us"])

    def test_github_action_benchmark_takes_the_custom_list(self):
        entries = self.read("h.json")
        self.assertEqual(len(entries), len(self.timed))
        for entry, result in zip(entries, self.timed):
            self.assertLessEqual(set(entry), {"name", "unit", "value", "range", "extra"})
            self.check(entry, {"name": str, "unit": str, "value": float, "range": str,
                               "extra": str})  # fmt: skip
            self.assertEqual(entry["value"], result["timing"]["median_us"])

    def test_vllm_csv_has_its_columns_in_seconds(self):
        rows = list(csv.DictReader(io.StringIO((self.dir / "v.csv").read_text())))
        self.assertEqual(list(rows[0]), ["backend", "batch_spec", "num_layers", "kv_cache_dtype",
                                         "mean_time", "std_time", "throughput",
                                         "memory_mb"])  # fmt: skip
        self.assertEqual(len(rows), len(self.timed))
        for row, result in zip(rows, self.timed):
            self.assertEqual(row["backend"], result["backend"])
            self.assertEqual(row["batch_spec"], result["case"])
            self.assertAlmostEqual(float(row["mean_time"]), result["timing"]["mean_us"] * 1e-6)
            self.assertGreater(float(row["throughput"]), 0)

    def test_vllm_json_has_config_and_times(self):
        entries = self.read("v.json")
        for entry, result in zip(entries, self.timed):
            self.assertEqual(list(entry), ["config", "mean_time", "median_time", "std_time",
                                           "min_time", "max_time", "throughput_tokens_per_sec",
                                           "memory_allocated_mb", "memory_reserved_mb",
                                           "error"])  # fmt: skip
            config = entry["config"]
            self.assertEqual(config["head_dim"], result["problem"]["attention"]["head_size"])
            self.assertEqual(config["num_q_heads"], 4)
            self.assertEqual(config["num_kv_heads"], 2)
            self.assertEqual(config["block_size"], result["problem"]["kv_cache"]["block_size"])
            self.assertAlmostEqual(entry["max_time"], max(result["timing"]["samples_us"]) * 1e-6)
            self.assertIsNone(entry["error"])


if __name__ == "__main__":
    unittest.main()
