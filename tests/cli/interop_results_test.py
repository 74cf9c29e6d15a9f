"""Results in the formats of other programs, both ways: what is written is read by their readers where a
package has them, and files of their writers are read by report and gate.

tests/data/interop holds a run of google-benchmark, a run of nvbench on the CPU with its binary samples (the
library of cuda-bench 0.3.0), and what the writers of vLLM's attention_benchmarks and of cuDNN's SDPA
benchmark make of a few times. Times of a GPU have the form of that printer's (nvbench_file below).
"""

import csv
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import unittest

from tool import BINARY, ROOT, TIME_LIMIT_S, TINY, ToolTest, skip_without, strict_json, thorough

DATA = ROOT / "tests" / "data" / "interop"
DEPS = ROOT / "build" / "deps" / "python"
LINE = re.compile(r'^(\w+)\{scenario="([^"]*)",case="([^"]*)",backend="([^"]*)",device="([^"]*)"\} (\S+)$')


# Otava's importer, without what its other sources and its statistics import.
OTAVA = """\
import importlib, json, sys
from datetime import datetime, timedelta, timezone
from unittest.mock import MagicMock

def imported(name):
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.split(".")[0] in ("otava", "dateparser", "pytz", "numpy"):
                raise
            sys.modules[error.name] = MagicMock()

importer, config, selector = map(imported, ("otava.importer", "otava.test_config", "otava.data_selector"))
with open(sys.argv[1]) as file:
    names = file.readline().strip().split(",")[2:]
test = config.CsvTestConfig("attnbench", sys.argv[1], time_column="time", attributes=["commit"],
                            metrics=[config.CsvMetric(name, -1, 1.0, name) for name in names])
now = datetime.now(timezone.utc)
chosen = selector.DataSelector()
chosen.since_time, chosen.until_time = now - timedelta(days=1), now + timedelta(days=1)
series = importer.CsvImporter().fetch_data(test, chosen)
print(json.dumps({"time": series.time, "attributes": series.attributes, "data": series.data}))
"""
PROMETHEUS = """\
import json, sys
from prometheus_client.parser import text_fd_to_metric_families
with open(sys.argv[1]) as file:
    families = {family.name: {"type": family.type, "help": family.documentation,
                              "samples": [[sample.labels, sample.value] for sample in family.samples]}
                for family in text_fd_to_metric_families(file)}
print(json.dumps(families))
"""


def nvbench_file(factor=1.0, sidecar=None):
    """Two states of a benchmark and one that was skipped, with the summaries of a cold measurement."""
    value = lambda number: {"name": "value", "type": "float64", "value": str(number)}
    times = {"min": 1.0e-5, "max": 1.3e-5, "mean": 1.1e-5, "q1": 1.05e-5, "median": 1.1e-5, "q3": 1.15e-5}

    def state(keys, scale):
        summaries = [{"tag": f"nv/cold/time/gpu/{part}", "name": part, "hint": "duration",
                      "data": [value(time * scale * factor)]} for part, time in times.items()]  # fmt: skip
        if sidecar:
            summaries.append({"tag": "nv/json/bin:nv/cold/sample_times", "name": "Samples Times File",
                              "data": [{"name": "filename", "type": "string", "value": sidecar}]})  # fmt: skip
        return {"name": f"Device=0 Keys={keys}", "device": 0, "is_skipped": False, "summaries": summaries,
                "axis_values": [{"name": "Keys", "type": "int64", "value": str(keys)}]}  # fmt: skip

    skipped = {"name": "Device=0 Keys=9", "device": 0, "is_skipped": True, "skip_reason": "too few",
               "summaries": None, "axis_values": [{"name": "Keys", "type": "int64", "value": "9"}]}  # fmt: skip
    return {"meta": {"argv": ["bench"], "version": {"json": {"string": "1.0.0"},
                                                    "nvbench": {"string": "0.1.0"}}},
            "devices": [{"id": 0, "name": "NVIDIA H200", "sm_version": 900, "number_of_sms": 132}],
            "benchmarks": [{"name": "decode", "index": 0, "devices": [0], "axes": [],
                            "states": [state(1024, 1), state(8192, 7), skipped]}]}  # fmt: skip


class Written(ToolTest):
    """A run in every format, and the results that it was of."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.texts = None

    def setUp(self):
        super().setUp()
        names = ("bencher", "otava-csv", "nvbench-json", "cudnn-csv", "prometheus")
        if Written.texts is None:
            text = TINY.replace("bfloat16", "float32").replace("q32_4q1s100", "[q32, 4q1s100, q32_4q1s100]")
            self.write("tiny.yaml", text)
            options = [word for name in names for word in (f"--{name}", name)]
            self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--json", "r.json", *options)
            Written.texts = {name: (self.dir / name).read_text() for name in names}
            Written.file = strict_json((self.dir / "r.json").read_text())
        self.timed = {r["id"]: r for r in Written.file["results"] if r["timing"]}
        self.assertEqual(len(self.timed), 3)

    def test_bencher_metric_format(self):
        benchmarks = strict_json(self.texts["bencher"])
        self.assertEqual(list(benchmarks), list(self.timed))
        for name, measures in benchmarks.items():
            for measure in measures.values():
                self.assertLessEqual(set(measure), {"value", "lower_value", "upper_value"})
                self.assertTrue(all(isinstance(number, (int, float)) for number in measure.values()))
            latency, timing = measures["latency"], self.timed[name]["timing"]
            self.assertAlmostEqual(latency["value"], timing["median_us"] * 1e3)
            self.assertLessEqual(latency["lower_value"], latency["value"])
            self.assertGreaterEqual(latency["upper_value"], latency["value"])

    def test_a_row_for_otava(self):
        header, row = csv.reader(self.texts["otava-csv"].splitlines())
        self.assertEqual(header, ["time", "commit", *sorted(self.timed)])
        self.assertEqual(row[0], Written.file["created"])
        self.assertEqual(row[1], Written.file["tool"]["git"])
        for name, value in zip(header[2:], row[2:]):
            self.assertAlmostEqual(float(value), self.timed[name]["timing"]["median_us"])

    def test_nvbench_json_has_a_benchmark_by_backend_and_is_read_again(self):
        json_file = self.write("n.json", self.texts["nvbench-json"])
        root = strict_json(self.texts["nvbench-json"])
        self.assertEqual(root["meta"]["version"]["json"]["string"], "1.0.0")
        (bench,) = root["benchmarks"]
        self.assertEqual([state["axis_values"][0]["value"] for state in bench["states"]],
                         [result["case"] for result in self.timed.values()])  # fmt: skip
        out = self.expect(0, "report", json_file).out
        for result in self.timed.values():
            self.assertIn(result["case"], out)

    def test_the_reader_of_nvbench_takes_its_json(self):
        json_file = self.write("n.json", self.texts["nvbench-json"])
        (bench,) = strict_json(self.texts["nvbench-json"])["benchmarks"]
        reader = DEPS / "cuda" / "bench" / "results" / "_benchmark_result.py"
        if not reader.is_file():
            skip_without("cuda-bench in build/deps/python")
        spec = importlib.util.spec_from_file_location("nvbench_results", reader)
        module = importlib.util.module_from_spec(spec)
        sys.modules["nvbench_results"] = module
        spec.loader.exec_module(module)
        read = module.BenchmarkResult.from_json(json_file)
        self.assertEqual(len(list(read[bench["name"]])), 3)

    def test_the_columns_of_cudnn_hold_batches_of_equal_requests(self):
        rows = list(csv.DictReader(self.texts["cudnn-csv"].splitlines()))
        theirs = list(csv.DictReader((DATA / "cudnn_sdpa.csv").read_text().splitlines()))
        merged = [name for name in theirs[0] if not name.startswith(("fwd_", "bwd_"))]
        self.assertEqual([name for name in rows[0] if name not in ("time_ms", "tflops")], merged)
        found = {(row["attn_mask"], row["batch_size"], row["q_seqlen"], row["kv_seqlen"]) for row in rows}
        self.assertEqual(found, {("top_left", "1", "32", "32"), ("bottom_right", "4", "1", "100")})

    def test_prometheus_gauges(self):
        gauges = {}
        for line in self.texts["prometheus"].splitlines():
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP attnbench_\w+ \S.*|TYPE attnbench_\w+ gauge)$")
                continue
            name, scenario, case, backend, device, value = LINE.match(line).groups()
            gauges.setdefault(name, {})[f"{scenario}/{case}/{backend}"] = float(value)
        for name, seconds in gauges["attnbench_time_seconds"].items():
            self.assertAlmostEqual(seconds, self.timed[name]["timing"]["median_us"] * 1e-6)
        self.assertEqual(set(gauges["attnbench_passed"].values()), {1.0})


class TheirReaders(ToolTest):
    """Packages of the other programs take what is written here."""

    def read_by(self, package, script, *arguments):
        """What a script prints that has the packages of scripts/test. In a process of its own: some of what Otava
        imports, and does not need for reading, is replaced there."""
        if not (DEPS / package).is_dir():
            skip_without(f"{package} in build/deps/python")
        path = os.pathsep.join([str(DEPS), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "-B", "-c", script, *map(str, arguments)], cwd=self.dir, text=True,
                              env=self.environment(PYTHONPATH=path), capture_output=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return strict_json(done.stdout)

    def run_in_every_format(self):
        text = TINY.replace("bfloat16", "float32").replace("q32_4q1s100", "[q32, 4q1s100]")
        self.write("tiny.yaml", text)
        self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--json", "r.json", "--otava-csv", "otava.csv",
                    "--prometheus", "a.prom")  # fmt: skip
        return strict_json((self.dir / "r.json").read_text())

    def test_otava_s_importer_takes_the_rows_of_several_runs(self):
        runs = [self.run_in_every_format()]
        rows = (self.dir / "otava.csv").read_text().splitlines()
        while len(rows) < 4:  # as the page says: rows of several runs make the history
            time.sleep(1.1)  # one has the time of a second
            runs.append(self.run_in_every_format())
            header, row = (self.dir / "otava.csv").read_text().splitlines()
            self.assertEqual(header, rows[0])
            rows.append(row)
        (self.dir / "history.csv").write_text("\n".join(rows) + "\n")
        series = self.read_by("otava", OTAVA, "history.csv")
        self.assertEqual(series["attributes"], {"commit": [run["tool"]["git"] for run in runs]})
        self.assertEqual(series["time"], sorted(set(series["time"])))
        self.assertEqual(len(series["time"]), 3)
        timed = [{r["id"]: r["timing"]["median_us"] for r in run["results"] if r["timing"]} for run in runs]
        self.assertEqual(set(series["data"]), set(timed[0]))
        for name, values in series["data"].items():
            for value, of_run in zip(values, timed):
                self.assertAlmostEqual(value, of_run[name])

    def test_prometheus_s_parser_takes_the_gauges(self):
        results = self.run_in_every_format()["results"]
        families = self.read_by("prometheus_client", PROMETHEUS, "a.prom")
        for name, family in families.items():
            self.assertEqual(family["type"], "gauge", name)
            self.assertTrue(family["help"], name)
        times = {labels["case"] + "/" + labels["backend"]: value
                 for labels, value in families["attnbench_time_seconds"]["samples"]}  # fmt: skip
        timed = {r["case"] + "/" + r["backend"]: r["timing"]["median_us"] * 1e-6 for r in results if r["timing"]}
        self.assertEqual(set(times), set(timed))
        for name, value in times.items():
            self.assertAlmostEqual(value, timed[name])


class Read(ToolTest):
    def table(self, file, *options):
        return self.expect(0, "report", file, *options)

    def test_report_shows_each_of_them_and_says_whose_they_are(self):
        nvbench = self.write("nvbench.json", json.dumps(nvbench_file()))
        for file, tool, words in (
            (DATA / "google_benchmark.json", "google-benchmark", ["BM_Sum/1000", "no device"]),
            (DATA / "vllm.json", "vLLM", ["8q1s1k", "20.00 us", "FlashInfer, not installed"]),
            (DATA / "vllm.csv", "vLLM", ["8q1s1k", "21.00 us"]),
            (DATA / "cudnn_sdpa.csv", "cuDNN", ["452.0 us", "1.310 ms", " 608 ", "heuristics failed"]),
            (DATA / "nvbench.json", "nvbench 0.1.0", ["Keys=1000", "20.28 ms", "20.32 ms", "too many keys"]),
            (nvbench, "nvbench 0.1.0", ["Keys=1024", "11.00 us", "77.00 us", "too few"]),
        ):
            outcome = self.table(file)
            self.assertIn(f"results of {tool}", outcome.err)
            self.assertNotIn(" ,", outcome.err)  # google-benchmark 1.7.1 does not say its version
            for word in words:
                self.assertIn(word, outcome.out)
        self.table(DATA / "vllm.json", "-o", "page.html")
        self.assertIn("8q1s1k", (self.dir / "page.html").read_text())

    def test_samples_are_those_of_repetitions_and_of_binary_files(self):
        (self.dir / "n.json-bin").mkdir()
        samples = [2e-5, 2.5e-5, 4e-5]
        (self.dir / "n.json-bin" / "0.bin").write_bytes(struct.pack("<3f", *samples))
        file = self.write("n.json", json.dumps(nvbench_file(sidecar="n.json-bin/0.bin")))
        self.assertIn("25.00 us", self.table(file).out)
        runs = [run for run in json.loads((DATA / "google_benchmark.json").read_text())["benchmarks"]
                if run["run_name"] == "BM_Sum/1000/repeats:3" and run["run_type"] == "iteration"]  # fmt: skip
        median = sorted(run["real_time"] for run in runs)[1]
        self.assertIn(f"{median / 1e3:.4g}", self.table(DATA / "google_benchmark.json").out)

    def test_a_run_of_nvbench_has_its_samples_beside_it_on_the_cpu_too(self):
        shutil.copy(DATA / "nvbench.json", self.dir)
        shutil.copytree(DATA / "nvbench.json-bin", self.dir / "nvbench.json-bin")
        samples = self.dir / "nvbench.json-bin" / "0.bin"
        median = sorted(struct.unpack("<5f", samples.read_bytes()))[2]
        self.assertIn(f"{1e3 * median:.2f} ms", self.table("nvbench.json").out)
        # Other samples than those of the summaries.
        samples.write_bytes(struct.pack("<3f", 0.5, 0.25, 0.125))
        self.assertIn("250.0 ms", self.table("nvbench.json").out)

    def test_a_gate_takes_them_when_it_is_lenient_and_sees_what_got_slower(self):
        before = self.write("before.json", json.dumps(nvbench_file()))
        slower = self.write("slower.json", json.dumps(nvbench_file(3)))
        self.assertIn("unverified", self.expect(2, "gate", before, slower).err)
        self.expect(0, "gate", before, before, "--lenient")
        outcome = self.expect(1, "gate", before, slower, "--lenient")
        self.assertIn("SLOWER", outcome.out.upper())
        for name in ("vllm.json", "vllm.csv", "cudnn_sdpa.csv", "google_benchmark.json", "nvbench.json"):
            self.assertIn(self.tool("gate", DATA / name, DATA / name, "--lenient").code, (0, 1), name)

    def test_a_mean_alone_is_no_proof_of_a_slowdown(self):
        rows = (DATA / "vllm.csv").read_text()
        slower = self.write("slower.csv", rows.replace("2.1e-05", "9.1e-05"))
        outcome = self.expect(0, "gate", DATA / "vllm.csv", slower, "--lenient")
        self.assertIn("a single sample has no spread", outcome.out)

    def test_medians_are_taken_where_there_are_only_aggregates(self):
        file = json.loads((DATA / "google_benchmark.json").read_text())
        file["benchmarks"] = [run for run in file["benchmarks"] if run["run_type"] == "aggregate"]
        medians = [run for run in file["benchmarks"] if run["aggregate_name"] == "median"]
        self.assertTrue(medians)
        out = self.table(self.write("g.json", json.dumps(file))).out
        for run in medians:
            self.assertIn(f"{run['real_time'] / 1e3:.4g}", out)
        file["benchmarks"] = [run for run in file["benchmarks"] if run["aggregate_name"] == "mean"]
        self.write("means.json", json.dumps(file))
        for command in (("report", "means.json"), ("gate", "means.json", "means.json", "--lenient")):
            outcome = self.expect(2, *command)
            self.assertIn("means.json: expected the result of a benchmark, found none", outcome.err)
            self.assertNotIn("gate passed", outcome.out)

    def test_json_of_another_form_than_its_programs_is_the_inputs_fault(self):
        for file in ({"benchmarks": [], "meta": {"version": 1}}, [{"config": {}, "mean_time": 1}, 5],
                     {"benchmarks": [5], "context": {}}, {"benchmarks": [], "meta": {}}):  # fmt: skip
            outcome = self.expect(2, "report", self.write("f.json", json.dumps(file)))
            self.assertIn("E-FORMAT: ", outcome.err)
            self.assertIn("f.json: ", outcome.err)

    def test_files_that_only_begin_like_one_are_refused(self):
        cases = [("a.csv", "backend,batch_spec,mean_time\nA,q1,-2\n", "expected a time > 0, found -2"),
                 ("b.csv", "backend,batch_spec,mean_time\nA,q1\n", "expected 3 fields, found 2"),
                 ("c.csv", "backend,batch_spec,mean_time\nA,q1,soon\n", "expected a number, found 'soon'"),
                 ("d.csv", 'backend,batch_spec,mean_time\nA,"q1,3\n', "a quoted field does not end")]  # fmt: skip
        for name, text, words in cases:
            self.assertIn(words, self.expect(2, "report", self.write(name, text)).err)


class SpeedOfLight(ToolTest):
    def test_shares_and_scores_follow_from_work_ceilings_and_times(self):
        self.write("tiny.yaml", TINY.replace("bfloat16", "float32"))
        self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--json", "r.json")
        file = strict_json((self.dir / "r.json").read_text())
        (result,) = [r for r in file["results"] if r["timing"]]
        rate, timing = result["throughput"], result["timing"]
        share = rate["roofline_pct"] / 100
        out = self.expect(0, "report", "r.json", "--sol").out
        self.assertIn(f"{100 * share:.0f}%", out)
        self.assertIn("0.50", out)  # the baseline is the fastest, which it is itself
        # Twice as slow: S = 1 / (1 + (2t - t_sol) / (t - t_sol)).
        half = json.loads(json.dumps(file))
        (slow,) = [r for r in half["results"] if r["timing"]]
        for key in ("median_us", "min_us", "q1_us", "q3_us", "mean_us", "stdev_us"):
            slow["timing"][key] *= 2
        slow["timing"]["samples_us"] = [2 * sample for sample in timing["samples_us"]]
        slow["timing"]["waits_us"] = [0 for _ in timing["samples_us"]]
        slow["timing"]["cpu_wait"] = 0
        for key in ("tflops", "gbps", "kv_gbps", "tokens_per_s", "roofline_pct", "physics_pct"):
            if key in slow["throughput"]:
                slow["throughput"][key] /= 2
        self.write("slow.json", json.dumps(half))
        score = 1 / (1 + (2 - share) / (1 - share))
        out = self.expect(0, "report", "r.json", "slow.json", "--sol").out
        self.assertIn(f"{score:.2f}", out.rpartition("slow.json")[2])
        self.assertIn("no timed result of NOBODY",
                      self.expect(2, "report", "r.json", "--sol", "--sol-baseline", "NOBODY").err)  # fmt: skip


class Documentation(ToolTest):
    @thorough
    def test_the_examples_of_the_page_run(self):
        text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8").partition("## Results for other")[2]
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        self.assertEqual(len(blocks), 3)
        shutil.copy(DATA / "vllm.json", self.dir)
        script = f'attnbench() {{ "{BINARY}" "$@"; }}\n' + "".join(blocks)
        done = subprocess.run(["bash", "-euc", script], cwd=self.dir, env=self.environment(),
                              capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("score", done.stdout)
        for name in ("bmf.json", "otava.csv", "nvbench.json", "sdpa.csv", "attnbench.prom", "vllm.html"):
            self.assertGreater((self.dir / name).stat().st_size, 100, name)


if __name__ == "__main__":
    unittest.main()
