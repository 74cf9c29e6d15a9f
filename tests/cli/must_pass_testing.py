"""For the tests of the shipped suites: the pairs that must pass."""

import contextlib
import io
import os
import re
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tool import SCENARIOS, ToolTest
import gpu_suites
import second_opinion

MIN_CHECKED_ROWS = 64
TESTS = Path(__file__).resolve().parent.parent
CPU_LIST, CUDA_LIST = gpu_suites.MUST_PASS


def must_pass_ids():
    return gpu_suites.must_pass_ids([CPU_LIST])


def listed(name):
    """(place, line) of what a list of tests/ has, without its comments."""
    lines = (TESTS / name).read_text(encoding="utf-8").splitlines()
    return [(f"{name}:{number}", line) for number, line in enumerate(lines, 1)
            if line.strip() and not line.startswith("#")]  # fmt: skip


def thorough_patterns():
    """Patterns of whole ids, of tests/must_pass_thorough.txt: `PATTERN | reason` a line."""
    patterns = []
    for place, line in listed("must_pass_thorough.txt"):
        pattern, _, reason = line.partition(" | ")
        if not reason.strip():
            raise ValueError(f"{place}: expected 'PATTERN | reason': {line}")
        patterns.append(re.compile(pattern))
    return patterns


def thorough_ids():
    """The pairs that only the label thorough runs."""
    patterns = thorough_patterns()
    return [id for id in must_pass_ids() if any(pattern.fullmatch(id) for pattern in patterns)]


def default_ids():
    """All others."""
    left_out = set(thorough_ids())
    return [id for id in must_pass_ids() if id not in left_out]


def blind_spots_with_a_reason():
    """(pattern of ids, mutants) of tests/blind_to.txt: `PATTERN | mutant, mutant | reason` a line."""
    rows = []
    for place, line in listed("blind_to.txt"):
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{place}: expected 'PATTERN | mutants | reason': {line}")
        rows.append((re.compile(parts[0]), {mutant.strip() for mutant in parts[1].split(",")}))
    return rows


def unexplained_blind_spots(result, rows):
    """Mutants that the case of a result cannot see and that no row gives a reason for."""
    known = set().union(*(mutants for pattern, mutants in rows if pattern.fullmatch(result["id"])))
    return [mutant for mutant in result.get("blind_to", []) if mutant not in known]


class MustPassTest(ToolTest):
    time_limit_s = 900  # real sizes, perhaps beside other tests

    @staticmethod
    def filter_of(ids):
        return ["--filter", "^(" + "|".join(map(re.escape, ids)) + ")$"]

    def check_real_pairs(self, ids):
        """Of suites at real dimensions, each with these of its pairs."""
        for suite in sorted({id.split("/")[0] for id in ids}):
            listed = [id for id in ids if id.split("/")[0] == suite]
            # 64 rows are what is demanded; more would only cost time at these sizes.
            self.check_must_pass([suite], *self.filter_of(listed), "--set",
                                 f"validation.max_rows={MIN_CHECKED_ROWS}", ids=listed)  # fmt: skip

    def check_must_pass(self, suites, *arguments, ids=None):
        """Runs the suites; `arguments` may filter. Each of `ids`, all that are listed, must have passed."""
        results = self.results(*(SCENARIOS / f"{suite}.yaml" for suite in suites),
                               "--no-timing", *arguments)  # fmt: skip
        wanted = ids or [id for id in must_pass_ids() if id.split("/")[0] in suites]
        self.assertTrue(wanted)
        problems = []
        reasons = blind_spots_with_a_reason()
        for id, result in results.items():
            unseen = unexplained_blind_spots(result, reasons)
            if unseen:
                problems.append(f"{id}: cannot see {unseen}, and tests/blind_to.txt gives no reason")
        for id in wanted:
            result = results.get(id)
            if result is None:
                problems.append(f"{id}: not among the results")
            elif result["status"] != "passed":
                problems.append(f"{id}: {result['status']} {result['reasons']}")
            elif result["error"]["checked_rows"] < MIN_CHECKED_ROWS:
                problems.append(f"{id}: checked on {result['error']['checked_rows']} rows")
        self.assertEqual(problems, [])


def firsts(ids):
    """Of each suite the first id by name."""
    found = {}
    for id in sorted(ids):
        found.setdefault(id.split("/")[0], id)
    return list(found.values())


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


class OpinionTest(MustPassTest):
    """Of small suites, whose tensors are saved and checked by an implementation of its own."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=memory_folder())
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def check_with_opinion(self, ids, judged=None):
        """The suites of the pairs: these pass, and so do the tensors of `judged`, by default of all."""
        left_out = set(must_pass_ids()) - set(ids)
        judged = ids if judged is None else judged
        # One suite is judged while the next one runs: all of their tensors take 8 GB.
        with ProcessPoolExecutor(1) as judge:
            opinions = []
            for suite in sorted({id.split("/")[0] for id in ids}):
                listed = [id for id in ids if id.startswith(suite + "/")]
                chosen = [id for id in judged if id.startswith(suite + "/")]
                others = [id for id in left_out if id.startswith(suite + "/")]
                apart = [] if chosen == listed else chosen
                # Where all pairs are wanted, those that are refused are run too.
                wanted = self.filter_of([id for id in listed if id not in apart]) if others else []
                if apart and not others:
                    wanted = ["--filter", "^(?!(" + "|".join(map(re.escape, apart)) + ")$)"]
                if not apart:
                    wanted += ["--save-tensors", suite]
                self.check_must_pass([suite], *wanted, ids=[id for id in listed if id not in apart])
                if apart:
                    self.check_must_pass([suite], "--save-tensors", suite, *self.filter_of(apart),
                                         ids=apart)  # fmt: skip
                opinions.append(judge.submit(opinion_of, self.dir / suite))
            counted = 0
            for opinion in opinions:
                status, lines = opinion.result()
                complaints = [line for line in lines if not line.startswith("passed ")]
                self.assertEqual(status, 0, "\n".join(complaints))
                counted += int(re.fullmatch(r"(\d+) passed, 0 failed", lines[-1])[1])
        self.assertGreaterEqual(counted, len(judged))
