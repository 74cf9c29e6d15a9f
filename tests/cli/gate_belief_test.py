"""What the gate says of result files that somebody changed by hand."""

import copy
import json
import unittest

from gates import PAIR, GateFiles, steady
from timings import rates, retime, timing_of


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
    (change("timing", samples_us=[0.0] * 20), 2, "timing.samples_us[0] is 0, but a time is"),
    (change("timing", samples_us=[-100.0] * 20), 2, "timing.samples_us[0] is -100"),
    (change("timing", samples_us=[None] * 20), 2, "timing.samples_us has the wrong type"),
    (change("timing", rounds=[30]), 2, "the rounds are not those of samples_us"),
    (change("timing", launch_overhead_us=-4.0), 2, "timing.launch_overhead_us is -4"),
    (change("timing", samples_sm_mhz=[1500.0]), 2, "timing.samples_sm_mhz has 1 values, but"),
    (change("timing", waits_us=[1.0]), 2, "timing.waits_us has 1 values, but samples_us has 20"),
    (scale_waits(1.5), 2, "timing.waits_us[0] is 149"),
    (scale_waits(0.9), 1, "waits_us are at least 90% of every sample"),
    (drop_slow_samples, 2, "timing.median_us is 100"),
    (faster, 2, "throughput.tflops is"),
    (beyond_the_device, 2, "throughput.physics_pct is 300, above 110, but the status is 'passed'"),
    (change("throughput", tflops=1e3), 2, "throughput.tflops is 1000"),
    (change("throughput", gbps=1e9), 2, "throughput.gbps is 1e+09"),
    (lambda file: first(file).update(timing=None), 2, "but there is no timing"),
    (lambda file: first(file).update(timing=None, throughput=None), 1,
     "timed in the baseline, no timing in the results"),
    (lambda file: first(file).update(error=None), 2, "error is missing, but the result passed"),
    (lambda file: first(file).update(lse_error=None), 1, "lse_error is missing in the results"),
    (change("error", checked_rows=0), 2, "error.checked_rows is 0 of 36 rows, but the result"),
    (change("error", checked_rows=35), 1, "error.checked_rows: 36 in the baseline, 35 in the"),
    (change("error", checked_rows=37), 2, "error.checked_rows is 37, more than total_rows 36"),
    (change("error", total_rows=2, checked_rows=2, screened_rows=0), 1,
     "error.total_rows: 36 in the baseline"),
    (change("error", rows_outside=1), 2, "error.rows_outside is 1, but the result passed"),
    (change("error", row_error=2.0, row_limit=1.0), 2, "error.row_error is 2, above row_limit 1, but the"),
    (change("error", row_error=0.5, row_limit=None), 2, "error.row_error is 0.5, but row_limit is nan"),
    (change("error", max_abs=-1.0), 2, "error.max_abs is -1"),
    (change("error", err_ratio=None), 1, "error.err_ratio is missing in the results"),
    (change("lse_error", nmse=None), 1, "lse_error.nmse is missing in the results"),
    (change("error", checked_rows=0, total_rows=0, screened_rows=0), 2,
     "error.checked_rows is 0 of 0 rows, but the result passed"),
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
    (lambda file: first(file)["problem"]["timing"].update(l2="cold"), 2, "timing.l2: \"warm\" in"),
    (lambda file: file["results"].append(first(file)), 2, "two results have the id"),
    (lambda file: file["results"].pop(0), 1, "in the baseline, not in the results"),
    (floor(0.9), 2, "noise_floor.all_cases is 0.9, but a noise floor lies between 0 and 0.2"),
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
        self.assertIn("new.json: 1 result cannot be believed", outcome.err)
        self.assertIn("cannot be believed: timing.median_us is 50", " ".join(outcome.out.split()))
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


if __name__ == "__main__":
    unittest.main()
