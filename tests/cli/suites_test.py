"""The shipped suites: what must pass does, and the independent check agrees with what was saved."""

import contextlib
import io
import os
import re
import shutil
import tempfile
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from must_pass_testing import CUDA_LIST, MustPassTest, must_pass_ids
from tool import BINARY, SCENARIOS, strict_json
import gpu_suites
import must_pass
import second_opinion
from unsupported_reasons import is_external, place_of


def opinion_of(folder):
    """Exit status and lines of the independent check of the tensors of a folder, which it removes."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = second_opinion.main([str(folder)])
    shutil.rmtree(folder)
    return status, said.getvalue().splitlines()


def memory_folder():
    """A file system in memory with room for the tensors of two suites, or None: of 8 GB in thousands of
    files, for each of which the tool waits until it is on a disk, nothing is needed a minute later."""
    folder, least_bytes = Path("/dev/shm"), 6 << 30
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < least_bytes:
        return None
    found = re.search(r"(?m)^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return folder if found and int(found[1]) * 1024 >= 2 * least_bytes else None


class Suites(MustPassTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=memory_folder())
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def test_smoke_suites_pass_and_a_second_opinion_agrees(self):
        suites = sorted({id.split("/")[0] for id in must_pass_ids() if id.startswith("smoke")})
        # One suite is judged while the next one runs: all of their tensors take 8 GB.
        with ProcessPoolExecutor(1) as judge:
            opinions = []
            for suite in suites:
                self.check_must_pass([suite], "--save-tensors", suite)
                opinions.append(judge.submit(opinion_of, self.dir / suite))
            counted = 0
            for opinion in opinions:
                status, lines = opinion.result()
                complaints = [line for line in lines if not line.startswith("passed ")]
                self.assertEqual(status, 0, "\n".join(complaints))
                counted += int(re.fullmatch(r"(\d+) passed, 0 failed", lines[-1])[1])
        smoke_ids = [id for id in must_pass_ids() if id.startswith("smoke")]
        self.assertGreaterEqual(counted, len(smoke_ids))

    def test_every_suite_has_pairs_that_must_pass(self):
        suites = {file.stem for file in SCENARIOS.glob("*.yaml")}
        # Gigabytes of cache for a few tokens; without a GPU tests/matrix/far_ops.h shows the same.
        large = {suite for suite in suites if suite.startswith("large-")}
        listed = {id.split("/")[0] for id in must_pass_ids()}
        self.assertEqual(suites - listed, large)
        self.assertLessEqual(large, {id.split("/")[0] for id in gpu_suites.must_pass_ids([CUDA_LIST])})

    def test_the_lists_are_what_support_says(self):
        self.assertEqual(must_pass.differences(BINARY), [])

    def test_on_cuda_the_listed_pairs_are_supported_and_the_others_refused_as_section_13_says(self):
        outcome = self.expect(0, "support", *sorted(SCENARIOS.glob("*.yaml")), "--device", "cpu",
                              "--assume-sm", "90", "--json", "-")  # fmt: skip
        pairs = {pair["id"]: pair for pair in strict_json(outcome.out)}
        listed = must_pass_ids() + gpu_suites.must_pass_ids([CUDA_LIST])
        self.assertEqual([id for id in listed if not pairs.get(id, {}).get("supported")], [])
        unknown = {reason for pair in pairs.values() for reason in pair["reasons"]
                   if place_of(reason) is None and not is_external(pair["backend"])}  # fmt: skip
        self.assertEqual(unknown, set())

    def test_every_shipped_scenario_is_valid(self):
        files = sorted(SCENARIOS.rglob("*.yaml"))
        outcome = self.expect(0, "validate", *files)
        self.assertEqual(outcome.out.count(": ok ("), len(files))


if __name__ == "__main__":
    unittest.main()
