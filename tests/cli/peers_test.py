"""Backends in turns through the real binary: what a result file says of them, and what the tables."""

import json
import statistics
import unittest
from pathlib import Path

from result_files import error, peer_results, result_file
from tool import BINARY, SCENARIOS, ToolTest, strict_json

NAIVE = Path(BINARY).resolve().parent / "plugins" / "libnaive_attention.so"
ONE_CASE = ("--filter", "q48_q33,kv_cache.dtype=auto", "--device", "cpu")
NATIVE = ["FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"]


class Peers(ToolTest):
    def run_peers(self, *arguments, code=0):
        results = self.results(SCENARIOS / "smoke-peers.yaml", *ONE_CASE, "--set", "timing.l2=warm",
                               *arguments, code=code)  # fmt: skip
        return {id.split("/", 2)[2]: result for id, result in results.items()}

    def check_turns(self, result, peers):
        self.assertEqual(result["status"], "passed", result["reasons"])
        timing = result["timing"]
        self.assertEqual(timing["rounds"], [2, 2, 2])
        self.assertEqual(timing["peers"], peers)
        samples = iter(timing["samples_us"])
        medians = [statistics.median([next(samples) for _ in range(n)]) for n in timing["rounds"]]
        for stored, expected in zip(timing["round_medians_us"], medians, strict=True):
            self.assertAlmostEqual(stored, expected)
        spread = (max(medians) - min(medians)) / statistics.median(timing["samples_us"])
        self.assertAlmostEqual(timing["round_spread"], spread)

    def test_all_that_pass_take_turns_and_who_is_not_there_is_unsupported(self):
        results = self.run_peers("--plugin", NAIVE)
        plugin = [name for name in results if name not in [*NATIVE, "CUDNN"]]
        self.assertEqual(len(plugin), 1)
        for name in NATIVE + plugin:
            self.check_turns(results[name], NATIVE + plugin)
            self.assertEqual(results[name]["problem"]["timing"]["order"], "alternate")
        self.assertEqual(results["CUDNN"]["status"], "unsupported")
        self.assertTrue(results["CUDNN"]["reasons"][0])

    def test_a_crash_costs_one_backend_and_the_others_take_turns_without_it(self):
        results = self.run_peers("--plant-fault", "crash=/FLASH_ATTN_IX$", code=4)
        self.assertEqual(results["FLASH_ATTN_IX"]["status"], "error")
        self.assertIn("signal 11", results["FLASH_ATTN_IX"]["reasons"][0])
        for name in ("FLASH_ATTN", "TRITON_ATTN"):
            self.check_turns(results[name], ["FLASH_ATTN", "TRITON_ATTN"])

    def test_the_tables_show_the_ratio_to_the_best(self):
        outcome = self.expect(0, "run", SCENARIOS / "smoke-peers.yaml", *ONE_CASE, "--json",
                              "r.json", "--markdown", "r.md", COLUMNS="120")  # fmt: skip
        results = strict_json((self.dir / "r.json").read_text())["results"]
        times = {r["backend"]: r["timing"]["median_us"] for r in results if r["timing"]}
        self.assertEqual(sorted(times), NATIVE)
        shown = outcome.out.split("side by side")[1].splitlines()
        self.assertEqual(shown[1].split(), NATIVE)
        self.assertEqual(shown[2], "q48_q33,kv_cache.dtype=auto")
        ratios = [float(word[:-1]) for word in shown[3].split() if word.endswith("x")]
        cells = [line for line in (self.dir / "r.md").read_text().splitlines()
                 if line.startswith("| q48_q33") and "x**" in line][0].split(" | ")[1:]  # fmt: skip
        for name, ratio, cell in zip(NATIVE, ratios, cells, strict=True):
            expected = times[name] / min(times.values())
            self.assertAlmostEqual(ratio, expected, delta=0.006 * expected)
            self.assertEqual(cell.startswith("**1.00x**"), times[name] == min(times.values()))
        self.assertEqual(self.expect(0, "report", "r.json", COLUMNS="120").out.count("side by"), 1)

    def test_doubtful_times_and_the_cost_of_quantising_stand_beside_the_ratios(self):
        results = peer_results()
        results[0]["timing"].update(waits_us=[18.0] * 20, cpu_wait=0.6)
        for entry, cost in ((results[0], 0.046), (results[2], 0.026)):
            entry["quantization_error"] = error(cost)
        self.write("r.json", json.dumps(result_file(results)))
        out = self.expect(0, "report", "r.json", COLUMNS="160").out
        markdown = self.expect(0, "report", "r.json", "--markdown", "-").out
        shown = out.split("side by side")[1].splitlines()[2:]
        self.assertRegex(shown[1], r"30\.00 us\* 1\.50x +error +20\.00 us 1\.00x$")
        self.assertRegex(shown[2], r" 0\.03, quant 4\.6% .* 0\.05, quant 2\.6%$")
        self.assertNotIn("quant", "".join(shown[3:6]))
        self.assertRegex(markdown, r" 30\.00 us\*, [^|]*, quant 4\.6% \|")

    def test_a_run_without_turns_says_nothing_of_them(self):
        results = self.run_peers("--set", "timing.order=sequential", "--set", "timing.rounds=null")
        for name in NATIVE:
            self.assertEqual(results[name]["status"], "passed")
            for key in ("rounds", "round_medians_us", "round_spread", "peers"):
                self.assertNotIn(key, results[name]["timing"])

    def test_turns_that_cannot_be_are_refused(self):
        for setting, words in (("timing.order=random", "sequential"), ("timing.rounds=0", ">= 1"),
                               ("timing.rounds=2.5", "an integer")):  # fmt: skip
            outcome = self.expect(2, "run", SCENARIOS / "smoke-peers.yaml", "--set", setting)
            self.assertIn(words, outcome.err)


if __name__ == "__main__":
    unittest.main()
