"""Results in the formats of other tools that follow benchmarks over time."""

import csv
import io
import unittest

from tool import TINY, ToolTest, strict_json


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
