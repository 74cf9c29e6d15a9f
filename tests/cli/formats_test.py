"""Formats of other tools, against the schemas of their readers and, where a package has them, by the
readers: JUnit (Jenkins' junit-10.xsd, junitparser), google-benchmark (its compare.py)."""

import importlib.util
import json
import re
import sys
import types
import unittest
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy
from tool import TINY, ToolTest, skip_without, strict_json

GBENCH = Path("/usr/share/benchmark")  # package libbenchmark-tools
TIMES = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")

# Of Jenkins' xUnit plugin: element -> (children, required attributes, optional attributes).
TEXT_OUTCOME = (set(), set(), {"type", "message"})
JENKINS = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {
            "group",
            "time",
            "skipped",
            "timestamp",
            "hostname",
            "id",
            "package",
            "file",
            "log",
            "url",
        },
    ),
    "testcase": (
        {"skipped", "error", "failure", "system-out", "system-err"},
        {"name"},
        {"time", "classname", "group"},
    ),
    "skipped": TEXT_OUTCOME,
    "error": TEXT_OUTCOME,
    "failure": TEXT_OUTCOME,
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}


class Formats(ToolTest):
    """A run with passed and unsupported results."""

    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY.replace("bfloat16", "float32"))
        self.expect(0, "run", "tiny.yaml", "--json", "r.json", "--junit", "run.xml",
                    "--google-benchmark", "g.json")  # fmt: skip
        self.file = json.loads((self.dir / "r.json").read_text())
        self.results = self.file["results"]
        # On a busy machine a sample of microseconds may be all waiting, which the gate does not take.
        for result in self.results:
            if result["timing"]:
                result["timing"].update(waits_us=[0 for _ in result["timing"]["samples_us"]],
                                        cpu_wait=0)  # fmt: skip
        self.write("r.json", json.dumps(self.file))

    def check_by_schema(self, element):
        children, required, optional = JENKINS[element.tag]
        self.assertLessEqual({child.tag for child in element}, children, element.tag)
        self.assertLessEqual(required, set(element.attrib), element.tag)
        self.assertLessEqual(set(element.attrib), required | optional, element.tag)
        if "time" in element.attrib:
            self.assertTrue(TIMES.fullmatch(element.get("time")), element.get("time"))
        for child in element:
            self.check_by_schema(child)

    def check_counts(self, name, **wanted):
        root = ET.parse(self.dir / name).getroot()
        self.check_by_schema(root)
        self.assertEqual(root.tag, "testsuites")
        for suite in root:
            cases = suite.findall("testcase")
            self.assertEqual(int(suite.get("tests")), len(cases))
            for attribute, tag in (
                ("failures", "failure"),
                ("errors", "error"),
                ("skipped", "skipped"),
            ):
                count = sum(case.find(tag) is not None for case in cases)
                self.assertEqual(int(suite.get(attribute)), count, attribute)
                self.assertEqual(count, wanted.get(attribute, 0), attribute)
            times = sum(float(case.get("time")) for case in cases)
            self.assertAlmostEqual(float(suite.get("time")), times, 6)
        return root

    def test_junit_of_a_run_obeys_the_schema_of_jenkins(self):
        unsupported = sum(r["status"] == "unsupported" for r in self.results)
        self.assertGreater(unsupported, 0)
        root = self.check_counts("run.xml", skipped=unsupported)
        for case, result in zip(root.iter("testcase"), self.results):
            self.assertEqual(case.get("name"), f"{result['case']}/{result['backend']}")
            self.assertIn(f"status: {result['status']}", case.find("system-out").text)
            if result["timing"]:
                self.assertAlmostEqual(float(case.get("time")), result["timing"]["total_us"] * 1e-6)

    def test_junit_of_a_gate_obeys_the_schema_of_jenkins(self):
        self.results[0].update(status="incorrect", reasons=["<off> & \x01"], timing=None,
                               throughput=None)  # fmt: skip
        self.write("new.json", json.dumps(self.file))
        self.expect(1, "gate", "r.json", "new.json", "--junit", "gate.xml")
        root = self.check_counts("gate.xml", failures=1)
        self.assertIn("<off> &", root.find(".//failure").text)

    def test_junit_is_read_by_junitparser(self):
        if importlib.util.find_spec("junitparser") is None:
            skip_without("python3-junitparser")
        from junitparser import JUnitXml, Skipped

        suites = JUnitXml.fromfile(str(self.dir / "run.xml"))
        cases = [case for suite in suites for case in suite]
        self.assertEqual(len(cases), len(self.results))
        for case, result in zip(cases, self.results):
            outcomes = [type(outcome) for outcome in case.result]
            self.assertEqual(outcomes, [Skipped] if result["status"] == "unsupported" else [])
            self.assertEqual(case.classname, result["scenario"])

    def test_google_benchmark_compares_two_runs(self):
        if not (GBENCH / "gbench" / "report.py").exists():
            skip_without("libbenchmark-tools")
        # Its only uses of scipy are a test of many repetitions and the geometric mean.
        stats = types.ModuleType("scipy.stats")
        stats.mannwhitneyu = None
        stats.gmean = lambda rows: numpy.exp(numpy.log(rows).mean(axis=0))
        sys.modules.setdefault("scipy", types.ModuleType("scipy"))
        sys.modules.setdefault("scipy.stats", stats)
        sys.path.insert(0, str(GBENCH))
        self.addCleanup(sys.path.remove, str(GBENCH))
        from gbench import report, util

        before = util.load_benchmark_results(str(self.dir / "g.json"))
        after = strict_json((self.dir / "g.json").read_text())
        for run in after["benchmarks"]:
            run["real_time"] *= 1.25
        timed = [r for r in self.results if r["timing"]]
        lines = report.get_difference_report(before, after)
        named = [line for line in lines if line["name"] != "OVERALL_GEOMEAN"]
        self.assertEqual([line["name"] for line in named], [r["id"] for r in timed])
        for line, result in zip(named, timed):
            self.assertAlmostEqual(
                line["measurements"][0]["real_time"], result["timing"]["median_us"]
            )
            self.assertAlmostEqual(line["measurements"][0]["time"], 0.25)


if __name__ == "__main__":
    unittest.main()
