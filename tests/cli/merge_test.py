"""Suites in parts: run --part, by hand, by Slurm's variables and by measured times, and merge."""

import json
import unittest

from tool import ToolTest, strict_json

SWEEP = """\
schema: 1
name: parts
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: [q8, q16, q24, q32]
backends: [FLASH_ATTN]
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""


class Parts(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("parts.yaml", SWEEP)

    def run_part(self, part, name, *options, **environment):
        self.expect(0, "run", "parts.yaml", "--device", "cpu", "--no-timing", "--part", part,
                    "--json", name, *options, **environment)  # fmt: skip
        return self.ids(name)

    def ids(self, name):
        return [result["id"] for result in self.document(name)["results"]]

    def document(self, name):
        return strict_json((self.dir / name).read_text())

    def slurm(self, id):
        return {"SLURM_ARRAY_TASK_ID": str(id), "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_MAX": "20", "SLURM_ARRAY_TASK_COUNT": "2"}  # fmt: skip

    def test_parts_are_merged_to_the_results_of_the_whole(self):
        first = self.run_part("1/2", "a.json")
        second = self.run_part("2/2", "b.json")
        self.assertEqual((len(first), len(second)), (2, 2))
        outcome = self.expect(0, "merge", "a.json", "b.json", "-o", "all.json")
        self.assertIn("all.json: 4 results of 2 files", outcome.out)
        outcome = self.expect(0, "merge", "all.json", "-o", "again.json")
        self.assertEqual(outcome.out, "again.json: 4 results of 1 file\n")
        whole = self.results("parts.yaml", "--device", "cpu", "--no-timing")
        self.assertEqual(sorted(self.ids("all.json")), sorted(whole))
        self.expect(0, "gate", "all.json", "all.json")
        self.expect(0, "report", "all.json")

    def test_a_part_is_held_against_its_part_of_a_baseline(self):
        self.expect(0, "run", "parts.yaml", "--device", "cpu", "--no-timing", "--json", "base.json")
        base = self.document("base.json")
        for part in ("1/2", "2/2"):
            outcome = self.expect(0, "run", "parts.yaml", "--device", "cpu", "--no-timing",
                                  "--part", part, "--baseline", "base.json")  # fmt: skip
            self.assertNotIn("MISSING", outcome.out)
        # What the suite no longer has is missing all the same.
        self.write("parts.yaml", SWEEP.replace(", q32", ""))
        outcome = self.expect(1, "run", "parts.yaml", "--device", "cpu", "--no-timing",
                              "--part", "1/2", "--baseline", "base.json")  # fmt: skip
        self.assertIn("1 MISSING", outcome.out)
        self.assertEqual(len(base["results"]), 4)

    def test_slurm_parts_are_numbered_by_the_array_with_its_step(self):
        by_hand = self.run_part("2/2", "hand.json")
        self.assertEqual(self.run_part("slurm", "slurm.json", **self.slurm(20)), by_hand)
        self.assertIn("2/2", self.document("slurm.json")["command"])

    def test_slurm_outside_of_an_array_is_bad_usage(self):
        outcome = self.expect(2, "run", "parts.yaml", "--part", "slurm")
        self.assertIn("expected a number in SLURM_ARRAY_TASK_MIN", outcome.err)

    def test_parts_by_measured_times_put_the_dearest_case_by_itself(self):
        self.expect(0, "run", "parts.yaml", "--device", "cpu", "--json", "costs.json")
        document = self.document("costs.json")

        def check_parts():
            self.write("costs.json", json.dumps(document))
            costs = ("--part-costs", "costs.json")
            self.assertEqual(self.run_part("1/2", "a.json", *costs), ["parts/q32/FLASH_ATTN"])
            self.assertEqual(len(self.run_part("2/2", "b.json", *costs)), 3)

        for result in document["results"]:
            self.assertGreater(result["run_seconds"]["timing"], 0)
            result["run_seconds"] = {"inputs": 9.0 if "q32" in result["case"] else 0.01}
        check_parts()
        for result in document["results"]:  # a file of an earlier version
            del result["run_seconds"]
            dear = "q32" in result["case"]
            result["timing"]["samples_us"] = [9000.0 if dear else 10.0] * 3
        check_parts()

    def test_costs_without_a_part_are_bad_usage(self):
        self.run_part("1/1", "a.json")
        outcome = self.expect(2, "run", "parts.yaml", "--part-costs", "a.json")
        self.assertIn("expected --part with it", outcome.err)

    def test_an_id_in_two_files_is_named_and_nothing_is_written(self):
        self.run_part("1/2", "a.json")
        self.run_part("1/2", "b.json")
        outcome = self.expect(2, "merge", "a.json", "b.json", "-o", "all.json")
        self.assertIn("parts/q8/FLASH_ATTN is in a.json and in b.json", outcome.err)
        self.assertFalse((self.dir / "all.json").exists())

    def test_a_missing_part_is_named(self):
        self.run_part("1/3", "a.json")
        self.run_part("3/3", "c.json")
        outcome = self.expect(2, "merge", "a.json", "c.json", "-o", "all.json")
        self.assertIn("part 2/3 is missing", outcome.err)
        self.assertFalse((self.dir / "all.json").exists())
        outcome = self.expect(0, "merge", "a.json", "c.json", "-o", "all.json", "--incomplete")
        self.assertIn("part 2/3 is missing", outcome.err)
        self.assertEqual(len(self.ids("all.json")), 3)

    def test_files_of_another_build_are_refused(self):
        self.run_part("1/2", "a.json")
        self.run_part("2/2", "b.json")
        document = self.document("b.json")
        document["tool"]["git"] = "0000000"
        self.write("b.json", json.dumps(document))
        outcome = self.expect(2, "merge", "a.json", "b.json", "-o", "all.json")
        self.assertIn("b.json of 0000000", outcome.err)
        self.expect(0, "merge", "a.json", "b.json", "-o", "all.json", "--ignore-environment")

    def test_parts_of_other_seeds_are_refused(self):
        self.run_part("1/2", "a.json")
        self.run_part("2/2", "b.json", "--seed", "7")
        outcome = self.expect(2, "merge", "a.json", "b.json", "-o", "all.json")
        self.assertIn("inputs.seed of parts is 0 in a.json and 7 in b.json", outcome.err)
        self.assertFalse((self.dir / "all.json").exists())
        self.expect(2, "merge", "a.json", "b.json", "-o", "all.json", "--ignore-environment")
        self.run_part("2/2", "b.json")
        self.expect(0, "merge", "a.json", "b.json", "-o", "all.json")

    def test_merge_does_not_write_over_what_it_reads(self):
        self.run_part("1/1", "a.json")
        self.expect(2, "merge", "a.json", "-o", "a.json")


if __name__ == "__main__":
    unittest.main()
