"""run --history, attnbench history, attnbench diff, and result files in other formats."""

import csv
import functools
import io
import json
import resource
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

from result_files import failed, result, result_file, timed
from timings import retime
from tool import BINARY, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json


def line(day, median_us, backend="FLASH_ATTN", **fields):
    return json.dumps({
        "schema_version": 1, "created": f"2026-{1 + day // 28:02}-{1 + day % 28:02}T03:00:00Z",
        "version": "0.1.0", "git": f"c{day:03}", "fingerprint": "f" * 16, "device": "cpu",
        "device_name": "CPU", "plugin": None, "id": f"decode/q1s1k/{backend}", "status": "passed",
        "median_us": median_us, "max_abs": 1e-3, **fields,
    })  # fmt: skip


def nightly(levels, **fields):
    """A night each, with 1 % of noise that no split can take for a step."""
    return [line(day, level * (1 + 0.01 * ((day * 0.6180339887) % 1 - 0.5)), **fields)
            for day, level in enumerate(levels)]  # fmt: skip


class History(ToolTest):
    def history(self, lines, *arguments, code=0):
        self.write("h.jsonl", "".join(text + "\n" for text in lines))
        return self.expect(code, "history", "h.jsonl", *arguments)

    def changes(self, lines, *arguments):
        out = self.history(lines, "--json", "-", *arguments).out
        return {series["id"]: series["changes"] for series in strict_json(out)["series"]}

    def test_a_run_begins_a_line_behind_one_that_was_cut_off(self):
        self.write("tiny.yaml", TINY + "backends: [FLASH_ATTN]\n")
        self.write("h.jsonl", line(0, 100) + "\n" + line(1, 100)[:40])
        self.expect(0, "run", "tiny.yaml", "--no-timing", "--history", "h.jsonl")
        lines = (self.dir / "h.jsonl").read_text().splitlines()
        self.assertEqual([text[:19] for text in lines], ['{"schema_version": 1'[:19]] * 2
                         + ['{"schema_version":1'])  # fmt: skip
        read = strict_json(self.expect(0, "history", "h.jsonl", "--json", "-").out)["series"]
        self.assertEqual([series["id"] for series in read],
                         ["decode/q1s1k/FLASH_ATTN", f"tiny/{TINY_CASE}/FLASH_ATTN"])  # fmt: skip
        self.write("h.jsonl", line(0, 100))
        self.expect(0, "run", "tiny.yaml", "--no-timing", "--history", "h.jsonl")
        self.assertEqual(len((self.dir / "h.jsonl").read_text().splitlines()), 2)

    def test_a_full_disk_leaves_no_part_of_a_line(self):
        self.write("tiny.yaml", TINY + "backends: [FLASH_ATTN]\n")
        text = line(0, 100) + "\n"
        self.write("h.jsonl", text)
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (len(text) + 100,) * 2)
        done = subprocess.run([BINARY, "run", "tiny.yaml", "--no-timing", "--history", "h.jsonl"], cwd=self.dir,
                              capture_output=True, text=True, preexec_fn=limit, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("cannot write 'h.jsonl': ", done.stderr)
        self.assertEqual((self.dir / "h.jsonl").read_text(), text)

    def test_a_folder_is_no_history(self):
        self.assertIn(".: expected a readable file, found a folder",
                      self.expect(2, "history", ".").err)  # fmt: skip

    def test_a_run_appends_a_line_for_every_result(self):
        self.write("tiny.yaml", TINY + "backends: [FLASH_ATTN, TRITON_ATTN]\n")
        for _ in range(2):
            self.expect(0, "run", "tiny.yaml", "--history", "h.jsonl", "--json", "r.json")
        lines = [strict_json(text) for text in (self.dir / "h.jsonl").read_text().splitlines()]
        self.assertEqual([entry["id"] for entry in lines],
                         [f"tiny/{TINY_CASE}/FLASH_ATTN", f"tiny/{TINY_CASE}/TRITON_ATTN"] * 2)
        newest = strict_json((self.dir / "r.json").read_text())
        self.assertEqual(lines[2]["median_us"], newest["results"][0]["timing"]["median_us"])
        self.assertEqual(lines[2]["max_abs"], newest["results"][0]["error"]["max_abs"])
        self.assertEqual(lines[2]["fingerprint"], newest["environment"]["fingerprint"])
        out = self.expect(0, "history", "h.jsonl").out
        self.assertIn("in 2 runs since", out)
        self.assertIn("median_us: 2 cases, 0 changed", out)

    def test_a_slowdown_and_its_repair_are_found_where_they_happened(self):
        found = self.changes(nightly([100] * 20 + [110] * 6 + [100] * 10))
        changes = found["decode/q1s1k/FLASH_ATTN"]
        self.assertEqual([change["git"] for change in changes], ["c020", "c026"])
        self.assertAlmostEqual(changes[0]["before"], 100, delta=0.5)
        self.assertAlmostEqual(changes[0]["after"], 110, delta=0.5)
        self.assertLess(changes[0]["p"], 1e-3)
        out = self.history(nightly([100] * 20 + [110] * 6)).out
        self.assertRegex(out, r"worse +\+10\.\d %  \d+\.\d+ us -> 1\d\d\.\d us  since 2026-01-21, "
                              r"attnbench c020 \(20 runs before, 6 after\)")  # fmt: skip

    def test_noise_outliers_and_small_steps_are_no_change(self):
        for levels in ([100] * 40, [100] * 15 + [180] + [100] * 15, [100] * 20 + [101] * 20):
            self.assertEqual(self.changes(nightly(levels)), {"decode/q1s1k/FLASH_ATTN": []})
        small = nightly([100] * 20 + [101] * 20)
        self.assertEqual(len(self.changes(small, "--min-change", "0.5%")["decode/q1s1k/FLASH_ATTN"]), 1)

    def test_machines_are_told_apart(self):
        lines = nightly([100] * 10) + nightly([300] * 10, fingerprint="e" * 16)
        series = strict_json(self.history(lines, "--json", "-").out)["series"]
        self.assertEqual([len(one["values"]) for one in series], [10, 10])
        self.assertEqual([one["changes"] for one in series], [[], []])

    def test_cases_are_selected_and_failures_have_no_value(self):
        lines = nightly([100] * 8) + nightly([50] * 8, backend="TRITON_ATTN")
        lines.append(line(9, None, status="incorrect"))
        out = self.history(lines, "--backend", "FLASH_ATTN").out
        self.assertNotIn("TRITON", out)
        self.assertIn("1 without a value; last incorrect", out)
        self.assertIn("last incorrect", self.history(lines, "--filter", "FLASH").out)
        error = self.history(lines, "--filter", "nothing", code=3).err
        self.assertEqual(error, "attnbench: no result matches --filter 'nothing'\n")
        self.assertIn("max_abs: 2 cases", self.history(lines, "--metric", "max_abs").out)

    def test_a_line_that_was_cut_off_is_left_out_and_a_foreign_file_is_refused(self):
        self.write("cut.jsonl", line(1, 100.0) + "\n" + line(2, 100.0)[:40])
        self.assertIn("in 1 run since", self.expect(0, "history", "cut.jsonl").out)
        self.write("foreign.jsonl", line(1, 100.0) + '\n{"a": 1}\n')
        self.assertIn("foreign.jsonl:2: expected a line that 'run --history' wrote",
                      self.expect(2, "history", "foreign.jsonl").err)  # fmt: skip
        self.assertIn("none.jsonl", self.expect(2, "history", "none.jsonl").err)
        self.write("tiny.yaml", TINY)
        self.expect(2, "run", "tiny.yaml", "--history", "-")
        self.expect(2, "run", "tiny.yaml", "--history", "no/such/folder/h.jsonl")

    def test_otava_gets_a_csv_for_each_case_and_its_configuration(self):
        lines = nightly([100] * 8) + nightly([50] * 8, backend="TRITON_ATTN")
        self.history(lines, "--otava", "otava")
        names = [f"decode_q1s1k_{backend}-ffffffff" for backend in ("FLASH_ATTN", "TRITON_ATTN")]
        self.assertEqual(sorted(file.name for file in (self.dir / "otava").iterdir()),
                         [*(f"{name}.csv" for name in names), "otava.yaml"])  # fmt: skip
        rows = list(csv.DictReader(io.StringIO((self.dir / "otava" / f"{names[0]}.csv").read_text())))
        self.assertEqual(list(rows[0]), ["time", "commit", "median_us"])
        self.assertEqual(len(rows), 8)
        self.assertAlmostEqual(float(rows[0]["median_us"]), 100, delta=1)
        text = (self.dir / "otava" / "otava.yaml").read_text()
        self.assertIn(f"  {names[1]}:\n    type: csv\n    file: {names[1]}.csv\n", text)
        self.assertIn("median_us: {direction: -1}", text)

    def test_cases_that_files_would_name_alike_have_csvs_of_their_own_for_otava(self):
        self.history(nightly([100] * 3, backend="A/B") + nightly([50] * 3, backend="A_B"), "--otava", "otava")
        files = sorted((self.dir / "otava").glob("decode_q1s1k_A_B-ffffffff*.csv"))
        self.assertEqual(len(files), 2)
        found = {round(float(row["median_us"]), -1) for file in files
                 for row in csv.DictReader(io.StringIO(file.read_text()))}  # fmt: skip
        self.assertEqual(found, {100, 50})
        text = (self.dir / "otava" / "otava.yaml").read_text()
        for file in files:
            self.assertIn(f"    file: {file.name}\n", text)


class Diff(ToolTest):
    def save(self, name, results):
        return self.write(name, json.dumps(result_file(results)))

    def test_two_files_are_compared_case_by_case(self):
        before = [result("FLASH_ATTN", n, 100.0) for n in (1024, 2048)]
        before.append(result("TRITON_ATTN", 1024, 100.0))
        after = [result("FLASH_ATTN", n, 100.0) for n in (1024, 2048)]
        after.append(failed("TRITON_ATTN", 1024, "incorrect", "off"))
        timed(after[0], 121.0)
        self.save("a.json", before)
        self.save("b.json", after)
        out = self.expect(0, "diff", "a.json", "b.json").out
        rows = {row.split()[0]: row for row in out.splitlines() if row.startswith("sweep/")}
        self.assertIn("+21.0 %", rows["sweep/q1s1024/FLASH_ATTN"])
        self.assertTrue(rows["sweep/q1s1024/FLASH_ATTN"].endswith("SLOWER"))
        self.assertIn("+0.0 %", rows["sweep/q1s2048/FLASH_ATTN"])
        self.assertIn("incorrect", rows["sweep/q1s1024/TRITON_ATTN"])
        self.assertTrue(rows["sweep/q1s1024/TRITON_ATTN"].endswith("BROKEN"))
        self.assertIn("FLASH_ATTN +10.0 % (2 cases)", out)  # sqrt(1.21)
        self.assertIn("1 BROKEN, 1 SLOWER, 1 SAME", out)
        self.assertNotIn("gate", out)
        filtered = self.expect(0, "diff", "a.json", "b.json", "--backend", "TRITON_ATTN").out
        self.assertNotIn("FLASH_ATTN", filtered)
        self.assertIn("expected two result files, found 1", self.expect(2, "diff", "a.json").err)

    def test_doubtful_times_are_marked_where_they_stand(self):
        before = [result("FLASH_ATTN", n, 100.0) for n in (1024, 2048)]
        after = [result("FLASH_ATTN", n, 100.0) for n in (1024, 2048)]
        after[0]["timing"].update(waits_us=[60.0] * 20, cpu_wait=0.6)
        self.save("a.json", before)
        self.save("b.json", after)
        out = self.expect(0, "diff", "a.json", "b.json").out
        rows = {row.split()[0]: row.split() for row in out.splitlines() if row.startswith("sweep/")}
        self.assertEqual(rows["sweep/q1s1024/FLASH_ATTN"][1:5], ["100.0", "us", "100.0", "us*"])
        self.assertEqual(rows["sweep/q1s2048/FLASH_ATTN"][1:5], ["100.0", "us", "100.0", "us"])
        self.assertRegex(out, r"(?m)^time\*  busy machine: .* 60% of the time .*\(1 of 4 results\)")
        noisy = [retime(entry, [100.0, 100.0, 140.0, 180.0, 60.0]) for entry in after]
        self.save("b.json", noisy)
        out = self.expect(0, "diff", "a.json", "b.json").out
        self.assertRegex(out, r"(?m)^time!  noise above 5%, up to ")
        self.assertEqual(out.count(" us! "), 2, out)

    def test_rows_fit_the_terminal(self):
        self.save("a.json", [result("FLASH_ATTN", 1024, 100.0, **{"kv_cache.dtype": "fp8_e4m3",
                                                                  "attention.head_size": 128})])
        out = self.expect(0, "diff", "a.json", "a.json", COLUMNS="80").out
        self.assertLessEqual(max(map(len, out.splitlines())), 80)


class OtherFormats(ToolTest):
    def save(self, name, results, **changes):
        return self.write(name, json.dumps({**result_file(results), **changes}))

    def test_a_result_file_is_written_in_every_format_of_a_run(self):
        self.save("a.json", [result("FLASH_ATTN", 1024, 20.0),
                             failed("TRITON_ATTN", 1024, "incorrect", "off by one")])  # fmt: skip
        out = self.expect(0, "report", "a.json", "--csv", "a.csv", "--markdown", "-", "--junit",
                          "a.xml", "--json", "b.json", "-o", "a.html").out  # fmt: skip
        self.assertIn("| FLASH_ATTN | passed |", out)
        rows = list(csv.DictReader(io.StringIO((self.dir / "a.csv").read_text())))
        self.assertEqual([row["status"] for row in rows], ["passed", "incorrect"])
        self.assertEqual(float(rows[0]["median_us"]), 20.0)
        suites = ElementTree.parse(self.dir / "a.xml").getroot()
        self.assertEqual((suites.get("tests"), suites.get("failures")), ("2", "1"))
        again = strict_json((self.dir / "b.json").read_text())
        self.assertEqual(again["results"][0]["timing"]["median_us"], 20.0)
        self.assertIn("<html", (self.dir / "a.html").read_text())

    def test_parts_of_a_run_become_one_file(self):
        self.save("1.json", [result("FLASH_ATTN", 1024, 20.0)])
        self.save("2.json", [result("FLASH_ATTN", 2048, 40.0)])
        self.expect(0, "report", "1.json", "2.json", "--json", "all.json")
        merged = strict_json((self.dir / "all.json").read_text())["results"]
        self.assertEqual([entry["case"] for entry in merged], ["q1s1024", "q1s2048"])
        error = self.expect(2, "report", "1.json", "1.json", "--csv", "x.csv").err
        self.assertIn("sweep/q1s1024/FLASH_ATTN is in both", error)
        other = {**result_file([])["environment"], "fingerprint": "other"}
        self.save("3.json", [result("FLASH_ATTN", 4096, 20.0)], environment=other)
        self.assertIn("different machines",
                      self.expect(2, "report", "1.json", "3.json", "--csv", "x.csv").err)  # fmt: skip

    def test_a_file_is_not_written_over_the_one_that_is_read(self):
        self.save("a.json", [result("FLASH_ATTN", 1024, 20.0)])
        self.assertIn("--json would replace", self.expect(2, "report", "a.json", "--json", "a.json").err)


if __name__ == "__main__":
    unittest.main()
